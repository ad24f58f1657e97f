"""The experiment on borrowed learners, with made-up rows."""

from __future__ import annotations

import pytest

from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.scavenging import SCAVENGING, closed_form
from atoll.sim.lab.fleets import schedule_of
from atoll.sim.lab.report import Report, Request
from tests.unit.sim.lab.made_up import drive, made_up


def train(cell: Cell, slower: float = 1.001) -> Row:
    """As fast as the closed form, almost; each borrowed learner costs 0.2 % of loss."""
    extra = cell.fleet.extra
    time_s = 1_000 * closed_form(extra / 4) * (slower if extra else 1.0) + 0.1 * cell.seed
    return made_up(cell, 2.0 * (1 + 0.01 * cell.seed) * (1 + 0.002 * extra), virtual_s=time_s)


def report_of(seeds: int = 5, slower: float = 1.001) -> tuple[list[Cell], Report]:
    return drive(SCAVENGING.stages(Request(seeds=seeds)), lambda cell: train(cell, slower))


def test_the_closed_form_is_that_of_the_paper() -> None:
    assert [round(closed_form(extra), 3) for extra in (0, 0.25, 0.5, 1, 3)] == [1.0, 0.9, 0.833, 0.75, 0.625]


def test_four_learners_are_trained_with_25_to_300_percent_more() -> None:
    cells, _ = report_of(seeds=2)
    assert [cell.fleet.extra for cell in cells] == [0, 1, 2, 4, 12] * 2
    assert {cell.learners for cell in cells} == {4}
    assert len({(cell.tokens, cell.batch) for cell in cells}) == 1


def test_the_schedules_of_its_cells_take_the_time_of_the_closed_form() -> None:
    """Half the tokens are done at the moment of leaving; the rest is done by those that stay."""
    cells, _ = report_of(seeds=1)
    rate = cells[0].batch * 64 / cells[0].fleet.step_s
    alone_s = cells[0].tokens / rate
    for cell in cells[1:]:
        (leave_s,) = set(schedule_of(cell).leaves_s.values())
        assert (leave_s + alone_s / 2) / alone_s == pytest.approx(closed_form(cell.fleet.extra / 4))


def test_times_near_the_closed_form_and_losses_below_the_limit_hold() -> None:
    _, report = report_of()
    verdicts = {one.text[:6]: one.verdict for one in report.claims if "time within" in one.text}
    assert verdicts == {"+25 % ": "holds", "+50 % ": "holds", "+100 %": "holds", "+300 %": "holds"}
    losses = [one.verdict for one in report.claims if "loss within" in one.text]
    assert losses == ["holds", "holds", "fails", "fails"]


def test_a_time_off_the_closed_form_fails() -> None:
    _, report = report_of(slower=1.05)
    assert {one.verdict for one in report.claims if "time within" in one.text} == {"fails"}
    _, report = report_of(slower=0.95)
    assert {one.verdict for one in report.claims if "time within" in one.text} == {"fails"}


def test_the_table_lays_the_time_beside_the_closed_form() -> None:
    _, report = report_of(seeds=2)
    rows = report.tables[0].rows
    assert [row[0] for row in rows] == ["none", "+25 %", "+50 %", "+100 %", "+300 %"]
    assert [row[1] for row in rows] == ["100.0", "90.0", "83.3", "75.0", "62.5"]
    assert rows[0][2].startswith("100.0")
    assert rows[4][4].startswith("+2.40 %")
    assert {len(row) for row in rows} == {len(report.tables[0].columns)}


def test_pictures_lay_runs_over_the_closed_form() -> None:
    _, report = report_of(seeds=2)
    times, losses = report.pictures
    assert [series.is_reference for series in times.series] == [False, True]
    assert times.series[1].y == pytest.approx((90.0, 83.333, 75.0, 62.5), abs=1e-3)
    assert times.series[0].x == losses.series[0].x == (25.0, 50.0, 100.0, 300.0)
    assert report.figures["loss_25_percent"] == pytest.approx(0.2)
