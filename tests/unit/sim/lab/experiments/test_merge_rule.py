from __future__ import annotations

from collections import Counter

import pytest

from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.merge_rule import MERGE_RULE, RATES, tried
from atoll.sim.lab.report import Report, Request
from atoll.sim.lab.tuned import TUNING_SEED
from tests.unit.sim.lab.made_up import drive, made_up


def place_of(cell: Cell) -> int:
    """Which of its three learning rates a cell has."""
    return RATES[cell.learners].index(cell.learning_rate)


def train(cell: Cell, mean_cost: float) -> Row:
    """The mean costs so many percent at its best, eta 0.4 and the highest rate; the other rules are equal."""
    cost = 0.0
    if cell.merge_rule == "mean":
        cost = mean_cost + 5 * (cell.eta != 0.4) + 3 * (place_of(cell) != 2)
    elif (cell.eta, cell.mu, place_of(cell)) != (0.4, 0.8, 0):
        cost = 4.0
    wobble = 0.01 * (cell.seed % 3) * (cell.merge_rule != "rda")
    return made_up(cell, (2 + 0.1 * cell.seed) * (1 + (cost + wobble) / 100))


def report_of(mean_cost: float, seeds: int = 5) -> tuple[list[Cell], Report]:
    return drive(MERGE_RULE.stages(Request(seeds=seeds)), lambda cell: train(cell, mean_cost))


def test_both_rules_are_tried_alike_at_a_seed_that_no_claim_uses() -> None:
    asked, _ = report_of(1.0)
    screened = [cell for cell in asked if cell.seed == TUNING_SEED]
    counts = Counter((cell.learners, cell.merge_rule) for cell in screened)
    assert counts == {(m, name): 9 for m in (4, 8) for name in ("rda", "mean")}
    final = Counter((cell.learners, cell.merge_rule) for cell in asked if cell.seed != TUNING_SEED)
    assert final == {(m, name): 5 for m in (4, 8) for name in ("rda", "rda-everywhere", "mean")}


def test_each_rule_is_given_all_seeds_at_its_best() -> None:
    asked, report = report_of(1.0)
    for cell in (cell for cell in asked if cell.seed != TUNING_SEED):
        expected = (0.4, 0.9, 2) if cell.merge_rule == "mean" else (0.4, 0.8, 0)
        assert (cell.eta, cell.mu, place_of(cell)) == expected
    assert [claim.verdict for claim in report.claims] == ["fails", "fails"]
    assert report.figures["mean_against_rda_m4_percent"] == pytest.approx(1.0, abs=0.03)


def test_the_claims_hold_when_the_mean_is_better_at_settings_of_its_own() -> None:
    _, report = report_of(-1.0)
    assert [claim.verdict for claim in report.claims] == ["holds", "holds"]


def test_what_was_tried_is_all_in_the_tables() -> None:
    _, report = report_of(1.0)
    assert [len(table.rows) for table in report.tables] == [3, 3, 18, 18]
    (picture,) = report.pictures
    assert picture.names == ("RDA on embeddings too", "mean")
    assert [series.name for series in picture.series] == ["M = 4", "M = 8"]


def test_settings_that_blew_up_are_not_the_best_ones() -> None:
    def wild(cell: Cell) -> Row:
        is_wild = cell.merge_rule == "mean" and cell.eta == 0.4
        return made_up(cell, float("nan")) if is_wild else train(cell, 1.0)

    asked, report = drive(MERGE_RULE.stages(Request(seeds=2)), wild)
    assert {cell.eta for cell in asked if cell.merge_rule == "mean" and cell.seed} == {0.7}
    assert sum("not finite" in row for row in report.tables[2].rows) == 3
    assert len(tried(4, "mean")) == 9
