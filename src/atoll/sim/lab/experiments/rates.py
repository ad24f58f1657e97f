"""Learning rates around the transferred best, wherever other experiments train.

The sweep tunes every method at text, `tiny`, M = 4. Elsewhere (another M, size or task) each method gets the
same three tries: the transferred rate (`tuned.transferred`) times 0.71, 1 and 1.41, at the seed for tuning.
Where the best of them is the lowest or the highest, the next one beyond it is tried, until the best lies
between two others or `MOST` were tried: nobody is judged at the edge of what was tried. One seed is noisy,
and such a search may end in a dip of luck; so what the next larger size chose is tried too, if it was not.
The asked-for size says which places are tried, so that one command stays affordable: at sizes other than
`tiny` Data-Parallel and Decoupled by our defaults at M = 2, 4, 8 are, and all others take the factor that
this found.

The centre comes from the sweep, at other sizes with what `tiny` and the next smaller size chose, and not from
earlier results of the same command: it finds the same runs again after its results were copied into `tuned`.
For the same reason rounds wait as in the paper: in a calm fleet our grace window does nearly the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from atoll.sim.lab.cell import Cell, Method, Row, Size, Task
from atoll.sim.lab.experiments.common import Place
from atoll.sim.lab.experiments.losses import beyond, mean_loss
from atoll.sim.lab.experiments.sweep import LEARNERS as SWEPT_LEARNERS
from atoll.sim.lab.experiments.tries import Tries, best_of, open_ends, picture_of, search, table_of
from atoll.sim.lab.report import Picture, Report, Request, Stages
from atoll.sim.lab.tuned import (
    PAPER_WINDOW,
    RATE_STEP,
    TUNING_SEED,
    carried,
    rounded,
    steps_above,
    steps_below,
    transferred,
)

__all__ = ["MOST", "RATES_AROUND", "Rates", "by_defaults", "places"]

FIRST = (-1, 0, 1)
"""Steps from the centre that are tried everywhere."""
MOST = 9
"""Tries in a row at one place."""
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
        return (Place("data-parallel"), *by_defaults())
    text = [Place(method, learners) for method, counts in TINY.items() for learners in counts]
    return (*text, *by_defaults(), *_of_task("moe"), *_of_task("vision"))


def by_defaults() -> list[Place]:
    """Decoupled by our defaults, at every M."""
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
        tries = yield from search(
            places(request.size),
            lambda tried, place: _next(tried, place, request.size),
            lambda place, step: _cell(place, request.size, step),
        )
        return _report(request.size, tries)


RATES_AROUND = Rates()


def _next(tried: Mapping[int, Row], place: Place, size: Size) -> tuple[int, ...]:
    """The steps to try next at one place; none if the best is bracketed."""
    if not tried:
        start = steps_below(size, place.settings, place.learners)
        return tuple(start + step for step in FIRST)
    if more := beyond(_row_of_best(tried), MOST):
        return more
    above = steps_above(size, place.settings, place.learners)
    if above is None or above in tried:
        return ()
    return tuple(step for step in (above + step for step in FIRST) if step not in tried)


def _row_of_best(tried: Mapping[int, Row]) -> Mapping[int, Row]:
    """Those that were tried without a gap between them and the best."""
    low = high = min(tried, key=lambda step: mean_loss([tried[step]]))
    while low - 1 in tried:
        low -= 1
    while high + 1 in tried:
        high += 1
    return {step: tried[step] for step in range(low, high + 1)}


def _cell(place: Place, size: Size, step: int) -> Cell:
    centre = transferred if size == "tiny" else carried
    found = centre(place.task, size, place.settings, place.learners)
    rate = rounded(RATE_STEP**step * found.learning_rate)
    return place.cell(size, TUNING_SEED, learning_rate=rate, batch=found.batch, **PAPER_WINDOW)


def _rate(cell: Cell) -> float:
    return cell.learning_rate


def _report(size: Size, tries: Tries) -> Report:
    notes = [
        f"{len(FIRST)} runs for every method at every place, and one more beyond the best while that is the "
        f"lowest or the highest, {MOST} in a row at most; then those around what the next larger size "
        "chose, if it was not tried. Always one seed, seed 0.",
        "The best rates are copied into atoll/sim/lab/tuned.py (RATES, STEPS) by hand.",
    ]
    if ends := open_ends(tries, _rate):
        notes.append(
            "The best is still the lowest or the highest, and a better rate may lie beyond, "
            f"at: {'; '.join(ends)}."
        )
    if size != "tiny":
        notes.append(
            "At this size only Data-Parallel and Decoupled by our defaults are tried: other methods take the "
            "steps that were found for it at the same M."
        )
    return Report(
        tables=(table_of(f"Learning rates, {size}", tries, _rate),),
        pictures=_pictures(size, tries),
        notes=tuple(notes),
        figures={
            f"{place.name} learning rate": best_of(rows).cell.learning_rate for place, rows in tries.items()
        },
    )


def _pictures(size: Size, tries: Tries) -> tuple[Picture, ...]:
    """One for each task; one for each of its methods if a task has too many places for one."""
    made = []
    for task in dict.fromkeys(place.task for place in tries):
        places = [place for place in tries if place.task == task]
        if len(places) <= MOST_LINES:
            made.append(_picture(f"{task}, {size}", places, tries))
            continue
        for label in dict.fromkeys(place.label for place in places):
            alike = [place for place in places if place.label == label]
            made.append(_picture(f"{task}, {size}, {label}", alike, tries))
    return tuple(made)


def _picture(where: str, places: Sequence[Place], tries: Tries) -> Picture:
    shown = {place: tries[place] for place in places}
    return picture_of(f"Learning rates, {where}", shown, _rate, "learning rate")
