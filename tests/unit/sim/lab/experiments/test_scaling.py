"""The gap against model size: sizes, lines, claims."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest

from atoll.sim.lab.cell import SIZES, Cell, Row
from atoll.sim.lab.experiments.published import AUTHORS, EXPONENTS, law
from atoll.sim.lab.experiments.scaling import COUNTS, SCALING
from atoll.sim.lab.report import Claim, Report, Request
from tests.unit.sim.lab.made_up import drive, made_up

PARAMETERS = dict(zip(SIZES, (50_000, 100_000, 200_000, 400_000, 800_000), strict=True))
Gap = Callable[[int, int], float]


def trains(gap: Gap, averaged: float = 0.0) -> Callable[[Cell], Row]:
    """Rows whose gap in percent is a function of parameters and M, with a little luck in every seed."""

    def train(cell: Cell) -> Row:
        parameters = PARAMETERS[cell.size]
        luck = 0.01 * (cell.seed % 3 - 1)
        if cell.method == "data-parallel":
            above = averaged if cell.ideas.average_last else 0.0
        else:
            above = gap(parameters, cell.learners) + luck
        return made_up(cell, (3 + luck) * (1 + above / 100), parameters=parameters)

    return train


def shrinking(steeper_by: float, share: float = 0.5) -> Gap:
    """Half of the published law at the largest size, and so much steeper than it."""
    return lambda parameters, m: share * law(parameters, m) * (parameters / 800_000) ** -steeper_by


def run(gap: Gap, seeds: int = 3, averaged: float = 0.0) -> Report:
    return drive(SCALING.stages(Request(size="small", seeds=seeds)), trains(gap, averaged))[1]


def claims(report: Report, words: str) -> list[Claim]:
    return [claim for claim in report.claims if words in claim.text]


def steepness(report: Report) -> list[Claim]:
    return claims(report, "shrinks with size")


def below_curve(report: Report) -> list[Claim]:
    return claims(report, "at every size")


def cells_of(report: Report, m: int, column: str) -> list[str]:
    """One column of the table of gaps for Decoupled at one M, by size."""
    table = report.tables[0]
    at = table.columns.index(column)
    return [row[at] for row in table.rows if row[1] == f"{m}"]


def test_five_runs_a_size_and_seed_and_two_seeds_more_where_they_are_cheap() -> None:
    asked, _ = drive(SCALING.stages(Request(size="small", seeds=3)), trains(shrinking(0.1)))
    assert len(asked) == len({cell.key for cell in asked}) == 5 * (3 * 5 + 2 * 2)
    assert Counter(cell.seed for cell in asked if cell.size == "small") == {1: 5, 2: 5, 3: 5}
    assert {cell.seed for cell in asked if cell.size == "0.05M"} == {1, 2, 3, 4, 5}
    assert sum(cell.ideas.average_last > 0 for cell in asked) == 3 * 5 + 2 * 2
    asked, _ = drive(SCALING.stages(Request(size="tiny", seeds=1)), trains(shrinking(0.1)))
    assert {(cell.size, cell.seed) for cell in asked} == {("0.05M", 1), ("tiny", 1)}
    assert {cell.method for cell in asked} == {"data-parallel", "decoupled"}


@pytest.mark.parametrize(("steeper_by", "verdict"), [(0.3, "holds"), (-0.3, "fails")])
def test_a_gap_that_shrinks_faster_than_the_law_holds_and_a_slower_one_fails(
    steeper_by: float, verdict: str
) -> None:
    found = steepness(run(shrinking(steeper_by)))
    assert [claim.verdict for claim in found] == [verdict] * 3
    assert all(claim.low <= claim.value <= claim.high for claim in found)
    assert all(f"N^-{EXPONENTS[m]}" in claim.text for m, claim in zip(COUNTS, found, strict=True))


def test_the_share_of_the_law_and_its_slope_are_told_by_m() -> None:
    def falling(parameters: int, m: int) -> float:
        return law(parameters, m) * (0.2 - 0.1 * math.log2(parameters / 800_000))

    report = run(falling)
    assert [claim.value for claim in steepness(report)] == pytest.approx([10.0] * 3, abs=0.2)
    assert {claim.unit for claim in steepness(report)} == {"points a doubling"}
    assert cells_of(report, 4, "share of the law") == ["+60 %", "+50 %", "+40 %", "+30 %", "+20 %"]
    shares = {row[:2]: row[2] for row in report.tables[1].rows}
    assert shares["4", "tiny, 0.2M, 0.4M, small"] == "+20 %"
    assert set(shares) == {
        ("2", ", ".join(SIZES)), ("4", "tiny, 0.2M, 0.4M, small"), ("4", ", ".join(SIZES)),
        ("8", "0.2M, 0.4M, small"), ("8", ", ".join(SIZES)),
    }  # fmt: skip


def test_one_seed_claims_nothing() -> None:
    report = run(shrinking(0.3), seeds=1)
    assert {claim.verdict for claim in report.claims} == {"not resolved"}


def test_a_gap_below_zero_has_its_claim_too_so_that_noise_does_not_decide_what_is_claimed() -> None:
    report = run(lambda parameters, m: -1.0 if m == 2 else shrinking(0.3, 0.2)(parameters, m))
    two, *_ = steepness(report)
    assert len(steepness(report)) == 3
    assert "M=2" in two.text
    assert two.verdict == "holds"  # -1 % is a larger share of a smaller law, on the good side
    grows = steepness(run(lambda parameters, m: -2 * law(parameters, m) if parameters < 300_000 else 0.0))
    assert {claim.verdict for claim in grows} == {"fails"}  # what was gained is lost with size
    assert [claim.verdict for claim in below_curve(report)] == ["holds"] * 3
    (picture,) = report.pictures
    assert not picture.log_y
    assert picture.zero_line


def test_each_m_has_one_claim_about_the_curve_and_it_names_where_it_is_nearest() -> None:
    report = run(lambda parameters, m: 9.0)
    two, four, eight = below_curve(report)
    assert two.verdict == "fails"  # the extension gives 4.5 % at small
    assert "nearest to it at small" in two.text
    assert four.verdict == eight.verdict == "holds"  # and 11 and 12 % here
    assert cells_of(report, 8, "gap to Data-Parallel")[0].startswith("+9.0")


def test_at_the_largest_size_the_authors_smallest_model_is_the_bar_by_the_harder_baseline() -> None:
    report = run(lambda parameters, m: 1.5, averaged=-1.0)
    found = claims(report, "what the authors measured at 35M")
    assert [claim.limit for claim in found] == [AUTHORS[m][0][1] for m in COUNTS] == [0.7, 2.0, 3.9]
    assert [claim.value for claim in found] == pytest.approx([100 * (1.015 / 0.99 - 1)] * 3, abs=0.1)
    assert [claim.verdict for claim in found] == ["fails", "fails", "holds"]
    assert all("small" in claim.text and "mean of its last 10 %" in claim.text for claim in found)


def test_a_single_size_or_a_diverged_run_leaves_no_line() -> None:
    _, report = drive(SCALING.stages(Request(size="0.05M", seeds=3)), trains(shrinking(0.3)))
    assert {claim.verdict for claim in steepness(report)} == {"not resolved"}
    report = run(lambda parameters, m: math.nan if parameters == 400_000 else 3.0)
    assert {claim.verdict for claim in steepness(report)} == {"not resolved"}
    assert all("finite losses" in claim.advice for claim in steepness(report))
    assert [claim.verdict for claim in below_curve(report)] == ["fails"] * 3
    assert all("nearest to it at 0.4M" in claim.text for claim in below_curve(report))


def test_a_diverged_run_at_the_largest_size_is_no_gap_that_is_closed() -> None:
    report = run(lambda parameters, m: math.nan if parameters == 800_000 else 3.0)
    assert len(steepness(report)) == 3
    assert {claim.verdict for claim in steepness(report)} == {"not resolved"}


def test_the_authors_points_lie_beside_ours_as_reference() -> None:
    (picture,) = run(shrinking(0.1)).pictures
    assert picture.log_x
    assert picture.log_y
    shown = {one.name: one for one in picture.series}
    assert shown["published M=8"].is_reference
    assert shown["published M=8"].y == tuple(gap for _, gap in AUTHORS[8])
    assert all(gap > 0 for one in picture.series for gap in one.y)
    assert shown["extended (ours) M=4"].x[-1] == AUTHORS[4][0][0]
    assert not shown["decoupled M=4"].is_reference
    assert len(shown["decoupled M=4"].error) == len(SIZES)
    assert len(shown["line M=8"].x) == 3  # where the learners do not force the batch


def test_points_whose_batch_the_learners_force_are_marked_and_not_in_the_line() -> None:
    def steep_where_forced(parameters: int, m: int) -> float:
        return 60.0 if parameters < 200_000 else 0.5 * law(parameters, m)

    report = run(steep_where_forced)
    by_m = {claim.text.split("M=")[1][0]: claim for claim in steepness(report)}
    assert by_m["8"].value == pytest.approx(0.0, abs=0.2)
    assert by_m["2"].value > 30
    marked = {m: [cell.endswith("*") for cell in cells_of(report, m, "batch")] for m in COUNTS}
    assert marked == {2: [False] * 5, 4: [True, *[False] * 4], 8: [True, True, *[False] * 3]}


def test_what_differs_from_size_to_size_stands_in_the_line_through_their_means() -> None:
    def rough(parameters: int, m: int) -> float:
        return shrinking(0.3)(parameters, m) * (1.2 if parameters in (100_000, 400_000) else 0.8)

    def width(report: Report) -> float:
        low, high = report.tables[1].rows[0][4].split("(")[1].rstrip(")").split("..")
        return float(high) - float(low)

    smooth = run(shrinking(0.0))
    assert width(run(rough)) > 20 * width(smooth)
