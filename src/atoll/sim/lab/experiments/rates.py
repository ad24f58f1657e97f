"""Three learning rates around the transferred best, wherever other experiments train.

The sweep tunes every method at text, `tiny`, M = 4. Elsewhere (another M, size or task) each method gets the
same three tries: the transferred rate (`tuned.transferred`) times 0.71, 1 and 1.41, at the seed for tuning.
The asked-for size says which places are tried, so that one command stays affordable: at sizes other than
`tiny` Data-Parallel and Decoupled at M = 4 are, and other M and methods take the factor that Decoupled found.

The centre comes from the sweep and not from earlier results of this experiment: the same command finds the
same runs again after its results were copied into `tuned`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from atoll.sim.lab.cell import Cell, Method, Row, Size, Task
from atoll.sim.lab.experiments.common import Place
from atoll.sim.lab.experiments.sweep import LEARNERS as SWEPT_LEARNERS
from atoll.sim.lab.report import Picture, Report, Request, Series, Stages, Table
from atoll.sim.lab.tuned import TUNING_SEED, transferred

__all__ = ["FACTORS", "RATES_AROUND", "Rates", "places"]

FACTORS = (1 / math.sqrt(2), 1.0, math.sqrt(2))
BEST = "best"

TINY: Mapping[Method, tuple[int, ...]] = MappingProxyType({
    "diloco": (2, 8), "streaming": (2, 8), "decoupled": (1, 2, 8, 16),
})  # fmt: skip
"""Text at `tiny`, by method: every M that is trained there, but for the one that was swept."""


def places(size: Size) -> tuple[Place, ...]:
    """Where other experiments train at this size and the sweep did not."""
    if size != "tiny":
        return (Place("data-parallel"), Place("decoupled", SWEPT_LEARNERS))
    text = [Place(method, learners) for method, counts in TINY.items() for learners in counts]
    return (*text, *_of_task("moe"), *_of_task("vision"))


def _of_task(task: Task) -> tuple[Place, ...]:
    return (
        Place("data-parallel", task=task),
        Place("streaming", SWEPT_LEARNERS, task),
        Place("decoupled", SWEPT_LEARNERS, task),
    )


@dataclass(frozen=True, slots=True)
class Rates:
    """`atoll lab run rates`."""

    name: str = "rates"
    about: str = "three learning rates around the transferred best, at every M, size and task that is used"

    def stages(self, request: Request) -> Stages:
        """One stage: three runs at every place of the asked-for size; always one seed."""
        tried = {place: [_cell(place, request.size, by) for by in FACTORS] for place in places(request.size)}
        rows = iter((yield [cell for cells in tried.values() for cell in cells]))
        found = {place: [next(rows) for _ in cells] for place, cells in tried.items()}
        return _report(request.size, found)


RATES_AROUND = Rates()


def _cell(place: Place, size: Size, factor: float) -> Cell:
    found = transferred(place.task, size, place.method, place.learners)
    rate = float(f"{factor * found.learning_rate:.3g}")
    return place.cell(size, TUNING_SEED, learning_rate=rate)


def _report(size: Size, found: Mapping[Place, Sequence[Row]]) -> Report:
    best = {place: _best(rows) for place, rows in found.items()}
    marks = {place: _mark(best[place], rows) for place, rows in found.items()}
    lines = [
        _line(place, row, marks[place] if row is best[place] else "")
        for place, rows in found.items()
        for row in rows
    ]
    notes = [
        f"{len(FACTORS)} runs and one seed for every method at every place; always at seed 0.",
        "The best rates are copied into atoll/sim/lab/tuned.py (RATES, FACTORS) by hand.",
    ]
    if at_end := [place.name for place, mark in marks.items() if mark != BEST]:
        notes.append(
            "The best of three is the lowest or the highest, and a better rate may lie beyond, "
            f"at: {'; '.join(at_end)}."
        )
    if size != "tiny":
        notes.append(
            "At this size only Data-Parallel and Decoupled at M = 4 are tried: other M and methods take the "
            "factor that Decoupled found."
        )
    tasks = dict.fromkeys(place.task for place in found)
    return Report(
        tables=(
            Table(
                title=f"Three learning rates, {size}",
                columns=("where", "batch", "learning rate", "held-out loss", ""),
                rows=tuple(lines),
            ),
        ),
        pictures=tuple(_picture(size, task, found) for task in tasks),
        notes=tuple(notes),
        figures={f"{place.name} learning rate": row.cell.learning_rate for place, row in best.items()},
    )


def _best(rows: Sequence[Row]) -> Row:
    return min(rows, key=lambda row: row.heldout_loss if math.isfinite(row.heldout_loss) else math.inf)


def _mark(best: Row, rows: Sequence[Row]) -> str:
    """What stands beside the best: a rate at the end of the three may not be the best there is."""
    rates = [row.cell.learning_rate for row in rows]
    if best.cell.learning_rate == min(rates):
        return f"{BEST}, the lowest tried"
    return f"{BEST}, the highest tried" if best.cell.learning_rate == max(rates) else BEST


def _line(place: Place, row: Row, mark: str) -> tuple[str, ...]:
    loss = f"{row.heldout_loss:.4f}" if math.isfinite(row.heldout_loss) else "diverged"
    return place.name, f"{row.cell.batch}", f"{row.cell.learning_rate:.3g}", loss, mark


def _picture(size: Size, task: Task, found: Mapping[Place, Sequence[Row]]) -> Picture:
    """Each place of a task against its own best."""
    series = []
    for place, rows in ((place, rows) for place, rows in found.items() if place.task == task):
        lowest = _best(rows).heldout_loss
        shown = [
            (row.cell.learning_rate, row.heldout_loss) for row in rows if math.isfinite(row.heldout_loss)
        ]
        above = tuple(100 * (loss / lowest - 1) for _, loss in shown)
        series.append(Series(name=place.name, x=tuple(rate for rate, _ in shown), y=above))
    return Picture(
        title=f"Three learning rates, {task}, {size}", x_label="learning rate",
        y_label="held-out loss above the best of the three (%)", series=tuple(series), log_x=True,
    )  # fmt: skip
