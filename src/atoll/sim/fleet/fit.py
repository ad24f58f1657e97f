"""Constants from a table: which pauses explain a table of measured goodput, and which of them it pins.

A table of goodput rarely determines every constant: a learner that shrinks in 5 s and grows in 25 looks
much like one that shrinks in 25 and grows in 5. So a fit answers twice. First the constants with the
least squares. Then, for each constant and for what they amount to together, how far it can go, all others
following as best they can, before the rms of the table rises by `SLACK_POINTS`: a profile. Where that
range is narrow the table pins the constant; where it is wide, the best value is one of many, and should
be measured.

Two facts make it fast. Learners are independent, so M learners on N chips have the goodput of one on N/M,
and somebody steps with 1 - (1-u)^M: one learner per size is enough, and the 30 cells of Table 1 are 14 of
them. And the simulator gives the same luck to fleets that differ in a constant, so that two tries differ
by what was changed. The search is differential evolution in the logarithms of the constants, a whole
generation in one call; then walkers push each quantity outwards from the extremes found so far. A table of
few sizes is simulated for a shorter time with more luck: side by side costs less than one after another.

Elastic cells and others share one constant only, the step, of which others say next to nothing. So elastic
cells are searched first, and the outage of the others at the step that was found.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atoll.errors import ConfigError
from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.model import MAX_LEARNERS, Fleet, Pauses, even_fleet
from atoll.sim.fleet.presets import Cell
from atoll.sim.fleet.simulate import simulate
from atoll.sim.units import YEAR, read_count, read_number

__all__ = ["SLACK_POINTS", "Constant", "Fit", "fit_table", "read_table"]

Floats = NDArray[np.float64]

COLUMNS = ("chips", "learners", "elastic", "goodput_percent")
UPTIME = "uptime_percent"
ELASTIC_WORDS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}

SLACK_POINTS = 0.1
"""How much worse the rms of a table may become for a value to count as possible."""
PINNED_RATIO = 1.35
"""A constant is pinned where the largest possible value is at most this many times the smallest."""
PER_FAILURE = "pause per failure"
"""Where failures are rare: to shrink, and to grow unless the slice was back before the end of that."""

POPULATION = 20
GENERATIONS = 3
"""For each constant, and once more."""
PUSHES = 8
PUSH_STEPS = ((0.0, 1.0), (0.1, 0.5), (0.3, 0.5), (1.0, 1.0))
"""What one push tries: how much of the way to the expected edge, and how much of winning error back."""
LONGEST_STEP = 1.0
JITTER = 0.01
"""Both in the logarithm of a constant; no two tries are the same."""
NEIGHBOURS = 4
"""For each constant: tries from which a slope is read."""
QUANTILES = 400
FAILURES = 800
"""Simulated time of one repetition: so many failures of the largest learner, if it never paused."""
REPETITIONS = 16
SIZES = 9
"""Both are for so many sizes, those of Table 1. Fewer of them: less time, and more repetitions."""
FEWEST_FAILURES = 200
LEAST_S = 7200.0
"""Never less time than this, for what is away at the beginning is not yet what is away on average."""
EXACT_POINTS = 0.01
"""An rms that no search need improve."""


@dataclass(frozen=True, slots=True)
class _Knob:
    """One constant, in seconds, and where it is looked for."""

    name: str
    low: float
    high: float


_ELASTIC = (
    _Knob("step", 0.5, 30.0),
    _Knob("down", 0.5, 3600.0),
    _Knob("up", 0.5, 3600.0),
    _Knob("return", 1.0, 7200.0),
)
_RIGID = (_Knob("outage", 1.0, 86400.0),)


@dataclass(frozen=True, slots=True)
class Constant:
    """What a table says about one constant, in seconds."""

    name: str
    best: float
    low: float
    high: float
    """The smallest and the largest value within the slack."""
    is_open: bool
    """The search ended at its bound before the table objected."""

    @property
    def is_pinned(self) -> bool:
        """Whether the table determines it."""
        return not self.is_open and self.high <= PINNED_RATIO * self.low


@dataclass(frozen=True, slots=True)
class Fit:
    """The constants nearest to a table."""

    pauses: Pauses
    rms: float
    """Of the search's own short simulations, in percent points."""
    constants: tuple[Constant, ...]
    """Those that the table can speak about; a table without elastic cells is silent about shrinking."""
    num_tries: int


def fit_table(
    cells: Sequence[Cell],
    *,
    mtbi_s: float = YEAR,
    slice_chips: int = 256,
    start: Pauses | None = None,
    seed: int = 1,
    say: Callable[[str], None] = lambda line: None,
) -> Fit:
    """Fit step, down, up, return and outage to a table; the shape of the return delay is that of `start`.

    The same seed gives the same fit. `say` hears of progress.
    """
    start = start or Pauses()
    if not math.isfinite(mtbi_s):
        raise ConfigError(
            "The chips of the table never fail.",
            "Then no constant matters, and none can be found.",
            "Give the mean time between interruptions of a chip.",
        )
    searches, total = [], 0
    for elastic, knobs in ((True, _ELASTIC), (False, _RIGID)):
        part = [cell for cell in cells if cell.elastic is elastic]
        if part:
            searches.append(_Search(part, knobs, mtbi_s, slice_chips, start, seed))
            total += searches[-1].num_numbers
    pauses = start
    for search in searches:
        search.minimise(pauses, say)
        pauses = _with(pauses, search.knobs, search.best)
    for search in searches:
        others = sum(other.best_error for other in searches if other is not search)
        search.explore(others, total, say)
        found = _with(pauses, search.knobs, search.best)
        if found != pauses and search is not searches[-1]:
            searches[-1].minimise(found, say)  # pushing has found a better step
        pauses = found
    return Fit(
        pauses=pauses,
        rms=math.sqrt(sum(search.best_error for search in searches) / total),
        constants=tuple(constant for search in searches for constant in search.constants()),
        num_tries=sum(search.num_tries for search in searches),
    )


class _Search:
    """All tries so far with some cells and some knobs; points are logarithms of seconds."""

    def __init__(
        self,
        cells: Sequence[Cell],
        knobs: Sequence[_Knob],
        mtbi_s: float,
        slice_chips: int,
        start: Pauses,
        seed: int,
    ) -> None:
        self.knobs = tuple(knobs)
        self.num_tries = 0
        self.num_numbers = len(cells) + sum(cell.uptime_percent is not None for cell in cells)
        self._cells = tuple(cells)
        self._mtbi_s, self._slice_chips, self._seed = mtbi_s, slice_chips, seed
        self._sizes = sorted({_size(cell) for cell in cells})
        self._weights = np.array([sum(_size(cell) == size for cell in cells) for size in self._sizes])
        rate = self._sizes[-1] / mtbi_s
        fewest = max(FEWEST_FAILURES, FAILURES * len(self._sizes) / SIZES, LEAST_S * rate)
        fewer = max(1.0, FAILURES / fewest)
        self._horizon_s = FAILURES / fewer / rate
        # Learners that are not elastic are quick to simulate: as many failures in all.
        self._repetitions = round(REPETITIONS * (math.sqrt(fewer) if len(knobs) > 1 else fewer))
        self._bounds = np.log([[knob.low for knob in knobs], [knob.high for knob in knobs]])
        self._forget(start)
        middles = (np.arange(QUANTILES) + 0.5) / QUANTILES
        self._unit_returns = replace(start.returns, mean_s=1.0).draw(middles)

    @property
    def best(self) -> Floats:
        """The constants with the least error, in seconds."""
        return np.asarray(np.exp(self.points[np.argmin(self.errors)]))

    @property
    def best_error(self) -> float:
        """Squared points, over all cells."""
        return float(self.errors.min())

    def minimise(self, start: Pauses, say: Callable[[str], None]) -> None:
        """Differential evolution towards the best, all other constants being those of `start`."""
        self._forget(start)
        here, errors = self._first_guesses(), np.full(POPULATION, math.inf)
        for generation in range(GENERATIONS * (len(self.knobs) + 1)):
            tries = here if generation == 0 else self._children(here, errors)
            new = self._try(tries)
            better = new < errors
            here, errors = np.where(better[:, None], tries, here), np.where(better, new, errors)
            say(f"{len(self.errors)} tries, rms {math.sqrt(errors.min() / self.num_numbers):.2f} points")
            if errors.min() <= self.num_numbers * EXACT_POINTS**2:
                return

    def explore(self, other_error: float, total: int, say: Callable[[str], None]) -> None:
        """Push every quantity up and down for as long as the table as a whole, of `total` numbers, allows."""
        for _ in range(PUSHES):
            rms = math.sqrt((self.best_error + other_error) / total) + SLACK_POINTS
            self._limit = total * rms**2 - other_error
            possible = self.points[self.errors <= self._limit]
            goals = ((name, sign) for name in self._quantities(possible) for sign in (1.0, -1.0))
            self._try(np.concatenate([self._pushed(possible, *goal) for goal in goals]))
            say(f"{len(self.errors)} tries, {len(possible)} within {SLACK_POINTS} points of the best")

    def constants(self) -> tuple[Constant, ...]:
        """What the tries say about each constant and about what they amount to."""
        possible = self.points[self.errors <= self._limit]
        at_bound = (possible < self._bounds[0] + 0.01) | (possible > self._bounds[1] - 0.01)
        is_open = dict(zip((knob.name for knob in self.knobs), at_bound.any(axis=0).tolist(), strict=True))
        best = self._quantities(self.points[[np.argmin(self.errors)]])
        return tuple(
            Constant(
                name, float(best[name][0]), float(all_.min()), float(all_.max()), is_open.get(name, False)
            )
            for name, all_ in self._quantities(possible).items()
        )

    def _forget(self, start: Pauses) -> None:
        """Begin with no tries, around other constants."""
        self._start = start
        self._chance = np.random.default_rng([self._seed, len(self.knobs)])
        self._limit = math.inf
        self.points = np.zeros((0, len(self.knobs)))
        self.values = np.zeros((0, len(self._sizes)))
        self.errors = np.zeros(0)

    def _quantities(self, points: Floats) -> dict[str, Floats]:
        """What a profile is taken of, in seconds, for each point."""
        seconds = np.exp(points)
        found = {knob.name: seconds[:, i] for i, knob in enumerate(self.knobs)}
        if len(self.knobs) > 1:
            found["down + up"] = found["down"] + found["up"]
            noticed = found["down"] + found["step"] / 2
            too_late = (self._unit_returns * found["return"][:, None] > noticed[:, None]).mean(axis=1)
            found[PER_FAILURE] = found["down"] + found["up"] * too_late
        return found

    def _first_guesses(self) -> Floats:
        """Around what rare failures would cost: (1-g)/g = failures per second times seconds per failure."""
        lost = [(101.0 - c.goodput_percent) / (1.0 + c.goodput_percent) for c in self._cells]
        cost = float(np.median([self._mtbi_s * x / _size(c) for x, c in zip(lost, self._cells, strict=True)]))
        noise = self._chance.normal(0.0, 0.5, POPULATION)
        whole = np.log(cost) + noise
        if len(self.knobs) == 1:
            return self._clip(whole[:, None])
        split = self._chance.uniform(0.1, 0.9, POPULATION)
        step = self._chance.uniform(self._bounds[0, 0], self._bounds[1, 0], POPULATION)
        back = np.log(cost) + self._chance.uniform(math.log(0.2), math.log(10.0), POPULATION)
        return self._clip(np.stack([step, whole + np.log(split), whole + np.log1p(-split), back], axis=1))

    def _children(self, here: Floats, errors: Floats) -> Floats:
        """Each a step towards the best and along the difference of two others."""
        best = here[np.argmin(errors)]
        one, two = (here[self._chance.permutation(POPULATION)] for _ in range(2))
        pull, drift = self._chance.uniform(0.2, 0.9, (2, POPULATION, 1))
        return self._clip(here + pull * (best - here) + drift * (one - two))

    def _pushed(self, possible: Floats, name: str, sign: float) -> Floats:
        """Tries beyond the possible point that has gone farthest in one quantity.

        How the cells follow the constants is read off the tries nearby. With that, one direction gains most
        of the quantity for the error that it costs, and another wins error back and keeps the quantity.
        """
        far = possible[np.argmax(sign * self._quantities(possible)[name])]
        slope = self._slope(far)
        bend = slope.T @ (self._weights[:, None] * slope)
        bend += (1e-3 * np.trace(bend) + 1e-9) * np.eye(len(self.knobs))
        nudges = np.vstack([far, far + 1e-4 * np.eye(len(self.knobs))])
        heights = sign * np.log(self._quantities(nudges)[name])
        up = (heights[1:] - heights[0]) / 1e-4
        uphill = np.linalg.solve(bend, up)
        whole = math.sqrt(max(self._limit - self.best_error, 0.0) / max(float(up @ uphill), 1e-12))
        downhill = -np.linalg.solve(bend, slope.T @ self._pull(far))
        level = downhill - uphill * float(up @ downhill) / max(float(up @ uphill), 1e-12)
        steps = [on * whole * uphill + back * level for on, back in PUSH_STEPS]
        jitter = self._chance.normal(0.0, JITTER, (len(steps), len(self.knobs)))
        return self._clip(far + np.clip(steps, -LONGEST_STEP, LONGEST_STEP) + jitter)

    def _slope(self, point: Floats) -> Floats:
        """d goodput / d log constant around a point, for each size, by regression over its neighbours."""
        near = np.argsort(np.square(self.points - point).sum(axis=1))[: NEIGHBOURS * len(self.knobs)]
        sides = np.hstack([self.points[near] - point, np.ones((len(near), 1))])
        return np.asarray(np.linalg.lstsq(sides, self.values[near], rcond=None)[0][:-1].T)

    def _pull(self, point: Floats) -> Floats:
        """For each size, what its cells would have goodput move by, summed over them."""
        here = self.values[np.argmin(np.square(self.points - point).sum(axis=1))]
        pull = np.zeros(len(self._sizes))
        for cell in self._cells:
            place = self._sizes.index(_size(cell))
            pull[place] += here[place] - cell.goodput_percent
        return pull

    def _clip(self, points: Floats) -> Floats:
        return np.clip(points, self._bounds[0], self._bounds[1])

    def _try(self, points: Floats) -> Floats:
        """Squared error of each point, all simulated in one call and remembered."""
        fleets = [self._fleet(np.exp(point), size) for point in points for size in self._sizes]
        results = simulate(fleets, horizon_s=self._horizon_s, repetitions=self._repetitions, seed=self._seed)
        shape = (len(points), len(self._sizes))
        goodput = np.array([100 * result.goodput for result in results]).reshape(shape)
        uptime = np.array([result.uptime_one for result in results]).reshape(shape)
        errors = np.zeros(len(points))
        for cell in self._cells:
            place = self._sizes.index(_size(cell))
            errors += (goodput[:, place] - cell.goodput_percent) ** 2
            if cell.uptime_percent is not None:
                errors += (100 * (1 - (1 - uptime[:, place]) ** cell.learners) - cell.uptime_percent) ** 2
        self.num_tries += len(points)
        self.points = np.concatenate([self.points, points])
        self.values = np.concatenate([self.values, goodput])
        self.errors = np.concatenate([self.errors, errors])
        return errors

    def _fleet(self, seconds: Floats, size: int) -> Fleet:
        pauses = replace(_with(self._start, self.knobs, seconds), elastic=len(self.knobs) > 1)
        return even_fleet(size, mtbi_s=self._mtbi_s, slice_chips=self._slice_chips, pauses=pauses)


def read_table(path: Path) -> tuple[Cell, ...]:
    """The cells of a CSV with chips,learners,elastic,goodput_percent and perhaps uptime_percent."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            names = tuple(name.strip() for name in reader.fieldnames or ())
            if set(names) - {UPTIME} != set(COLUMNS):
                raise ConfigError(
                    f"{path} does not begin with {','.join(COLUMNS)}[,{UPTIME}].",
                    "Its columns cannot be told apart.",
                    "Write that line first, then one row for each fleet that was measured.",
                )
            reader.fieldnames = names
            cells = tuple(_cell(path, reader.line_num, row) for row in reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"The table {path} cannot be read: {error}.",
            "There is nothing to fit to.",
            "Check the path; the table is a CSV in UTF-8.",
        ) from error
    if not cells:
        raise ConfigError(f"{path} has no rows.", "There is nothing to fit to.", "Add rows below the header.")
    return cells


def _cell(path: Path, line: int, row: dict[str, str]) -> Cell:
    where = f"line {line} of {path}"
    try:
        elastic = ELASTIC_WORDS[row["elastic"].strip().lower()]
        uptime = row.get(UPTIME)
        return Cell(
            chips=read_count(row["chips"], f"chips in {where}"),
            learners=read_count(row["learners"], f"learners in {where}", most=MAX_LEARNERS),
            elastic=elastic,
            goodput_percent=read_number(row["goodput_percent"], f"goodput_percent in {where}"),
            uptime_percent=read_number(uptime, f"{UPTIME} in {where}") if uptime else None,
        )
    except (KeyError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"In {where}, elastic is {row.get('elastic')!r}, or a column is missing.",
            "Such a row cannot be compared with.",
            "Write for example 150k,4,yes,96.",
        ) from error


def _size(cell: Cell) -> int:
    """Chips of one of its learners."""
    return max(1, round(cell.chips / cell.learners))


def _with(pauses: Pauses, knobs: Sequence[_Knob], seconds: Floats) -> Pauses:
    """Pauses with some constants changed."""
    values = {knob.name: float(value) for knob, value in zip(knobs, seconds, strict=True)}
    if "outage" in values:
        return replace(pauses, outage_s=values["outage"])
    return replace(
        pauses,
        quantum_s=values["step"],
        down_s=values["down"],
        up_s=values["up"],
        returns=Delay(mean_s=values["return"], shape=pauses.returns.shape, power=pauses.returns.power),
    )
