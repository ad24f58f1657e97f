"""The end of `atoll train`: what was reached, with what, and whether the kills cost the others anything.

`Summary` holds the numbers; `to_json` is the object that `--json` prints, `render_summary` the page.
The held-out losses compare the model before and after on the same data. The budget sentence says
what the run was allowed and who trained how much of it, so that two runs can be compared fairly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from atoll.observe.formats import UNKNOWN, count, decimal, duration, finite, loss, millis, percent, plain, si
from atoll.observe.learners import details_of, learner_table, summary_columns
from atoll.observe.parts import Status, fact_grid, traffic_facts, unit_of

__all__ = ["Summary", "render_summary"]

MAX_SHARES = 8
"""Learners whose tokens are named one by one in the budget sentence."""
MAX_VIOLATIONS = 10
MAX_ROWS = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A run that is over. `status` is its last one; the rest is what only the end knows.

    `violations` are sentences, one per broken invariant; `kills` are tables of `phases.kill_tables`.
    """

    status: Status
    run_dir: str
    heldout_start: float | None
    heldout_end: float | None
    wall_s: float
    violations: tuple[str, ...] = ()
    kills: tuple[Mapping[str, Any], ...] = ()

    @property
    def budget(self) -> str:
        """What the budget was, and how much of the training each learner did within it."""
        status, unit = self.status, unit_of(self.status)
        if ticks := status.get("budget_ticks"):
            allowed = f"{count(ticks)} ticks"
        elif tokens := status.get("budget_tokens"):
            allowed = f"{si(tokens)} merged {unit}"
        else:
            allowed = "open"
        return f"The budget was {allowed}. " + _shares(details_of(status), unit)

    def to_json(self) -> dict[str, Any]:
        """The object of `atoll train --json`: plain values; what is unknown or not finite is null."""
        status = self.status
        bits = status.get("bits_per_param") or {}
        learners = status.get("learners")
        found = {
            "run_dir": self.run_dir,
            "algorithm": status.get("algorithm"),
            "learners": len(details_of(status)) if learners is None else learners,
            "steps": status.get("t"),
            "learner_steps": status.get("learner_steps"),
            "tokens": status.get("tokens"),
            "merged_tokens": status.get("merged_tokens"),
            "merges": status.get("merges"),
            "heldout_loss": {"start": self.heldout_start, "end": self.heldout_end},
            "goodput": status.get("goodput"),
            "participation": status.get("participation"),
            "bytes_up": status.get("bytes_up"),
            "bytes_down": status.get("bytes_down"),
            "bits_per_param": {"up": bits.get("up"), "down": bits.get("down")},
            "stall_fraction": status.get("stall_fraction"),
            "violations": len(self.violations),
            "violation_reasons": list(self.violations),
            "wall_s": self.wall_s,
            "budget": self.budget,
            "kills": list(self.kills),
            "learner_details": list(details_of(status)),
        }
        return {key: finite(value) for key, value in found.items()}


def render_summary(summary: Summary) -> RenderableType:
    """The page at the end of a run, as wide as the console."""
    return _Page(summary)


@dataclass(frozen=True, slots=True)
class _Page:
    summary: Summary

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        summary, status, width = self.summary, self.summary.status, options.max_width
        yield _headline(summary)
        yield Text()
        yield _facts(summary)
        yield from _violations(summary.violations)
        yield Text()
        yield Text(summary.budget)
        if details := details_of(status):
            yield Text()
            yield learner_table(details, summary_columns(status), width, MAX_ROWS)
        for kill in summary.kills:
            yield Text()
            yield _kill_table(kill)
        yield Text()
        yield Text.assemble(("run directory ", "dim"), plain(summary.run_dir), overflow="fold")


def _headline(summary: Summary) -> Text:
    start, end = summary.heldout_start, summary.heldout_end
    text = Text.assemble((plain(summary.status.get("run") or "run"), "bold"), "  held-out loss ")
    if start is None or end is None:
        return text.append("not measured" if end is None else loss(end), style="bold")
    is_better = end < start
    text.append(f"{loss(start)} -> {loss(end)}", style="bold green" if is_better else "bold red")
    return text if is_better else text.append("  (no better than at the start)", style="red")


def _facts(summary: Summary) -> RenderableType:
    status, get, unit = summary.status, summary.status.get, unit_of(summary.status)
    left = [
        ("algorithm", plain(get("algorithm") or UNKNOWN), ""),
        ("learners", count(get("learners")), ""),
        ("wall time", duration(summary.wall_s), ""),
        ("steps (t)", count(get("t")), ""),
        ("learner steps", count(get("learner_steps")), ""),
        (unit, si(get("tokens")), ""),
        (f"merged {unit}", si(get("merged_tokens")), ""),
    ]
    right = [
        ("goodput", percent(get("goodput")), ""),
        ("participation", percent(get("participation")), ""),
        ("stall", percent(get("stall_fraction"), 2), ""),
        *traffic_facts(status),
        ("merges", count(get("merges")), ""),
        ("violations", count(len(summary.violations)), ""),
    ]
    return fact_grid(left, right)


def _violations(violations: Sequence[str]) -> list[Text]:
    lines = [Text(f"broken: {plain(reason)}", style="bold red") for reason in violations[:MAX_VIOLATIONS]]
    if len(violations) > MAX_VIOLATIONS:
        lines.append(Text(f"... and {len(violations) - MAX_VIOLATIONS} more", style="bold red"))
    return lines


def _kill_table(kill: Mapping[str, Any]) -> Table:
    """Phases side by side: the question is whether a row changes from left to right."""
    rows = list(kill.get("rows") or ())
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(Text(plain(kill.get("event") or "a kill"), style="bold"))
    for row in rows:
        table.add_column(Text(plain(row.get("phase") or UNKNOWN)), justify="right", no_wrap=True, min_width=8)
    table.add_row("survivors together, steps/s", *(decimal(row.get("steps_per_s"), 1) for row in rows))
    table.add_row("held ms per step", *(millis(row.get("held_ms")) for row in rows))
    table.add_row("CPU ms per step", *(millis(row.get("cpu_ms")) for row in rows))
    table.add_row("measured over", *(f"{decimal(row.get('seconds'), 1)} s" for row in rows), style="dim")
    return table


def _shares(details: Sequence[Mapping[str, Any]], unit: str) -> str:
    known = [(plain(d.get("name")), d["tokens"]) for d in details if d.get("tokens") is not None]
    if not known:
        return f"No learner reported any {unit}."
    if len(known) > MAX_SHARES:
        low, high = min(tokens for _, tokens in known), max(tokens for _, tokens in known)
        return f"{len(known)} learners trained on {si(low)} to {si(high)} {unit} each."
    (name, tokens), rest = known[0], known[1:]
    parts = [f"{name} trained on {si(tokens)} {unit}", *(f"{name} on {si(tokens)}" for name, tokens in rest)]
    return ", ".join(parts) + "."
