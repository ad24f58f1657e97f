"""How long a round waits: while the late bring more than it costs, or for a share of the slack."""

from __future__ import annotations

import pytest

from atoll.core.grace import (
    MIN_SAMPLES,
    Late,
    MovingAverage,
    median_ns,
    slack_window_ns,
    worth_until_ns,
)


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


# The paper's rule


def test_slack_is_a_share_of_what_quorum_and_merge_leave_of_the_overlap():
    # 0.8 * (2 * 1000 - 300 - 700)
    assert slack_window_ns(1000, measured(300), measured(700), 2, 0.8) == 800
    assert slack_window_ns(1000, measured(300), measured(700), 2, 0.5) == 500


@pytest.mark.parametrize(("quorum", "merge"), [(2, 3), (3, 2), (0, 0)])
def test_there_is_no_slack_before_three_samples_of_both_averages(quorum, merge):
    assert slack_window_ns(1000, measured(1, quorum), measured(1, merge), 2, 0.8) == 0


def test_there_is_no_slack_before_a_step_was_timed():
    assert slack_window_ns(0, measured(0), measured(0), 2, 0.8) == 0


def test_slack_is_never_negative():
    assert slack_window_ns(1000, measured(1900), measured(200), 2, 0.8) == 0


# Our rule: three learners that have offered train 3 tokens a unit of time, and it is 1000 now

NOW, RATE = 1000, 3.0


def until(*late: Late, latest_ns: int = 99_999) -> int:
    return worth_until_ns(late, RATE, NOW, latest_ns)


def test_one_who_brings_more_than_waiting_costs_is_waited_for_and_a_little_longer():
    # It brings 900 for 100 * 3; if it does not come, being late costs 3 a unit, and 900 are spent after 300.
    assert until(Late(900, due_ns=1100, step_ns=500)) == 1100 + 300
    assert until(Late(9000, due_ns=1100, step_ns=500)) == 1100 + 500  # a step of its own at the most


def test_one_who_brings_less_than_waiting_costs_is_not_waited_for():
    assert until(Late(300, due_ns=1100, step_ns=500)) == NOW
    assert until(Late(301, due_ns=1100, step_ns=500)) > NOW


def test_several_may_be_worth_what_each_alone_is_not():
    first, second = Late(200, due_ns=1100, step_ns=500), Late(200, due_ns=1110, step_ns=500)
    assert until(first) == until(second) == NOW
    assert until(first, second) == until(second, first) == 1110 + 66  # 400 for 330; 200 / 3 longer


def test_one_who_comes_much_later_is_left_and_does_not_lengthen_the_wait_for_the_others():
    soon, much_later = Late(900, due_ns=1100, step_ns=500), Late(900, due_ns=9000, step_ns=9000)
    assert until(soon, much_later) == until(soon)


def test_one_who_is_overdue_is_expected_any_moment_until_it_is_given_up():
    overdue = Late(900, due_ns=800, step_ns=5000)
    assert until(overdue) == 800 + 300
    assert until(Late(900, due_ns=700, step_ns=5000)) == NOW
    assert until(Late(9000, due_ns=800, step_ns=200)) == NOW  # later than a step of its own: it stands still


def test_nobody_late_is_nobody_to_wait_for():
    assert until() == NOW


def test_where_waiting_costs_nothing_all_are_waited_for_up_to_a_step():
    assert worth_until_ns([Late(1, due_ns=1500, step_ns=700)], 0.0, NOW, 99_999) == 2200


def test_nobody_is_waited_for_beyond_the_latest_moment_nor_in_vain_until_it():
    one = Late(9000, due_ns=1100, step_ns=500)
    assert until(one, latest_ns=1200) == 1200
    assert until(one, latest_ns=1100) == 1100
    assert until(one, latest_ns=1099) == NOW
    assert until(one, latest_ns=900) == NOW


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
