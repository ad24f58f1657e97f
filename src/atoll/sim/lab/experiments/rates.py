"""Learning rates around the transferred best, wherever other experiments train.

The sweep tunes every method at text, `tiny`, M = 4. Elsewhere (another M, size or task) each method gets the
same three tries: the transferred rate (`tuned.transferred`) times 0.71, 1 and 1.41, at the seed for tuning.
Where the best of them is the lowest or the highest, the next one beyond it is tried, until the best lies
between two others or `MOST` were tried: nobody is judged at the edge of what was tried.
The asked-for size says which places are tried, so that one command stays affordable: at sizes other than
`tiny` Data-Parallel and Decoupled by our defaults at M = 2, 4, 8 are, and all others take the factor that
this found.

The centre comes from the sweep, at other sizes with what `tiny` and the next smaller size chose, and not from
earlier results of the same command: it finds the same runs again after its results were copied into `tuned`.
For the same reason rounds wait as in the paper: in a calm fleet our grace window does nearly the same.
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
from atoll.sim.lab.tuned import PAPER_WINDOW, TUNING_SEED, carried, factor_below, transferred

__all__ = ["MOST", "RATES_AROUND", "Rates", "places"]

STEP = math.sqrt(2)
"""Between two rates."""
FIRST = (-1, 0, 1)
"""Steps from the centre that are tried everywhere."""
MOST = 9
"""Tries at one place."""
BEST = "best"
MOST_LINES = 6
"""Of one picture."""

COUNTS = (2, 4, 8)
"""The M at which Decoupled is tried by our defaults, at every size."""
TINY: Mapping[Method, tuple[int, ...]] = MappingProxyType({
    "data-parallel": (1,), "diloco": (2, 4, 8), "streaming": (2, 4, 8), "decoupled": (1, 2, 4, 8, 16),
})  # fmt: skip
"""Text at `tiny`, by method: every M that is trained there. At M = 4 the sweep chose the rate before eta and
mu, and at the end of its grid for some; here it is looked at once more."""


def places(size: Size) -> tuple[Place, ...]:
    """Where other experiments train at this size."""
    if size != "tiny":
        return (Place("data-parallel"), *_by_defaults())
    text = [Place(method, learners) for method, counts in TINY.items() for learners in counts]
    return (*text, *_by_defaults(), *_of_task("moe"), *_of_task("vision"))


def _by_defaults() -> list[Place]:
    return [Place("decoupled", m, settings_of="defaults") for m in COUNTS]


def _of_task(task: Task) -> tuple[Place, ...]:
    return (
        Place("data-parallel", task=task),
        Place("streaming", SWEPT_LEARNERS, task),
        Place("decoupled", SWEPT_LEARNERS, task),
        Place("decoupled", SWEPT_LEARNERS, task, "defaults"),
    )


@dataclass(frozen=True, slots=True)
class Rates:
    """`atoll lab run rates`."""

    name: str = "rates"
    about: str = "learning rates around the transferred best, at every M, size and task that is used"

    def stages(self, request: Request) -> Stages:
        """Three runs at every place of the asked-for size, then one more where the best is at an end."""
        found: dict[Place, dict[int, Row]] = {place: {} for place in places(request.size)}
        start = {place: _start(place, request.size) for place in found}
        while wanted := [
            (place, step) for place, tried in found.items() for step in _next(tried, start[place])
        ]:
            rows = yield [_cell(place, request.size, STEP**step) for place, step in wanted]
            for (place, step), row in zip(wanted, rows, strict=True):
                found[place][step] = row
        by_rate = {place: [tried[step] for step in sorted(tried)] for place, tried in found.items()}
        return _report(request.size, by_rate)


RATES_AROUND = Rates()


def _start(place: Place, size: Size) -> int:
    """Steps from the carried rate to the one that the next smaller size would have."""
    return round(math.log(factor_below(size, place.settings, place.learners), STEP))


def _next(tried: Mapping[int, Row], start: int) -> tuple[int, ...]:
    """The steps to try next at one place; none if the best is bracketed."""
    if not tried:
        return tuple(start + step for step in FIRST)
    low, high = min(tried), max(tried)
    best = min(tried, key=lambda step: _loss(tried[step]))
    if len(tried) >= MOST or low < best < high:
        return ()
    return (low - 1,) if best == low else (high + 1,)


def _cell(place: Place, size: Size, factor: float) -> Cell:
    centre = transferred if size == "tiny" else carried
    found = centre(place.task, size, place.settings, place.learners)
    rate = float(f"{factor * found.learning_rate:.3g}")
    return place.cell(size, TUNING_SEED, learning_rate=rate, **PAPER_WINDOW)


def _report(size: Size, found: Mapping[Place, Sequence[Row]]) -> Report:
    best = {place: _best(rows) for place, rows in found.items()}
    marks = {place: _mark(best[place], rows) for place, rows in found.items()}
    lines = [
        _line(place, row, marks[place] if row is best[place] else "")
        for place, rows in found.items()
        for row in rows
    ]
    notes = [
        f"{len(FIRST)} runs for every method at every place, and one more beyond the best while that is the "
        f"lowest or the highest, {MOST} at most; always one seed, seed 0.",
        "The best rates are copied into atoll/sim/lab/tuned.py (RATES, FACTORS) by hand.",
    ]
    if at_end := [place.name for place, mark in marks.items() if mark != BEST]:
        notes.append(
            "The best is still the lowest or the highest, and a better rate may lie beyond, "
            f"at: {'; '.join(at_end)}."
        )
    if size != "tiny":
        notes.append(
            "At this size only Data-Parallel and Decoupled by our defaults are tried: other methods take the "
            "factor that was found for it at the same M."
        )
    return Report(
        tables=(
            Table(
                title=f"Learning rates, {size}",
                columns=("where", "batch", "learning rate", "held-out loss", ""),
                rows=tuple(lines),
            ),
        ),
        pictures=_pictures(size, found),
        notes=tuple(notes),
        figures={f"{place.name} learning rate": row.cell.learning_rate for place, row in best.items()},
    )


def _best(rows: Sequence[Row]) -> Row:
    return min(rows, key=_loss)


def _loss(row: Row) -> float:
    """Infinite if the run did not end in a number."""
    return row.heldout_loss if math.isfinite(row.heldout_loss) else math.inf


def _mark(best: Row, rows: Sequence[Row]) -> str:
    """What stands beside the best: a rate at an end may not be the best there is."""
    rates = [row.cell.learning_rate for row in rows]
    if best.cell.learning_rate == min(rates):
        return f"{BEST}, the lowest tried"
    return f"{BEST}, the highest tried" if best.cell.learning_rate == max(rates) else BEST


def _line(place: Place, row: Row, mark: str) -> tuple[str, ...]:
    loss = f"{row.heldout_loss:.4f}" if math.isfinite(row.heldout_loss) else "diverged"
    return place.name, f"{row.cell.batch}", f"{row.cell.learning_rate:.3g}", loss, mark


def _pictures(size: Size, found: Mapping[Place, Sequence[Row]]) -> tuple[Picture, ...]:
    """One for each task; one for each of its methods if a task has too many places for one."""
    made = []
    for task in dict.fromkeys(place.task for place in found):
        places = [place for place in found if place.task == task]
        if len(places) <= MOST_LINES:
            made.append(_picture(f"{task}, {size}", places, found))
            continue
        for label in dict.fromkeys(place.label for place in places):
            alike = [place for place in places if place.label == label]
            made.append(_picture(f"{task}, {size}, {label}", alike, found))
    return tuple(made)


def _picture(where: str, places: Sequence[Place], found: Mapping[Place, Sequence[Row]]) -> Picture:
    """Each place against its own best."""
    series = []
    for place in places:
        rows = found[place]
        lowest = _best(rows).heldout_loss
        shown = [
            (row.cell.learning_rate, row.heldout_loss) for row in rows if math.isfinite(row.heldout_loss)
        ]
        above = tuple(100 * (loss / lowest - 1) for _, loss in shown)
        series.append(Series(name=place.name, x=tuple(rate for rate, _ in shown), y=above))
    return Picture(
        title=f"Learning rates, {where}", x_label="learning rate",
        y_label="held-out loss above the best (%)", series=tuple(series), log_x=True,
    )  # fmt: skip
