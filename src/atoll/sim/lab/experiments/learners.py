"""How many learners: Decoupled at M = 1 to 16 against Data-Parallel, at the same tokens.

Every M takes its tuned learning rate and the tuned batch of all learners together, so that more learners
mean smaller batches each, not more data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atoll.sim.lab.cell import Row
from atoll.sim.lab.experiments.common import (
    Place,
    ask,
    mean_of,
    megabytes,
    seeds_of,
    series_of,
    shown_number,
)
from atoll.sim.lab.experiments.losses import shown_loss
from atoll.sim.lab.experiments.published import EXTENSION, RULE, extended_gap
from atoll.sim.lab.paired import interval, paired, percent
from atoll.sim.lab.report import Picture, Report, Request, Stages, Table

__all__ = ["COUNTS", "LEARNERS", "Learners"]

COUNTS = (1, 2, 4, 8, 16)
BASE = Place("data-parallel")


@dataclass(frozen=True, slots=True)
class Learners:
    """`atoll lab run learners`."""

    name: str = "learners"
    about: str = "Decoupled at M=1, 2, 4, 8, 16 against Data-Parallel at the same tokens"

    def stages(self, request: Request) -> Stages:
        """One stage: Data-Parallel, and Decoupled at every M."""
        places = [BASE, *(Place("decoupled", m) for m in COUNTS)]
        rows = yield from ask({place: place.arm(request.size) for place in places}, request.seeds)
        return _report(request, rows)


LEARNERS = Learners()


def _report(request: Request, rows: Mapping[Place, Sequence[Row]]) -> Report:
    gaps = {place: paired(found, rows[BASE]) for place, found in rows.items() if place != BASE}
    picture = Picture(
        title=f"Decoupled by number of learners (text, {request.size})", x_label="learners",
        y_label="gap to Data-Parallel (%)", log_x=True, zero_line=True,
        series=(
            series_of("decoupled", list(gaps.values()), [place.learners for place in gaps]),
        ),
    )  # fmt: skip
    columns = (
        "M", "batch", "learning rate", "held-out loss", "gap to Data-Parallel", EXTENSION, "in a merge",
        "merged tokens", "MB moved",
    )  # fmt: skip
    table = Table(
        title=f"learners: text, {request.size}, {rows[BASE][0].cell.tokens:,} tokens, {seeds_of(rows[BASE])}",
        columns=columns,
        rows=tuple(_line(place, found, rows[BASE]) for place, found in rows.items()),
        notes=("In a merge: offers, on average. Merged tokens: the rest was overwritten or late.",),
    )
    figures = {f"gap of {place.name}": gap.mean for place, gap in gaps.items()}
    return Report(tables=(table,), pictures=(picture,), notes=(RULE,), figures=figures)


def _line(place: Place, rows: Sequence[Row], base: Sequence[Row]) -> tuple[str, ...]:
    cell = rows[0].cell
    start = (f"{cell.batch}", f"{cell.learning_rate:.3g}", shown_loss(rows))
    if place == BASE:
        return ("data-parallel", *start, *["-"] * 5)
    return (
        f"{place.learners}",
        *start,
        interval(paired(rows, base)),
        shown_number(extended_gap(rows[0].parameters, place.learners)),
        f"{mean_of(rows, lambda row: row.participants):.1f}",
        percent(mean_of(rows, lambda row: row.merged_share)),
        megabytes(rows),
    )
