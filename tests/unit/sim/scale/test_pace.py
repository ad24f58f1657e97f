"""Steps of fixed working time on a trace of chips."""

from __future__ import annotations

import pytest

from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.scale.pace import NEVER_NS, Pace, Stint

S = 1_000_000_000


def pace(*rows: tuple[float, float], dark_s: float = 60.0) -> Pace:
    times, chips = zip(*rows, strict=True)
    return Pace.of(CapacityTrace(times, chips), 100.0, dark_s)


def test_a_step_with_all_chips_takes_its_time_and_has_its_full_batch():
    assert pace((0.0, 100.0)).work(5 * S, 2 * S) == Stint(7 * S, 1.0)


def test_fewer_chips_make_a_smaller_batch_in_the_same_time():
    assert pace((0.0, 100.0), (10.0, 25.0)).work(11 * S, 2 * S) == Stint(13 * S, 0.25)


def test_a_batch_is_the_mean_over_the_working_time_of_the_step():
    assert pace((0.0, 100.0), (10.0, 50.0)).work(9 * S, 2 * S) == Stint(11 * S, 0.75)


def test_a_pause_suspends_the_step_and_costs_it_nothing_but_time():
    assert pace((0.0, 100.0), (10.0, 0.0), (40.0, 100.0)).work(9 * S, 2 * S) == Stint(41 * S, 1.0)


def test_a_pause_of_several_rows_is_one_pause():
    walk = pace((0.0, 100.0), (10.0, 0.0), (50.0, 0.0), (90.0, 100.0))
    assert walk.work(9 * S, 2 * S) == Stint(10 * S, 0.0, 90 * S)


def test_a_gap_beyond_the_threshold_is_darkness_from_its_beginning_on():
    assert pace((0.0, 100.0), (10.0, 0.0), (71.0, 100.0)).work(9 * S, 2 * S) == Stint(10 * S, 0.0, 71 * S)
    assert pace((0.0, 100.0), (10.0, 0.0), (70.0, 100.0)).work(9 * S, 2 * S) == Stint(71 * S, 1.0)


def test_a_trace_that_ends_at_nothing_is_dark_for_ever():
    walk = pace((0.0, 100.0), (10.0, 0.0))
    assert walk.work(9 * S, 2 * S).back_ns == NEVER_NS
    assert walk.begin_ns(20 * S) == NEVER_NS


def test_a_learner_begins_with_its_first_chip():
    assert pace((0.0, 0.0), (30.0, 100.0)).begin_ns(0) == 30 * S
    assert pace((0.0, 100.0)).begin_ns(0) == 0


def test_before_the_first_row_holds_what_the_first_row_says():
    assert pace((5.0, 50.0), (8.0, 100.0)).work(0, 2 * S) == Stint(2 * S, 0.5)


def test_the_tokens_of_many_steps_are_the_integral_of_the_trace():
    trace = CapacityTrace((0.0, 3.7, 9.1, 12.0, 20.5), (100.0, 40.0, 0.0, 70.0, 100.0))
    walk, now_ns, done = Pace.of(trace, 100.0, 60.0), 0, 0.0
    while now_ns < 40 * S:
        stint = walk.work(now_ns, S // 3)
        done += stint.share / 3
        now_ns = stint.end_ns
    assert done == pytest.approx(trace.mean(now_ns / S) / 100.0 * now_ns / S, rel=1e-6)
