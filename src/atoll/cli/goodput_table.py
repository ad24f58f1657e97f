"""The answer of `atoll simulate goodput`: as tables for a person, as one object for a program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from atoll.cli.goodput_study import Row, Study
from atoll.sim.fleet.presets import TABLE1_CAVEATS, Comparison
from atoll.sim.fleet.result import FleetResult
from atoll.sim.units import DAY, HOUR, say_count, say_duration

if TYPE_CHECKING:
    from atoll.cli.goodput_from_run import Taken
    from atoll.sim.fleet.fit import Fit

__all__ = [
    "cells_json",
    "comparison_json",
    "comparison_lines",
    "comparison_table",
    "fit_json",
    "fit_lines",
    "fit_table_of",
    "money_lines",
    "rows_table",
    "taken_table",
]

LEAST_SHARE = 0.0005
"""Less is not worth a word."""
SHORT = {
    "shrinking": "shrink",
    "growing": "grow",
    "restarting": "restart",
    "redone": "redo",
    "waiting": "wait",
}


def rows_table(study: Study, results: Sequence[FleetResult]) -> Table:
    """A line for each fleet; all in percent but the counts."""
    span = f"{say_duration(study.horizon_s)}, {study.repetitions} repetitions, seed {study.seed}"
    table = _table(f"Simulated goodput, percent of the chip time ({span})")
    names = ["chips", "learners", "elastic", "goodput", "uptime"]
    names += [f"{study.quorum} up"] * (study.quorum > 1) + ["merging"] * (study.syncer is not None)
    names += ["part."] + ["work"] * (study.speed_spread > 0) + ["wasted/day"] * (study.price is not None)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("lost to", min_width=24)
    for row, result in zip(study.rows, results, strict=True):
        cells = [say_count(row.chips), str(row.learners), "yes" if row.elastic else "no", _goodput(result)]
        cells += [_percent(result.uptime_one)]
        cells += [_percent(result.uptime_quorum)] * (study.quorum > 1)
        cells += [_percent(result.merging)] * (study.syncer is not None)
        cells += [_percent(result.participation)]
        cells += [say_count(result.work)] * (study.speed_spread > 0)
        if study.price is not None:
            cells.append(say_count(_wasted_per_day(row, result, study.price)))
        table.add_row(*cells, _lost_to(result))
    return table


def money_lines(study: Study, results: Sequence[FleetResult]) -> list[str]:
    """For each size: what the best and the worst row waste over the whole time, and the difference."""
    if study.price is None:
        return []
    days = study.horizon_s / DAY
    said = [f"At {study.price:g} per chip and hour, over {say_duration(study.horizon_s)}:"]
    for chips in dict.fromkeys(row.chips for row in study.rows):
        wasted = {
            row: days * _wasted_per_day(row, result, study.price)
            for row, result in zip(study.rows, results, strict=True)
            if row.chips == chips
        }
        best, worst = min(wasted, key=wasted.__getitem__), max(wasted, key=wasted.__getitem__)
        line = f"  {say_count(chips)} chips: {say_count(wasted[best])} wasted by {_who(best)}"
        if best != worst:
            more = say_count(wasted[worst] - wasted[best])
            line += f", {say_count(wasted[worst])} by {_who(worst)}: {more} more"
        said.append(line + ".")
    return said


def comparison_table(title: str, theirs: str, comparison: Comparison) -> Table:
    """Ours beside theirs, a line for each kind of fleet, a column for each size."""
    table = _table(f"{title}: goodput in percent, ours ({theirs})")
    sizes = sorted({cell.chips for cell in comparison.cells})
    table.add_column("", no_wrap=True)
    for chips in sizes:
        table.add_column(say_count(chips), justify="right", no_wrap=True)
    entries: dict[tuple[int, bool], dict[int, str]] = {}
    for cell, residual in zip(comparison.cells, comparison.residuals, strict=True):
        text = f"{cell.goodput_percent + residual:.1f} ({cell.goodput_percent:g})"
        entries.setdefault((cell.learners, cell.elastic), {})[cell.chips] = text
    for (learners, elastic), row in entries.items():
        name = "Data-Parallel" if learners == 1 else f"{learners} learners"
        table.add_row(name + ("" if elastic else " (not elastic)"), *(row.get(chips, "") for chips in sizes))
    return table


def comparison_lines(study: Study, comparison: Comparison, *, is_paper: bool) -> list[str]:
    """How near it is, with which constants, and what must be known about them."""
    pauses = study.pauses
    said = [
        f"Distance: rms {comparison.rms:.2f} points, worst {comparison.worst:+.2f} "
        f"({_who(_row_of(comparison))} on {say_count(_row_of(comparison).chips)} chips).",
        f"Constants: step {_seconds(pauses.quantum_s)}, down {_seconds(pauses.down_s)}, up "
        f"{_seconds(pauses.up_s)}, return {_seconds(pauses.returns.mean_s)}, outage "
        f"{_seconds(pauses.outage_s)}, slices of {study.slice_chips} chips.",
    ]
    return [*said, *TABLE1_CAVEATS] if is_paper else said


def fit_table_of(fit: Fit, slack_points: float) -> Table:
    """What the table says about each constant."""
    table = _table(
        f"Constants: the best, and how far each goes until the rms is {slack_points:g} points more"
    )
    for name in ("constant", "best", "from", "to", "pinned by the table"):
        table.add_column(name, justify="left" if name == "constant" else "right", no_wrap=True)
    for one in fit.constants:
        pinned = "yes" if one.is_pinned else "no: ends at the bound of the search" if one.is_open else "no"
        seconds = (_seconds(value) for value in (one.best, one.low, one.high))
        table.add_row(one.name, *seconds, pinned)
    return table


def fit_lines(fit: Fit) -> list[str]:
    """The same in words: what may be believed, and what should be measured."""
    pinned = [one.name for one in fit.constants if one.is_pinned]
    loose = [one.name for one in fit.constants if not one.is_pinned]
    said = [f"Pinned by your table: {', '.join(pinned) or 'nothing'}."]
    if loose:
        said.append(
            f"Not pinned: {', '.join(loose)}. Their best values are some of many: measure them if you can."
        )
    return said


def taken_table(taken: Sequence[Taken]) -> Table:
    """Which constants come from a run, and from how many events."""
    table = _table("Constants measured in the run")
    for name in ("constant", "value", "events", "measured as"):
        table.add_column(name, justify="right" if name in ("value", "events") else "left", no_wrap=True)
    for one in taken:
        name = one.option.removesuffix("_mean").replace("_", " ")
        table.add_row(name, say_duration(one.seconds), str(one.count), one.how)
    return table


def cells_json(study: Study, results: Sequence[FleetResult]) -> list[dict[str, object]]:
    """A plain object for each fleet: ratios in percent, money and chips as they are."""
    return [_cell_json(study, row, result) for row, result in zip(study.rows, results, strict=True)]


def comparison_json(study: Study, comparison: Comparison) -> dict[str, object]:
    """How near the table is, and with whose constants."""
    names = ("mtbi_s", "slice_chips", "quantum_s", "down_s", "up_s", "return_s", "outage_s")
    settings = study.settings()
    return {
        "theirs_percent": [cell.goodput_percent for cell in comparison.cells],
        "residuals": list(comparison.residuals),
        "rms": comparison.rms,
        "worst": comparison.worst,
        "constants": {name: settings[name] for name in names},
    }


def fit_json(fit: Fit, slack_points: float) -> dict[str, object]:
    """The constants and their ranges, in seconds."""
    constants = [
        {
            "name": c.name,
            "best": c.best,
            "low": c.low,
            "high": c.high,
            "pinned": c.is_pinned,
            "open": c.is_open,
        }
        for c in fit.constants
    ]
    return {"rms": fit.rms, "slack_points": slack_points, "tries": fit.num_tries, "constants": constants}


def _cell_json(study: Study, row: Row, result: FleetResult) -> dict[str, object]:
    cell: dict[str, object] = {
        "chips": row.chips,
        "learners": row.learners,
        "elastic": row.elastic,
        "goodput_percent": 100 * result.goodput,
        "stderr": None if math.isnan(result.stderr) else 100 * result.stderr,
        "uptime_percent": 100 * result.uptime_one,
        "quorum": study.quorum,
        "uptime_quorum_percent": 100 * result.uptime_quorum,
        "merging_percent": 100 * result.merging,
        "participation_percent": 100 * result.participation,
        "shares_percent": {name: 100 * share for name, share in result.shares.items()},
        "learner_goodput_percent": [100 * share for share in result.learner_goodput],
        "work_chips": result.work,
        "failures": result.num_failures,
    }
    if study.price is not None:
        cell["wasted_per_day"] = _wasted_per_day(row, result, study.price)
        cell["wasted"] = study.horizon_s / DAY * _wasted_per_day(row, result, study.price)
    return cell


def _wasted_per_day(row: Row, result: FleetResult, price: float) -> float:
    """Money for chip time that did no useful step."""
    return (1 - result.goodput) * row.chips * (DAY / HOUR) * price


def _row_of(comparison: Comparison) -> Row:
    """Of the worst cell."""
    cell = comparison.cells[comparison.residuals.index(comparison.worst)]
    return Row(cell.chips, cell.learners, cell.elastic)


def _who(row: Row) -> str:
    name = "1 learner" if row.learners == 1 else f"{row.learners} learners"
    return name if row.elastic else f"{name} (not elastic)"


def _seconds(value: float) -> str:
    """Three digits, and no powers of ten."""
    return f"{value:.3g} s" if value < 1000 else f"{value:.0f} s"


def _goodput(result: FleetResult) -> str:
    error = "" if math.isnan(result.stderr) else f" ± {100 * result.stderr:.2f}"
    return f"{100 * result.goodput:.2f}{error}"


def _percent(share: float) -> str:
    """Two digits, but never 100.00 for what is less."""
    text = f"{100 * share:.2f}"
    return "> 99.99" if text == "100.00" and share < 1 else text


def _lost_to(result: FleetResult) -> str:
    parts = sorted(((share, name) for name, share in result.shares.items() if name != "useful"), reverse=True)
    return ", ".join(
        f"{SHORT.get(name, name)} {100 * share:.1f}" for share, name in parts if share >= LEAST_SHARE
    )


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
