"""Worse constants never look better: goodput is monotone in each, with the same luck for every value."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.model import Fleet, Island, Pauses, Shock, SyncerOutages, even_fleet
from atoll.sim.fleet.result import FleetResult
from atoll.sim.fleet.simulate import simulate
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.units import DAY, HOUR, YEAR

ELASTIC = Pauses()
RIGID = Pauses(elastic=False, reload_s=30.0, checkpoint_s=600.0)
SHOCK = Shock(name="rack", every_s=6 * HOUR, share=0.25, returns=Delay(mean_s=HOUR))


def run(fleets: list[Fleet]) -> list[FleetResult]:
    return simulate(fleets, horizon_s=DAY, repetitions=48, seed=7)


def falls(fleets: list[Fleet]) -> list[FleetResult]:
    """From each value to the next, worse one, by more than the noise of the difference."""
    results = run(fleets)
    for better, worse in pairwise(results):
        lost = [a - b for a, b in zip(better.samples, worse.samples, strict=True)]
        mean = sum(lost) / len(lost)
        error = math.sqrt(sum((value - mean) ** 2 for value in lost)) / len(lost)
        assert mean > 3 * error
        assert mean > 0
    return results


def alone(chips: int = 100_000, **values: Any) -> Fleet:
    return Fleet(islands=(Island(chips=chips, **values),))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("down_s", [0.0, 5.0, 17.5, 60.0, 300.0]),
        ("up_s", [0.0, 5.0, 13.0, 60.0, 300.0]),
    ],
)
def test_longer_pauses_of_an_elastic_learner_cost_more(name, values):
    # A slice takes its time to come back, so that hardly any growth is saved by falling into a longer pause.
    slow = replace(ELASTIC, returns=Delay(mean_s=1800.0))
    falls([alone(pauses=replace(slow, **{name: value})) for value in values])


def test_a_longer_step_in_flight_is_work_in_which_nothing_fails():
    """The one constant that helps: the model lets no chip fail while a step finishes."""
    falls([alone(pauses=replace(ELASTIC, quantum_s=value)) for value in (300.0, 60.0, 20.0, 5.0, 0.0)])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("outage_s", [0.0, 20.0, 80.0, 300.0, 3000.0]),
        ("reload_s", [0.0, 20.0, 80.0, 300.0, 3000.0]),
        ("checkpoint_s", [0.0, 10.0, 60.0, 600.0, 3600.0]),
    ],
)
def test_longer_restarts_and_rarer_checkpoints_cost_more(name, values):
    falls([alone(pauses=replace(RIGID, **{name: value})) for value in values])


@pytest.mark.parametrize("shape", [(1.0, 1.0), (0.6, 2.0)])
def test_later_returns_cost_more(shape):
    delays = [
        Delay(mean_s=mean, shape=shape[0], power=shape[1]) for mean in (600.0, 1800.0, HOUR, DAY, 30 * DAY)
    ]
    falls([alone(pauses=replace(ELASTIC, returns=delay)) for delay in (*delays, Delay(mean_s=math.inf))])


@pytest.mark.parametrize("pauses", [ELASTIC, RIGID])
def test_more_failures_cost_more(pauses):
    falls([alone(mtbi_s=YEAR * factor, pauses=pauses) for factor in (math.inf, 100, 10, 1, 0.1)])


@pytest.mark.parametrize("pauses", [ELASTIC, RIGID])
def test_more_chips_in_one_learner_waste_more_of_them(pauses):
    falls([alone(chips, pauses=pauses) for chips in (1024, 15_360, 150_016, 600_064)])


def test_larger_slices_lose_more_chips_at_once():
    slow = replace(ELASTIC, returns=Delay(mean_s=HOUR))
    falls([alone(102_400, slice_chips=size, pauses=slow) for size in (16, 256, 1024, 10_240, 102_400)])


@pytest.mark.parametrize("pauses", [ELASTIC, RIGID])
@pytest.mark.parametrize("scope", ["learner", "fleet"])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("every_s", [math.inf, DAY, 6 * HOUR, HOUR]),
        ("returns", [Delay(mean_s=mean) for mean in (60.0, 600.0, HOUR, DAY)]),
    ],
)
def test_more_frequent_and_longer_shocks_cost_more(pauses, scope, name, values):
    shocks = [replace(SHOCK, scope=scope, **{name: value}) for value in values]
    falls([even_fleet(8192, 4, pauses=pauses, shocks=(shock,)) for shock in shocks])


def test_larger_shocks_cost_an_elastic_learner_more():
    falls([even_fleet(8192, 4, shocks=(replace(SHOCK, share=share),)) for share in (0.125, 0.25, 0.5, 1.0)])


def test_smaller_grants_are_less_work():
    falls([alone(102_400, trace=CapacityTrace((0.0,), (grant,))) for grant in (1e9, 90_000, 50_000, 1000, 0)])


def test_more_learners_waste_less_and_stop_less_often_together():
    results = falls([even_fleet(300_000, learners) for learners in (8, 4, 2, 1)])
    assert all(more.uptime_one > fewer.uptime_one for more, fewer in pairwise(results[1:]))


def test_a_larger_quorum_and_a_syncer_that_is_away_longer_leave_less_time_to_merge():
    by_quorum = run([even_fleet(2_400_000, 8, quorum=quorum) for quorum in (4, 6, 8)])
    assert all(small.merging > large.merging for small, large in pairwise(by_quorum))
    outages = [SyncerOutages(every_s=DAY, down=Delay(mean_s=mean)) for mean in (60.0, HOUR, DAY)]
    by_outage = run([even_fleet(8192, 2, syncer=outage) for outage in outages])
    assert all(short.merging > long.merging for short, long in pairwise(by_outage))
    assert len({result.goodput for result in by_outage}) == 1
