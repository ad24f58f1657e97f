"""Experiments of the lab, one after the other: what they will cost, how far they are, what came of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from atoll.errors import ConfigError, StoreError
from atoll.observe.formats import duration, finite
from atoll.observe.lab_pictures import draw
from atoll.observe.lab_tables import render, render_claims
from atoll.sim.lab import bench
from atoll.sim.lab.bench import CellError, Progress, describe
from atoll.sim.lab.cell import Row
from atoll.sim.lab.estimate import Costs, Meter, Plan, plans
from atoll.sim.lab.report import Experiment, Report, Request
from atoll.sim.lab.shelf import Shelf, write_whole

__all__ = ["Session", "row_json"]


@dataclass(eq=False)
class Session:
    """One command: experiments at one size, with one shelf."""

    request: Request
    jobs: int
    shelf: Shelf
    console: Console
    commands: Mapping[str, str]
    """By experiment: what to type to have it again."""
    has_failed: bool = False
    """Whether some cell could not be trained."""

    def plan(self, experiments: Sequence[Experiment]) -> list[dict[str, Any]]:
        """Say what would be trained, and train nothing."""
        return [
            {
                "experiment": one.name,
                "size": self.request.size,
                "seeds": self.request.seeds,
                "jobs": self.jobs,
                "cells": found.cells,
                "from_shelf": found.kept,
                "cpu_s": found.cost_s,
                "wall_s": found.wall_s(self.jobs),
                "command": self.commands[one.name],
            }
            for one, found in zip(experiments, self._planned(experiments)[0], strict=True)
        ]

    def run(self, experiments: Sequence[Experiment], places: Mapping[str, Path]) -> list[dict[str, Any]]:
        """Carry them out, tell and write what came of each; one whose cells fail does not stop the others."""
        found, costs = self._planned(experiments)
        watch = _Watch(found, self.jobs, costs)
        answers = []
        for one in experiments:
            started_s, trained_before = time.monotonic(), set(watch.trained)
            try:
                with watch.showing(one.name) as on_progress:
                    report, rows = bench.run_stages(
                        one, self.request, self.shelf,
                        jobs=self.jobs, on_progress=on_progress, costs=costs, train=bench.TRAIN,
                    )  # fmt: skip
            except CellError as error:
                typer.echo(f"{one.name}: CellError: {error}", err=True)
                self.has_failed = True
                continue
            self._tell(report)
            files = self._draw(one.name, report, places[one.name])
            answer = {
                **self._answer(one.name, report, rows, files),
                "wall_s": time.monotonic() - started_s,
                "from_shelf": len({row.cell.key for row in rows} - (watch.trained - trained_before)),
            }
            self._write(places[one.name] / f"{one.name}.json", answer)
            answers.append(answer)
        return answers

    def _planned(self, experiments: Sequence[Experiment]) -> tuple[list[Plan], Costs]:
        """What is to be trained, told before it begins."""
        costs = Costs.of(self.shelf.rows())
        found = plans(experiments, self.request, self.shelf, costs)
        if len(found) > 1:
            self.console.print(_plan_table(experiments, found, self.jobs))
        kept, to_train = sum(one.kept for one in found), sum(one.to_train for one in found)
        wall_s, cost_s = sum(one.wall_s(self.jobs) for one in found), sum(one.cost_s for one in found)
        may_differ = any(one.may_differ for one in found)
        name = experiments[0].name if len(found) == 1 else f"{len(found)} experiments"
        self._say(
            f"{name} at {self.request.size}, seeds: {self.request.seeds}. {kept + to_train} cells, {kept} of"
            f" them kept in {self.shelf.path}. To train: {to_train}, about {duration(wall_s)} with --jobs"
            f" {self.jobs} ({duration(cost_s)} of one core)."
            + (" Results decide what is asked for next: it may be more or less." if may_differ else "")
        )
        return found, costs

    def _tell(self, report: Report) -> None:
        for table in report.tables:
            self.console.print()
            self.console.print(render(table, self.console.width))
        if report.claims:
            self.console.print()
            self.console.print(render_claims(report.claims))
        for note in report.notes:
            self._say(note)

    def _draw(self, name: str, report: Report, place: Path) -> list[str | None]:
        """A file for each picture; None for one that cannot be drawn, which is no reason to lose the rest."""
        files: list[str | None] = []
        for number, picture in enumerate(report.pictures, 1):
            path = place / (f"{name}.png" if number == 1 else f"{name}-{number}.png")
            try:
                draw(picture, path)
            except ConfigError as error:
                self._say(f"No picture {picture.title!r}: {error}")
                files.append(None)
            else:
                self._say(f"Picture: {path}")
                files.append(path.name)
        return files

    def _answer(
        self, name: str, report: Report, rows: Sequence[Row], files: Sequence[str | None]
    ) -> dict[str, Any]:
        trained = {row.cell.key: row.cpu_s for row in rows}
        pictures = [
            {**asdict(picture), "file": file} for picture, file in zip(report.pictures, files, strict=True)
        ]
        return {
            "experiment": name,
            "size": self.request.size,
            "seeds": self.request.seeds,
            "command": self.commands[name],
            "cells": len(trained),
            "cpu_s": sum(trained.values()),
            "tables": [asdict(table) for table in report.tables],
            "claims": [asdict(claim) for claim in report.claims],
            "notes": report.notes,
            "figures": report.figures,
            "pictures": pictures,
            "rows": [row_json(row) for row in rows],
        }

    def _write(self, path: Path, answer: Mapping[str, Any]) -> None:
        try:
            write_whole(path, json.dumps(finite(answer), indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise StoreError(
                f"{path} cannot be written: {error.strerror}.",
                f"The result is told above only; its cells are kept in {self.shelf.path}.",
                "Make room there, or name another directory with --out: nothing is trained again.",
            ) from error
        self._say(f"JSON: {path}")

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def row_json(row: Row) -> dict[str, Any]:
    """A row as a program reads it: what it is about first; `Row.of` makes it a row again."""
    values = row.to_json()
    return {
        **{name: values["cell"][name] for name in ("task", "size", "method", "learners", "seed")},
        **values,
    }


class _Watch:
    """One measure of how far all experiments of a command are; a bar, or in a log a line for each cell."""

    def __init__(self, found: Sequence[Plan], jobs: int, costs: Costs) -> None:
        self.trained: set[str] = set()
        """Keys of the cells that were trained since the beginning."""
        self._asked: set[str] = set()
        self._planned = sum(one.to_train for one in found)
        total_s = sum(one.cost_s for one in found)
        self._meter = Meter(total_s=total_s, jobs=jobs, started_s=time.monotonic(), costs=costs)

    @contextmanager
    def showing(self, name: str) -> Iterator[Callable[[Progress], None]]:
        """Show what the events tell, while the experiment of this name runs."""
        console = Console(stderr=True)
        columns = (
            TextColumn(name), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[cells]}"),
            TimeElapsedColumn(), TextColumn("{task.fields[left]}"),
        )  # fmt: skip
        with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task(name, total=1.0, cells=self._cells(), left="")

            def on_progress(progress: Progress) -> None:
                self._take(progress)
                left = f"{duration(self._meter.left_s(time.monotonic()))} left"
                bar.update(task, completed=self._meter.share, cells=self._cells(), left=left)
                if progress.what in ("finished", "failed") and not console.is_terminal:
                    done = f"{self._cells()}, {100 * self._meter.share:.0f} %, {left}"
                    typer.echo(f"{name}: {done}; {progress.what}: {describe(progress.cell)}", err=True)

            yield on_progress

    def _take(self, progress: Progress) -> None:
        if progress.what == "kept":
            return
        if progress.what == "asked":
            self._asked.add(progress.cell.key)
            self._meter.asked(progress.cell)
            return
        self._meter.reached(progress.cell, progress.share)
        if progress.what == "finished":
            self.trained.add(progress.cell.key)

    def _cells(self) -> str:
        return f"{len(self.trained)} of {max(self._planned, len(self._asked))} cells"


def _plan_table(experiments: Sequence[Experiment], found: Sequence[Plan], jobs: int) -> Table:
    table = Table("experiment", box=box.SIMPLE)
    for title in ("cells", "shared with those above", "kept", "to train", f"with --jobs {jobs}"):
        table.add_column(title, justify="right")
    for one, its in zip(experiments, found, strict=True):
        counts = map(str, (its.cells, its.shared, its.kept, its.to_train))
        table.add_row(one.name, *counts, duration(its.wall_s(jobs)))
    return table
