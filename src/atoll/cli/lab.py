"""`atoll lab`: experiments with real gradients in virtual time, and the cells that they have trained."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from atoll.cli.logs import end_on_sigterm
from atoll.cli.options import AsJson
from atoll.errors import ConfigError
from atoll.observe.formats import duration, finite
from atoll.sim.lab.report import FINE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.sim.lab.cell import Row
    from atoll.sim.lab.report import Experiment, Request

__all__ = ["commands"]

ALL = "all"
CELLS = Path("runs/lab")
INTERRUPTED, FAILED = 130, 1
LISTED_JOBS = 2
WIDTH = 100

commands = typer.Typer(
    help="Paired experiments: is the model as good as one trained in lock-step?", no_args_is_help=True
)

Name = Annotated[
    str, typer.Argument(help="An experiment, as `atoll lab list` names them, or all of them: all.")
]
Size = Annotated[
    str, typer.Option(help="Of the models: tiny or small; for those of text 0.05M, 0.2M and 0.4M too.")
]
Seeds = Annotated[
    int,
    typer.Option(
        help="Paired repetitions, each with its own initial weights and data. At tiny, arms that claims of a "
        f"fraction of a percent rest on get {FINE} or {2 * FINE} times as many."
    ),
]
Jobs = Annotated[int, typer.Option(help="Cells that are trained at the same time, each on one core.")]
Cells = Annotated[Path, typer.Option(help="Where finished cells are kept.")]
Out = Annotated[
    Path | None,
    typer.Option(help="A directory for pictures and JSON.", show_default="CELLS/NAME-SIZE"),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be trained and for how long, and end.")
]
Again = Annotated[bool, typer.Option("--again", help="Train everything anew, also what is kept.")]
Files = Annotated[list[Path], typer.Argument(help="JSON files that `atoll lab run` has written.")]
Key = Annotated[
    str, typer.Argument(help="Of a cell, as the JSON of an experiment names it; its beginning does.")
]


@commands.command("list")
def list_experiments(cells: Cells = CELLS, as_json: AsJson = False) -> None:
    """The experiments, with their cells and time at size tiny with 5 seeds, if nothing were kept."""
    from atoll.sim.lab import experiments
    from atoll.sim.lab.estimate import Costs, plan
    from atoll.sim.lab.report import Request
    from atoll.sim.lab.shelf import Shelf

    costs = Costs.of(Shelf(cells, say=_say).rows())
    table = Table("experiment", "what is compared", box=box.SIMPLE)
    table.add_column("cells", justify="right")
    table.add_column(f"on {LISTED_JOBS} cores", justify="right", no_wrap=True)
    answer: list[dict[str, Any]] = []
    for one in experiments.EXPERIMENTS.values():
        found = plan(one, Request(), None, costs)
        wall_s = found.wall_s(LISTED_JOBS)
        counted = f"about {found.cells}" if found.may_differ else str(found.cells)
        table.add_row(one.name, one.about, counted, duration(wall_s))
        counts = {"cells": found.cells, "may_differ": found.may_differ, "wall_s": wall_s}
        answer.append({"name": one.name, "about": one.about, **counts})
    console = _console(as_json)
    console.print(table)
    console.print("About: results decide what is asked for next; it may be more or less.", highlight=False)
    if as_json:
        _print_json({"size": "tiny", "seeds": 5, "jobs": LISTED_JOBS, "experiments": answer})


@commands.command("run")
def run_experiment(
    name: Name,
    size: Size = "tiny",
    seeds: Seeds = 5,
    jobs: Jobs = 2,
    cells: Cells = CELLS,
    out: Out = None,
    dry_run: DryRun = False,
    again: Again = False,
    as_json: AsJson = False,
) -> None:
    """Carry an experiment out: a table with mean and spread, claims with verdicts, pictures and JSON.

    Finished cells are kept by their full settings: after Ctrl-C the same
    command goes on, and experiments share what they have in common. A claim
    that fails is a finding: exit code 0. 1 says that a cell could not be
    trained. Two commands at once may train the same cell, which harms nothing.

    [dim]atoll lab run parity --size tiny --seeds 1[/dim]

    [dim]atoll lab run all --seeds 5 --dry-run[/dim]
    """
    from atoll.cli.lab_run import Session
    from atoll.sim.lab.shelf import Shelf

    end_on_sigterm()
    request = _request(size, seeds, jobs)
    chosen = _able(_chosen(name), request)
    shelf = Shelf(cells, again=again, say=_say)
    session = Session(request, jobs, shelf, _console(as_json), _commands(chosen, request, jobs, cells, out))
    with _told("the same command without --again goes on" if again else "the same command goes on"):
        if dry_run:
            found = session.plan(chosen)
        else:
            shelf.check()
            found = session.run(chosen, _places(chosen, request, cells, out))
    if as_json:
        _print_json({"experiments": found} if name == ALL else found[0] if found else {})
    if session.has_failed:
        raise typer.Exit(FAILED)


@commands.command()
def show(key: Key, cells: Cells = CELLS, as_json: AsJson = False) -> None:
    """One kept row: its settings, and what came of them."""
    from atoll.cli.lab_run import row_json
    from atoll.sim.lab.shelf import Shelf

    row = Shelf(cells, say=_say).named(key)
    _console(as_json).print(_row_table(row))
    if as_json:
        _print_json(row_json(row))


@commands.command()
def rerun(key: Key, cells: Cells = CELLS, as_json: AsJson = False) -> None:
    """Train one kept cell again, and say whether the same bits came of it: exit code 0 only if they did.

    The row that was kept stays.
    """
    from atoll.cli.lab_run import row_json
    from atoll.sim.lab import bench
    from atoll.sim.lab.shelf import Shelf

    end_on_sigterm()
    before = Shelf(cells, say=_say).named(key)

    _say(f"Training {bench.describe(before.cell)}; last time it took {duration(before.wall_s)}.")
    with _told("the same command begins again"), TemporaryDirectory() as aside:
        (after,) = bench.train_cells([before.cell], Shelf(Path(aside)), jobs=1, train=bench.TRAIN)
    is_same = after.digest == before.digest
    console = _console(as_json)
    console.print(_row_table(after))
    words = "The same bits as before." if is_same else f"Other bits than before: then {before.digest}."
    console.print(words, highlight=False)
    if as_json:
        _print_json({"same_bits": is_same, "before": row_json(before), "row": row_json(after)})
    if not is_same:
        raise typer.Exit(FAILED)


@commands.command()
def take(files: Files, cells: Cells = CELLS) -> None:
    """Keep the rows of results that somebody else has trained, so that they are not trained again.

    Rows that this version would not believe are left out: what they were scored on has changed, or their text
    was the library of another minor version of Python.

    [dim]atoll lab take docs/results/*.json[/dim]
    """
    from atoll.sim.lab.shelf import Shelf

    shelf = Shelf(cells, say=_say)
    for file in files:
        new, other = shelf.take(file)
        told = f"{file}: {new} row{'' if new == 1 else 's'} more in {cells}."
        if other:
            told += f" {other} are of another version of the lab or of Python, and left out."
        _say(told)


def _request(size: str, seeds: int, jobs: int) -> Request:
    from atoll.sim.lab.cell import SIZES
    from atoll.sim.lab.report import Request

    for name, value in (("seeds", seeds), ("jobs", jobs)):
        if value < 1:
            raise ConfigError(
                f"--{name} is {value}.", "With fewer than 1 nothing can be trained.", f"Try --{name} 1."
            )
    for known in SIZES:
        if known == size:
            return Request(size=known, seeds=seeds)
    raise ConfigError(
        f"--size is {size!r}.", "The lab has no models of that size.", f"Take one of {', '.join(SIZES)}."
    )


def _chosen(name: str) -> list[Experiment]:
    """The experiment of this name, or all of them."""
    from atoll.sim.lab import experiments

    known = experiments.EXPERIMENTS
    if name == ALL:
        return list(known.values())
    if name in known:
        return [known[name]]
    near = difflib.get_close_matches(name, [*known, ALL], n=1, cutoff=0.5)
    raise ConfigError(
        f"There is no experiment {name!r}.",
        f"The lab has {', '.join(known)}.",
        f"Did you mean {near[0]}?" if near else "`atoll lab list` says what each is about.",
    )


def _able(chosen: Sequence[Experiment], request: Request) -> Sequence[Experiment]:
    """Those that can be run at this size. Of several, the others are left out with a sentence."""
    from atoll.sim.lab.estimate import plan

    if len(chosen) == 1:
        return chosen
    found: list[Experiment] = []
    for one in chosen:
        try:
            plan(one, request, None)
        except ConfigError as error:
            _say(f"{one.name} is left out: {error.what}")
        else:
            found.append(one)
    return found


def _places(chosen: Sequence[Experiment], request: Request, cells: Path, out: Path | None) -> dict[str, Path]:
    """A directory for what comes of each experiment, made and tried before hours of work and not after."""
    from atoll.sim.lab.shelf import check_writable

    places = {one.name: cells / f"{one.name}-{request.size}" for one in chosen}
    if out is not None:
        places = {name: out / name if len(chosen) > 1 else out for name in places}
    for name, place in places.items():
        try:
            check_writable(place / f"{name}.json")
        except OSError as error:
            raise ConfigError(
                f"{place / name}.json cannot be written: {error.strerror}.",
                "Pictures and JSON would have no place.",
                "Name a directory that can be written with --out.",
            ) from error
    return places


def _commands(
    chosen: Sequence[Experiment], request: Request, jobs: int, cells: Path, out: Path | None
) -> dict[str, str]:
    """The command that makes each result again."""
    rest = f"--size {request.size} --seeds {request.seeds} --jobs {jobs}"
    if cells != CELLS:
        rest += f" --cells {shlex.quote(str(cells))}"
    if out is not None and len(chosen) == 1:
        rest += f" --out {shlex.quote(str(out))}"
    return {one.name: f"atoll lab run {one.name} {rest}" for one in chosen}


@contextmanager
def _told(go_on: str) -> Iterator[None]:
    """Interrupts and cells that fail are told in words, with an exit code of their own."""
    from atoll.sim.lab.bench import CellError

    try:
        yield
    except KeyboardInterrupt:
        _say(f"Interrupted. What is finished is kept: {go_on}.")
        raise typer.Exit(INTERRUPTED) from None
    except CellError as error:
        _say(f"CellError: {error}")
        raise typer.Exit(FAILED) from None


def _row_table(row: Row) -> Table:
    from atoll.sim.lab.bench import describe

    table = Table(box=box.SIMPLE, show_header=False, title=describe(row.cell), title_justify="left")
    values = {**row.to_json(), "curve": f"{len(row.curve)} points, in the JSON"}
    settings = values.pop("cell")
    for part in (settings, {"": ""}, values):
        for name, value in part.items():
            table.add_row(name, str(value))
    return table


def _console(as_json: bool) -> Console:
    """For people: standard output, or standard error if a program reads the former."""
    console = Console(stderr=as_json)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    return console


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _print_json(answer: Any) -> None:
    typer.echo(json.dumps(finite(answer), allow_nan=False))
