"""M from 1 to 16 at the same tokens."""

from __future__ import annotations

import math

import pytest

from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.learners import COUNTS, LEARNERS
from atoll.sim.lab.report import Request
from tests.unit.sim.lab.made_up import drive, made_up


def train(cell: Cell) -> Row:
    above = 0.0 if cell.method == "data-parallel" else 0.01 * math.log2(cell.learners)
    return made_up(cell, (2 + 0.1 * cell.seed) * (1 + above))


def test_every_m_is_trained_once_a_seed_on_the_same_tokens() -> None:
    asked, _ = drive(LEARNERS.stages(Request(seeds=2)), train)
    assert len(asked) == len({cell.key for cell in asked}) == 12
    assert sorted(cell.learners for cell in asked if cell.method == "decoupled") == [
        m for m in COUNTS for _ in range(2)
    ]
    assert len({cell.tokens for cell in asked}) == 1
    assert all(cell.batch % cell.learners == 0 for cell in asked)


def test_the_gap_of_every_m_is_shown_better_or_worse() -> None:
    _, report = drive(LEARNERS.stages(Request(seeds=3)), train)
    (line,) = report.pictures[0].series
    assert line.x == COUNTS
    assert line.y == pytest.approx([0, 1, 2, 3, 4])
    assert [row[0] for row in report.tables[0].rows] == ["data-parallel", "1", "2", "4", "8", "16"]
    assert report.figures["gap of decoupled M=16"] == pytest.approx(4)
    assert "-" in report.tables[0].rows[-1]  # nobody published a gap for M=16


def test_one_seed_has_a_table_and_no_intervals() -> None:
    _, report = drive(LEARNERS.stages(Request(seeds=1)), train)
    assert report.pictures[0].series[0].error == ()
    assert "one seed" in report.tables[0].rows[-1][4]
