"""What can be computed by hand about fleets, and what the paper says of them as a rule."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.model import Fleet, Island, Pauses, Shock, SyncerOutages, even_fleet, lock_step
from atoll.sim.fleet.result import FleetResult
from atoll.sim.fleet.simulate import simulate
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.units import DAY, HOUR, YEAR

FREE = Pauses(quantum_s=0.0, down_s=0.0, up_s=0.0, outage_s=0.0)
NEVER = Delay(mean_s=math.inf)


def run(fleet: Fleet, *, horizon_s: float = DAY, repetitions: int = 64, seed: int = 1) -> FleetResult:
    (result,) = simulate([fleet], horizon_s=horizon_s, repetitions=repetitions, seed=seed)
    return result


def alone(chips: int, **values: Any) -> Fleet:
    return Fleet(islands=(Island(chips=chips, **values),))


# The paper's rule.


@pytest.mark.parametrize("chips", [150_000, 600_000, 2_400_000])
@pytest.mark.parametrize("learners", [2, 4, 16])
def test_many_learners_behave_like_one_on_its_part_of_the_chips(chips, learners):
    """Within two standard errors, with another seed, so that no luck is shared."""
    many = run(even_fleet(chips, learners), horizon_s=DAY / 4, repetitions=32)
    one = run(even_fleet(chips // learners), horizon_s=DAY / 4, repetitions=128, seed=5)
    assert many.goodput == pytest.approx(one.goodput, abs=2 * math.hypot(many.stderr, one.stderr))


@pytest.mark.parametrize("learners", [2, 4, 8])
def test_learners_fail_on_their_own_so_somebody_steps_with_probability_one_minus_all_do_not(learners):
    """At least k of M: a binomial in the uptime of one; k = 1 is 1 - (1 - u)^M."""
    chips = 600_000
    one = run(even_fleet(chips), horizon_s=DAY / 2, repetitions=64, seed=5)
    u, error = one.uptime_one, one.uptime_stderr[1]
    assert 0.5 < u < 0.8
    many = run(even_fleet(chips * learners, learners), horizon_s=DAY / 2, repetitions=32)
    assert many.uptime_one == pytest.approx(
        1 - (1 - u) ** learners, abs=3 * many.uptime_stderr[1] + 3 * error
    )
    for k in range(learners + 1):
        expected = sum(
            math.comb(learners, j) * u**j * (1 - u) ** (learners - j) for j in range(k, learners + 1)
        )
        slope = learners * error
        assert many.uptime[k] == pytest.approx(
            expected, abs=3 * math.hypot(many.uptime_stderr[k], slope) + 1e-12
        )


# Limits.


@pytest.mark.parametrize("elastic", [True, False])
def test_chips_that_never_fail_lose_nothing(elastic):
    result = run(
        even_fleet(2_400_000, 4, mtbi_s=math.inf, pauses=Pauses(elastic=elastic, checkpoint_s=600.0))
    )
    assert result.goodput == 1.0
    assert result.uptime == (1.0,) * 5
    assert (result.num_failures, result.stderr, result.participation) == (0, 0, 1)


def test_the_rarer_failures_are_the_nearer_goodput_is_to_one():
    wasted = [1 - run(alone(100_000, mtbi_s=YEAR * 10**k), repetitions=32).goodput for k in range(4)]
    assert wasted[-1] < 2e-4
    for many, few in pairwise(wasted):
        assert few == pytest.approx(many / 10, rel=0.25)


def test_pauses_of_nothing_and_returns_at_once_lose_nothing():
    result = run(alone(600_000, pauses=replace(FREE, returns=Delay(mean_s=0.0))), horizon_s=HOUR)
    assert result.num_failures > 50
    assert result.goodput == pytest.approx(1, abs=1e-12)
    assert result.uptime_one == pytest.approx(1, abs=1e-12)
    rigid = run(alone(600_000, pauses=replace(FREE, elastic=False)), horizon_s=HOUR)
    assert rigid.num_failures > 50
    assert rigid.goodput == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("lives", [0.1, 1.0, 10.0, 1000.0])
def test_without_returns_slices_decay_one_by_one(lives):
    """Every slice lives an exponential time, and then never again: the mean of exp(-t) over the horizon."""
    pauses = replace(FREE, returns=NEVER)
    result = run(alone(25_600, mtbi_s=256 * DAY / lives, pauses=pauses), repetitions=200)
    assert result.goodput == pytest.approx(-math.expm1(-lives) / lives, abs=3 * result.stderr)
    assert result.num_failures == pytest.approx(100 * -math.expm1(-lives), abs=3 * 5 / math.sqrt(200))


# Closed forms.


@pytest.mark.parametrize("chips", [10_000, 150_000, 2_400_000])
def test_a_learner_that_is_not_elastic_runs_and_restarts_in_turn(chips):
    result = run(alone(chips, pauses=Pauses(elastic=False)), horizon_s=2 * DAY)
    life_s = YEAR / chips + Pauses().quantum_s / 2  # the step in flight finishes
    expected = life_s / (life_s + Pauses().outage_s)
    assert result.goodput == pytest.approx(expected, abs=3 * result.stderr)
    assert result.uptime_one == pytest.approx(result.goodput, rel=1e-9)


@pytest.mark.parametrize("checkpoint_s", [60.0, 600.0, 3600.0])
def test_a_checkpoint_keeps_what_a_geometric_number_of_them_holds(checkpoint_s):
    """A life of exponential length keeps whole checkpoints only: C / (exp(C/mtbf) - 1) on average."""
    pauses = Pauses(elastic=False, quantum_s=0.0, outage_s=80.0, reload_s=120.0, checkpoint_s=checkpoint_s)
    result = run(alone(50_000, pauses=pauses), horizon_s=20 * DAY)
    per_s = 50_000 / YEAR
    kept_s = checkpoint_s / math.expm1(per_s * checkpoint_s)
    cycle_s = 1 / per_s + 200
    assert result.goodput == pytest.approx(
        kept_s / cycle_s, abs=3 * result.stderr + checkpoint_s / (20 * DAY)
    )
    assert result.shares["restarting"] == pytest.approx(200 / cycle_s, rel=0.02)


@pytest.mark.parametrize("mean_s", [10.0, 70.0, 3600.0])
def test_one_slice_alone_is_dark_until_it_returns(mean_s):
    """Off for the rest of the step and the pause; if it is later than that, for its delay and the growth."""
    pauses = Pauses(quantum_s=20.0, returns=Delay(mean_s=mean_s))
    result = run(alone(256, mtbi_s=256 * HOUR, pauses=pauses), horizon_s=20 * DAY, repetitions=100)
    late = math.exp(-17.5 / mean_s) * mean_s / 20 * -math.expm1(-20 / mean_s)
    off_s = 17.5 + 10 + late * (mean_s + 13)
    assert result.goodput == pytest.approx(HOUR / (HOUR + off_s), abs=3 * result.stderr)


def test_a_shock_of_half_the_slices_is_a_loss_system_with_two_lines():
    """The third shock at once finds nothing left to take: Erlang's loss formula."""
    shock = Shock(name="rack", every_s=HOUR, share=0.5, returns=Delay(mean_s=1800.0, shape=0.7))
    fleet = Fleet(islands=(Island(chips=512, mtbi_s=math.inf, pauses=FREE),), shocks=(shock,))
    result = run(fleet, horizon_s=20 * DAY)
    busy = [0.5**n / math.factorial(n) for n in range(3)]
    away = sum(n / 2 * part for n, part in enumerate(busy)) / sum(busy)
    assert result.goodput == pytest.approx(1 - away, abs=3 * result.stderr)


@pytest.mark.parametrize("scope", ["learner", "fleet"])
def test_a_shock_of_the_fleet_stops_all_at_once_and_one_of_a_learner_does_not(scope):
    shock = Shock(name="push", every_s=HOUR, share=1.0, returns=Delay(mean_s=HOUR / 2), scope=scope)
    fleet = even_fleet(1024, 4, mtbi_s=math.inf, pauses=FREE, shocks=(shock,))
    result = run(fleet, horizon_s=20 * DAY, repetitions=16)
    u = math.exp(-1 / 2)  # a shock prolongs another: the idle time of a queue with room for all
    assert result.goodput == pytest.approx(u, abs=3 * result.stderr)
    if scope == "fleet":
        assert result.uptime[1:] == pytest.approx([result.uptime_one] * 4, abs=1e-9)
    else:
        assert result.uptime_one == pytest.approx(1 - (1 - u) ** 4, abs=3 * result.uptime_stderr[1])
        assert result.uptime[4] == pytest.approx(u**4, abs=3 * result.uptime_stderr[4])


@pytest.mark.parametrize("elastic", [True, False])
def test_shocks_that_overlap_do_not_queue_up(elastic):
    shock = Shock(name="site", every_s=HOUR, share=1.0, returns=Delay(mean_s=HOUR))
    fleet = even_fleet(1024, 1, mtbi_s=math.inf, pauses=replace(FREE, elastic=elastic), shocks=(shock,))
    result = run(fleet, horizon_s=20 * DAY, repetitions=16)
    assert result.goodput == pytest.approx(math.exp(-1), abs=3 * result.stderr)


def test_a_dark_site_is_dark_however_often_its_chips_had_failed_before():
    shock = Shock(name="push", every_s=2 * DAY, share=1.0, returns=Delay(mean_s=DAY / 2), scope="fleet")
    fleets = [
        even_fleet(150_000, 4, mtbi_s=mtbi_s, shocks=(shock,)) for mtbi_s in (math.inf, YEAR, YEAR / 10)
    ]
    calm, often, oftener = (run(fleet, horizon_s=20 * DAY, repetitions=4).uptime_one for fleet in fleets)
    assert calm >= often >= oftener


def test_mixed_chips_in_one_learner_wait_for_the_slowest():
    alone = even_fleet(8000, 1, mtbi_s=math.inf, speed_spread=0.18)
    apart = even_fleet(8000, 8, mtbi_s=math.inf, speed_spread=0.18)
    one, many = run(alone, horizon_s=HOUR), run(apart, horizon_s=HOUR)
    assert one.work == pytest.approx(8000 * 0.82)
    assert many.work == pytest.approx(8000 * 0.91)
    assert one.goodput == pytest.approx(0.82 * math.log(1 / 0.82) / 0.18)
    assert one.shares["waiting"] == pytest.approx(1 - one.goodput)
    assert many.goodput == 1


def test_merges_need_a_quorum_and_a_syncer():
    syncer = SyncerOutages(every_s=3 * HOUR, down=Delay(mean_s=HOUR))
    fleet = even_fleet(2_400_000, 4, quorum=3, syncer=syncer)
    result = run(fleet, horizon_s=2 * DAY, repetitions=16)
    assert result.merging == pytest.approx(0.75 * result.uptime[3], rel=0.05)
    assert result.uptime_quorum == result.uptime[3]
    calm = run(even_fleet(1024, 4, mtbi_s=math.inf, syncer=syncer), horizon_s=40 * DAY)
    assert calm.merging == pytest.approx(0.75, abs=0.01)
    assert calm.goodput == 1
    always = run(replace(fleet, syncer=None), horizon_s=HOUR)
    assert always.merging == pytest.approx(always.uptime_quorum, rel=1e-12)


def test_in_lock_step_fast_chips_wait_for_slow_ones():
    mix = Fleet(islands=(Island(chips=100, mtbi_s=math.inf), Island(chips=300, mtbi_s=math.inf, speed=0.5)))
    free, bound = run(mix), run(lock_step(mix))
    assert (free.goodput, free.work) == (1, 250)
    assert bound.shares["waiting"] == pytest.approx(1 / 8)
    assert bound.goodput == pytest.approx(7 / 8)
    assert bound.work == pytest.approx(200)


# A spot market, by hand.


def test_what_the_market_does_not_grant_is_away():
    spot = CapacityTrace((0.0, 100.0, 150.0), (512.0, 256.0, 512.0))
    fleet = alone(1024, mtbi_s=math.inf, trace=spot, pauses=FREE)
    result = run(fleet, horizon_s=200.0, repetitions=2)
    assert result.goodput == pytest.approx(spot.mean(200.0) / 1024)
    assert result.shares["away"] == pytest.approx(1 - result.goodput)


def test_a_change_of_the_grant_is_a_pause():
    spot = CapacityTrace((0.0, 100.0, 150.0), (512.0, 256.0, 512.0))
    pauses = Pauses(quantum_s=0.0, down_s=10.0, up_s=20.0)
    result = run(alone(512, mtbi_s=math.inf, trace=spot, pauses=pauses), horizon_s=200.0, repetitions=2)
    area = 512 * 200
    assert result.shares["useful"] == pytest.approx((512 * 100 + 256 * 40 + 512 * 30) / area)
    assert result.shares["shrinking"] == pytest.approx(256 * 10 / area)
    assert result.shares["growing"] == pytest.approx(256 * 20 / area)
    assert result.uptime_one == pytest.approx(170 / 200)


def test_a_grant_of_nothing_is_dark_and_of_more_than_there_is_is_all():
    dark = run(alone(512, trace=CapacityTrace((0.0,), (0.0,))), repetitions=2)
    assert (dark.goodput, dark.uptime_one, dark.num_failures, dark.participation) == (0, 0, 0, 0)
    assert dark.shares["away"] == 1
    full = run(alone(512, mtbi_s=math.inf, trace=CapacityTrace((0.0,), (1e9,))), repetitions=2)
    assert full.goodput == 1


def test_no_more_is_redone_than_was_done():
    """One chip for a long time, then a thousand: a failure costs the thousand what they did themselves."""
    spot = CapacityTrace((0.0, 1000.0), (1.0, 1000.0))
    pauses = Pauses(elastic=False, checkpoint_s=1e5)
    result = run(alone(1000, mtbi_s=1e5, trace=spot, pauses=pauses), horizon_s=1200.0)
    assert result.num_failures > 0.5
    assert min(result.samples) >= 0
    assert result.shares["redone"] <= 1000 * 200 / (1000 * 1200)
