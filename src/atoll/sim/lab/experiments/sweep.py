"""Every method tuned by the same rule, one setting at a time.

At text, `tiny`, M = 4 each method starts from the same learning rate and batch and walks along one coordinate
after the other: the learning rate by factors of 2; the batch, with the rate scaled by the square root of the
batch; the learning rate again, by factors of sqrt 2; and for methods with an outer optimizer eta, mu, and eta
once more. A walk (`_climb`) tries the two neighbours of the best value on a fixed grid until both are known,
so it ends at the best of its neighbourhood or at the end of the grid, and no run is made twice. All methods
walk side by side: a stage asks for the next runs of all of them.

The start is written here and not taken from `tuned`, which holds what came out: the same command finds the
same runs again after the results were copied there.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType

from atoll.errors import ConfigError
from atoll.sim.lab.cell import Cell, Method, Row
from atoll.sim.lab.report import Picture, Report, Request, Series, Stages, Table
from atoll.sim.lab.tuned import TUNING_SEED, Tuned, cell_for

__all__ = ["LEARNERS", "SWEEP", "Sweep", "at_rate", "search"]

LEARNERS = 4

START: Mapping[Method, Tuned] = MappingProxyType({
    "data-parallel": Tuned(4e-3, 8),
    "diloco": Tuned(4e-3, 8, 0.7, 0.9, "mean"),
    "streaming": Tuned(4e-3, 8, 0.4, 0.9, "mean"),
    "decoupled": Tuned(4e-3, 8, 0.7, 0.9, "mean"),
})  # fmt: skip
"""One learning rate and batch for all; the outer settings are those of the lineage. All merge by the mean:
DiLoCo and Streaming as published, Decoupled because RDA lost to it (`merge-rule`)."""
BATCHES = (4, 8, 16, 32, 64)
"""From one example for each learner; where there are more learners, the batch is larger (`transferred`)."""
LOCK_STEP_BATCHES = (1, 2, *BATCHES)
"""Data-Parallel is not bound by the number of learners, and gets its own best batch."""
ETAS = (0.2, 0.4, 0.7, 1.0)
MUS = (0.0, 0.5, 0.8, 0.9, 0.95)
COARSE = tuple(2.0**power for power in range(-3, 4))
FINE = tuple(2.0 ** (power / 2) for power in range(-2, 3))

Search = Generator[Sequence[Tuned], Sequence[float], Tuned]
"""Yields the settings to try next, never one twice, is sent their losses, and returns the best."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """`atoll lab run sweep`."""

    name: str = "sweep"
    about: str = "every method tuned by coordinate: learning rate, batch, then eta and mu"

    def stages(self, request: Request) -> Stages:
        """Walk all methods side by side; always at `tiny` and one seed."""
        if request.size != "tiny":
            raise ConfigError(
                f"The sweep was asked for at size {request.size}.",
                "Methods are swept at tiny only; rates and batches of other sizes follow from there.",
                "Ask for --size tiny, or for `atoll lab run rates` at this size.",
            )
        walks = {
            method: _Walk(search(start, has_outer=_has_outer(method))) for method, start in START.items()
        }
        while pending := {method: walk for method, walk in walks.items() if walk.wanted}:
            cells = [_cell(method, one) for method, walk in pending.items() for one in walk.wanted]
            rows = iter((yield cells))
            for walk in pending.values():
                walk.take([next(rows) for _ in walk.wanted])
        return _report(walks)


SWEEP = Sweep()


def search(start: Tuned, *, has_outer: bool) -> Search:
    """The coordinate search of one method; the same for all."""
    known: dict[Tuned, float] = {}
    best = yield from _climb([at_rate(start, by) for by in COARSE], start, known)
    batches = BATCHES if has_outer else LOCK_STEP_BATCHES
    best = yield from _climb([_at_batch(best, batch) for batch in batches], best, known)
    best = yield from _climb([at_rate(best, by) for by in FINE], best, known)
    if has_outer:
        best = yield from _climb([replace(best, eta=eta) for eta in ETAS], best, known)
        best = yield from _climb([replace(best, mu=mu) for mu in MUS], best, known)
        best = yield from _climb([replace(best, eta=eta) for eta in ETAS], best, known)
    return best


def _climb(grid: Sequence[Tuned], start: Tuned, known: dict[Tuned, float]) -> Search:
    """Walk to a value of the grid that is no worse than its neighbours; adds to what is known."""
    at = grid.index(start)
    while True:
        around = grid[max(0, at - 1) : at + 2]
        new = [one for one in around if one not in known]
        if new:
            known.update(zip(new, map(_comparable, (yield new)), strict=True))
        best = min(around, key=lambda one: known[one])
        if known[best] == known[grid[at]]:
            return grid[at]
        at = grid.index(best)


def _comparable(loss: float) -> float:
    """A run that did not end in a finite loss is worse than any that did."""
    return loss if math.isfinite(loss) else math.inf


def at_rate(settings: Tuned, factor: float) -> Tuned:
    """The learning rate times a factor, to three digits: what a table shows is what was run."""
    return replace(settings, learning_rate=float(f"{settings.learning_rate * factor:.3g}"))


def _at_batch(settings: Tuned, batch: int) -> Tuned:
    """Another batch, the learning rate scaled by the square root of it."""
    return replace(at_rate(settings, math.sqrt(batch / settings.batch)), batch=batch)


def _has_outer(method: Method) -> bool:
    return method != "data-parallel"


def _cell(method: Method, settings: Tuned) -> Cell:
    learners = LEARNERS if _has_outer(method) else 1  # Data-Parallel may take fewer examples than four
    return cell_for(method, learners, TUNING_SEED, **asdict(settings))


@dataclass(slots=True)
class _Walk:
    """One method's search under way: what it wants next, and what it has seen."""

    search: Search
    wanted: Sequence[Tuned] = ()
    runs: list[tuple[Tuned, Row]] = field(default_factory=list)
    best: Tuned | None = None

    def __post_init__(self) -> None:
        self.wanted = next(self.search)

    def take(self, rows: Sequence[Row]) -> None:
        self.runs += zip(self.wanted, rows, strict=True)
        try:
            self.wanted = self.search.send([row.heldout_loss for row in rows])
        except StopIteration as end:
            self.wanted, self.best = (), end.value


def _report(walks: Mapping[Method, _Walk]) -> Report:
    counts = ", ".join(f"{method} {len(walk.runs)}" for method, walk in walks.items())
    figures: dict[str, float] = {}
    for method, walk in walks.items():
        figures[f"{method} runs"] = len(walk.runs)
        if best := walk.best:
            figures |= {f"{method} learning rate": best.learning_rate, f"{method} batch": best.batch}
            if _has_outer(method):
                figures |= {f"{method} eta": best.eta, f"{method} mu": best.mu}
    return Report(
        tables=tuple(_table(method, walk) for method, walk in walks.items()),
        pictures=(_rates_picture(walks), _progress_picture(walks)),
        notes=(
            f"Runs: {counts}. One seed, the same rule, start and grids for every method.",
            f"Always at text, tiny, M=4 and seed {TUNING_SEED}, which no comparison uses, however many seeds "
            "were asked for. All merge by the mean: RDA, which the paper has for Decoupled, did worse "
            "(merge-rule).",
            "The best settings are copied into atoll/sim/lab/tuned.py (SWEPT) by hand.",
            f"The batch of methods with learners begins at {BATCHES[0]} (one example for each learner), "
            f"that of Data-Parallel at {LOCK_STEP_BATCHES[0]}: this favours Data-Parallel.",
            *(note for method, walk in walks.items() for note in _at_ends(method, walk).values()),
        ),
        figures=figures,
    )


def _at_ends(method: Method, walk: _Walk) -> dict[str, str]:
    """By the name of a setting whose best value has no neighbour on one side: a sentence that says so.

    The rate was walked at the best batch, before eta and mu; the other grids are fixed.
    """
    best = walk.best
    if best is None:
        return {}
    rates = [
        one.learning_rate
        for one, _ in walk.runs
        if one == replace(START[method], learning_rate=one.learning_rate, batch=best.batch)
    ]
    batches = BATCHES if _has_outer(method) else LOCK_STEP_BATCHES
    tried: dict[str, tuple[float, Sequence[float]]] = {
        "learning rate": (best.learning_rate, rates),
        "batch": (best.batch, batches),
    }
    if _has_outer(method):
        tried |= {"eta": (best.eta, ETAS), "mu": (best.mu, MUS)}
    found = {}
    for name, (value, values) in tried.items():
        if value in (min(values), max(values)):
            which = "lowest" if value == min(values) else "highest"
            found[name] = (
                f"{method}: the best {name}, {value:.3g}, is the {which} that was tried: "
                "a better one may lie beyond."
            )
    return found


def _table(method: Method, walk: _Walk) -> Table:
    has_outer = _has_outer(method)
    ends = _at_ends(method, walk)
    best = f"best ({' and '.join(ends)} at the end of the grid)" if ends else "best"
    rows = []
    for settings, row in walk.runs:
        outer = (f"{settings.eta:g}", f"{settings.mu:g}") if has_outer else ("-", "-")
        mark = best if settings == walk.best else ""
        loss = f"{row.heldout_loss:.4f}" if math.isfinite(row.heldout_loss) else "diverged"
        rows.append((f"{settings.learning_rate:.3g}", f"{settings.batch}", *outer, loss, mark))
    columns = ("learning rate", "batch", "eta", "mu", "held-out loss", "")
    return Table(title=f"{method}: {len(walk.runs)} runs, in order", columns=columns, rows=tuple(rows))


def _rates_picture(walks: Mapping[Method, _Walk]) -> Picture:
    """The first coordinate: what the learning rate does where everything else is at its start."""
    series = []
    for method, walk in walks.items():
        start = START[method]
        found = sorted(
            (one.learning_rate, row.heldout_loss)
            for one, row in walk.runs
            if one == replace(start, learning_rate=one.learning_rate) and math.isfinite(row.heldout_loss)
        )
        series.append(Series(name=method, x=tuple(x for x, _ in found), y=tuple(y for _, y in found)))
    return Picture(
        title="Held-out loss by learning rate, at the starting batch", x_label="learning rate",
        y_label="held-out loss", series=tuple(series), log_x=True,
    )  # fmt: skip


def _progress_picture(walks: Mapping[Method, _Walk]) -> Picture:
    series = []
    for method, walk in walks.items():
        best_so_far: list[float] = []
        for _, row in walk.runs:
            best_so_far.append(min([_comparable(row.heldout_loss), *best_so_far[-1:]]))
        shown = [(number, loss) for number, loss in enumerate(best_so_far, 1) if math.isfinite(loss)]
        series.append(Series(name=method, x=tuple(float(x) for x, _ in shown), y=tuple(y for _, y in shown)))
    return Picture(
        title="The best loss found, by runs spent", x_label="runs", y_label="held-out loss",
        series=tuple(series),
    )  # fmt: skip
