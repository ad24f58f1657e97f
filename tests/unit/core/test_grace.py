"""The grace window is measured slack, and no more than that."""

from __future__ import annotations

import pytest

from atoll.core.grace import MIN_SAMPLES, GraceRule, MovingAverage, grace_window_ns, median_ns


def measured(value: float, num_samples: int = MIN_SAMPLES) -> MovingAverage:
    return MovingAverage(0.2, value, num_samples)


def test_a_moving_average_begins_with_its_first_sample():
    average = MovingAverage(0.25)
    average.add(80.0)
    assert (average.value, average.num_samples) == (80.0, 1)


def test_a_moving_average_moves_by_its_share_towards_each_sample():
    average = MovingAverage(0.25)
    for sample in (80.0, 160.0, 0.0):
        average.add(sample)
    assert average.value == 75.0  # 80, then 80 + 0.25 * 80 = 100, then 100 - 0.25 * 100
    assert average.num_samples == 3


def test_the_window_is_a_share_of_what_quorum_and_merge_leave_of_the_overlap():
    # 0.8 * (2 * 1000 - 300 - 700)
    assert grace_window_ns(1000, measured(300), measured(700), GraceRule(2, 0.8)) == 800
    assert grace_window_ns(1000, measured(300), measured(700), GraceRule(2, 0.5)) == 500


@pytest.mark.parametrize(("quorum", "merge"), [(2, 3), (3, 2), (0, 0)])
def test_there_is_no_window_before_three_samples_of_both_averages(quorum, merge):
    window = grace_window_ns(1000, measured(1, quorum), measured(1, merge), GraceRule(2, 0.8))
    assert window == 0


def test_there_is_no_window_before_a_step_was_timed():
    assert grace_window_ns(0, measured(0), measured(0), GraceRule(2, 0.8)) == 0


def test_the_window_is_never_negative():
    assert grace_window_ns(1000, measured(1900), measured(200), GraceRule(2, 0.8)) == 0


@pytest.mark.parametrize(("most", "window"), [(0.5, 500), (1, 1000), (2.5, 2500), (8, 7200)])
def test_the_window_is_never_longer_than_so_many_steps(most, window):
    assert grace_window_ns(1000, measured(0), measured(0), GraceRule(9, 0.8, most_steps=most)) == window


def test_a_least_window_waits_where_merging_leaves_no_slack_and_before_it_was_measured():
    rule = GraceRule(2, 0.8, least_steps=0.5)
    assert grace_window_ns(1000, measured(1900), measured(200), rule) == 500
    assert grace_window_ns(1000, measured(0, 0), measured(0, 0), rule) == 500
    assert grace_window_ns(1000, measured(300), measured(700), rule) == 800
    assert grace_window_ns(0, measured(0), measured(0), rule) == 0


def test_the_median_is_the_lower_of_two_middles_and_so_a_real_sample():
    assert median_ns([40, 10, 30, 20]) == 20
    assert median_ns([9, 1, 5]) == 5
    assert median_ns([7]) == 7


def test_the_median_of_nothing_is_zero():
    assert median_ns([]) == 0


def test_the_median_leaves_its_samples_in_their_order():
    samples = [3, 1, 2]
    median_ns(samples)
    assert samples == [3, 1, 2]
