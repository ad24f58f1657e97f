"""A setting that is tried at several values, at every place: the search, the best, and how it is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence

from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.common import Place
from atoll.sim.lab.experiments.losses import mean_loss
from atoll.sim.lab.report import Picture, Series, Table

__all__ = ["Tries", "best_of", "open_ends", "picture_of", "search", "table_of"]

Tries = Mapping[Place, Sequence[Row]]
"""By place, in the order of the setting."""
Setting = Callable[[Cell], float]
"""What was tried: one number of a cell."""

BEST = "best"


def search(
    places: Sequence[Place],
    next_steps: Callable[[Mapping[int, Row], Place], Sequence[int]],
    cell: Callable[[Place, int], Cell],
) -> Generator[Sequence[Cell], Sequence[Row], dict[Place, list[Row]]]:
    """Stage by stage, each place is given the steps that follow from what it has, until none wants more."""
    found: dict[Place, dict[int, Row]] = {place: {} for place in places}
    while wanted := [(place, step) for place, tried in found.items() for step in next_steps(tried, place)]:
        rows = yield [cell(place, step) for place, step in wanted]
        for (place, step), row in zip(wanted, rows, strict=True):
            found[place][step] = row
    return {place: [tried[step] for step in sorted(tried)] for place, tried in found.items()}


def best_of(rows: Sequence[Row]) -> Row:
    """The row with the lowest loss."""
    return min(rows, key=lambda row: mean_loss([row]))


def open_ends(tries: Tries, setting: Setting) -> list[str]:
    """The places whose best is the lowest or the highest that was tried: a better one may lie beyond."""
    return [place.name for place, rows in tries.items() if _mark(rows, setting) != BEST]


def table_of(title: str, tries: Tries, setting: Setting) -> Table:
    """Every try, the best of each place marked."""
    lines = [
        _line(place, row, _mark(rows, setting) if row is best_of(rows) else "")
        for place, rows in tries.items()
        for row in rows
    ]
    columns = ("where", "batch", "learning rate", "held-out loss", "")
    return Table(title=title, columns=columns, rows=tuple(lines))


def picture_of(title: str, tries: Tries, setting: Setting, name: str) -> Picture:
    """Each place against its own best."""
    series = []
    for place, rows in tries.items():
        lowest = best_of(rows).heldout_loss
        shown = [(setting(row.cell), row.heldout_loss) for row in rows if math.isfinite(row.heldout_loss)]
        above = tuple(100 * (loss / lowest - 1) for _, loss in shown)
        series.append(Series(name=place.name, x=tuple(x for x, _ in shown), y=above))
    return Picture(
        title=title,
        x_label=name,
        y_label="held-out loss above the best (%)",
        series=tuple(series),
        log_x=True,
    )


def _mark(rows: Sequence[Row], setting: Setting) -> str:
    """What stands beside the best: a value at an end may not be the best there is."""
    values, best = [setting(row.cell) for row in rows], setting(best_of(rows).cell)
    if best == min(values):
        return f"{BEST}, the lowest tried"
    return f"{BEST}, the highest tried" if best == max(values) else BEST


def _line(place: Place, row: Row, mark: str) -> tuple[str, ...]:
    loss = f"{row.heldout_loss:.4f}" if math.isfinite(row.heldout_loss) else "diverged"
    return place.name, f"{row.cell.batch}", f"{row.cell.learning_rate:.3g}", loss, mark
