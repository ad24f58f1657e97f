"""`atoll simulate goodput`: what a fleet would get done, before anybody pays for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from atoll.cli import goodput_options as opt
from atoll.cli.options import AsJson
from atoll.errors import ConfigError
from atoll.observe.formats import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.cli.goodput_study import Study
    from atoll.sim.fleet.result import FleetResult

__all__ = ["goodput"]

TIMELINE_DAYS = 7
PLAIN_WIDTH = 100
"""Of tables that go into a file."""


def goodput(
    context: typer.Context,
    chips: opt.Chips = None,
    learners: opt.Learners = None,
    mtbi: opt.Mtbi = None,
    slice_chips: opt.Slice = None,
    speed_spread: opt.SpeedSpread = None,
    quorum: opt.Quorum = None,
    elastic: opt.Elastic = None,
    elasticity: opt.Elasticity = None,
    step: opt.Step = None,
    down: opt.Down = None,
    up: opt.Up = None,
    return_mean: opt.Return = None,
    return_shape: opt.ReturnShape = None,
    return_power: opt.ReturnPower = None,
    outage: opt.Outage = None,
    reload: opt.Reload = None,
    checkpoint: opt.Checkpoint = None,
    shocks: opt.Shocks = None,
    traces: opt.Traces = None,
    syncer_mtbf: opt.SyncerMtbf = None,
    syncer_down: opt.SyncerDown = None,
    days: opt.Days = None,
    repetitions: opt.Repetitions = None,
    seed: opt.Seed = 1,
    preset: opt.Preset = None,
    from_run: opt.FromRun = None,
    fit: opt.Fit = None,
    price: opt.Price = None,
    plot: opt.Plot = None,
    timeline: opt.Timeline = None,
    write_traces: opt.WriteTraces = None,
    as_json: AsJson = False,
) -> None:
    """Simulate fleets of chips that fail and return: goodput, uptime, and where the time goes.

    [dim]atoll simulate goodput --chips 150k,1.2M --learners 1,2,4,8,16 --mtbi 1y[/dim]

    [dim]atoll simulate goodput --preset paper-table1[/dim]

    [dim]atoll simulate goodput --chips 4096 --learners 4 --elasticity both --shock site --price 2.5[/dim]
    """
    # Read from the context: what was not given is left out, whatever it is called.
    given = {name: value for name, value in context.params.items() if value not in (None, [], ())}
    _answer(given, as_json)


def _answer(given: Mapping[str, Any], as_json: bool) -> None:
    """Carry one study out and tell it."""
    from atoll.cli import goodput_table as tell
    from atoll.cli.goodput_advice import advice
    from atoll.cli.goodput_study import check_meant, read_study

    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    _check_outputs(given)
    check_meant(given)
    answer: dict[str, Any] = {}
    if "from_run" in given:
        given = _measured(given, console, answer)
    study = read_study(given)
    if "fit" in given:
        study = _fitted(study, console, answer)
    results = _simulated(study, trace="timeline" in given or "write_traces" in given)
    answer |= {"settings": study.settings(), "cells": tell.cells_json(study, results)}
    if study.cells:
        _compare(study, results, console, answer, is_paper="preset" in given)
    else:
        console.print(tell.rows_table(study, results))
        answer["advice"] = advice(study, results)
    for line in [*tell.money_lines(study, results), *answer.get("advice", ())]:
        _say(console, line)
    _write(given, study, results, console)
    if as_json:
        typer.echo(json.dumps(finite(answer), allow_nan=False))


def _simulated(study: Study, *, trace: bool) -> list[FleetResult]:
    from atoll.sim.fleet.simulate import simulate

    with Console(stderr=True).status(f"simulating {len(study.rows)} fleets"):
        return simulate(
            [study.fleet(row) for row in study.rows],
            horizon_s=study.horizon_s,
            repetitions=study.repetitions,
            seed=study.seed,
            trace=trace,
        )


def _measured(given: Mapping[str, Any], console: Console, answer: dict[str, Any]) -> dict[str, Any]:
    """What was given, completed with the times of a run."""
    from atoll.cli.goodput_from_run import from_run, stayed
    from atoll.cli.goodput_table import taken_table

    completed, taken, remarks = from_run(given["from_run"], given)
    if taken:
        console.print(taken_table(taken))
    for line in remarks:
        _say(console, line)
    answer["measured"] = {one.option: {"seconds": one.seconds, "events": one.count} for one in taken}
    answer |= {"defaults": stayed(completed), "remarks": remarks}
    return completed


def _fitted(study: Study, console: Console, answer: dict[str, object]) -> Study:
    """The study with the constants that fit its table."""
    from dataclasses import replace

    from atoll.cli.goodput_table import fit_json, fit_lines, fit_table_of
    from atoll.sim.fleet.fit import SLACK_POINTS, fit_table

    def say(line: str) -> None:
        typer.echo(f"fit: {line}", err=True)

    found = fit_table(
        study.cells,
        mtbi_s=study.mtbi_s,
        slice_chips=study.slice_chips,
        start=study.pauses,
        seed=study.seed,
        say=say,
    )
    console.print(fit_table_of(found, SLACK_POINTS))
    for line in fit_lines(found):
        _say(console, line)
    answer["fit"] = fit_json(found, SLACK_POINTS)
    return replace(study, pauses=found.pauses)


def _compare(
    study: Study,
    results: Sequence[FleetResult],
    console: Console,
    answer: dict[str, object],
    *,
    is_paper: bool,
) -> None:
    """Set the results beside the table that they are about."""
    from atoll.cli import goodput_table as tell
    from atoll.sim.fleet.presets import TABLE1_CAVEATS, compare

    comparison = compare(results, study.cells)
    title = "Table 1 of arXiv:2604.21428" if is_paper else "Your table"
    console.print(tell.comparison_table(title, "theirs" if is_paper else "yours", comparison))
    for line in tell.comparison_lines(study, comparison, is_paper=is_paper):
        _say(console, line)
    answer |= tell.comparison_json(study, comparison)
    if is_paper:
        answer |= {
            "preset": "paper-table1",
            "whose_constants": "fitted by us",
            "caveats": list(TABLE1_CAVEATS),
        }


def _write(given: Mapping[str, Any], study: Study, results: Sequence[FleetResult], console: Console) -> None:
    """Pictures and traces, where they were asked for."""
    if "plot" in given:
        from atoll.observe.plots import plot_goodput

        plot_goodput(results, given["plot"])
        _say(console, f"Picture: {given['plot']}")
    if "timeline" in given:
        from atoll.observe.plots import plot_timeline

        full = {island.name: float(island.chips) for island in results[0].fleet.islands}
        until_s = min(study.horizon_s, TIMELINE_DAYS * 86400.0)
        plot_timeline(results[0].traces, until_s, given["timeline"], full)
        _say(console, f"Timeline of the first repetition: {given['timeline']}")
    if "write_traces" in given:
        from atoll.sim.fleet.trace import write_traces

        write_traces(given["write_traces"], results[0].traces)
        _say(console, f"Traces of the first repetition: {given['write_traces']}")


def _check_outputs(given: Mapping[str, Any]) -> None:
    """Before minutes of work: whether there is a place for what comes out of them."""
    for name in ("plot", "timeline", "write_traces"):
        path: Path | None = given.get(name)
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ConfigError(
                f"{path} cannot be written.",
                "It is a directory, or it lies in one that does not exist.",
                "Name a file in an existing directory.",
            )


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
