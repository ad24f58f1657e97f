"""The reference against what can be computed by hand, and the engine against the reference.

Seeds are fixed, so a comparison within standard errors is the same comparison every time.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.model import Fleet, Island, Pauses, Shock
from atoll.sim.fleet.simulate import simulate
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.units import DAY, HOUR, YEAR
from tests.unit.sim.fleet.reference import estimate

NEVER = Delay(mean_s=math.inf)
RIGID = Pauses(elastic=False)
SITE = Shock(name="site", every_s=6 * HOUR, share=1.0, returns=Delay(mean_s=HOUR))
RACK = Shock(name="rack", every_s=HOUR, share=0.25, returns=Delay(mean_s=1800.0, shape=0.8))
SPOT = CapacityTrace(
    (0.0, 10_000.0, 20_000.0, 30_000.0, 40_000.0, 60_000.0), (5120.0, 2560.0, 0.0, 1024.0, 5120.0, 3840.0)
)


def island(chips: int = 5120, mtbi_s: float = YEAR / 20, **values: object) -> Island:
    """Twenty slices that fail every couple of minutes."""
    return Island(chips=chips, mtbi_s=mtbi_s, **values)  # type: ignore[arg-type]


def test_the_reference_restarts_as_the_closed_form_says():
    lone = island(pauses=RIGID)
    found = estimate(lone, horizon_s=DAY, repetitions=50, seed=1)
    life_s = lone.mtbi_s / lone.chips + RIGID.quantum_s / 2
    assert found.goodput == pytest.approx(life_s / (life_s + RIGID.outage_s), abs=3 * found.stderr)
    assert sum(found.shares.values()) == pytest.approx(1)


def test_the_reference_redoes_what_no_checkpoint_holds_as_the_closed_form_says():
    pauses = Pauses(elastic=False, quantum_s=0.0, outage_s=80.0, reload_s=40.0, checkpoint_s=300.0)
    lone = island(pauses=pauses)
    per_s = lone.chips / lone.mtbi_s
    kept = per_s * 300 / math.expm1(per_s * 300)
    found = estimate(lone, horizon_s=DAY, repetitions=50, seed=1)
    assert found.goodput == pytest.approx(kept / (1 + per_s * 120), abs=3 * found.stderr)


def test_the_reference_decays_as_slices_do_when_nothing_returns():
    lone = island(pauses=Pauses(quantum_s=0.0, down_s=0.0, returns=NEVER))
    lives = DAY * 256 / lone.mtbi_s
    found = estimate(lone, horizon_s=DAY, repetitions=50, seed=1)
    assert found.goodput == pytest.approx(-math.expm1(-lives) / lives, abs=3 * found.stderr)


def test_the_reference_agrees_with_a_cell_of_the_papers_table():
    """Elastic, 150k chips: 88 % in the paper; our constants give 88.3."""
    found = estimate(Island(chips=150_000), horizon_s=DAY, repetitions=8, seed=1)
    assert found.goodput == pytest.approx(0.883, abs=0.01)


SETTINGS: dict[str, tuple[Island, float, int, tuple[Shock, ...]]] = {
    "elastic": (island(), DAY / 2, 100, ()),
    "many slices": (island(51_200), HOUR, 100, ()),
    "a short while": (island(2560), 600.0, 4000, ()),
    "a shorter while than a pause": (island(pauses=Pauses(down_s=900.0)), 300.0, 4000, ()),
    "long tail of returns": (
        island(pauses=Pauses(returns=Delay(mean_s=600.0, shape=0.6, power=2.0))),
        DAY / 2,
        100,
        (),
    ),
    "returns that take a day": (island(2560, pauses=Pauses(returns=Delay(mean_s=DAY))), 5 * DAY, 100, ()),
    "nothing returns": (island(2560, pauses=Pauses(returns=NEVER)), DAY, 400, ()),
    "long pauses": (island(pauses=Pauses(quantum_s=120.0, down_s=200.0, up_s=300.0)), DAY / 2, 100, ()),
    "pauses of nothing": (island(pauses=Pauses(quantum_s=0.0, down_s=0.0, up_s=0.0)), DAY / 2, 100, ()),
    "one slice": (island(256, 10 * DAY), DAY, 400, ()),
    "less than a slice": (island(100, 10 * DAY), DAY, 400, ()),
    "one chip": (island(1, HOUR, slice_chips=1), DAY, 400, ()),
    "slices of one chip": (island(40, DAY, slice_chips=1), DAY, 100, ()),
    "not elastic": (island(pauses=RIGID), DAY / 2, 200, ()),
    "not elastic, a short while": (island(2560, pauses=RIGID), 1000.0, 4000, ()),
    "checkpoints": (
        island(pauses=Pauses(elastic=False, reload_s=40.0, checkpoint_s=300.0)),
        DAY / 2,
        200,
        (),
    ),
    "a checkpoint longer than lives": (
        island(pauses=Pauses(elastic=False, checkpoint_s=3000.0)),
        DAY / 2,
        200,
        (),
    ),
    "shocks": (island(mtbi_s=YEAR), DAY, 500, (SITE, RACK)),
    "a shock of half, for good": (
        island(mtbi_s=YEAR),
        DAY,
        300,
        (replace(RACK, share=0.5, every_s=DAY, returns=NEVER),),
    ),
    "a site that is often dark, with slow returns": (
        island(mtbi_s=YEAR / 4, pauses=Pauses(returns=Delay(mean_s=2 * HOUR))),
        DAY,
        300,
        (replace(SITE, every_s=4 * HOUR),),
    ),
    "a shock of the fleet": (island(mtbi_s=YEAR), DAY, 300, (replace(SITE, scope="fleet"),)),
    "shocks that overlap, not elastic": (
        island(mtbi_s=YEAR, pauses=RIGID),
        DAY,
        300,
        (replace(SITE, every_s=2 * HOUR), replace(RACK, every_s=HOUR)),
    ),
    "shocks, not elastic": (
        island(mtbi_s=YEAR, pauses=Pauses(elastic=False, checkpoint_s=600.0)),
        DAY,
        300,
        (SITE, RACK),
    ),
    "a spot market": (island(trace=SPOT), DAY, 60, ()),
    "a spot market and long pauses": (
        island(mtbi_s=YEAR, trace=SPOT, pauses=Pauses(down_s=400.0, up_s=900.0)),
        DAY,
        200,
        (),
    ),
    "a spot market, not elastic": (island(mtbi_s=YEAR, trace=SPOT, pauses=RIGID), DAY, 200, ()),
    "a spot market and checkpoints": (
        island(mtbi_s=YEAR / 5, trace=SPOT, pauses=Pauses(elastic=False, checkpoint_s=5000.0)),
        DAY,
        400,
        (),
    ),
    "a market that changes its mind during pauses": (
        island(
            trace=CapacityTrace(
                tuple(7.0 * k for k in range(500)), tuple(256.0 * (k * 13 % 20) for k in range(500))
            )
        ),
        3500.0,
        200,
        (),
    ),
    "a busy market, not elastic": (
        island(
            trace=CapacityTrace(
                tuple(50.0 * k for k in range(70)), tuple(256.0 * (k * 13 % 20) for k in range(70))
            ),
            pauses=RIGID,
        ),
        3500.0,
        200,
        (),
    ),
    "a spot market and shocks": (island(mtbi_s=YEAR, trace=SPOT), DAY, 200, (SITE, RACK)),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_engine_agrees_with_the_reference_within_three_standard_errors(name):
    lone, horizon_s, repetitions, shocks = SETTINGS[name]
    theirs = estimate(lone, horizon_s=horizon_s, repetitions=repetitions, seed=1, shocks=shocks)
    fleet = Fleet(islands=(lone,), shocks=shocks)
    (ours,) = simulate([fleet], horizon_s=horizon_s, repetitions=2 * repetitions, seed=2)
    error = math.hypot(ours.stderr, theirs.stderr) + 1e-12
    assert ours.goodput == pytest.approx(theirs.goodput, abs=3 * error)
    stepping_error = math.hypot(ours.uptime_stderr[1], theirs.stepping_stderr) + 1e-12
    assert ours.uptime_one == pytest.approx(theirs.stepping, abs=3 * stepping_error)
    failure_error = math.hypot(theirs.failures_stderr, theirs.failures_stderr / math.sqrt(2)) + 1e-12
    assert ours.num_failures == pytest.approx(theirs.num_failures, abs=3 * failure_error)
    for share, part in theirs.shares.items():
        error = 1.3 * theirs.shares_stderr[share] + 1e-12
        assert ours.shares[share] == pytest.approx(part, abs=3 * error), share
