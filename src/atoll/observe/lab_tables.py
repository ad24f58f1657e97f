"""Tables and claims of the lab: for a terminal, and as Markdown for the docs.

Both say the same in the same words. The first column names the row and is set to the left, as are words;
figures are set to the right. What is too wide wraps between words, narrow columns last; a table whose words
do not fit side by side is shown in parts. Nothing is cut off. A claim is one paragraph: the verdict first,
then the sentence, the figure with its 95 % interval, the limit, the seeds, and what it would take if it is
not resolved.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rich import box
from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from atoll.sim.lab.report import Claim, Table

__all__ = ["figure_of", "limit_of", "markdown", "markdown_claims", "render", "render_claims", "sentence"]

WIDTH, GAP = 100, 2
"""Characters of a line, and those between two columns."""
COLOURS = {"holds": "green", "fails": "red", "not resolved": "yellow"}
CHECK = "A check of the lab itself, true nearly by construction:"
FIGURE = re.compile(r"[+-]?\d|-?$|not finite$")
"""How a cell begins that is no word; `-` and nothing stand for a figure that there is not."""


def render(table: Table, width: int = WIDTH) -> RenderableType:
    """The table for a terminal of so many characters, under its title and above its notes."""
    notes = [Text(note, style="dim") for note in table.notes]
    return Group(
        Text(table.title, style="bold"), *(_shown(part, width) for part in _parts(table, width)), *notes
    )


def markdown(table: Table) -> str:
    """The table as Markdown: its title in bold, the rows, then each note as a paragraph."""
    columns = [cells for _, *cells in _columns(table)]
    rule = ["---:" if rank and _are_figures(cells) else ":---" for rank, cells in enumerate(columns)]
    cells = [[_escaped(cell) for cell in row] for row in (table.columns, *table.rows)]
    lines = [f"| {' | '.join(row)} |" for row in (cells[0], rule, *cells[1:])]
    return "\n\n".join([f"**{table.title}**", "\n".join(lines), *table.notes]) + "\n"


def render_claims(claims: Sequence[Claim]) -> RenderableType:
    """Every claim for a terminal: its verdict in a column, the rest beside it."""
    shown = RichTable.grid(padding=(0, 2, 0, 0))
    shown.add_column(width=max(map(len, COLOURS)))
    shown.add_column(overflow="fold")
    for claim in claims:
        shown.add_row(Text(claim.verdict, style=f"bold {COLOURS[claim.verdict]}"), Text(sentence(claim)))
    return shown


def markdown_claims(claims: Sequence[Claim]) -> str:
    """Every claim as an item of a list in Markdown; empty if there is none."""
    return "".join(f"- **{claim.verdict}**: {sentence(claim)}\n" for claim in claims)


def sentence(claim: Claim) -> str:
    """The claim in words and figures, without its verdict; changes carry their sign."""
    seeds = "one seed" if claim.seeds == 1 else f"{claim.seeds} seeds"
    what = f"{CHECK} {claim.text}" if claim.is_check else claim.text
    said = f"{what.rstrip('.')}: {figure_of(claim)}, limit {limit_of(claim)}, {seeds}."
    return f"{said} {claim.advice}".rstrip()


def figure_of(claim: Claim) -> str:
    """What was measured, with its 95 % interval: +0.12 % (-0.05..+0.29)."""
    known = [one for one in (claim.value, claim.low, claim.high, claim.limit) if math.isfinite(one)]
    digits = _digits(max(map(abs, known)))

    def say(value: float) -> str:
        return f"{value:{_sign(claim)}.{digits}f}"

    figure = f"{say(claim.value)}{_unit(claim)}" if math.isfinite(claim.value) else "not finite"
    is_counted = claim.low == claim.value == claim.high  # not estimated from seeds, so without an interval
    if math.isfinite(claim.low) and math.isfinite(claim.high) and not is_counted:
        figure += f" ({say(claim.low)}..{say(claim.high)})"
    return figure


def limit_of(claim: Claim) -> str:
    """What it is held against."""
    return f"{claim.limit:{_sign(claim)}.4g}{_unit(claim)}"


def _sign(claim: Claim) -> str:
    return "+" if claim.is_change else ""


def _unit(claim: Claim) -> str:
    return f" {claim.unit}" if claim.unit else ""


def _shown(table: Table, width: int) -> RichTable:
    """Each column gets its longest word; then as many as there is room for get what they hold in one line."""
    shown = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    columns = _columns(table)
    widths = [_least(column) for column in columns]
    room = width - sum(widths) - GAP * (len(widths) - 1)
    wanted = [
        max(map(len, cells), default=0) - least for (_, *cells), least in zip(columns, widths, strict=True)
    ]
    for index in sorted(range(len(widths)), key=wanted.__getitem__):
        more = max(0, min(wanted[index], room))
        widths[index] += more
        room -= more
    for index, (title, *cells) in enumerate(columns):
        justify: JustifyMethod = "right" if index and _are_figures(cells) else "left"
        shown.add_column(Text(title), justify=justify, overflow="fold", width=widths[index])
    for row in table.rows:
        shown.add_row(*map(Text, row))
    return shown


def _parts(table: Table, width: int) -> list[Table]:
    """The table, or if it is too wide several, each with the first columns, as many as tell rows apart."""
    needs = [_least(column) + GAP for column in _columns(table)]
    num_keys = next(
        (num for num in range(1, 4) if len({row[:num] for row in table.rows}) == len(table.rows)), 1
    )
    keys, rest = list(range(num_keys)), range(num_keys, len(needs))
    groups = [keys]
    for index in rest:
        is_full = sum(needs[one] for one in groups[-1]) + needs[index] > width + GAP
        if is_full and len(groups[-1]) > num_keys:
            groups.append(list(keys))
        groups[-1] = [*groups[-1], index]
    return [
        Table(
            title=table.title,
            columns=tuple(table.columns[one] for one in group),
            rows=tuple(tuple(row[one] for one in group) for row in table.rows),
        )
        for group in groups
    ]


def _columns(table: Table) -> list[tuple[str, ...]]:
    """Title and cells of each column; a row of another length is a bug of its experiment."""
    return list(zip(table.columns, *table.rows, strict=True))


def _are_figures(cells: Sequence[str]) -> bool:
    return all(map(FIGURE.match, cells)) and any(cells)


def _least(column: Sequence[str]) -> int:
    """The longest word of a column, its title included."""
    return max((len(word) for cell in column for word in cell.split()), default=1)


def _digits(size: float) -> int:
    """Decimals that mean something for figures up to this size."""
    return 1 if size >= 100 else 2 if size >= 0.1 else 4


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
