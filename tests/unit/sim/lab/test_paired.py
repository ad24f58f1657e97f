"""Paired differences against figures worked out by hand, and claims that follow from their ends."""

from __future__ import annotations

import math

import pytest

from atoll.errors import ConfigError
from atoll.sim.lab.paired import (
    Difference,
    claim_at_least,
    claim_below,
    fit_trend,
    interval,
    interval_of,
    mean_sd,
    paired,
    percent,
    plus_minus,
    seeds_needed,
    spread,
    student_t,
)
from atoll.sim.lab.tuned import cell_for
from tests.unit.sim.lab.made_up import made_up


def rows(losses, *, seeds=None, size="tiny"):
    numbers = seeds or range(1, len(losses) + 1)
    return [
        made_up(cell_for("decoupled", 4, seed, size=size), loss)
        for seed, loss in zip(numbers, losses, strict=True)
    ]


@pytest.mark.parametrize(
    ("freedom", "known"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (1000, 1.962)],
)
def test_the_quantiles_of_student_are_those_of_the_tables(freedom, known):
    assert student_t(freedom) == pytest.approx(known, abs=5e-4)


def test_a_difference_is_in_percent_of_the_second_side_seed_by_seed():
    found = paired(rows([2.02, 1.98]), rows([2.0, 2.0]))
    assert found.values == pytest.approx((1.0, -1.0))
    assert found.mean == pytest.approx(0.0)
    assert found.high == -found.low == pytest.approx(12.706 * math.sqrt(2) / math.sqrt(2), abs=1e-3)
    assert found.seeds == 2


def test_rows_are_matched_by_seed_and_not_by_place():
    found = paired(rows([3.0, 6.0], seeds=[2, 1]), rows([2.0, 1.0], seeds=[1, 2]))
    assert found.values == pytest.approx((200.0, 200.0))
    assert found.low == found.high == pytest.approx(200.0)


def test_any_figure_of_a_row_can_be_compared():
    slow = [made_up(cell_for("decoupled", 4, 1), virtual_s=1_500.0)]
    assert paired(slow, rows([2.0]), lambda row: row.virtual_s).mean == pytest.approx(50.0)


def test_a_seed_on_one_side_only_is_refused_and_named():
    with pytest.raises(ConfigError, match="only one of them has seed 2, 3"):
        paired(rows([2.0, 2.0], seeds=[1, 2]), rows([2.0, 2.0], seeds=[1, 3]))


def test_a_seed_that_comes_twice_and_a_side_without_rows_are_refused():
    with pytest.raises(ConfigError, match="second side of a comparison has the seeds 1, 1"):
        paired(rows([2.0]), rows([2.0, 2.1], seeds=[1, 1]))
    with pytest.raises(ConfigError, match=r"first side of a comparison has the seeds \(none\)"):
        paired([], rows([2.0]))


def test_rows_of_different_models_are_no_pair():
    with pytest.raises(ConfigError, match="between text tiny and text small"):
        paired(rows([2.0]), rows([2.0], size="small"))


def test_a_difference_in_percent_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="a value of 0"):
        paired(rows([2.0]), rows([0.0]))


@pytest.mark.parametrize(("a", "b"), [(math.nan, 2.0), (math.inf, 2.0), (2.0, math.inf), (2.0, math.nan)])
def test_a_run_without_a_finite_loss_leaves_no_mean_and_the_claim_fails(a, b):
    found = paired(rows([2.0, a, 2.0]), rows([2.0, b, 2.0]))
    assert math.isnan(found.mean)
    assert (found.low, found.high) == (-math.inf, math.inf)
    claim = claim_below("No worse.", found, 0.5)
    assert claim.verdict == "fails"
    assert claim.advice == "A run did not end in a finite number."
    assert interval(found) == "not finite"


def test_mean_and_deviation_are_those_of_a_sample():
    assert spread([1.0, 2.0, 3.0, 4.0]) == pytest.approx((2.5, math.sqrt(5 / 3)))
    mean, sd = spread([1.5])
    assert mean == 1.5
    assert math.isnan(sd)
    with pytest.raises(ConfigError, match="no values"):
        spread([])


def test_one_seed_has_an_infinite_interval_and_never_carries_a_claim():
    found = paired(rows([1.0]), rows([2.0]))
    assert (found.mean, found.low, found.high) == (-50.0, -math.inf, math.inf)
    for claim in (
        claim_below("Below.", found, 0.5),
        claim_at_least("At least.", 0.99, 0.99, 0.99, 0.5, 1),
        claim_at_least("At least.", 0.99, -math.inf, math.inf, 0.5, 1),
    ):
        assert claim.verdict == "not resolved"
        assert claim.advice == "One seed says nothing about the spread: run at least 3."


def test_below_holds_only_if_the_whole_interval_is_below():
    sure = claim_below("No worse.", interval_of([0.1, 0.2, 0.3]), 0.5)  # 0.2 +- 0.248
    assert (sure.verdict, sure.advice) == ("holds", "")
    assert (sure.value, sure.high) == pytest.approx((0.2, 0.4484), abs=1e-4)
    assert (sure.limit, sure.seeds, sure.unit) == (0.5, 3, "%")
    assert claim_below("No worse.", interval_of([0.1, 0.2, 0.3]), 0.44).verdict == "not resolved"
    assert claim_below("No worse.", interval_of([0.1, 0.2, 0.3]), -0.06).verdict == "fails"


def test_what_is_not_resolved_says_how_many_seeds_it_would_take():
    claim = claim_below("No worse.", interval_of([0.1, 0.2, 0.3]), 0.4)
    assert claim.advice == "It would take about 4 seeds to hold, if mean and spread stay as they are."
    claim = claim_below("No worse.", interval_of([0.1, 0.2, 0.3]), 0.1)
    assert claim.advice.startswith("It would take about 7 seeds to show that it fails, if")
    claim = claim_below("No worse.", interval_of([0.1, 0.2, 0.3]), 0.2001)
    assert claim.advice.endswith("that would take more than 10000 seeds.")
    on_the_limit = claim_below("No worse.", interval_of([0.5, 0.5]), 0.5)
    assert on_the_limit.verdict == "not resolved"
    assert on_the_limit.advice.startswith("The mean lies on the limit")


def test_a_claim_that_would_take_many_hundreds_of_seeds_says_that_it_cannot_be_told():
    found = interval_of([0.1, 0.2, 0.3])
    for limit, seeds in ((0.2063, 971), (0.1937, 971), (0.2021, 8714)):
        assert claim_below("No worse.", found, limit).advice == (
            f"It cannot be told at so small a difference from the limit: that would take about {seeds} seeds."
        )
    few = claim_below("No worse.", found, 0.2089).advice
    assert few == "It would take about 488 seeds to hold, if mean and spread stay as they are."
    ends = (found.mean, found.low, found.high)
    assert "cannot be told" in claim_at_least("At least.", *ends, 0.1937, 3).advice


def test_the_seeds_needed_are_the_fewest_that_leave_the_limit_outside():
    found = interval_of([0.1, 0.2, 0.3])
    for distance in (0.1, 0.05, 0.02):
        needed = seeds_needed(found, 0.2 + distance)
        assert needed is not None
        assert seeds_needed(found, 0.2 - distance) == needed
        for seeds, is_enough in ((needed, True), (needed - 1, False)):
            assert (student_t(seeds - 1) * 0.1 / math.sqrt(seeds) < distance) is is_enough
    for limit in (found.mean, found.mean + 1e-4):
        assert seeds_needed(found, limit) is None
    assert seeds_needed(interval_of([1.0, -1.0]), 5e-324) is None
    assert seeds_needed(interval_of([0.1]), 0.5) is None
    assert seeds_needed(interval_of([0.2, 0.2]), 0.5) == 2


def test_only_a_change_is_said_to_be_one():
    assert claim_below("Below.", paired(rows([1.0]), rows([2.0])), 0.5).is_change
    assert not claim_below("Below.", interval_of([0.1]), 0.5).is_change
    for is_change in (True, False):
        claim = claim_at_least("At least.", 1.0, 0.5, 1.5, 0.3, 3, is_change=is_change)
        assert claim.is_change is is_change


def test_at_least_looks_at_the_lower_end():
    found = interval_of([99.0, 99.2, 99.4])  # 99.2 +- 0.497
    ends = (found.mean, found.low, found.high)
    assert claim_at_least("Goodput.", *ends, 98.7, 3).verdict == "holds"
    assert claim_at_least("Goodput.", *ends, 99.7, 3).verdict == "fails"
    open_claim = claim_at_least("Goodput.", *ends, 99.0, 3, unit="points")
    assert (open_claim.verdict, open_claim.unit) == ("not resolved", "points")
    assert open_claim.advice == "It would take about 7 seeds to hold, if mean and spread stay as they are."
    assert claim_at_least("Goodput.", math.nan, -math.inf, math.inf, 99.0, 3).verdict == "fails"


def test_figures_are_written_as_tables_show_them():
    assert mean_sd([1.728, 1.734, 1.740]) == "1.734 ± 0.006"
    assert mean_sd([1.728]) == "1.728"
    assert plus_minus(12.25, 1.0, 1) == "12.2 ± 1.0"
    assert percent(0.8812) == "88.1 %"
    assert interval(Difference(0.12, -0.05, 0.29, 5, ())) == "+0.12 % (-0.05..+0.29)"
    assert interval(interval_of([-0.5])) == "-0.50 % (one seed)"
    assert interval(Difference(1.0, 0.0, 2.0, 5, ()), 1, "") == "+1.0 (+0.0..+2.0)"


DOUBLINGS = [-4.0, -3.0, -2.0, -1.0, 0.0]
UNITS = [16.0, 8.0, 4.0, 2.0, 1.0]


def test_a_trend_is_found_again():
    found = fit_trend(
        DOUBLINGS, [unit * (0.1 - 0.2 * x) for x, unit in zip(DOUBLINGS, UNITS, strict=True)], UNITS
    )
    assert (found.at_zero, found.slope) == pytest.approx((0.1, -0.2))
    assert (found.slope_low, found.slope_high) == pytest.approx((-0.2, -0.2), abs=1e-6)
    assert found.at(-4.0, 16.0) == pytest.approx(16 * 0.9)


def test_a_gap_that_shrinks_as_the_unit_does_has_no_slope_and_one_that_stays_has_one():
    assert fit_trend(DOUBLINGS, [0.5 * unit for unit in UNITS], UNITS).slope == pytest.approx(0.0, abs=1e-9)
    assert fit_trend(DOUBLINGS, [1.0] * 5, UNITS).slope > 0.1


def test_noise_widens_the_interval_around_the_slope():
    noisy = fit_trend(DOUBLINGS, [16.5, 7.0, 4.5, 1.5, 1.4], UNITS)
    assert noisy.slope_low < 0 < noisy.slope_high
    assert noisy.slope_low < noisy.slope < noisy.slope_high


def test_a_gap_below_zero_is_part_of_the_fit():
    kept = fit_trend(DOUBLINGS, [8.0, 3.0, 1.0, -0.2, -1.0], UNITS)
    assert kept.slope < fit_trend(DOUBLINGS[:4], [8.0, 3.0, 1.0, 0.2], UNITS[:4]).slope
    assert kept.at_zero < 0


def test_two_points_are_met_and_bound_nothing():
    found = fit_trend([0.0, 1.0], [2.0, 0.2], [1.0, 2.0])
    assert (found.at_zero, found.slope) == pytest.approx((2.0, -1.9))
    assert (found.slope_low, found.slope_high) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("x", "y", "units", "what"),
    [
        ([math.inf, 1.0], [1.0, 1.0], [1.0, 1.0], "the x inf"),
        ([1.0, 2.0], [1.0, math.nan], [1.0, 1.0], "the y nan"),
        ([1.0, 2.0], [1.0, 1.0], [1.0, 0.0], "the unit 0"),
        ([1.0, 1.0], [1.0, 2.0], [1.0, 1.0], "2 x, 2 y and 2 units"),
        ([1.0, 2.0], [1.0], [1.0, 1.0], "2 x, 1 y and 2 units"),
    ],
)
def test_points_without_a_trend_are_refused(x, y, units, what):
    with pytest.raises(ConfigError, match=what):
        fit_trend(x, y, units)
