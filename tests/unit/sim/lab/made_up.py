"""Rows that nobody trained: what experiments, shelves and tables are tested with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from atoll.sim.lab.cell import PYTHON, Cell, Row
from atoll.sim.lab.report import Report, Stages

__all__ = ["drive", "made_up"]


def made_up(cell: Cell, heldout_loss: float = 2.0, **changes: Any) -> Row:
    """A row of a calm run with this loss."""
    row = Row(
        cell=cell,
        parameters=93_000,
        heldout_loss=heldout_loss,
        accuracy=0.5,
        curve=((0.5, heldout_loss + 0.5), (1.0, heldout_loss)),
        tokens=cell.tokens,
        steps=1_000,
        merges=900,
        goodput=1.0,
        model_goodput=1.0,
        participation=1.0,
        participants=float(cell.learners),
        merged_share=0.9,
        stall_fraction=0.0,
        longest_stop_s=0.0,
        staleness_steps=2.0,
        virtual_s=1_000.0,
        bytes_up=1_000_000,
        bytes_down=1_000_000,
        incarnations=cell.learners,
        digest="00",
        wall_s=1.0,
        cpu_s=1.0,
        python=PYTHON,
    )
    return replace(row, **changes)


def drive(stages: Stages, train: Callable[[Cell], Row]) -> tuple[list[Cell], Report]:
    """Run an experiment on made-up rows; returns the cells it asked for and its report."""
    asked: list[Cell] = []
    try:
        cells = next(stages)
        while True:
            asked += cells
            cells = stages.send([train(cell) for cell in cells])
    except StopIteration as end:
        return asked, end.value
