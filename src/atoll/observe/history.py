"""What a run looked like until now, in bounded memory: for sparklines and for the time left.

A `Series` is a row of bins of equal width in time. When a sample falls behind the last bin, bins
are joined in pairs and become twice as wide, so that the whole run always fits and its shape stays.
`History` keeps a series for each number that is drawn as a line, and the last minute of progress,
from which it estimates the time left. Time is an argument: the caller has the clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

__all__ = ["History", "Series", "sparkline"]

NUM_BINS = 128
FIRST_BIN_S = 0.5
RECENT_S = 60.0
MAX_RECENT = 256
LEVELS = "▁▂▃▄▅▆▇"  # not the full block: lines under each other must not touch


class Series:
    """Averages of one number over bins of time, at most `num_bins` of them (an even number)."""

    def __init__(self, num_bins: int = NUM_BINS, bin_s: float = FIRST_BIN_S) -> None:
        self.num_bins = num_bins
        self.bin_s = bin_s
        self._start_s: float | None = None
        self._bins: list[tuple[float, int]] = []  # sum and count; a count of 0 is a gap

    def add(self, now_s: float, value: float | None) -> None:
        """Take a sample in. What is unknown or not finite leaves no trace."""
        if value is None or not math.isfinite(value):
            return
        if self._start_s is None:
            self._start_s = now_s
        since_s = max(0.0, now_s - self._start_s)
        while since_s >= self.num_bins * self.bin_s:
            self._widen()
        index = int(since_s / self.bin_s)
        self._bins += [(0.0, 0)] * (index + 1 - len(self._bins))
        total, num = self._bins[index]
        self._bins[index] = (total + value, num + 1)

    def values(self) -> list[float]:
        """The average of every bin, oldest first; a gap repeats what was before it."""
        found: list[float] = []
        for total, num in self._bins:
            found.append(total / num if num else found[-1])  # the first bin is never a gap
        return found

    def _widen(self) -> None:
        self._bins += [(0.0, 0)] * (len(self._bins) % 2)
        self._bins = [
            (left[0] + right[0], left[1] + right[1])
            for left, right in zip(self._bins[::2], self._bins[1::2], strict=True)
        ]
        self.bin_s *= 2


class History:
    """Statuses over time, reduced to what the pages draw."""

    def __init__(self) -> None:
        self.loss = Series()
        self.tokens_per_s = Series()
        self.alive = Series()
        self._progress: deque[tuple[float, float]] = deque(maxlen=MAX_RECENT)

    def add(self, now_s: float, status: Mapping[str, Any]) -> None:
        """Take a status in; missing numbers are left out."""
        self.loss.add(now_s, status.get("loss"))
        self.tokens_per_s.add(now_s, status.get("tokens_per_s"))
        self.alive.add(now_s, status.get("alive"))
        progress = status.get("progress")
        if progress is None or not math.isfinite(progress):
            return
        if self._progress and progress < self._progress[-1][1]:
            self._progress.clear()  # another life of the syncer, or a rollback: the old pace is void
        self._progress.append((now_s, progress))
        while now_s - self._progress[0][0] > RECENT_S:
            self._progress.popleft()

    def eta_s(self) -> float | None:
        """Seconds until the budget is spent at the pace of the last minute; None while unknown."""
        if not self._progress:
            return None
        (start_s, start), (end_s, end) = self._progress[0], self._progress[-1]
        if end >= 1.0:
            return 0.0
        if end <= start or end_s <= start_s:
            return None
        return (1.0 - end) * (end_s - start_s) / (end - start)


def sparkline(values: Sequence[float], width: int, *, from_zero: bool = False) -> str:
    """Values as a line of blocks, at most `width` characters; each is the average of its share.

    The lowest block is the smallest value, or zero if `from_zero`; a line without any range is
    drawn in the middle.
    """
    if not values or width < 1:
        return ""
    shown = _resample(values, min(width, len(values)))
    low, high = (0.0 if from_zero else min(shown)), max(shown)
    if high <= low:
        return LEVELS[len(LEVELS) // 2 - 1] * len(shown)
    top = len(LEVELS) - 1
    return "".join(LEVELS[round(top * max(0.0, value - low) / (high - low))] for value in shown)


def _resample(values: Sequence[float], width: int) -> list[float]:
    edges = [index * len(values) // width for index in range(width + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
