"""t follows the K-th largest clock and calls every fragment once per cycle."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.core.params import RunParams
from atoll.core.schedule import Schedule, kth_largest


def schedule(*, P: int = 3, H: int = 6, K: int = 1, algorithm: str = "decoupled") -> Schedule:
    return Schedule(
        RunParams(num_fragments=P, interval_steps=H, min_quorum=K, algorithm=algorithm)  # type: ignore[arg-type]
    )


cycles = st.integers(1, 40).flatmap(lambda H: st.tuples(st.integers(1, H), st.just(H)))


@given(cycles)
def test_offsets_are_distinct_and_inside_a_cycle_of_at_least_as_many_steps(cycle):
    P, H = cycle
    params = RunParams(num_fragments=P, interval_steps=H)
    offsets = [params.offset(p) for p in range(P)]
    assert offsets == sorted(set(offsets))
    assert offsets[0] == 0
    assert offsets[-1] < H


def test_offsets_spread_the_fragments_over_the_cycle():
    params = RunParams(num_fragments=4, interval_steps=10)
    assert [params.offset(p) for p in range(4)] == [0, 2, 5, 7]


@given(cycles)
def test_each_fragment_fires_once_per_cycle_at_its_offset(cycle):
    P, H = cycle
    plan = schedule(P=P, H=H)
    fired: Counter[int] = Counter()
    for clock in range(1, 3 * H + 1):
        plan.advance({"a": clock})
        for p, tick in plan.due.items():
            assert tick == clock
            assert tick % H == plan.params.offset(p)
        fired.update(list(plan.due))
        plan.due.clear()
    assert fired == dict.fromkeys(range(P), 3)


def test_fragments_wait_in_the_order_in_which_they_became_due():
    plan = schedule(P=3, H=6)
    for clock in (2, 4, 6):
        plan.advance({"a": clock})
    assert list(plan.due.items()) == [(1, 2), (2, 4), (0, 6)]


def test_a_fragment_that_is_still_waiting_keeps_the_tick_that_called_it_first():
    plan = schedule(P=1, H=2)
    for clock in range(1, 5):
        plan.advance({"a": clock})
    assert plan.due == {0: 2}


def test_the_kth_largest_is_counted_from_one():
    assert [kth_largest([3, 9, 5], k) for k in (1, 2, 3)] == [9, 5, 3]


def test_t_follows_the_kth_largest_clock():
    plan = schedule(H=24, K=2)
    assert plan.advance({"a": 9, "b": 4, "c": 1}) is None
    assert plan.t == 4


def test_slow_learners_do_not_hold_t_back():
    plan = schedule(H=24, K=1)
    plan.advance({"slow": 0, "fast": 7})
    assert plan.t == 7


def test_waiting_algorithms_follow_the_slowest():
    plan = schedule(H=24, K=1, algorithm="streaming")
    plan.advance({"a": 9, "b": 4})
    assert plan.t == 4


@pytest.mark.parametrize("clocks", [{}, {"a": 9}])
def test_below_the_quorum_t_stands_still(clocks):
    plan = schedule(H=24, K=2)
    assert plan.advance(clocks) is None
    assert (plan.t, plan.due, plan.shifts) == (0, {}, {})


def test_t_never_falls_when_the_leaders_vanish():
    plan = schedule(P=24, H=24)
    for clock in range(1, 11):
        plan.advance({"leader": clock, "rest": clock // 2})
    assert plan.advance({"rest": 5}) is None
    assert plan.t == 10


def test_after_the_leaders_vanish_t_goes_on_at_the_pace_of_the_rest():
    plan = schedule(P=24, H=24)
    for clock in range(1, 11):
        plan.advance({"leader": clock, "rest": clock // 2})
    plan.advance({"rest": 5})
    plan.due.clear()
    for clock in range(6, 9):
        assert plan.advance({"rest": clock}) is None
    assert plan.t == 13
    assert plan.due == {11: 11, 12: 12, 13: 13}


def test_the_rest_keep_their_distances_when_they_are_shifted_up_to_t():
    plan = schedule(P=24, H=24, K=2)
    plan.advance({"a": 10, "b": 10, "c": 6, "d": 3})
    plan.advance({"c": 6, "d": 3})
    assert plan.shifts == {"c": 7, "d": 7}
    plan.advance({"c": 6, "d": 5})
    assert plan.t == 12


def test_leaders_may_vanish_again_and_again():
    plan = schedule(P=24, H=24)
    plan.advance({"a": 10, "b": 8, "c": 5})
    plan.advance({"b": 8, "c": 5})
    plan.advance({"b": 9, "c": 5})
    plan.advance({"c": 5})
    assert plan.t == 11
    plan.advance({"c": 6})
    assert plan.t == 12


def test_a_leader_that_comes_back_is_followed_again():
    plan = schedule(P=24, H=24)
    plan.advance({"a": 10, "b": 5})
    plan.advance({"b": 5})
    plan.advance({"b": 7})
    plan.advance({"a": 14, "b": 8})
    assert plan.t == 14


def test_after_an_outage_t_jumps_and_fires_none_of_the_rounds_it_passed():
    plan = schedule(P=6, H=6)
    plan.advance({"a": 2})
    assert plan.due == {1: 1, 2: 2}
    assert plan.advance({"a": 40}) == (2, 40)
    assert (plan.t, plan.due) == (40, {})
    plan.advance({"a": 41})
    assert plan.due == {5: 41}


def test_the_largest_leap_that_still_fires_is_half_a_cycle():
    plan = schedule(P=6, H=6)
    assert plan.advance({"a": 3}) is None
    assert plan.due == {1: 1, 2: 2, 3: 3}
    assert plan.advance({"a": 7}) == (3, 7)


def test_a_cycle_of_one_step_still_fires_step_by_step():
    plan = schedule(P=1, H=1)
    assert plan.advance({"a": 1}) is None
    assert plan.due == {0: 1}


def test_next_due_is_the_next_tick_after_t_at_the_fragments_offset():
    plan = schedule(P=3, H=6)  # offsets 0, 2, 4
    assert [plan.next_due(p) for p in range(3)] == [6, 2, 4]
    plan.t = 2
    assert [plan.next_due(p) for p in range(3)] == [6, 8, 4]
    plan.t = 6
    assert [plan.next_due(p) for p in range(3)] == [12, 8, 10]
