"""What a fleet is: every nonsense is refused with a sentence, and chips are split and joined without loss."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import ConfigError
from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.model import (
    MAX_LEARNERS,
    Fleet,
    Island,
    Pauses,
    Shock,
    SyncerOutages,
    even_fleet,
    lock_step,
)
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.units import DAY, YEAR

HOUR_AWAY = Delay(mean_s=3600.0)
RACK = Shock(name="rack", every_s=DAY, share=0.25, returns=HOUR_AWAY)
PUSH = Shock(name="push", every_s=DAY, share=1.0, returns=HOUR_AWAY, scope="fleet")


@pytest.mark.parametrize("name", ["quantum_s", "down_s", "up_s", "outage_s", "reload_s", "checkpoint_s"])
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_a_pause_is_finite_and_not_negative(name, value):
    with pytest.raises(ConfigError, match=rf"pauses\.{name} is") as refused:
        Pauses(**{name: value})
    assert refused.value.so_what
    assert refused.value.now_what


@pytest.mark.parametrize("every_s", [0.0, -DAY, math.nan])
def test_a_shock_that_never_ceases_is_refused(every_s):
    with pytest.raises(ConfigError, match="Shock 'rack' comes every"):
        Shock(name="rack", every_s=every_s, share=0.5, returns=HOUR_AWAY)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, math.nan, math.inf])
def test_a_shock_takes_a_share(share):
    with pytest.raises(ConfigError, match="Shock 'rack' takes"):
        Shock(name="rack", every_s=DAY, share=share, returns=HOUR_AWAY)


def test_a_shock_strikes_a_learner_or_the_fleet():
    with pytest.raises(ConfigError, match="scope 'site'"):
        Shock(name="rack", every_s=DAY, share=0.5, returns=HOUR_AWAY, scope="site")  # type: ignore[arg-type]


@pytest.mark.parametrize("every_s", [0.0, -1.0, math.nan])
def test_a_syncer_that_is_never_there_is_refused(every_s):
    with pytest.raises(ConfigError, match="The syncer fails every"):
        SyncerOutages(every_s=every_s, down=HOUR_AWAY)


@pytest.mark.parametrize("name", ["chips", "slice_chips"])
@pytest.mark.parametrize("value", [0, -1, -150_000])
def test_an_island_has_chips_in_slices(name, value):
    with pytest.raises(ConfigError, match=f"^{name} is {value}"):
        Island(**{"chips": 256, name: value})


@pytest.mark.parametrize("name", ["mtbi_s", "speed"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, -math.inf])
def test_a_chip_runs_and_runs_for_a_while(name, value):
    with pytest.raises(ConfigError, match=f"^{name} is"):
        Island(chips=256, **{name: value})


def test_a_chip_may_never_fail():
    assert Island(chips=256, mtbi_s=math.inf).num_slices == 1
    assert Island(chips=100).num_slices == pytest.approx(0.390625)


def test_a_fleet_has_islands_but_not_without_end():
    with pytest.raises(ConfigError, match="The fleet has 0 islands"):
        Fleet(islands=())
    island = Island(chips=1)
    assert Fleet(islands=(island,) * MAX_LEARNERS).num_learners == MAX_LEARNERS
    with pytest.raises(ConfigError, match=f"between 1 and {MAX_LEARNERS}"):
        Fleet(islands=(island,) * (MAX_LEARNERS + 1))


@pytest.mark.parametrize(
    ("quorum", "why"), [(3, "No round could merge"), (0, "merge nothing"), (-1, "nothing")]
)
def test_a_quorum_is_one_that_can_be_reached(quorum, why):
    with pytest.raises(ConfigError, match=rf"(?s)The quorum is {quorum} .*2 learners.*{why}"):
        even_fleet(512, 2, quorum=quorum)


@pytest.mark.parametrize(("chips", "learners"), [(3, 4), (0, 1), (-150, 2), (5, 0), (5, -1)])
def test_chips_that_do_not_make_the_learners_are_refused(chips, learners):
    with pytest.raises(ConfigError, match=f"{chips} chips cannot make {learners} learners"):
        even_fleet(chips, learners)


@pytest.mark.parametrize("spread", [-0.1, 1.0, math.nan])
def test_the_slowest_learner_still_runs(spread):
    with pytest.raises(ConfigError, match="The speed spread is"):
        even_fleet(512, 2, speed_spread=spread)


def test_an_mtbi_of_nought_is_refused_for_a_whole_fleet_too():
    with pytest.raises(ConfigError, match=r"mtbi_s is 0\.0"):
        even_fleet(512, 2, mtbi_s=0.0)


@given(st.integers(1, 200), st.data())
def test_an_even_fleet_loses_no_chip_and_favours_nobody_by_more_than_one(learners, data):
    chips = data.draw(st.integers(learners, 3_000_000))
    fleet = even_fleet(chips, learners)
    sizes = [island.chips for island in fleet.islands]
    assert fleet.chips == sum(sizes) == chips
    assert fleet.num_learners == len(sizes) == learners
    assert max(sizes) - min(sizes) <= 1


def test_speeds_run_evenly_from_one_down():
    speeds = [island.speed for island in even_fleet(4096, 4, speed_spread=0.18).islands]
    assert speeds == pytest.approx([1.0, 0.94, 0.88, 0.82])
    assert [island.speed for island in even_fleet(256, 1, speed_spread=0.18).islands] == [pytest.approx(0.82)]


def test_learners_have_names_of_their_own():
    fleet = even_fleet(4096, 16)
    assert len({island.name for island in fleet.islands}) == 16


def test_lock_step_is_the_same_chips_in_one_learner_at_the_pace_of_the_slowest():
    fleet = even_fleet(4096, 4, speed_spread=0.18, quorum=4, slice_chips=128)
    whole = lock_step(fleet, elastic=False)
    assert (whole.chips, whole.num_learners, whole.quorum) == (4096, 1, 1)
    (island,) = whole.islands
    assert island.speed == pytest.approx(0.82)
    assert island.slice_chips == 128
    assert not island.pauses.elastic
    assert island.mtbi_s == pytest.approx(YEAR)
    assert lock_step(fleet).islands[0].pauses.elastic


def test_in_lock_step_as_many_chips_fail_as_did_in_the_mix():
    mix = Fleet(islands=(Island(chips=100, mtbi_s=1000.0), Island(chips=300, mtbi_s=1500.0)))
    assert lock_step(mix).islands[0].mtbi_s == pytest.approx(400 / (0.1 + 0.2))
    calm = Fleet(islands=(Island(chips=100, mtbi_s=math.inf),))
    assert math.isinf(lock_step(calm).islands[0].mtbi_s)


def test_in_lock_step_a_learners_shock_comes_as_often_as_to_all_of_them_and_takes_as_many_slices():
    rack, push = lock_step(even_fleet(4096, 4, shocks=(RACK, PUSH))).shocks
    assert (rack.every_s, rack.share) == (RACK.every_s / 4, RACK.share / 4)
    assert push == PUSH


def test_lock_step_has_what_the_markets_grant_to_all():
    spot = Island(chips=100, trace=CapacityTrace((0.0, 10.0), (100.0, 40.0)), name="spot")
    late = Island(chips=60, trace=CapacityTrace((5.0, 20.0), (60.0, 0.0)), name="late")
    whole = lock_step(Fleet(islands=(spot, late, Island(chips=7, name="own")))).islands[0]
    assert whole.trace == CapacityTrace((0.0, 5.0, 10.0, 20.0), (167.0, 167.0, 107.0, 47.0))
    assert lock_step(even_fleet(100, 2)).islands[0].trace is None


def test_two_islands_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="Two islands are called 'a'"):
        Fleet(islands=(Island(chips=1, name="a"), Island(chips=2, name="b"), Island(chips=3, name="a")))
    assert Fleet(islands=(Island(chips=1), Island(chips=2))).num_learners == 2
