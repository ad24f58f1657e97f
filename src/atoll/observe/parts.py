"""What the pages have in common: the head of a run, facts in columns, events, problems.

A status is a dictionary of plain values (see `runtime`, which makes it), any of which may be missing or
None. Pages are built from `Text`, never from markup, so that a bracket in a reason stays one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from atoll.observe.formats import UNKNOWN, count, data_size, decimal, duration, plain, si
from atoll.observe.notes import Line

__all__ = [
    "Fact",
    "Status",
    "budget_words",
    "event_lines",
    "fact_grid",
    "head",
    "num_alive",
    "problem_lines",
    "progress_words",
    "state_text",
    "traffic_facts",
    "unit_of",
]

Status = Mapping[str, Any]
Fact = tuple[str, str, str | Text]
"""A name, its value, and what else belongs on the line (a sparkline, a unit, nothing)."""

STATES = {
    "waiting": "yellow",
    "seeding": "cyan",
    "training": "green",
    "blocked": "bold red",
    "draining": "cyan",
    "finished": "bold green",
    "joining": "cyan",
    "healing": "yellow",
    "quarantined": "bold red",
    "lost": "bold red not dim",
    "left": "dim",
}
MOODS = {"good": "green", "bad": "yellow", "wrong": "red", "plain": ""}
MAX_PROBLEMS = 4
MIN_VALUE_WIDTH = 7


def head(status: Status, eta_s: float | None) -> RenderableType:
    """Two lines: which run in which state, and how much of its budget is spent."""
    title = Text.assemble(
        (plain(status.get("run") or "run"), "bold"), "  ", state_text(status.get("state")), "  "
    )
    title.append(plain(status.get("algorithm") or ""), style="dim")
    right = Text(f"epoch {count(status.get('epoch'))}, up {duration(status.get('uptime_s'))}", style="dim")
    first = Table.grid(expand=True)
    first.add_column(no_wrap=True, ratio=1)
    first.add_column(no_wrap=True, justify="right")
    first.add_row(title, right)

    second = Table.grid(expand=True, padding=(0, 2, 0, 0), pad_edge=False)
    second.add_column(ratio=1)
    for _ in range(3):
        second.add_column(no_wrap=True, justify="right")
    spent = _fraction(status.get("progress"))
    bar = ProgressBar(total=1.0, completed=spent, complete_style="cyan", finished_style="green")
    left = Text(f"ETA {duration(eta_s)}" if eta_s is not None else "")
    second.add_row(bar, Text(progress_words(status)), Text(budget_words(status)), left)
    stacked = Table.grid(expand=True)
    stacked.add_row(first)
    stacked.add_row(second)
    return stacked


def progress_words(status: Status) -> str:
    """The share of the budget spent, rounded down: 100 % is only said when it is."""
    progress = status.get("progress")
    return UNKNOWN if progress is None else f"{math.floor(100 * _fraction(progress))} %"


def budget_words(status: Status) -> str:
    """`t 328 of 800`, or for a budget of tokens `t 328, 1.31M of 5M tokens merged`."""
    t = count(status.get("t"))
    if ticks := status.get("budget_ticks"):
        return f"t {t} of {count(ticks)}"
    if tokens := status.get("budget_tokens"):
        return f"t {t}, {si(status.get('merged_tokens'))} of {si(tokens)} {unit_of(status)} merged"
    return f"t {t}"


def num_alive(status: Status) -> str:
    """How many learners are alive, of how many: `3 of 4`."""
    return f"{count(status.get('alive'))} of {count(status.get('learners'))}"


def unit_of(status: Status) -> str:
    """What the run counts: tokens, unless its recipe says images or samples."""
    return plain(status.get("unit") or "tokens")


def traffic_facts(status: Status) -> list[Fact]:
    """Bytes in both directions, with what a parameter cost on the way."""
    bits = status.get("bits_per_param") or {}
    return [
        (f"bytes {way}", data_size(status.get(f"bytes_{way}")), f"{decimal(bits.get(way), 2)} bits/param")
        for way in ("up", "down")
    ]


def state_text(state: object) -> Text:
    """A state as its word, in its colour."""
    word = plain(state or UNKNOWN)
    return Text(word, style=STATES.get(word, ""))


def fact_grid(*blocks: Sequence[Fact]) -> Table:
    """Blocks of facts beside each other; names are dim, values are aligned to the right."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for block in blocks:
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(no_wrap=True, justify="right", min_width=MIN_VALUE_WIDTH)
        if any(extra for _, _, extra in block):
            grid.add_column(no_wrap=True)
    for facts in zip(*blocks, strict=True):
        cells: list[str | Text] = []
        for block, (name, value, extra) in zip(blocks, facts, strict=True):
            cells += [name, value, extra] if any(fact[2] for fact in block) else [name, value]
        grid.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return grid


def event_lines(lines: Sequence[Line], *, wrap: bool = True) -> Table:
    """Events under each other, each with its time; a long sentence wraps under itself, or is cut."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", no_wrap=True, style="dim", min_width=10)
    grid.add_column(no_wrap=not wrap, overflow="fold" if wrap else "ellipsis")
    for line in lines:
        grid.add_row(Text(duration(line.at_s)), Text(line.text, style=MOODS[line.mood]))
    return grid


def problem_lines(status: Status) -> list[Text]:
    """What is wrong right now, as sentences; the worst-case number of them is bounded."""
    problems = [plain(problem) for problem in status.get("problems") or ()]
    lines = [Text(f"problem: {problem}", style="bold red") for problem in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(Text(f"... and {len(problems) - MAX_PROBLEMS} more problems", style="bold red"))
    return lines


def _fraction(value: float | None) -> float:
    return min(1.0, max(0.0, value)) if value is not None and math.isfinite(value) else 0.0
