"""The published gaps, and our extension of them to small models."""

from __future__ import annotations

import pytest

from atoll.sim.lab.experiments.published import AUTHORS, EXPONENTS, RULE, extended_gap


@pytest.mark.parametrize(
    ("parameters", "gaps"),
    [(35e6, (0.7, 2.0, 3.9)), (10e6, (1.3, 3.5, 5.7)), (3e6, (2.3, 6.0, 8.1)), (1e6, (4.0, 9.9, 11.3))],
)
def test_the_extension_gives_the_figures_that_its_rule_gives_by_hand(
    parameters: float, gaps: tuple[float, ...]
) -> None:
    assert [extended_gap(parameters, m) for m in (2, 4, 8)] == pytest.approx(gaps, abs=0.05)


def test_fewer_learners_are_never_given_a_wider_gap_than_more() -> None:
    for parameters in (50_000, 100_000, 400_000, 800_000, 35_000_000):
        gaps = [extended_gap(parameters, m) for m in (2, 4, 8)]
        assert gaps == sorted(gaps, key=lambda gap: gap or 0.0)


def test_an_m_without_published_figures_has_no_curve() -> None:
    assert extended_gap(100_000, 1) is None
    assert extended_gap(100_000, 16) is None


def test_the_gap_of_the_authors_shrinks_about_as_the_exponents_say() -> None:
    for m in (4, 8):
        (small, start), (large, end) = AUTHORS[m][0], AUTHORS[m][5]
        assert start * (large / small) ** -EXPONENTS[m] == pytest.approx(end, abs=0.15)


def test_the_rule_says_whose_figures_they_are() -> None:
    assert "(ours)" in RULE
    assert "by its authors" in RULE
