from __future__ import annotations

import pytest

from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.merge_rule import MERGE_RULE, rules
from atoll.sim.lab.report import Report, Request
from atoll.sim.lab.tuned import tuned
from tests.unit.sim.lab.made_up import drive, made_up


def train(cell: Cell, mean_costs: dict[float, float]) -> Row:
    """The mean costs so many percent at eta times so much; the other rules are equal."""
    factor = round(cell.eta / tuned("text", "tiny", "decoupled", cell.learners).eta, 1)
    cost = mean_costs[factor] if cell.merge_rule == "mean" else 0.0
    wobble = 0.01 * (cell.seed % 3) * (cell.merge_rule != "rda")
    return made_up(cell, (2 + 0.1 * cell.seed) * (1 + (cost + wobble) / 100))


def report_of(mean_costs: dict[float, float], seeds: int = 5) -> tuple[list[Cell], Report]:
    return drive(MERGE_RULE.stages(Request(seeds=seeds)), lambda cell: train(cell, mean_costs))


WORSE = {1.0: 2.0, 1.4: 1.0, 2.0: 0.2, 1.7: 0.3, 2.8: 1.5}
BETTER = {1.0: 2.0, 1.4: -1.0, 2.0: 0.2, 1.7: 0.3, 2.8: -1.5}


def test_each_count_of_learners_has_five_arms_and_the_mean_three_rates_up_to_the_root_of_m() -> None:
    asked, _ = report_of(WORSE, seeds=1)
    assert len(asked) == len({cell.key for cell in asked}) == 10
    for learners in (4, 8):
        base = tuned("text", "tiny", "decoupled", learners).eta
        here = [cell for cell in asked if cell.learners == learners]
        assert [cell.eta for cell in here if cell.merge_rule != "mean"] == [base, base]
        rates = [cell.eta / base for cell in here if cell.merge_rule == "mean"]
        assert rates == pytest.approx([1, learners**0.25, learners**0.5], rel=0.01)


def test_rda_is_held_against_the_best_rate_of_the_mean_and_the_table_marks_it() -> None:
    _, report = report_of(WORSE)
    marked = [row[0] for table in report.tables for row in table.rows if "best mean" in row[0]]
    assert marked == ["mean, eta x M^(1/2) (best mean)", "mean, eta x M^(1/4) (best mean)"]
    assert [claim.verdict for claim in report.claims] == ["holds", "holds"]
    assert report.figures["rda_against_best_mean_m4_percent"] == pytest.approx(-0.2, abs=0.03)


def test_the_claims_fail_when_the_mean_is_better_at_a_rate_of_its_own() -> None:
    _, report = report_of(BETTER)
    assert [claim.verdict for claim in report.claims] == ["fails", "fails"]


def test_every_arm_is_in_the_table_of_its_count_and_in_the_picture_but_the_default() -> None:
    _, report = report_of(WORSE)
    assert [len(table.rows) for table in report.tables] == [5, 5]
    (picture,) = report.pictures
    assert picture.names == tuple(rule.name for rule in rules(4)[1:])
    assert [series.name for series in picture.series] == ["M = 4", "M = 8"]
    assert {len(series.y) for series in picture.series} == {4}


def test_a_mean_that_blew_up_is_not_the_best_one() -> None:
    _, report = report_of({**WORSE, 2.0: float("nan"), 2.8: float("nan")})
    assert "not finite" in report.tables[0].rows[4]
    assert "best mean" not in report.tables[0].rows[4][0]
