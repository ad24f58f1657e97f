"""What experiments conclude from their numbers: trends, paired differences, tables. No clock, no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Paired", "Trend", "growth", "markdown", "paired", "sized", "trend"]

STUDENT_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Two-sided 95 % quantiles of Student's t, by degrees of freedom from 1; beyond, the normal one does."""
NORMAL_95 = 1.96
NOISE_SHARE = 0.01
"""Growth over the whole run, as a share of the level, that counts as none."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line through samples of something that should not grow."""

    level: float
    """Mean of the samples."""
    slope: float
    """Per 1,000 of what was counted."""
    error: float
    """Standard error of the slope, as if samples were independent; a sawtooth's are not."""

    def verdict(self, span: float) -> str:
        """In a word, for a run of `span`: `level`, `grows` or `falls`."""
        change, doubt = self.slope * span / 1000, 2 * self.error * span / 1000
        if abs(change) <= max(doubt, NOISE_SHARE * abs(self.level)):
            return "level"
        return "grows" if change > 0 else "falls"


def growth(at: Sequence[float], values: Sequence[float], limit: float | None = None) -> tuple[Trend, str]:
    """The trend of the second half, and a verdict in words.

    What is cut from time to time climbs between two cuts: it does not grow if the second half of the run
    saw nothing higher than the first. `limit` is where growth is to end by design, if it may grow.
    """
    half = len(at) // 2
    found = trend(at[half:], values[half:])
    verdict = found.verdict(at[-1])
    if verdict == "grows" and max(values[half:]) <= (1 + NOISE_SHARE) * max(values[:half]):
        verdict = "up and down, no higher than before"
    elif verdict == "grows" and limit is not None:
        verdict = f"grows {'towards' if max(values) <= limit else 'BEYOND'} its limit of {sized(limit)}"
    return found, verdict


def trend(at: Sequence[float], values: Sequence[float]) -> Trend:
    """Least squares through at least three samples."""
    num, mean_at, level = len(at), statistics.fmean(at), statistics.fmean(values)
    if num < 3:
        raise ValueError(f"{num} samples make no trend: three are the least")
    spread = sum((x - mean_at) ** 2 for x in at)
    slope = sum((x - mean_at) * (y - level) for x, y in zip(at, values, strict=True)) / spread
    misses = sum((y - level - slope * (x - mean_at)) ** 2 for x, y in zip(at, values, strict=True))
    return Trend(level, 1000 * slope, 1000 * math.sqrt(misses / (num - 2) / spread))


@dataclass(frozen=True, slots=True)
class Paired:
    """Differences of pairs, in percent of the baseline: their mean, and a 95 % interval around it."""

    mean: float
    low: float
    high: float

    def within(self, percent: float) -> str:
        """Whether the true difference is at most this, as far as so few pairs can say."""
        if self.high <= percent:
            is_close = self.low >= -percent
            return f"within {percent:g} %" if is_close else f"not worse by more than {percent:g} %"
        return f"more than {percent:g} %" if self.low > percent else "not resolved"


def paired(values: Sequence[float], baseline: Sequence[float]) -> Paired:
    """Pair by pair; a single pair has no interval."""
    percents = [100 * (value / base - 1) for value, base in zip(values, baseline, strict=True)]
    mean, freedom = statistics.fmean(percents), len(percents) - 1
    if not freedom:
        return Paired(mean, -math.inf, math.inf)
    quantile = STUDENT_95[freedom - 1] if freedom <= len(STUDENT_95) else NORMAL_95
    half = quantile * statistics.stdev(percents) / math.sqrt(len(percents))
    return Paired(mean, mean - half, mean + half)


def sized(num_bytes: float) -> str:
    """Bytes for people; a slope may be negative."""
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(num_bytes) >= scale:
            return f"{num_bytes / scale:.2f} {unit}"
    return f"{num_bytes:.0f} B"


def markdown(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)
