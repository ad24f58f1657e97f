"""Paired comparisons: how much better or worse, how sure we are, and whether that carries a claim.

Two runs of one seed start from the same weights and see the same data, so most of what moves a loss from seed
to seed moves both of them, and falls out of their difference. Each seed gives one relative difference in
percent; over seeds we take the mean with Student's 95 % interval. "Below x" is claimed only if the whole
interval is below x; if the interval lies across the limit, the claim is not resolved, and says how many seeds
it would take if mean and spread stayed as they are. One seed tells nothing about the spread: its interval is
infinite. Nothing is dropped: a seed that only one side has is an error, and a run that did not end in a
finite number makes the difference NaN and the claim fail.

Whether a gap shrinks with size as fast as a law says is asked of its share of that law (`fit_trend`): a gap
that is zero but for noise comes out negative half of the time, has no logarithm, and must not be left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from atoll.errors import ConfigError
from atoll.sim.lab.cell import Row
from atoll.sim.lab.report import Claim, Verdict

__all__ = [
    "Difference", "Trend", "as_check", "claim_at_least", "claim_below", "fit_trend", "interval",
    "interval_of", "mean_sd", "paired", "paired_shared", "percent", "plus_minus", "seeds_needed", "spread",
    "student_t",
]  # fmt: skip

MANY_SEEDS = 500
"""A claim that would take more is said to be too close to its limit to tell."""
MAX_SEEDS = 10_000
"""Beyond this we do not count how many seeds a claim would take."""
LEAST_T = 1.95
"""No `student_t` is below it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A mean over seeds with its 95 % interval; in percent if `paired` made it."""

    mean: float
    low: float
    high: float
    seeds: int
    """How many."""
    values: tuple[float, ...]
    """Of each seed, in the order of the seeds."""
    is_change: bool = False
    """Whether it says by how much one thing is above another, as what `paired` made does."""


def paired(
    rows_a: Sequence[Row], rows_b: Sequence[Row], value: Callable[[Row], float] = lambda row: row.heldout_loss
) -> Difference:
    """By how many percent `value` of a is above that of b, seed by seed: 100 (a / b - 1)."""
    side_a, side_b = _by_seed(rows_a, "first"), _by_seed(rows_b, "second")
    if side_a.keys() != side_b.keys():
        lonely = ", ".join(map(str, sorted(side_a.keys() ^ side_b.keys())))
        raise ConfigError(
            f"Two sides are compared, and only one of them has seed {lonely}.",
            "A run without its counterpart tells nothing, and dropping it would hide that it is there.",
            "Train the same seeds on both sides.",
        )
    seeds = sorted(side_a)
    changes = [_relative(side_a[seed], side_b[seed], value) for seed in seeds]
    return replace(interval_of(changes), is_change=True)


def paired_shared(rows_a: Sequence[Row], rows_b: Sequence[Row]) -> Difference:
    """The same where one side was given more seeds on purpose: over the seeds of the other."""
    shared = min(len(rows_a), len(rows_b))
    return paired(rows_a[:shared], rows_b[:shared])


def interval_of(values: Sequence[float]) -> Difference:
    """The mean of one figure per seed, with its 95 % interval, in the figure's own unit."""
    mean, sd = spread(values)
    half = math.inf
    if len(values) > 1 and math.isfinite(sd):
        half = student_t(len(values) - 1) * sd / math.sqrt(len(values))
    if math.isnan(mean):
        return Difference(mean, -math.inf, math.inf, len(values), tuple(values))
    return Difference(mean, mean - half, mean + half, len(values), tuple(values))


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (of a sample); the deviation of a single value is NaN."""
    if not values:
        raise ConfigError("There are no values.", "They have no mean.", "Train at least one seed.")
    if not all(map(math.isfinite, values)):
        return math.nan, math.nan
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((one - mean) ** 2 for one in values) / (len(values) - 1))


@cache
def student_t(freedom: int) -> float:
    """The value that |T| stays below with 95 %, for Student's T with so many degrees of freedom.

    With theta = atan(t / sqrt(freedom)) the probability is a finite sum of powers of cos theta, which grows
    with theta (Abramowitz and Stegun, 26.7.3 and 26.7.4): bisection finds the angle.
    """
    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        if _within(middle, freedom) < 0.95:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def seeds_needed(difference: Difference, limit: float) -> int | None:
    """The fewest seeds, at least 2, that would leave the limit outside the interval, if mean and spread stay.

    None if the mean lies on the limit, if there is no spread to go by, or beyond `MAX_SEEDS`.
    """
    found, distance = difference, abs(limit - difference.mean)
    if found.seeds == 1:
        return None
    sd = (found.high - found.low) / 2 * math.sqrt(found.seeds) / student_t(found.seeds - 1)
    if not LEAST_T * sd < math.sqrt(MAX_SEEDS) * distance:
        return None
    for seeds in range(max(2, math.ceil((LEAST_T * sd / distance) ** 2)), MAX_SEEDS + 1):
        if student_t(seeds - 1) * sd / math.sqrt(seeds) < distance:
            return seeds
    return None


def claim_below(text: str, difference: Difference, limit: float, unit: str = "%") -> Claim:
    """Holds if the whole interval is below the limit, fails if it is above, else is not resolved."""
    found = difference
    verdict: Verdict = "not resolved"
    if found.high < limit:
        verdict = "holds"
    elif found.low > limit or math.isnan(found.mean):
        verdict = "fails"
    return Claim(
        text=text, value=found.mean, low=found.low, high=found.high, limit=limit, seeds=found.seeds,
        verdict=verdict, advice=_advice(verdict, found, limit, found.mean < limit), unit=unit,
        is_change=found.is_change,
    )  # fmt: skip


def as_check(claim: Claim) -> Claim:
    """The same of what holds nearly by construction."""
    return replace(claim, is_check=True)


def claim_at_least(
    text: str, value: float, low: float, high: float, limit: float, seeds: int, unit: str = "%",
    is_change: bool = False,
) -> Claim:  # fmt: skip
    """Holds if the whole interval is at or above the limit, fails if it is below, else is not resolved.

    With a single seed it never holds, whatever interval is given.
    """
    verdict: Verdict = "not resolved"
    if low >= limit and seeds > 1:
        verdict = "holds"
    elif high < limit or math.isnan(value):
        verdict = "fails"
    found = Difference(value, low, high, seeds, ())
    return Claim(
        text=text, value=value, low=low, high=high, limit=limit, seeds=seeds, verdict=verdict,
        advice=_advice(verdict, found, limit, value > limit), unit=unit, is_change=is_change,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trend:
    """y = unit * (at_zero + slope * x), with the slope's 95 % interval."""

    at_zero: float
    slope: float
    slope_low: float
    slope_high: float

    def at(self, x: float, unit: float) -> float:
        """The fitted y."""
        return unit * (self.at_zero + self.slope * x)


def fit_trend(x: Sequence[float], y: Sequence[float], units: Sequence[float]) -> Trend:
    """The line through y / unit with the least sum of squares of y, which may be negative.

    Noise is taken to be the same in all y, so a point with a large unit says more about the line. Two points
    are met and bound no slope: its interval is then infinite.
    """
    xs, ys, us = _points(x, y, units)
    shapes = np.stack([us, us * xs], axis=1)
    inverse = np.linalg.inv(shapes.T @ shapes)
    at_zero, slope = map(float, inverse @ shapes.T @ ys)
    freedom, half = len(xs) - 2, math.inf
    if freedom > 0:
        squares = float(((ys - shapes @ np.array([at_zero, slope])) ** 2).sum())
        half = student_t(freedom) * math.sqrt(squares / freedom * float(inverse[1, 1]))
    return Trend(at_zero, slope, slope - half, slope + half)


def percent(share: float, digits: int = 1) -> str:
    """A fraction as a percentage: 0.962 is 96.2 %."""
    return f"{100 * share:.{digits}f} %"


def plus_minus(mean: float, sd: float, digits: int = 3) -> str:
    """1.734 ± 0.006; without a deviation the mean alone."""
    shown = f"{mean:.{digits}f}"
    return shown if math.isnan(sd) else f"{shown} ± {sd:.{digits}f}"


def mean_sd(values: Sequence[float], digits: int = 3) -> str:
    """Mean and standard deviation as a table shows them: 1.734 ± 0.006."""
    return plus_minus(*spread(values), digits)


def interval(difference: Difference, digits: int = 2, unit: str = "%") -> str:
    """Mean and interval as a table shows them: +0.12 % (-0.05..+0.29)."""
    shown = f"{difference.mean:+.{digits}f} {unit}".rstrip()
    if math.isnan(difference.mean):
        return "not finite"
    if not math.isfinite(difference.high):
        return f"{shown} (one seed)"
    return f"{shown} ({difference.low:+.{digits}f}..{difference.high:+.{digits}f})"


def _by_seed(rows: Sequence[Row], side: str) -> Mapping[int, Row]:
    found = {row.cell.seed: row for row in rows}
    if len(found) != len(rows) or not rows:
        seeds = ", ".join(str(row.cell.seed) for row in rows)
        raise ConfigError(
            f"The {side} side of a comparison has the seeds {seeds or '(none)'}.",
            "Each seed must be there once, for it is one pair.",
            "Compare one setting with one other, at least one seed of each.",
        )
    return found


def _relative(a: Row, b: Row, value: Callable[[Row], float]) -> float:
    if (a.cell.task, a.cell.size) != (b.cell.task, b.cell.size):
        raise ConfigError(
            f"Seed {a.cell.seed} is compared between {a.cell.task} {a.cell.size} and "
            f"{b.cell.task} {b.cell.size}.",
            "Those share neither weights nor data, so they are no pair.",
            "Compare rows of the same task and size.",
        )
    ours, theirs = value(a), value(b)
    if theirs <= 0:
        raise ConfigError(
            f"Seed {b.cell.seed} is compared with a value of {theirs:g}.",
            "A difference in percent of it has no meaning.",
            "Compare with values above zero.",
        )
    return 100 * (ours / theirs - 1) if math.isfinite(ours) and math.isfinite(theirs) else math.nan


def _points(
    x: Sequence[float], y: Sequence[float], units: Sequence[float]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    if not len(x) == len(y) == len(units) or len(set(x)) < 2:
        what = f"A trend is fitted to {len(x)} x, {len(y)} y and {len(units)} units."
        raise ConfigError(what, "It takes points at two different x.", "Give as many of each.")
    for name, values in (("x", x), ("y", y), ("unit", units)):
        if wrong := [one for one in values if not math.isfinite(one) or (name == "unit" and one <= 0)]:
            raise ConfigError(
                f"A trend is fitted to points with the {name} {wrong[0]:g}.",
                "Everything is finite and units are positive, or there is no such line.",
                "Look for the run that ended so, and fit what is left on purpose.",
            )
    return np.asarray(x, np.float64), np.asarray(y, np.float64), np.asarray(units, np.float64)


def _within(theta: float, freedom: int) -> float:
    """The probability of |T| < sqrt(freedom) tan theta."""
    cos = math.cos(theta)
    is_odd = freedom % 2
    term = cos if is_odd else 1.0
    total = 0.0
    for power in range(2 + is_odd, freedom + 1, 2):
        total += term
        term *= cos * cos * (power - 1) / power
    inside = math.sin(theta) * total
    return 2 / math.pi * (theta + inside) if is_odd else inside


def _advice(verdict: Verdict, found: Difference, limit: float, is_right: bool) -> str:
    """What more seeds would do; `is_right` if the mean is on the side of the limit that holds."""
    if math.isnan(found.mean):
        return "A run did not end in a finite number."
    if verdict != "not resolved":
        return ""
    if found.seeds == 1:
        return "One seed says nothing about the spread: run at least 3."
    if found.mean == limit:
        return "The mean lies on the limit: no number of seeds would tell."
    needed = seeds_needed(found, limit)
    if needed is None or needed > MANY_SEEDS:
        count = f"more than {MAX_SEEDS}" if needed is None else f"about {needed}"
        return f"It cannot be told at so small a difference from the limit: that would take {count} seeds."
    end = "to hold" if is_right else "to show that it fails"
    return f"It would take about {needed} seeds {end}, if mean and spread stay as they are."
