"""What most experiments share: arms, and how their rows are asked for.

An arm is one thing under comparison, written as a function from a seed to its cell. All arms see the same
seeds, and a seed decides initial weights and data, so rows of two arms are paired one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import TypeVar

from atoll.sim.lab.cell import Cell, Row

__all__ = ["Arm", "ask", "megabytes", "mean_of"]

Arm = Callable[[int], Cell]
Name = TypeVar("Name", bound=Hashable)


def ask(
    arms: Mapping[Name, Arm], seeds: int
) -> Generator[Sequence[Cell], Sequence[Row], dict[Name, tuple[Row, ...]]]:
    """One stage: every arm at seeds 1 to `seeds`; gives the rows of each arm in the order of seeds.

    Use it as `rows = yield from ask(arms, request.seeds)`. Cells come seed by seed, so that a run that was
    interrupted has finished whole pairs first.
    """
    numbers = range(1, seeds + 1)
    rows = iter((yield [arm(seed) for seed in numbers for arm in arms.values()]))
    by_arm: dict[Name, list[Row]] = {name: [] for name in arms}
    for _ in numbers:
        for name in arms:
            by_arm[name].append(next(rows))
    return {name: tuple(found) for name, found in by_arm.items()}


def mean_of(rows: Sequence[Row], value: Callable[[Row], float]) -> float:
    """The mean of one figure over the rows."""
    return sum(value(row) for row in rows) / len(rows)


def megabytes(rows: Sequence[Row]) -> str:
    """Bodies that travelled, both ways, in a run of these on average; '-' if nothing did."""
    total = mean_of(rows, lambda row: row.bytes_up + row.bytes_down)
    return f"{total / 1e6:.1f}" if total else "-"
