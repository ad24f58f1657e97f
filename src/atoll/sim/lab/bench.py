"""Trains the cells that an experiment asks for, in several processes, and keeps each as soon as it is done.

    experiment --cells--> [shelf] --those that are missing, longest first--> [places] --rows--> [shelf]

A place is a child process with one torch thread that trains one cell after the other; places live until the
experiment has ended. Bits do not depend on how many there are: every cell is a world of its own, and a single
place is a child as well. The children hold nothing that matters: a row goes onto the shelf when it arrives,
so an interrupt loses the cells in flight and no others. Children end with their parent, whichever way that
ends, and leave Ctrl-C to it.

A cell that raises, or whose process dies (short of memory, say), does not stop the others: they go on first,
and then `CellError` names it. The next try trains what is missing.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from typing import Literal

from atoll.errors import AtollError
from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.estimate import Costs, walk
from atoll.sim.lab.report import Experiment, Report, Request
from atoll.sim.lab.shelf import Shelf

__all__ = ["TRAIN", "CellError", "Progress", "describe", "run_stages", "train_cells"]

TRAIN = "atoll.sim.lab.train:run_cell"
"""Who trains a cell: `module:function`, called in a child with the cell and a function to tell its share."""
LEAST_SHARE = 0.01
"""Progress is told in steps of a hundredth, however often a trainer speaks."""
PATIENCE_S = 10.0
"""A child that has closed its pipe gets so long to end by itself, so that its exit code is its own."""

What = Literal["kept", "asked", "started", "share", "finished", "failed"]


class CellError(AtollError):
    """Cells that could not be trained; all others of their stage are on the shelf."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Something has happened to a cell."""

    what: What
    cell: Cell
    share: float
    """Of the cell that is done, between 0 and 1."""


OnProgress = Callable[[Progress], None]
News = Row | float | str
"""Of a cell in a place: its row, the share that is done (0: begun), or why there will be no row."""


def run_stages(
    experiment: Experiment,
    request: Request,
    shelf: Shelf,
    *,
    jobs: int,
    on_progress: OnProgress = lambda progress: None,
    costs: Costs | None = None,
    train: str = TRAIN,
) -> tuple[Report, list[Row]]:
    """Carry an experiment out. Returns its report, and the row of every cell that it asked for, once."""
    rows: dict[Cell, Row] = {}
    with closing(_Bench(jobs, train)) as bench:

        def answer(cells: Sequence[Cell]) -> list[Row]:
            found = _rows(cells, shelf, bench, costs or Costs(), on_progress)
            rows.update(zip(cells, found, strict=True))
            return found

        report = walk(experiment.stages(request), answer)
    return report, list(rows.values())


def train_cells(
    cells: Sequence[Cell],
    shelf: Shelf,
    *,
    jobs: int,
    on_progress: OnProgress = lambda progress: None,
    train: str = TRAIN,
) -> list[Row]:
    """The rows of these cells, in their order; what is not on the shelf is trained."""
    with closing(_Bench(jobs, train)) as bench:
        return _rows(cells, shelf, bench, Costs(), on_progress)


def describe(cell: Cell) -> str:
    """A cell in a few words, with its key."""
    who = f"{cell.method} with {cell.learners} learner{'s' if cell.learners > 1 else ''}"
    return f"{who}, {cell.task} {cell.size}, seed {cell.seed} (cell {cell.key})"


def _rows(
    cells: Sequence[Cell], shelf: Shelf, bench: _Bench, costs: Costs, on_progress: OnProgress
) -> list[Row]:
    """The rows of these cells, in their order: from the shelf, or trained and put there; equal ones once."""
    asked = {cell.key: cell for cell in cells}
    found = {key: row for key, cell in asked.items() if (row := shelf.find(cell)) is not None}
    for row in found.values():
        on_progress(Progress("kept", row.cell, 1.0))
    missing = [cell.plain() for key, cell in asked.items() if key not in found]
    failures: list[tuple[Cell, str]] = []
    missing.sort(key=lambda cell: (cell.seed, -costs.cost_s(cell)))  # whole pairs first, long ones first
    for cell in missing:
        on_progress(Progress("asked", cell, 0.0))
    for cell, news in bench.train(missing):
        if isinstance(news, Row):
            shelf.put(news)
            found[cell.key] = news
            on_progress(Progress("finished", cell, 1.0))
        elif isinstance(news, float):
            on_progress(Progress("share" if news else "started", cell, news))
        else:
            failures.append((cell, news))
            on_progress(Progress("failed", cell, 0.0))
    if failures:
        raise _failed(failures, len(missing))
    return [replace(found[cell.key], cell=cell) for cell in cells]


def _failed(failures: Sequence[tuple[Cell, str]], num_cells: int) -> CellError:
    cell, why = failures[0]
    others = "".join(f"\nAlso: {describe(other)}: {words.splitlines()[-1]}" for other, words in failures[1:])
    return CellError(
        f"{len(failures)} of {num_cells} cells could not be trained. {describe(cell)}:\n{why}{others}",
        "The report needs them all. The finished cells are kept.",
        "When the cause is mended, the same command trains only what is missing.",
    )


# The parent's side of a place


class _Bench:
    """As many places as jobs, each started when it is first needed."""

    def __init__(self, jobs: int, train: str) -> None:
        self._jobs = jobs
        self._train = train
        self._places: list[_Place] = []

    def train(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, News]]:
        """Train these cells, begun in this order; yields what happens to them as it happens."""
        waiting = deque(cells)
        busy: dict[Connection, tuple[_Place, Cell]] = {}
        while waiting or busy:
            free = [place for place in self._places if place.pipe not in busy]
            while waiting and len(busy) < self._jobs:
                place, cell = free.pop() if free else self._open(), waiting.popleft()
                place.begin(cell)
                busy[place.pipe] = place, cell
                yield cell, 0.0
            for pipe in connection.wait(list(busy)):
                assert isinstance(pipe, Connection)
                place, cell = busy[pipe]
                news = place.hear()
                if not isinstance(news, float):
                    del busy[pipe]
                if not place.is_alive:
                    self._places.remove(place)
                yield cell, news

    def close(self) -> None:
        """End all places; a cell in flight is lost."""
        for place in self._places:
            place.end()

    def _open(self) -> _Place:
        place = _Place(self._train)
        self._places.append(place)
        return place


class _Place:
    """One child process and the pipe to it."""

    def __init__(self, train: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.is_alive = True
        self._process = context.Process(target=_serve, args=(theirs, train), name="atoll-lab", daemon=True)
        resource_tracker.ensure_running()  # first, because it unblocks SIGINT
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which the child inherits
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()

    def begin(self, cell: Cell) -> None:
        """Let the child train a cell. That it died meanwhile is heard soon enough."""
        with suppress(OSError):
            self.pipe.send(cell)

    def hear(self) -> News:
        """What the child says next about its cell; its death is a failure of the cell."""
        try:
            news: News = self.pipe.recv()
        except (EOFError, OSError):
            self._process.join(PATIENCE_S)
            self.end()
            return _how_ended(self._process.exitcode)
        return news

    def end(self) -> None:
        """End the child, whatever it does: it holds nothing that matters."""
        self.is_alive = False
        self.pipe.close()
        self._process.kill()
        self._process.join()


def _how_ended(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed (SIGKILL): most often for want of memory; fewer --jobs need less."
    return f"its process ended by itself, with exit code {code}."


# The child


def _serve(pipe: Connection, train: str) -> None:
    """Train cells as they come, until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides
    os.environ["OMP_NUM_THREADS"] = "1"
    _end_with_parent()
    with suppress(EOFError, OSError):
        while True:
            cell = pipe.recv()
            pipe.send(_outcome(cell, pipe, train))


def _outcome(cell: Cell, pipe: Connection, train: str) -> Row | str:
    """The row of a cell, or why there is none."""
    told = 0.0

    def tell(share: float) -> None:
        nonlocal told
        if share >= told + LEAST_SHARE:
            told = share
            pipe.send(float(share))

    try:
        row: Row = _trainer(train)(cell, tell)
    except AtollError as error:
        return f"{type(error).__name__}: {error}"
    except (Exception, SystemExit):
        return traceback.format_exc().strip()
    finally:
        gc.collect()  # a world is full of circles, and the next one begins before they would be found
    return row


def _trainer(name: str) -> Callable[[Cell, Callable[[float], None]], Row]:
    """The trainer of this name, with one torch thread if it uses torch."""
    module, _, function = name.partition(":")
    found: Callable[[Cell, Callable[[float], None]], Row] = getattr(importlib.import_module(module), function)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    return found


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="atoll-parent", daemon=True).start()
