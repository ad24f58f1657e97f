"""Comparisons against Data-Parallel: what is asked for, what is claimed, and that losses are shown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from atoll.errors import ConfigError
from atoll.sim.lab import tuned
from atoll.sim.lab.cell import Cell, Row, Size
from atoll.sim.lab.experiments.moe import MOE
from atoll.sim.lab.experiments.parity import PARITY, Comparison
from atoll.sim.lab.experiments.published import EXTENSION
from atoll.sim.lab.experiments.vision import VISION
from atoll.sim.lab.report import FINE, Claim, Report, Request
from atoll.sim.lab.tuned import PAPER_WINDOW, SWEPT, Tuned
from tests.unit.sim.lab.made_up import drive, made_up

OTHER = Tuned(1e-3, 32, 0.3, 0.6)
GAPS = ("Data-Parallel", "its mean of the last 10 %")
WOBBLE = (0.0, 0.001, -0.001, 0.0005, -0.0005)


def trains(**percent_above: float) -> Callable[[Cell], Row]:
    """Rows of a task where each method is so many percent above Data-Parallel, Decoupled only nearly so."""

    def train(cell: Cell) -> Row:
        above = percent_above.get(cell.method, 0.0)
        luck = 0.1 * cell.seed  # moves all methods of a seed, and must fall out
        noise = WOBBLE[cell.seed % len(WOBBLE)] if cell.method == "decoupled" else 0.0
        return made_up(cell, (2 + luck) * (1 + above / 100 + noise))

    return train


def run(comparison: Comparison, train: Callable[[Cell], Row], seeds: int = 5) -> Report:
    return drive(comparison.stages(Request(seeds=seeds)), train)[1]


def claims_about(report: Report, words: str) -> list[Claim]:
    return [claim for claim in report.claims if words in claim.text]


def set_streaming(patch: pytest.MonkeyPatch, settings: Tuned) -> None:
    """As if the sweeps had found these for Streaming, and neither rate nor momentum differed by M."""
    patch.setattr(tuned, "RATES", {})
    patch.setitem(SWEPT, "streaming", settings)


def settings_of(cell: Cell) -> Tuned:
    """All but the grace window, which those who wait for everybody have no use for."""
    found = Tuned(**{one.name: getattr(cell, one.name) for one in fields(Tuned)})
    return replace(found, **PAPER_WINDOW)


def is_ours(cell: Cell) -> bool:
    """Whether momentum has a schedule."""
    return cell.momentum_warmup > 0


def test_one_seed_of_parity_is_twenty_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    set_streaming(monkeypatch, OTHER)
    asked, _ = drive(PARITY.stages(Request(seeds=1)), made_up)
    assert len(asked) == len({cell.key for cell in asked}) == 20
    counts = Counter(cell.method for cell in asked)
    assert counts == {"data-parallel": 2, "diloco": 6, "streaming": 6, "decoupled": 6}
    three_each = {"diloco": 3, "streaming": 3, "decoupled": 3}
    assert Counter(cell.method for cell in asked if is_ours(cell)) == three_each
    assert {cell.learners for cell in asked if cell.method == "decoupled"} == {2, 4, 8}
    assert {(cell.tokens, cell.seed, cell.size) for cell in asked} == {(asked[0].tokens, 1, "tiny")}
    larger, _ = drive(PARITY.stages(Request(size="small", seeds=1)), made_up)
    assert Counter(cell.method for cell in larger) == {"data-parallel": 2, **three_each}
    assert all(is_ours(cell) for cell in larger if cell.method != "data-parallel")


@pytest.mark.parametrize("comparison", [MOE, VISION])
def test_moe_and_vision_are_six_runs_a_seed_at_m_4(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_streaming(monkeypatch, OTHER)
    asked, _ = drive(comparison.stages(Request(seeds=1)), made_up)
    assert {cell.task for cell in asked} == {comparison.name}
    assert Counter(cell.method for cell in asked) == {"data-parallel": 2, "streaming": 2, "decoupled": 2}
    assert {cell.learners for cell in asked if cell.method != "data-parallel"} == {4}


@pytest.mark.parametrize("comparison", [PARITY, MOE, VISION])
def test_asynchrony_is_measured_against_streaming_at_the_settings_of_decoupled(
    comparison: Comparison,
) -> None:
    def train(cell: Cell) -> Row:
        return trains(streaming=3.0 if is_ours(cell) else 1.0, decoupled=3.0)(cell)

    report = run(comparison, train)
    assert {claim.verdict for claim in claims_about(report, "asynchrony is free")} == {"holds"}
    by_label = {row[0]: row for row in report.tables[0].rows}
    gap = report.tables[0].columns.index("gap to Data-Parallel")
    assert by_label["streaming"][gap].startswith("+1.00 %")
    assert by_label["streaming, our defaults"][gap].startswith("+3.00 %")
    against = report.tables[0].columns.index("against Streaming")
    assert by_label["decoupled, our defaults"][against].lstrip("+-").startswith("0.0")
    assert by_label["decoupled"][against].startswith("+1.98 %")  # each at its own settings


def test_by_our_defaults_all_have_every_tuned_setting_of_decoupled(monkeypatch: pytest.MonkeyPatch) -> None:
    set_streaming(monkeypatch, OTHER)
    asked, _ = drive(PARITY.stages(Request(seeds=1)), made_up)
    for learners in (2, 4, 8):
        here = [cell for cell in asked if cell.learners == learners]
        (decoupled,) = [settings_of(cell) for cell in here if cell.method == "decoupled" and is_ours(cell)]
        for method in PARITY.methods:
            found = [settings_of(cell) for cell in here if cell.method == method]
            assert sorted(one == decoupled for one in found) == [False, True]


def test_what_asynchrony_is_measured_by_gets_more_seeds_at_tiny() -> None:
    report = run(PARITY, trains(decoupled=1.0))
    assert {claim.seeds for claim in claims_about(report, "asynchrony is free")} == {5 * FINE}
    assert {claim.seeds for claim in claims_about(report, "published curve")} == {5}
    seeds = {row[0]: row[report.tables[0].columns.index("seeds")] for row in report.tables[0].rows}
    assert (seeds["data-parallel"], seeds["diloco"], seeds["decoupled"]) == ("5", "5", "5")
    assert seeds["decoupled, our defaults"] == seeds["streaming, our defaults"] == f"{5 * FINE}"
    images = run(VISION, trains(decoupled=1.0))
    assert {claim.seeds for claim in claims_about(images, "asynchrony is free")} == {10 * FINE}
    asked, _ = drive(PARITY.stages(Request(size="small", seeds=3)), made_up)
    assert {cell.seed for cell in asked} == {1, 2, 3}


def test_data_parallel_with_a_calm_end_stands_beside_and_every_gap_to_it() -> None:
    def train(cell: Cell) -> Row:
        is_averaged = cell.ideas.average_last > 0
        return made_up(cell, 2 * (0.99 if is_averaged else 1.0198 if cell.method == "decoupled" else 1.0))

    (table,) = run(PARITY, train).tables
    gap, to_averaged = (table.columns.index(f"gap to {what}") for what in GAPS)
    averaged = next(row for row in table.rows if row[0] == "data-parallel, mean of its last 10 %")
    assert (averaged[gap][:7], averaged[to_averaged]) == ("-1.00 %", "-")
    ours = next(row for row in table.rows if row[0] == "decoupled, our defaults")
    assert (ours[gap][:7], ours[to_averaged][:7]) == ("+1.98 %", "+3.01 %")


def test_what_is_said_of_own_settings_is_said_where_they_are() -> None:
    sizes: tuple[Size, Size] = ("tiny", "small")
    for size, is_said in zip(sizes, (True, False), strict=True):
        _, report = drive(PARITY.stages(Request(size=size, seeds=1)), made_up)
        (table,) = report.tables
        assert ("decoupled" in [row[0] for row in table.rows]) == is_said
        assert any("Else a method has its own" in note for note in table.notes) == is_said


def test_the_mean_over_every_m_is_claimed_too() -> None:
    def train(cell: Cell) -> Row:
        costs = {2: -0.3, 4: 0.0, 8: 0.9} if cell.method == "decoupled" else {}
        return made_up(cell, 2 * (1 + costs.get(cell.learners, 0.0) / 100))

    (claim,) = claims_about(run(PARITY, train), "the mean over M=2, 4, 8")
    assert claim.value == pytest.approx(0.2)
    assert (claim.verdict, claim.seeds) == ("holds", 5 * FINE)


def test_the_calm_of_the_fleet_is_told_with_figures_of_both_sides() -> None:
    def train(cell: Cell) -> Row:
        is_decoupled = cell.method == "decoupled"
        return made_up(cell, participation=0.97 if is_decoupled else 1.0)

    (note,) = [note for note in run(MOE, train).notes if "calm" in note]
    assert "Streaming: 100.0 % of the learners in a round" in note
    assert "Decoupled: 97.0 % of the learners in a round, adopted after 2.0 steps" in note
    assert "mixed-hardware" in note


def test_limits_are_printed_with_two_digits() -> None:
    claims = claims_about(run(PARITY, trains(decoupled=1.0)), "published curve")
    assert all(claim.limit == round(claim.limit, 2) for claim in claims)


@pytest.mark.parametrize("comparison", [PARITY, MOE, VISION])
@pytest.mark.parametrize(("decoupled", "verdict"), [(3.0, "holds"), (3.5, "not resolved"), (4.5, "fails")])
def test_asynchrony_is_free_only_if_the_whole_interval_is_below_the_limit(
    comparison: Comparison, decoupled: float, verdict: str
) -> None:
    report = run(comparison, trains(streaming=3.0, decoupled=decoupled))
    claims = claims_about(report, "asynchrony is free")
    assert [claim.verdict for claim in claims] == [verdict] * len(comparison.counts)
    assert all(bool(claim.advice) == (verdict == "not resolved") for claim in claims)


def test_one_seed_resolves_nothing() -> None:
    report = run(PARITY, trains(streaming=3.0, decoupled=3.0, diloco=4.0), seeds=1)
    assert {claim.verdict for claim in report.claims} == {"not resolved"}


def test_the_gap_is_held_against_the_extended_curve_of_its_own_m() -> None:
    report = run(PARITY, trains(streaming=15.0, decoupled=15.0, diloco=15.0))
    claims = claims_about(report, "published curve")
    assert [claim.verdict for claim in claims] == ["fails", "holds", "holds"]  # limits of 13, 23 and 23 %
    assert "M=2" in claims[0].text
    assert any("(ours)" in note for note in report.notes)


def test_a_task_without_published_figures_has_no_curve() -> None:
    report = run(MOE, trains(streaming=3.0, decoupled=3.0))
    assert not claims_about(report, "published curve")
    assert EXTENSION not in report.tables[0].columns


def test_a_losing_result_is_in_the_table_and_in_the_picture() -> None:
    report = run(PARITY, trains(streaming=3.0, decoupled=40.0, diloco=4.0))
    (table,) = report.tables
    gap, against = (
        table.columns.index("gap to Data-Parallel"),
        table.columns.index("against Streaming"),
    )
    losing = [row for row in table.rows if row[0] == "decoupled, our defaults"]
    assert len(losing) == 3
    assert all(row[gap].startswith("+40.0") and row[against].startswith("+35.9") for row in losing)
    (bars,) = [one for one in report.pictures[0].series if one.name == "decoupled, our defaults"]
    assert bars.y == pytest.approx([40.0] * 3, abs=0.1)
    assert report.figures["gap of decoupled, our defaults M=4"] == pytest.approx(40.0, abs=0.1)


def test_a_diverged_run_fails_the_claim_instead_of_leaving_the_table() -> None:
    def train(cell: Cell) -> Row:
        has_blown_up = cell.method == "decoupled" and cell.learners == 8 and cell.seed == 2
        return made_up(cell, math.nan if has_blown_up else 2.0)

    report = run(PARITY, train)
    assert [claim.verdict for claim in claims_about(report, "M=8")] == ["fails", "fails"]
    assert any("not finite" in row for row in report.tables[0].rows if row[:2] == ("decoupled", "8"))


def test_vision_shows_accuracy() -> None:
    report = run(VISION, lambda cell: made_up(cell, accuracy=0.973))
    at = report.tables[0].columns.index("accuracy")
    assert {row[at] for row in report.tables[0].rows} == {"97.3 %"}
    assert "images" in report.tables[0].title


def test_a_size_without_a_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="no vision model"):
        next(VISION.stages(Request(size="0.4M")))
