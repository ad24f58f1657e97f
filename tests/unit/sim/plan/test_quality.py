"""The published gaps come back as published; between and beyond them the rules of the module hold."""

from __future__ import annotations

import math

import pytest

from atoll.sim.plan import quality
from atoll.sim.plan.quality import gap_to_lock_step, interval_cost, late_share, token_exponent, tokens_factor


def test_published_gaps_come_back_and_negative_ones_count_as_none():
    for params, _, gaps in quality.TABLE:
        for learners, gap in zip(quality.LEARNERS, gaps, strict=False):
            found = gap_to_lock_step(params, learners)
            assert found.value == pytest.approx(max(0.0, gap) / 100), (params, learners)
            assert not found.is_extrapolated


def test_between_two_sizes_the_gap_lies_between_theirs():
    middle = math.sqrt(90e6 * 180e6)
    assert gap_to_lock_step(middle, 8).value == pytest.approx((0.031 + 0.023) / 2)
    assert gap_to_lock_step(35e6, 3).value == pytest.approx(0.007 + 0.013 * math.log2(1.5))


@pytest.mark.parametrize("params", [1e6, 30e6, 100e6, 1e9, 2.4e9, 5e9, 12e9, 1e12])
def test_more_learners_never_have_a_smaller_gap(params):
    gaps = [gap_to_lock_step(params, learners).value for learners in range(1, 70)]
    assert gaps == sorted(gaps)
    assert gaps[0] == 0.0
    assert gaps[63] > gaps[15] > gaps[7] > 0


def test_beyond_the_table_the_uncertainty_is_twice_as_large_and_it_is_said():
    inside, outside = gap_to_lock_step(2.4e9, 8), gap_to_lock_step(2.5e9, 8)
    assert (inside.is_extrapolated, outside.is_extrapolated) == (False, True)
    assert outside.uncertainty == pytest.approx(2 * inside.uncertainty, rel=0.02)
    assert gap_to_lock_step(9e9, 4).is_extrapolated is False
    assert gap_to_lock_step(9e9, 16).is_extrapolated is True
    assert gap_to_lock_step(10e6, 2).is_extrapolated is True


def test_the_gap_of_eight_learners_shrinks_with_size_but_not_to_nothing():
    assert gap_to_lock_step(4e9, 8).value == pytest.approx(0.011 * (4 / 2.4) ** -0.3)
    assert gap_to_lock_step(1e13, 8).value == pytest.approx(2 * 0.0029)


def test_a_shifted_gap_moves_by_its_uncertainty_and_stays_above_none():
    gap = gap_to_lock_step(1.3e9, 4)
    assert gap.shifted(1.0) == pytest.approx(gap.value + gap.uncertainty)
    assert gap_to_lock_step(2.4e9, 2).shifted(-1.0) == 0.0


def test_the_exponent_is_half_the_slope_of_the_data_parallel_row():
    ends = math.log(3.485 / 2.090) / math.log(10e9 / 35e6)
    assert 2 * token_exponent() == pytest.approx(ends, rel=0.05)


def test_tokens_make_up_for_exactly_the_gap():
    factor = tokens_factor(0.01)
    assert factor ** -token_exponent() * 1.01 == pytest.approx(1.0)
    assert tokens_factor(0.0) == 1.0


def test_an_interval_costs_nothing_up_to_thirty_and_the_same_for_each_doubling():
    assert interval_cost(1e9, 24) == interval_cost(1e9, 30) == 0.0
    steps = [interval_cost(1e9, 60 * 2**n) for n in range(3)]
    assert steps == pytest.approx([steps[0], 2 * steps[0], 3 * steps[0]])
    assert interval_cost(1e10, 96) < interval_cost(1e9, 96)


def test_the_overlap_of_the_paper_is_free_and_steps_beyond_tau_count_twice():
    assert late_share(2, 0, 24) == 0.0
    assert late_share(4, 0, 24) == pytest.approx(2 / 24)
    assert late_share(2, 2, 24) == pytest.approx(4 / 24)
