"""The page of `atoll status`: everything a status says, once.

The same words as the live view, with every column there is. Learner columns that do not fit beside each
other go into further tables below, so the page is complete on a narrow terminal too.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from atoll.observe.formats import count, data_size, decimal, loss, percent, plain, si
from atoll.observe.learners import details_of, learner_table, split_columns, status_columns
from atoll.observe.notes import tell
from atoll.observe.parts import (
    Status,
    event_lines,
    fact_grid,
    head,
    num_alive,
    problem_lines,
    unit_of,
)

__all__ = ["render_status"]

MAX_EVENTS = 12


def render_status(status: Status, max_rows: int | None = None) -> RenderableType:
    """The whole status as one page, as wide as the console; at most `max_rows` learners if given."""
    return _Page(status, max_rows)


@dataclass(frozen=True, slots=True)
class _Page:
    """A page that learns its width when it is printed."""

    status: Status
    max_rows: int | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        status, width = self.status, options.max_width
        yield head(status, status.get("eta_s"))
        yield Text()
        yield _facts(status)
        yield from _durability(status)
        yield from problem_lines(status)
        details = details_of(status)
        tables = split_columns(status_columns(status), width) if details else []
        for columns in tables:
            yield Text()
            yield learner_table(details, columns, width, self.max_rows)
        if not details:
            yield Text("\nno learner has joined yet", style="dim")
        if lines := tell(status.get("notes") or ())[-MAX_EVENTS:]:
            yield Text()
            yield event_lines(lines)


def _facts(status: Status) -> RenderableType:
    get, unit = status.get, unit_of(status)
    bits = get("bits_per_param") or {}
    left = [
        ("loss", loss(get("loss")), ""),
        (f"{unit}/s", si(get("tokens_per_s")), ""),
        ("alive", num_alive(status), ""),
        ("participating", count(get("participating")), ""),
        ("merged", count(get("merged")), ""),
        ("merges", count(get("merges")), ""),
        ("learner steps", count(get("learner_steps")), ""),
    ]
    middle = [
        ("goodput", percent(get("goodput")), ""),
        ("participation", percent(get("participation")), ""),
        ("stall", percent(get("stall_fraction"), 2), ""),
        (unit, si(get("tokens")), ""),
        (f"merged {unit}", si(get("merged_tokens")), ""),
        ("bytes up", data_size(get("bytes_up")), ""),
        ("bytes down", data_size(get("bytes_down")), ""),
    ]
    right = [
        ("parameters", si(get("params")), ""),
        ("fragments P", count(get("fragments")), ""),
        ("interval H", count(get("interval_steps")), ""),
        ("quorum K", count(get("quorum")), ""),
        ("epoch", count(get("epoch")), ""),
        ("bits/param up", decimal(bits.get("up"), 2), ""),
        ("bits/param down", decimal(bits.get("down"), 2), ""),
    ]
    return fact_grid(left, middle, right)


def _durability(status: Status) -> list[Text]:
    durability = status.get("durability") or {}
    if not durability.get("mode"):
        return []
    text = Text.assemble(("durability ", "dim"), plain(durability["mode"]))
    if cost := durability.get("crash_cost"):
        text.append(f": {plain(cost)}")
    return [text]
