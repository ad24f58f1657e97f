"""The tables of `atoll simulate bandwidth --preset`: published figures beside ours, every miss named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from atoll.cli.bandwidth_study import draw, number_table
from atoll.sim.bandwidth import presets, study
from atoll.sim.bandwidth.presets import Cell, Headline
from atoll.sim.bandwidth.timeline import GRID

__all__ = ["tell"]

PLOTTED_MODEL = "10B"

TABLE4_SETTINGS = (
    "The paper's: sizes, step times, 3 layers per fragment, H = 100, FP4. Deduced from what it says of Table"
    " 1 (400 times fewer bits, a full step of delay): 16 bits elsewhere, tau = 1 with overlap. Inferred by"
    " us, the same for every cell: two sites, tau = 0 without overlap, round parameter counts. Nothing is"
    " fitted. Most of ours are one link of the grid above the paper's, and we leave it so.\n"
)
HEADLINE_SETTINGS = (
    "The paper's: 8 sites, H = P = 24, tau = 2, the four rates, and ratios from 60 to 242. Inferred by us: a"
    " utilisation of 0.9, the parameters per second of step time (N/T), which rate is in 16 and which in 4"
    " bits, the ring factor on Data-Parallel alone, and the exact ratios that we hold ourselves to.\n"
)


def tell(name: str, console: Console, plot: Path | None) -> dict[str, object]:
    """Recompute, print and perhaps draw; returns what a program would want to read."""
    answer = _tell_headline(console) if name == "headline" else _tell_table4(console)
    if plot:
        columns = presets.headline_columns() if name == "headline" else presets.table4_columns(PLOTTED_MODEL)
        links = np.geomspace(GRID[0], GRID[-1], study.CURVE_POINTS)
        curves = {label: study.curve(method, traffic, links) for label, method, traffic in columns}
        draw(curves, plot, console)
    return {"preset": name, **answer}


def _tell_table4(console: Console) -> dict[str, object]:
    cells = presets.streaming_table4()
    misses = [cell for cell in cells if not cell.agrees]
    agreeing = len(cells) - len(misses)
    console.print(_cells_table(cells))
    console.print(TABLE4_SETTINGS, highlight=False)
    console.print(
        f"{agreeing} of {len(cells)} cells are within one link of the paper's grid"
        f" (at least {presets.MIN_AGREEING} must be). The misses:",
        highlight=False,
    )
    for cell in misses:
        console.print(f"  {_miss(cell)}", highlight=False)
    return {
        "rows": [asdict(cell) | {"agrees": cell.agrees} for cell in cells],
        "cells": len(cells),
        "agreeing": agreeing,
        "must_agree": presets.MIN_AGREEING,
        "misses": [asdict(cell) for cell in misses],
    }


def _cells_table(cells: Sequence[Cell]) -> Table:
    title = "Streaming DiLoCo, Table 4, Gbit/s by compute utilisation: the paper's / ours"
    names = ("model", "method", *(f"{cu:g}" for cu in presets.CUS))
    table = number_table(title, names, texts=2)
    for first in range(0, len(cells), len(presets.CUS)):
        row = cells[first : first + len(presets.CUS)]
        table.add_row(
            row[0].model, row[0].column.replace("Streaming, ", "+ "), *(_pair(cell) for cell in row)
        )
    return table


def _pair(cell: Cell) -> str:
    text = "/".join(f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}" for rate in (cell.paper_gbps, cell.gbps))
    return text if cell.agrees else f"[red]{text}[/red]"


def _miss(cell: Cell) -> str:
    return (
        f"{cell.model}, {cell.column}, {cell.cu:g}: the paper {cell.paper_gbps:g} Gbit/s,"
        f" ours {cell.gbps:.3g}, {abs(cell.links_apart)} links apart"
    )


def _tell_headline(console: Console) -> dict[str, object]:
    rows, scavenged = presets.headline(), presets.scavenging_rows()
    rates = [row for row in rows if row.unit == "Gbit/s"]
    ratios = [row for row in rows if row.unit != "Gbit/s"]
    console.print(_headline_table(rows))
    console.print(HEADLINE_SETTINGS, highlight=False)
    table = number_table("Scavenging: time to finish", ("extra, half of the work", "paper", "ours"))
    for extra, paper, ours in scavenged:
        table.add_row(f"+{extra:.0%}", f"{paper:.2f}", f"{ours:.3f}")
    console.print(table)
    return {
        "rows": [_rate_json(row) for row in rates],
        "ratios": [asdict(row) | {"agrees": row.agrees} for row in ratios],
        "scavenging": [{"extra": extra, "paper": paper, "time": ours} for extra, paper, ours in scavenged],
        "misses": [f"{row.method}, {row.model}" for row in rows if not row.agrees],
    }


def _headline_table(rows: Sequence[Headline]) -> Table:
    names = ("method", "bits", "model", "paper", "ours", "unit", "allowed")
    table = number_table("Decoupled DiLoCo, the headline", names)
    for row in rows:
        allowed = f"{row.target:g} +- {row.tolerance:.1%}"
        figures = (f"{row.bits}", row.model, f"{row.paper:g}", f"{row.ours:.4g}", row.unit)
        table.add_row(row.method, *figures, allowed if row.agrees else "[red]MISS[/red]")
    return table


def _rate_json(row: Headline) -> dict[str, object]:
    return {
        "method": row.method,
        "bits": row.bits,
        "cu": presets.HEADLINE_CU,
        "gbps": row.ours,
        "paper_gbps": row.paper,
        "tolerance": row.tolerance,
        "agrees": row.agrees,
    }
