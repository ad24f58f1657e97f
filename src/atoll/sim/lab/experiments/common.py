"""What most experiments share: arms and places, and how their rows are asked for.

An arm is one thing under comparison, written as a function from a seed to its cell. All arms see the same
seeds, and a seed decides initial weights and data, so rows of two arms are paired one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from atoll.sim.lab.cell import Cell, Ideas, Method, Row, Size, Task
from atoll.sim.lab.paired import Difference, percent
from atoll.sim.lab.report import Series
from atoll.sim.lab.tuned import PAPER_WINDOW, Settings, cell_for, tuned

__all__ = [
    "FIRST_SCREEN_SEED", "OLDER", "SCREEN_SEEDS", "Arm", "Place", "ask", "megabytes", "mean_of",
    "seeds_of", "series_of", "shown_number",
]  # fmt: skip

SCREEN_SEEDS, FIRST_SCREEN_SEED = 2, 1001
"""Seeds that only choose among ideas: no claim uses them."""
FEWEST_DRAWN = 3
"""Seeds whose interval is drawn."""
OLDER = "with constant momentum and the paper's window"
"""Said by claims of experiments whose Decoupled is not that of our defaults (`Place.settings_of`)."""

Arm = Callable[[int], Cell]
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a method is trained, at tuned settings. M is 1 for Data-Parallel: it has no learners."""

    method: Method
    learners: int = 1
    task: Task = "text"
    settings_of: Settings | None = None
    """Whose learning rate, batch, eta and mu it takes at this M; its own if None."""
    average_last: float = 0.0
    """Its model is the mean of its values over this last share of the run."""

    @property
    def label(self) -> str:
        """The method, and whose settings it takes if not its own."""
        if self.average_last:
            return f"{self.method}, mean of its last {percent(self.average_last, 0)}"
        if self.settings_of == "defaults":
            return f"{self.method}, our defaults"
        return f"{self.method}, settings of {self.settings_of}" if self.settings_of else self.method

    @property
    def settings(self) -> Settings:
        """Whose settings it takes."""
        return self.settings_of or self.method

    @property
    def name(self) -> str:
        """As tables and pictures say it."""
        what = self.label if self.task == "text" else f"{self.task}, {self.label}"
        return what if self.method == "data-parallel" else f"{what} M={self.learners}"

    def cell(self, size: Size, seed: int, **changes: Any) -> Cell:
        """The cell of one seed."""
        theirs = asdict(tuned(self.task, size, self.settings_of, self.learners)) if self.settings_of else {}
        if theirs and self.method != "decoupled":
            theirs |= PAPER_WINDOW
        ideas = {"ideas": Ideas(average_last=self.average_last)} if self.average_last else {}
        return cell_for(
            self.method, self.learners, seed, task=self.task, size=size, **{**theirs, **ideas, **changes}
        )

    def arm(self, size: Size, **changes: Any) -> Arm:
        """The cells of all seeds."""
        return partial(self.cell, size, **changes)


def ask(
    arms: Mapping[Name, Arm], seeds: int, fine: Collection[Name] = (), fine_seeds: int = 0, first: int = 1
) -> Generator[Sequence[Cell], Sequence[Row], dict[Name, tuple[Row, ...]]]:
    """One stage: every arm at so many seeds from `first` on, those in `fine` at `fine_seeds`; gives the rows
    of each arm in the order of seeds.

    Use it as `rows = yield from ask(arms, request.seeds)`. A cell that two arms share is asked for once.
    """
    numbers = {name: range(first, first + (fine_seeds if name in fine else seeds)) for name in arms}
    wanted = {
        (name, seed): arm(seed)
        for seed in range(first, first + max(seeds, fine_seeds))
        for name, arm in arms.items()
        if seed in numbers[name]
    }
    cells = list(dict.fromkeys(wanted.values()))
    found = dict(zip(cells, (yield cells), strict=True))
    return {name: tuple(found[wanted[name, seed]] for seed in numbers[name]) for name in arms}


def mean_of(rows: Sequence[Row], value: Callable[[Row], float]) -> float:
    """The mean of one figure over the rows."""
    return sum(value(row) for row in rows) / len(rows)


def megabytes(rows: Sequence[Row]) -> str:
    """Bodies that travelled, both ways, in a run of these on average; '-' if nothing did."""
    total = mean_of(rows, lambda row: row.bytes_up + row.bytes_down)
    return f"{total / 1e6:.1f}" if total else "-"


def seeds_of(rows: Sequence[Row]) -> str:
    """How many rows there are, as titles say it."""
    return "1 seed" if len(rows) == 1 else f"{len(rows)} seeds"


def series_of(name: str, found: Sequence[Difference], x: Sequence[float] | None = None) -> Series:
    """Means with their intervals, at 0, 1, 2, ... unless told where.

    The interval of two seeds is a dozen times their spread and would be all that is seen: below three seeds
    there is none. Where nobody has one there are no intervals; else NaN stands where there is none.
    """
    half = [_half(one) for one in found]
    return Series(
        name=name,
        x=tuple(map(float, range(len(found)) if x is None else x)),
        y=tuple(one.mean for one in found),
        error=() if all(map(math.isnan, half)) else tuple(half),
    )


def _half(one: Difference) -> float:
    is_shown = math.isfinite(one.high) and one.seeds >= FEWEST_DRAWN
    return one.high - one.mean if is_shown else math.nan


def shown_number(value: float | None, digits: int = 1, unit: str = "%") -> str:
    """A figure that there may be none of: +3.9 %, or a dash."""
    return "-" if value is None else f"{value:+.{digits}f} {unit}".rstrip()
