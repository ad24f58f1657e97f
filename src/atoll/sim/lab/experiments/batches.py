"""Batches around the one that follows from `tiny`, wherever learning rates were tried at other sizes.

The sweep chose each method's batch at text, `tiny`, M = 4, where the best was the lowest that was tried for
all of them; at other sizes it grows with compute by a published law. So it is looked at once more: half and
twice that batch, the learning rate with its root, at the seed for tuning, for Data-Parallel and for Decoupled
by our defaults at each M alike. Where the best of them is the lowest or the highest, the next one beyond it
is tried, while there is one (a learner takes at least an example). A baseline at a batch that does not suit
it is no baseline: DiLoCo's best batch is larger than Data-Parallel's, and grows with M.

Like `rates` it begins at what does not depend on its own results: the rates that were tried at the batch of
the law.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from atoll.sim.lab.cell import Cell, Row, Size
from atoll.sim.lab.experiments.common import Place
from atoll.sim.lab.experiments.losses import beyond
from atoll.sim.lab.experiments.rates import by_defaults
from atoll.sim.lab.experiments.tries import Tries, best_of, open_ends, picture_of, search, table_of
from atoll.sim.lab.report import Report, Request, Stages
from atoll.sim.lab.tuned import PAPER_WINDOW, TUNING_SEED, at_law, doubled

__all__ = ["BATCHES", "MOST", "Batches", "places"]

FIRST = (-1, 0, 1)
"""Doublings of the batch that are tried everywhere."""
MOST = 6
"""Tries at one place."""


def places() -> tuple[Place, ...]:
    """Where batches are tried: at text, at any size."""
    return (Place("data-parallel"), *by_defaults())


@dataclass(frozen=True, slots=True)
class Batches:
    """`atoll lab run batches`."""

    name: str = "batches"
    about: str = "half and twice the batch that follows from tiny, at the size asked for"

    def stages(self, request: Request) -> Stages:
        """Three runs at every place, then one more where the best is at an end."""
        tries = yield from search(
            places(),
            lambda tried, place: _next(tried, place, request.size),
            lambda place, step: _cell(place, request.size, step),
        )
        return _report(request.size, tries)


BATCHES = Batches()


def _next(tried: Mapping[int, Row], place: Place, size: Size) -> tuple[int, ...]:
    """The doublings to try next at one place; none if the best is bracketed, or nothing is beyond it."""
    wanted = beyond(tried, MOST) if tried else FIRST
    law = at_law(place.task, size, place.settings, place.learners).batch
    return tuple(step for step in wanted if law * 2.0**step >= place.learners)


def _cell(place: Place, size: Size, step: int) -> Cell:
    found = doubled(at_law(place.task, size, place.settings, place.learners), step)
    return place.cell(size, TUNING_SEED, **{**asdict(found), **PAPER_WINDOW})


def _report(size: Size, tries: Tries) -> Report:
    def batch(cell: Cell) -> float:
        return cell.batch

    notes = [
        "Half and twice the batch that follows from tiny, for every method alike, and on while the best is "
        f"the lowest or the highest, {MOST} tries at most; the learning rate goes with the root of the "
        "batch. Always one seed, seed 0.",
        "The best batches are copied into atoll/sim/lab/tuned.py (DOUBLINGS) by hand; other methods take "
        "that of our defaults at the same M.",
    ]
    if ends := open_ends(tries, batch):
        notes.append(
            "The best is still the lowest or the highest, because fewer examples than learners are no batch, "
            f"or {MOST} were tried, at: {'; '.join(ends)}."
        )
    return Report(
        tables=(table_of(f"Batches, {size}", tries, batch),),
        pictures=(picture_of(f"Batches, text, {size}", tries, batch, "batch"),),
        notes=tuple(notes),
        figures={f"{place.name} batch": best_of(rows).cell.batch for place, rows in tries.items()},
    )
