"""The experiment on own parts, with made-up rows."""

from __future__ import annotations

import pytest

from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.non_iid import NON_IID
from atoll.sim.lab.report import Report, Request
from tests.unit.sim.lab.made_up import drive, made_up


def train(cell: Cell) -> Row:
    """Parts cost 1 % at M = 4; at 8 they cost Streaming 2 % and Decoupled 4 %."""
    loss = 2.0 * (1 + 0.01 * cell.seed)
    if cell.method == "data-parallel":
        return made_up(cell, loss)
    price = 0.0
    if cell.own_parts:
        price = 0.01 if cell.learners == 4 else {"streaming": 0.02, "decoupled": 0.04}[cell.method]
    return made_up(cell, loss * 1.03 * (1 + price))


def report_of(seeds: int = 5) -> tuple[list[Cell], Report]:
    return drive(NON_IID.stages(Request(seeds=seeds)), train)


def test_data_parallel_is_trained_once_and_the_others_with_and_without_parts() -> None:
    cells, _ = report_of(seeds=2)
    assert len(cells) == len({cell.key for cell in cells}) == 2 * 9
    assert sum(cell.method == "data-parallel" for cell in cells) == 2
    for method in ("streaming", "decoupled"):
        for learners in (4, 8):
            here = [cell for cell in cells if (cell.method, cell.learners) == (method, learners)]
            assert [cell.own_parts for cell in here] == [False, True] * 2


def test_with_and_without_parts_all_else_is_equal() -> None:
    cells, _ = report_of(seeds=1)
    for mixed, own in zip(cells[1::2], cells[2::2], strict=True):
        assert {**mixed.settings(), "own_parts": True} == own.settings()


def test_asynchrony_is_judged_on_parts_at_each_number_of_learners() -> None:
    _, report = report_of()
    assert [claim.verdict for claim in report.claims] == ["holds", "fails"]
    assert report.claims[1].value == pytest.approx(100 * (1.04 / 1.02 - 1))


def test_the_price_of_parts_stands_in_the_table_and_the_figures() -> None:
    _, report = report_of(seeds=2)
    rows = report.tables[0].rows
    assert [row[:3] for row in rows[:3]] == [
        ("Data-Parallel", "-", "mixed"), ("Streaming", "4", "mixed"), ("Streaming", "4", "own parts"),
    ]  # fmt: skip
    assert rows[2][5].startswith("+1.00 %")
    assert rows[8][5].startswith("+4.00 %")
    assert rows[1][4].startswith("+3.00 %")
    assert report.figures["parts_decoupled_m8_percent"] == pytest.approx(4.0)


def test_the_picture_has_a_bar_for_each_method_and_kind_of_data() -> None:
    _, report = report_of(seeds=2)
    (picture,) = report.pictures
    assert picture.names == ("M = 4", "M = 8")
    assert [series.name for series in picture.series] == [
        "Streaming, mixed", "Streaming, own parts", "Decoupled, mixed", "Decoupled, own parts",
    ]  # fmt: skip
    assert picture.series[3].y == pytest.approx((4.03, 7.12))


def test_one_seed_resolves_nothing() -> None:
    _, report = report_of(seeds=1)
    assert {claim.verdict for claim in report.claims} == {"not resolved"}
