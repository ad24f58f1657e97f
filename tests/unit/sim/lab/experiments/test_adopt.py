from __future__ import annotations

import pytest

from atoll.config import default_outer
from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.adopt import ADOPT, MODES
from atoll.sim.lab.report import Report, Request
from tests.unit.sim.lab.made_up import drive, made_up


def train(cell: Cell, costs: dict[tuple[int, str], float]) -> Row:
    cost = costs.get((cell.interval_steps, cell.adopt), 0.0)
    wobble = 0.01 * (cell.seed % 3) * (cell.adopt != "overwrite")
    return made_up(cell, (2 + 0.1 * cell.seed) * (1 + (cost + wobble) / 100))


def report_of(costs: dict[tuple[int, str], float], seeds: int = 5) -> tuple[list[Cell], Report]:
    return drive(ADOPT.stages(Request(seeds=seeds)), lambda cell: train(cell, costs))


def test_a_seed_costs_six_runs_and_blend_keeps_a_quarter_and_a_half() -> None:
    asked, _ = report_of({}, seeds=2)
    assert len(asked) == len({cell.key for cell in asked}) == 12
    assert [cell.blend_alpha for cell in asked[:6] if cell.adopt == "blend"] == [0.25, 0.5]


def test_what_is_compared_differs_in_how_it_adopts_and_in_nothing_else() -> None:
    asked, _ = report_of({}, seeds=1)
    for steps in (24, 6):
        here = [cell for cell in asked if cell.interval_steps == steps]
        free = {"adopt", "blend_alpha"}
        assert len({str({k: v for k, v in cell.settings().items() if k not in free}) for cell in here}) == 1
        assert here[0].num_fragments == min(12, steps)
    often = [cell for cell in asked if cell.interval_steps == 6]
    assert (often[0].eta, often[0].mu) == default_outer(6)


def test_the_default_is_held_against_the_best_other_way_at_each_interval() -> None:
    _, report = report_of({(24, "blend"): -0.1, (24, "rebase"): 2.0, (6, "rebase"): -3.0})
    first, second = report.claims
    assert "blend 0.25, H = 24" in first.text
    assert "rebase, H = 6" in second.text
    assert [first.verdict, second.verdict] == ["holds", "fails"]
    assert report.figures["rebase_against_overwrite_h24_percent"] == pytest.approx(2.0, abs=0.03)
    assert report.figures["rebase_against_overwrite_h6_percent"] == pytest.approx(-3.0, abs=0.03)


def test_the_table_has_every_mode_with_steps_in_flight_and_merged_tokens() -> None:
    _, report = report_of({})
    assert [row[0] for row in report.tables[0].rows] == [mode.name for mode in MODES]
    assert {row[1:3] for row in report.tables[0].rows} == {("2.0", "90.0 %")}
    assert [row[0] for row in report.tables[0].rows if row[4] == "-"] == [
        "overwrite, H = 24",
        "overwrite, H = 6",
    ]
    assert report.pictures[0].names == tuple(mode.name for mode in MODES if mode.adopt != "overwrite")
