"""What holds of every paired comparison, and how often its interval covers the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from atoll.sim.lab.paired import claim_below, fit_trend, interval_of, paired, seeds_needed, student_t
from atoll.sim.lab.tuned import cell_for
from tests.unit.sim.lab.made_up import made_up

calm = settings(deadline=None, derandomize=True)
losses = st.floats(1.0, 3.0)
pairs = st.lists(st.tuples(losses, losses), min_size=2, max_size=8)
differences = st.lists(st.floats(-5.0, 5.0), min_size=2, max_size=8).map(interval_of)


def compared(values):
    """The paired difference of (a, b) for seeds 1, 2, ..."""
    cells = [cell_for("decoupled", 4, seed) for seed in range(1, len(values) + 1)]
    sides = zip(*values, strict=True)
    a, b = ([made_up(cell, loss) for cell, loss in zip(cells, side, strict=True)] for side in sides)
    return paired(a, b)


@calm
@given(pairs)
def test_swapping_the_sides_inverts_every_ratio(values):
    there, back = compared(values), compared([(b, a) for a, b in values])
    for one, other in zip(there.values, back.values, strict=True):
        assert (1 + one / 100) * (1 + other / 100) == pytest.approx(1.0)
        assert one == pytest.approx(-other, abs=1e-9 + one * one / 20)  # a small one only changes its sign


@calm
@given(pairs, st.floats(0.01, 100.0))
def test_a_factor_on_both_sides_changes_nothing(values, factor):
    plain, scaled = compared(values), compared([(a * factor, b * factor) for a, b in values])
    assert scaled.values == pytest.approx(plain.values, abs=1e-9)
    assert (scaled.low, scaled.high) == pytest.approx((plain.low, plain.high), abs=1e-9)


@calm
@given(pairs, st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(values, luck):
    shuffled = list(range(len(values)))
    luck.shuffle(shuffled)
    cells = [cell_for("decoupled", 4, seed + 1) for seed in range(len(values))]
    a = [made_up(cells[i], values[i][0]) for i in shuffled]
    b = [made_up(cells[i], values[i][1]) for i in range(len(values))]
    assert paired(a, b) == compared(values)


@calm
@given(differences, st.floats(-6.0, 6.0))
def test_a_verdict_agrees_with_its_ends_and_a_higher_limit_never_undoes_it(found, limit):
    claim = claim_below("Below.", found, limit)
    assert (claim.verdict == "holds") == (found.high < limit)
    assert (claim.verdict == "fails") == (found.low > limit)
    if claim.verdict == "holds":
        assert claim_below("Below.", found, limit + 1.0).verdict == "holds"


@calm
@given(differences, st.floats(-6.0, 6.0))
def test_an_unresolved_claim_needs_more_seeds_than_it_has(found, limit):
    assume(abs(found.high - limit) > 1e-9)  # an end on the limit is decided by rounding
    needed = seeds_needed(found, limit)
    if needed is not None and claim_below("Below.", found, limit).verdict == "not resolved":
        assert needed > found.seeds


@calm
@given(st.integers(1, 200))
def test_more_degrees_of_freedom_give_a_narrower_interval(freedom):
    assert 1.9599 < student_t(freedom + 1) < student_t(freedom)


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_the_interval_covers_the_truth_about_95_times_in_a_hundred(seeds):
    draws = np.random.default_rng(seeds).normal(0.3, 2.0, (2_000, seeds))
    found = [interval_of(draw.tolist()) for draw in draws]
    covered = sum(one.low <= 0.3 <= one.high for one in found)
    assert abs(covered - 1_900) < 40  # four deviations of a binomial count


def test_the_interval_of_a_slope_covers_the_truth_about_95_times_in_a_hundred():
    luck = np.random.default_rng(5)
    x, units = np.array([-4.0, -3.0, -2.0, -1.0, 0.0]), np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    truth = units * (0.3 - 0.1 * x)
    fits = [
        fit_trend(x.tolist(), (truth + luck.normal(0.0, 0.5, 5)).tolist(), units.tolist())
        for _ in range(2_000)
    ]
    covered = sum(fit.slope_low <= -0.1 <= fit.slope_high for fit in fits)
    assert abs(covered - 1_900) < 40


@calm
@given(st.floats(-3.0, 3.0), st.floats(-1.0, 1.0), st.floats(1e-2, 1e2))
def test_a_trend_does_not_depend_on_the_unit_of_the_gap(at_zero, slope, factor):
    x, units = [-2.0, -1.0, 0.0, 1.0], [4.0, 3.0, 2.0, 1.0]
    y = [
        unit * (at_zero + slope * one) + noise
        for one, unit, noise in zip(x, units, (0.1, -0.2, 0.05, 0.1), strict=True)
    ]
    plain, other = (
        fit_trend(x, y, units),
        fit_trend(x, [factor * one for one in y], [factor * u for u in units]),
    )
    assert other.slope == pytest.approx(plain.slope, abs=1e-9)
    assert other.slope_low == pytest.approx(plain.slope_low, abs=1e-9)
    assert other.at(0.5, 1.5 * factor) == pytest.approx(factor * plain.at(0.5, 1.5), abs=1e-7)
