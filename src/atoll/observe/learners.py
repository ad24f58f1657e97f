"""Tables with a row per learner, for two learners as for two hundred.

Columns have fixed widths, so that a live table does not jump when a number gains a digit, and a page
takes as many columns as its width allows. Rows are in order of name (`learner-10` after
`learner-9`). If there are too many, those that need attention stay, and the last line counts the
others by state.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from atoll.observe.formats import UNKNOWN, count, duration, loss, millis, percent, plain, short_count, si
from atoll.observe.parts import Status, state_text, unit_of

__all__ = [
    "Column",
    "details_of",
    "learner_table",
    "live_columns",
    "split_columns",
    "status_columns",
    "summary_columns",
]

Detail = Mapping[str, Any]

URGENCY = ("lost", "quarantined", "healing", "joining", "training", "left", "finished")
"""Who keeps a row when there are too many, first to last."""
GONE = ("lost", "left")
GAP = 2
MIN_NAME_WIDTH = 11
MAX_NAME_WIDTH = 24


@dataclass(frozen=True, slots=True)
class Column:
    """One number or word of a learner. `width` is what it takes, whatever it holds."""

    title: str
    width: int
    cell: Callable[[Detail], str | Text]
    justify_left: bool = False


def live_columns(status: Status, width: int) -> list[Column]:
    """The columns of the live view: nine at 80 characters, more as there is room."""
    known = _columns(status)
    short = Column("inc.", 4, known["incarnation"].cell)
    base = [known[key] for key in ("state", "lag", "steps", "rate", "loss", "step", "held")]
    columns = [base[0], known["incarnation"], *base[1:]]
    if not _fits(columns, width):
        return [base[0], short, *base[1:]]
    for key in ("cpu", "offers", "late"):
        if _fits([*columns, known[key]], width):
            columns.append(known[key])
    return columns


def status_columns(status: Status) -> list[Column]:
    """Every column there is, in the order of the status page: pace, offers, place."""
    return list(_columns(status).values())


def summary_columns(status: Status) -> list[Column]:
    """What is worth reading of a learner once the run is over; fits 80 characters."""
    known = _columns(status)
    short = Column("inc.", 4, known["incarnation"].cell)
    base = [known[key] for key in ("steps", "tokens", "loss", "step", "held", "offers", "late")]
    return [short, *base]


def split_columns(columns: Sequence[Column], width: int) -> list[list[Column]]:
    """The columns as few tables under each other as fit, of about equal width: none is left out."""
    fewest = len(_filled(columns, width))
    narrowest = next(w for w in range(1, width + 1) if len(_filled(columns, w)) == fewest)
    return _filled(columns, narrowest)


def learner_table(
    details: Sequence[Detail], columns: Sequence[Column], width: int, max_rows: int | None = None
) -> RenderableType:
    """A row per learner, at most `max_rows`; what is left out is counted by state."""
    names = [plain(detail.get("name") or UNKNOWN) for detail in details]
    room = max(MIN_NAME_WIDTH, min(MAX_NAME_WIDTH, width - _taken(columns)))
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("learner", no_wrap=True, width=min(room, max([MIN_NAME_WIDTH, *map(len, names)])))
    for column in columns:
        table.add_column(
            Text(column.title),
            no_wrap=True,
            justify="left" if column.justify_left else "right",
            min_width=column.width,
        )
    shown = _most_urgent(details, max_rows)
    for detail in shown:
        name = Text(plain(detail.get("name") or UNKNOWN))
        style = "dim" if detail.get("state") in GONE else ""  # its numbers are of the past
        cells = (column.cell(detail) for column in columns)
        # A string would be read as markup, and an address or a device came from elsewhere.
        table.add_row(name, *(Text(c) if isinstance(c, str) else c for c in cells), style=style)
    hidden = [detail for detail in details if not any(detail is row for row in shown)]
    return Group(table, Text(_counted(hidden), style="dim")) if hidden else table


def details_of(status: Status) -> list[Detail]:
    """The learners of a status in order of name, numbers within names compared as numbers."""
    return sorted(status.get("learner_details") or (), key=_by_name)


def _columns(status: Status) -> dict[str, Column]:
    unit = unit_of(status)
    return {
        "state": Column("state", 8, lambda d: state_text(d.get("state")), justify_left=True),
        "lag": _number("lag", 5, "lag_steps", _lag),
        "steps": _number("steps", 6, "steps", short_count),
        "tokens": _number(unit, 6, "tokens", si),
        "rate": _number(f"{unit}/s", 8, "tokens_per_s", si),
        "loss": _number("loss", 6, "loss", loss),
        "step": _number("step ms", 7, "step_ms", millis),
        "held": _number("held ms", 7, "held_ms", millis),
        "held_max": _number("max held", 8, "held_max_ms", millis),
        "cpu": _number("cpu ms", 6, "cpu_ms", millis),
        "stall": _number("stall", 7, "stall", percent),
        "offers": Column("merged/offers", 13, _offers),
        "late": _number("late", 4, "late", count),
        "rejected": _number("rejected", 8, "rejected", count),
        "incarnation": _number("incarnation", 11, "incarnation", count),
        "clock": _number("clock", 6, "clock", short_count),
        "shard": Column("shard", 5, lambda d: _shard(d.get("shard"))),
        "heard": Column("heard", 8, _heard),
        "device": Column("device", 6, lambda d: plain(d.get("device") or UNKNOWN), justify_left=True),
        "address": Column("address", 19, lambda d: plain(d.get("address") or UNKNOWN), justify_left=True),
    }


def _number(title: str, width: int, key: str, shape: Callable[[float | None], str]) -> Column:
    return Column(title, max(width, len(title)), lambda detail: shape(detail.get(key)))


def _lag(steps: float | None) -> str:
    return count(steps) if steps is None or abs(steps) < 1000 else si(steps)


def _offers(detail: Detail) -> str:
    return f"{count(detail.get('merged_offers'))}/{count(detail.get('offers'))}"


def _heard(detail: Detail) -> str:
    heard_s = detail.get("heard_s_ago")
    return UNKNOWN if heard_s is None else f"{duration(heard_s)} ago"


def _shard(shard: object) -> str:
    """A shard is an index, or an index and a count."""
    if isinstance(shard, (list, tuple)):
        return "/".join(plain(part) for part in shard)
    return UNKNOWN if shard is None else plain(shard)


def _filled(columns: Sequence[Column], width: int) -> list[list[Column]]:
    tables: list[list[Column]] = [[]]
    for column in columns:
        if tables[-1] and not _fits([*tables[-1], column], width):
            tables.append([])
        tables[-1].append(column)
    return tables


def _taken(columns: Sequence[Column]) -> int:
    return sum(column.width + GAP for column in columns)


def _fits(columns: Sequence[Column], width: int) -> bool:
    return MIN_NAME_WIDTH + _taken(columns) <= width


def _by_name(detail: Detail) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", str(detail.get("name") or ""))
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def _most_urgent(details: Sequence[Detail], max_rows: int | None) -> list[Detail]:
    """The rows that are shown, in their own order."""
    if max_rows is None or len(details) <= max_rows:
        return list(details)
    by_urgency = sorted(range(len(details)), key=lambda index: (_urgency(details[index]), index))
    return [details[index] for index in sorted(by_urgency[:max_rows])]


def _urgency(detail: Detail) -> int:
    state = detail.get("state")
    return URGENCY.index(state) if state in URGENCY else len(URGENCY)


def _counted(details: Sequence[Detail]) -> str:
    """`... and 184 more (180 training, 4 healing)`, the most frequent state first."""
    states = Counter(plain(detail.get("state") or "unknown") for detail in details)
    parts = sorted(states.items(), key=lambda item: (-item[1], item[0]))
    return f"... and {len(details)} more ({', '.join(f'{num} {state}' for state, num in parts)})"
