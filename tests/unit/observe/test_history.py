"""What a run looked like, in bounded memory."""

from __future__ import annotations

import math

import pytest

from atoll.observe.history import LEVELS, RECENT_S, History, Series, sparkline


def test_a_series_averages_the_samples_of_a_bin():
    series = Series(num_bins=4, bin_s=1.0)
    for now_s, value in ((10.0, 1.0), (10.5, 3.0), (11.2, 5.0)):
        series.add(now_s, value)
    assert series.values() == [2.0, 5.0]


def test_a_gap_repeats_what_was_before_it():
    series = Series(num_bins=8, bin_s=1.0)
    series.add(0.0, 4.0)
    series.add(3.0, 8.0)
    assert series.values() == [4.0, 4.0, 4.0, 8.0]


def test_a_full_series_keeps_the_whole_run_at_half_the_detail():
    series = Series(num_bins=4, bin_s=1.0)
    for second in range(5):
        series.add(float(second), float(second))
    assert series.values() == [0.5, 2.5, 4.0]
    assert series.bin_s == 2.0


def test_a_series_never_grows_beyond_its_bins_whatever_the_time():
    series = Series(num_bins=16, bin_s=0.5)
    for second in range(10_000):
        series.add(float(second), 1.0)
    series.add(1e9, 2.0)
    assert len(series.values()) <= 16
    assert series.values()[-1] == 2.0


def test_a_clock_that_steps_back_lands_in_the_first_bin():
    series = Series(num_bins=4, bin_s=1.0)
    series.add(5.0, 1.0)
    series.add(3.0, 3.0)
    assert series.values() == [2.0]


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_unknown_leaves_no_trace(value: float | None):
    series = Series()
    series.add(0.0, value)
    assert series.values() == []


def test_the_time_left_follows_the_pace_of_progress():
    history = History()
    assert history.eta_s() is None
    history.add(100.0, {"progress": 0.2})
    assert history.eta_s() is None
    history.add(110.0, {"progress": 0.3})
    assert history.eta_s() == pytest.approx(70.0)
    history.add(111.0, {"progress": 1.0})
    assert history.eta_s() == 0.0


def test_the_time_left_forgets_a_pace_older_than_a_minute():
    history = History()
    for now_s, progress in ((0.0, 0.0), (10.0, 0.4), (70.0, 0.5), (80.0, 0.51)):
        history.add(now_s, {"progress": progress})
    assert RECENT_S == 60.0
    assert history.eta_s() == pytest.approx(0.49 * 10 / 0.01)


def test_a_run_that_falls_back_or_stands_still_has_no_time_left_to_tell():
    history = History()
    history.add(0.0, {"progress": 0.5})
    history.add(1.0, {"progress": 0.5})
    assert history.eta_s() is None
    history.add(2.0, {"progress": 0.6})
    history.add(3.0, {"progress": 0.1})
    assert history.eta_s() is None


def test_after_a_fall_back_only_the_new_pace_counts():
    history = History()
    for now_s, progress in ((0.0, 0.5), (1.0, 0.6), (2.0, 0.1), (4.0, 0.3)):
        history.add(now_s, {"progress": progress})
    assert history.eta_s() == pytest.approx(7.0)


def test_an_empty_status_is_taken_in():
    history = History()
    history.add(0.0, {})
    history.add(1.0, {"progress": math.nan, "loss": None})
    assert (history.loss.values(), history.alive.values(), history.eta_s()) == ([], [], None)


def test_a_sparkline_goes_from_the_lowest_to_the_highest_block():
    assert sparkline([0, 1, 2, 3, 4, 5, 6], 20) == LEVELS
    assert sparkline([3, 6], 20, from_zero=True) == LEVELS[3] + LEVELS[6]


def test_a_sparkline_averages_what_does_not_fit():
    assert sparkline([0, 0, 6, 6, 3, 3], 3) == LEVELS[0] + LEVELS[6] + LEVELS[3]
    assert len(sparkline(list(range(1000)), 12)) == 12


def test_a_flat_or_empty_sparkline_is_drawn_without_a_range():
    assert sparkline([2.0, 2.0], 9) == LEVELS[2] * 2
    assert sparkline([0.0, 0.0], 9, from_zero=True) == LEVELS[2] * 2
    assert (sparkline([], 9), sparkline([1.0], 0)) == ("", "")
