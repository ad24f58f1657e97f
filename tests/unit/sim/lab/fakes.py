"""An experiment and a trainer that cost nothing: what bench, estimates and the command are tested with.

The trainer runs in children of the test, which find it by its name. It writes down every cell that it begins,
in the file that `TRAINED` names, and some seeds have a fate.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.errors import ModelError
from atoll.sim.lab.cell import Cell, Method, Row
from atoll.sim.lab.report import Claim, Picture, Report, Request, Series, Stages, Table
from tests.unit.sim.lab.made_up import made_up

__all__ = [
    "DIES", "ENDS", "INTERRUPTS", "KILLS", "RAISES", "REFUSES", "TRAIN", "TRAINED",
    "Race", "cell_at", "loss_of", "train", "trained",
]  # fmt: skip

TRAIN = "tests.unit.sim.lab.fakes:train"
TRAINED = "ATOLL_TEST_TRAINED"
RAISES, REFUSES, DIES, ENDS, INTERRUPTS, KILLS = range(901, 907)
"""Seeds of cells that do not end well."""


def train(cell: Cell, tell: Callable[[float], None]) -> Row:
    """A row that follows from the cell alone."""
    with Path(os.environ[TRAINED]).open("a") as file:
        file.write(f"{cell.key}\n")
    for hundredths in range(0, 1001):
        tell(hundredths / 1000)
    fate = FATES.get(cell.seed)
    if fate is not None:
        fate()
    return made_up(cell, loss_of(cell), digest=cell.key, wall_s=0.0)


def cell_at(method: Method, learners: int, seed: int, **changes: Any) -> Cell:
    """A cell at settings that no sweep will move."""
    settings = {"batch": 16, "learning_rate": 8e-3, "eta": 0.4, "mu": 0.9, "tokens": 1 << 20, **changes}
    return Cell(method=method, learners=learners, seed=seed, **settings)


def trained() -> list[str]:
    """The keys of all cells that were begun, in order."""
    file = Path(os.environ[TRAINED])
    return file.read_text().split() if file.exists() else []


def loss_of(cell: Cell) -> float:
    return 2.0 + cell.seed / 1000 + abs(cell.learning_rate - 4e-3) + (0.01 if cell.learners > 1 else 0.0)


def fail() -> None:
    raise ValueError("this cell never works")


def refuse() -> None:
    raise ModelError("No model of this size.", "It cannot be trained.", "Take another.")


def interrupt() -> None:
    """As Ctrl-C does, while this cell is in flight and stays so."""
    os.kill(os.getppid(), signal.SIGINT)
    signal.pause()


def kill_parent() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()


FATES: dict[int, Callable[[], object]] = {
    RAISES: fail,
    REFUSES: refuse,
    DIES: lambda: os.kill(os.getpid(), signal.SIGKILL),
    ENDS: lambda: sys.exit(3),
    INTERRUPTS: interrupt,
    KILLS: kill_parent,
}


ARMS: tuple[tuple[Method, int], ...] = (("data-parallel", 2), ("data-parallel", 4), ("decoupled", 4))


@dataclass(frozen=True, slots=True)
class Race:
    """Two methods, then the better of three learning rates: an experiment of two stages."""

    name: str = "race"
    about: str = "decoupled against data-parallel, for tests"
    rates: tuple[float, ...] = (2e-3, 4e-3, 8e-3)
    fate: int = 0
    """A seed among the others."""

    def stages(self, request: Request) -> Stages:
        """Asks for the plain cells twice: one more time beside other rates."""
        seeds = [*range(1, request.seeds + 1), *([self.fate] if self.fate else [])]
        plain = [
            cell_at(method, learners, seed, size=request.size) for seed in seeds for method, learners in ARMS
        ]
        rows = yield plain
        more = [cell_at("decoupled", 4, seed, size=request.size, learning_rate=rate)
                for seed in seeds for rate in self.rates]  # fmt: skip
        rows = [*rows, *(yield [*plain[:1], *more])]
        return self._report(request, rows)

    def _report(self, request: Request, rows: Sequence[Row]) -> Report:
        best = min(row.heldout_loss for row in rows)
        table = Table(title="Race", columns=("method", "loss"), rows=(("decoupled", f"{best:.3f}"),))
        picture = Picture(
            title="Race",
            x_label="seed",
            y_label="loss",
            series=(Series(name="decoupled", x=(0.0, 1.0), y=(best, best)),),
        )
        claim = Claim(
            text="Decoupled is close",
            value=0.7,
            low=float("-inf"),
            high=float("inf"),
            limit=0.5,
            seeds=request.seeds,
            verdict="fails",
        )
        figures = {"best": best, "never": float("nan")}
        return Report(
            tables=(table,), pictures=(picture,), claims=(claim,), notes=("Made up.",), figures=figures
        )
