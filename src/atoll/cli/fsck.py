"""`atoll fsck`: whether a run directory is whole, what is damaged, what can be saved."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from atoll.cli import options as opt

if TYPE_CHECKING:
    from atoll.runtime.fsck import Report

__all__ = ["fsck"]

SHOWN_FILES = 3


def fsck(
    run: Annotated[Path, typer.Argument(help="A run directory; its syncer may be running.")],
    as_json: opt.AsJson = False,
) -> None:
    """Verify a run directory: every digest, the chains, the ledger, the fold of all versions.

    [dim]atoll fsck runs/gemma-1[/dim]

    Says exactly what is damaged and, for each fragment, the newest version that
    can be rebuilt. Changes nothing and locks nothing. Exit code 0: all is well;
    1: something is damaged; 2: there is no run.
    """
    from atoll.runtime.fsck import check_store

    report = check_store(run)
    if as_json:
        found = {"ok": report.ok, "verified": "fold", "run_dir": str(run)} | asdict(report)
        typer.echo(json.dumps(found))
    else:
        _show(Console(), report)
    if not report.ok:
        raise typer.Exit(1)


def _show(console: Console, report: Report) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("checked", "how much", "found"):
        table.add_column(title)
    for check in report.checks:
        number = check.num_problems
        found = f"{number} problem{'s' if number > 1 else ''}" if number else "whole"
        table.add_row(check.name, check.what, Text(found, style="bold red" if number else "green"))
    console.print(table)
    for problem in report.problems:
        console.print(Text(f"- {problem}"), soft_wrap=True)
    _name_files(console, "Left over, harmless, deleted in time", report.strays)
    _name_files(console, "Of versions given up", report.given_up)
    if report.problems and not report.fragments:
        console.print("What can be saved cannot be told: no version is proven.")
    elif report.problems:
        console.print("What can be saved:")
        for part in report.fragments:
            saved = _saved(part.fragment, part.version, part.recoverable, part.source)
            console.print(Text(f"- {saved}"), soft_wrap=True)
    else:
        console.print(f"The run is whole: {report.commits:,} merges, folded from {report.since}.")


def _name_files(console: Console, what: str, files: tuple[str, ...]) -> None:
    if files:
        more = len(files) - SHOWN_FILES
        names = ", ".join(files[:SHOWN_FILES]) + (f" and {more} more" if more > 0 else "")
        console.print(Text(f"{what}: {names}", style="dim"), soft_wrap=True)


def _saved(fragment: int, version: int, recoverable: int | None, source: str) -> str:
    if recoverable is None:
        return f"fragment {fragment}: nothing of its {version} versions; {source}"
    lost = f", {version - recoverable} lost" if recoverable < version else ""
    return f"fragment {fragment}: version {recoverable} of {version}{lost}, from {source}"
