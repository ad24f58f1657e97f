"""The books of the engine add up; the same seed gives the same bits, in any company."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from atoll.errors import ConfigError
from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.model import Fleet, Island, Pauses, Shock, SyncerOutages, even_fleet, lock_step
from atoll.sim.fleet.result import SHARES, FleetResult
from atoll.sim.fleet.returns import Returns
from atoll.sim.fleet.simulate import simulate
from atoll.sim.fleet.trace import CapacityTrace, read_traces, write_traces
from atoll.sim.units import DAY, HOUR, YEAR

RACK = Shock(name="rack", every_s=6 * HOUR, share=0.25, returns=Delay(mean_s=HOUR, shape=0.7))
SITE = Shock(name="site", every_s=DAY, share=1.0, returns=Delay(mean_s=6 * HOUR))
PUSH = Shock(name="push", every_s=DAY, share=1.0, returns=Delay(mean_s=HOUR), scope="fleet")
SPOT = CapacityTrace((0.0, 20_000.0, 40_000.0, 60_000.0), (30_000.0, 0.0, 9000.0, 70_000.0))
RIGID = Pauses(elastic=False, reload_s=60.0, checkpoint_s=900.0)

FLEETS: dict[str, Fleet] = {
    "one": even_fleet(60_000),
    "eight": even_fleet(1_200_000, 8, speed_spread=0.18, quorum=4),
    "not elastic": even_fleet(150_000, 3, pauses=RIGID),
    "lock-step": lock_step(even_fleet(150_000, 3, speed_spread=0.3), elastic=False),
    "shocks": even_fleet(150_000, 4, shocks=(RACK, SITE, PUSH)),
    "shocks, not elastic": even_fleet(150_000, 4, shocks=(RACK, SITE, PUSH), pauses=RIGID),
    "spot": Fleet(islands=(Island(chips=50_000, trace=SPOT, name="spot"), Island(chips=50_000, name="kept"))),
    "spot, not elastic": Fleet(islands=(Island(chips=50_000, trace=SPOT, pauses=RIGID),)),
    "syncer": even_fleet(60_000, 2, syncer=SyncerOutages(every_s=6 * HOUR, down=Delay(mean_s=HOUR))),
    "no returns": even_fleet(5120, 2, mtbi_s=20 * DAY, pauses=Pauses(returns=Delay(mean_s=math.inf))),
    "mixed": Fleet(
        islands=(
            Island(chips=20_000, mtbi_s=YEAR / 3, slice_chips=64),
            Island(chips=1, slice_chips=1, mtbi_s=HOUR),
            Island(chips=5000, pauses=RIGID, speed=0.5),
            Island(chips=100, mtbi_s=math.inf),
        ),
        quorum=2,
    ),
}


def run(fleet: Fleet, *, repetitions: int = 8, seed: int = 3, trace: bool = False) -> FleetResult:
    (result,) = simulate([fleet], horizon_s=DAY, repetitions=repetitions, seed=seed, trace=trace)
    return result


@pytest.fixture(scope="module")
def results() -> dict[str, FleetResult]:
    return {name: run(fleet, trace=True) for name, fleet in FLEETS.items()}


@pytest.mark.parametrize("name", FLEETS)
def test_all_chip_time_goes_somewhere_and_none_goes_twice(results, name):
    result = results[name]
    assert tuple(result.shares) == SHARES
    assert all(share >= 0 for share in result.shares.values())
    assert sum(result.shares.values()) == pytest.approx(1, abs=1e-9)
    assert result.shares["useful"] == pytest.approx(result.goodput, rel=1e-12)


@pytest.mark.parametrize("name", FLEETS)
def test_more_learners_at_once_are_rarer(results, name):
    result = results[name]
    assert len(result.uptime) == len(result.uptime_stderr) == result.fleet.num_learners + 1
    assert result.uptime[0] == pytest.approx(1, abs=1e-12)
    assert all(0 <= more <= fewer <= 1 for fewer, more in pairwise(result.uptime))
    assert result.merging <= result.uptime_quorum + 1e-12
    assert 0 < result.participation <= 1


@pytest.mark.parametrize("name", FLEETS)
def test_the_goodput_of_a_fleet_is_that_of_its_learners_and_of_its_repetitions(results, name):
    result = results[name]
    weights = [island.chips for island in result.fleet.islands]
    assert np.average(result.learner_goodput, weights=weights) == pytest.approx(result.goodput, rel=1e-9)
    assert np.mean(result.samples) == pytest.approx(result.goodput, rel=1e-12)
    assert np.std(result.samples, ddof=1) / math.sqrt(8) == pytest.approx(result.stderr, rel=1e-9)


@pytest.mark.parametrize("name", FLEETS)
def test_the_mean_of_how_many_step_is_the_sum_of_uptimes(results, name):
    """Traces count who steps at a moment; so do uptimes. One repetition, so that both are the same one."""
    result = run(FLEETS[name], repetitions=1, trace=True)
    stepping = sum(
        CapacityTrace(trace.times_s, tuple(float(chips > 0) for chips in trace.chips)).mean(DAY)
        for trace in result.traces.values()
    )
    assert sum(result.uptime[1:]) == pytest.approx(stepping, abs=1e-9)


@pytest.mark.parametrize("name", [name for name in FLEETS if "elastic" not in name and name != "lock-step"])
def test_the_mean_of_a_trace_is_the_goodput_of_its_learner(name):
    result = run(FLEETS[name], repetitions=1, trace=True)
    for island, trace, goodput in zip(
        result.fleet.islands, result.traces.values(), result.learner_goodput, strict=True
    ):
        if island.pauses.elastic:
            assert trace.mean(DAY) / island.chips == pytest.approx(goodput, abs=1e-9)


def test_where_work_is_redone_the_trace_shows_it_as_work():
    result = run(FLEETS["not elastic"], repetitions=1, trace=True)
    shown = sum(trace.mean(DAY) for trace in result.traces.values()) / result.fleet.chips
    assert result.shares["redone"] > 0.01
    assert shown == pytest.approx(result.shares["useful"] + result.shares["redone"], abs=1e-9)


def test_traces_are_of_the_first_repetition_and_only_when_asked_for(results):
    alone = run(FLEETS["eight"], repetitions=1, trace=True)
    assert results["eight"].traces == alone.traces
    assert list(alone.traces) == [island.name for island in alone.fleet.islands]
    assert run(FLEETS["eight"]).traces == {}


def test_a_trace_can_be_written_read_and_granted_again(results, tmp_path):
    """What one simulation did the market of the next one grants: without failures it gives the same."""
    result = run(FLEETS["shocks"], repetitions=1, trace=True)
    write_traces(tmp_path / "fleet.csv", result.traces)
    traces = read_traces(tmp_path / "fleet.csv")
    assert traces == result.traces
    free = Pauses(quantum_s=0.0, down_s=0.0, up_s=0.0)
    again = Fleet(
        islands=tuple(
            Island(chips=island.chips, mtbi_s=math.inf, pauses=free, trace=traces[island.name])
            for island in result.fleet.islands
        )
    )
    assert run(again, repetitions=1).goodput == pytest.approx(result.goodput, rel=1e-9)


# Chance.


def same(ours: FleetResult, theirs: FleetResult) -> None:
    """Bit for bit, but for uptimes (to the last bits) and what the whole call cost."""
    for field in fields(FleetResult):
        one, other = getattr(ours, field.name), getattr(theirs, field.name)
        if field.name in ("uptime", "uptime_stderr", "merging"):
            assert one == pytest.approx(other, abs=1e-9), field.name
        else:
            assert one == other, field.name


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(results):
    for name, fleet in FLEETS.items():
        assert run(fleet, trace=True) == results[name]
    assert run(FLEETS["one"], seed=4).samples != run(FLEETS["one"]).samples


def test_a_fleet_does_not_notice_its_company():
    """Nor a company so busy that time is cut into many windows."""
    busy = even_fleet(2_400_000, 16)
    company = simulate([busy, *FLEETS.values(), busy], horizon_s=DAY, repetitions=8, seed=3)
    for result, fleet in zip(company[1:-1], FLEETS.values(), strict=True):
        same(result, run(fleet))
    same(company[0], company[-1])


@pytest.mark.parametrize("name", FLEETS)
def test_the_first_repetitions_are_the_same_however_many_follow(results, name):
    assert run(FLEETS[name], repetitions=20).samples[:8] == results[name].samples


def test_repetitions_and_learners_have_luck_of_their_own():
    result = run(even_fleet(60_000, 6), repetitions=16)
    assert len(set(result.samples)) == 16
    assert len(set(result.learner_goodput)) == 6
    shocked = [
        run(even_fleet(1024, 4, mtbi_s=math.inf, shocks=(replace(SITE, every_s=HOUR),)), seed=seed).samples
        for seed in (1, 2)
    ]
    assert len({*shocked[0], *shocked[1]}) == 16


def test_failures_come_one_after_another_without_a_pattern():
    """Their number in a short while is Poisson."""
    pauses = Pauses(quantum_s=0.0, down_s=1e-3, up_s=0.0, returns=Delay(mean_s=0.0))
    fleet = Fleet(islands=(Island(chips=1000, mtbi_s=1000 * HOUR, pauses=pauses, slice_chips=1),))
    (result,) = simulate([fleet], horizon_s=2 * HOUR, repetitions=20_000, seed=1)
    counts = np.round((1 - np.array(result.samples)) * 2 * HOUR / 1e-3)
    assert counts.mean() == pytest.approx(2, abs=0.03)
    assert counts.var() == pytest.approx(2, abs=0.08)
    for number in range(5):
        expected = math.exp(-2) * 2**number / math.factorial(number)
        assert (counts == number).mean() == pytest.approx(expected, abs=0.01)


# Nonsense.


@pytest.mark.parametrize("horizon_s", [0.0, -1.0, math.inf, math.nan])
def test_a_time_without_length_or_end_is_refused(horizon_s):
    with pytest.raises(ConfigError, match="The time to simulate is"):
        simulate([FLEETS["one"]], horizon_s=horizon_s, repetitions=1)


@pytest.mark.parametrize("repetitions", [0, -3])
def test_no_repetitions_are_refused(repetitions):
    with pytest.raises(ConfigError, match="repetitions are asked for"):
        simulate([FLEETS["one"]], horizon_s=DAY, repetitions=repetitions)


def test_no_fleets_have_no_results():
    assert simulate([], horizon_s=DAY, repetitions=1) == []


@pytest.mark.parametrize(
    ("fleet", "says"),
    [
        (even_fleet(2_400_000, 16, mtbi_s=60.0, pauses=Pauses(down_s=0.0)), "This would take about"),
        (even_fleet(1024, 4, shocks=(replace(RACK, every_s=10.0),)), "shocks and outages"),
        (even_fleet(1024, 4, shocks=(replace(RACK, every_s=1e-300),)), "This would take about"),
        (
            even_fleet(1024, syncer=SyncerOutages(every_s=1e-6, down=Delay(mean_s=1.0))),
            "outages of syncers would strike",
        ),
    ],
)
def test_what_would_not_end_today_is_refused(fleet: Any, says: str):
    with pytest.raises(ConfigError, match=says):
        simulate([fleet], horizon_s=30 * DAY, repetitions=64)


def test_what_is_held_returns_at_the_end_of_the_hold():
    returns = Returns(3)
    every = np.array([0, 1, 2])
    returns.add(every, np.array([5.0, 5.0, 5.0]), np.array([1.0, 1.0, 1.0]))
    returns.add(every, np.array([9.0, 30.0, np.inf]), np.array([2.0, 2.0, 2.0]))
    returns.hold(np.array([0, 1]), np.array([20.0, 20.0]))
    assert returns.first(every).tolist() == [20.0, 20.0, 5.0]
    assert returns.take(every, np.full(3, 20.0)).tolist() == [3.0, 1.0, 1.0]
    assert returns.first(every).tolist() == [np.inf, 30.0, np.inf]
