"""Slices that are away, lane by lane, in the order in which they come back.

Each lane has a table of free places in blocks, with the earliest time of every block kept beside it.
Taking the earliest out looks through one row of blocks and one block, so that a hundred thousand slices
away cost hundreds of places to look through and not all of them; for all lanes at once these are a
handful of array operations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Returns"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

START_WIDTH = 8


class Returns:
    """When what comes back, for many lanes."""

    def __init__(self, num_lanes: int) -> None:
        self._width = START_WIDTH
        self._times = np.full((num_lanes, 1, START_WIDTH), np.inf)
        self._chips = np.zeros((num_lanes, 1, START_WIDTH))
        self._firsts = np.full((num_lanes, 1), np.inf)
        self._counts = np.zeros((num_lanes, 1), dtype=np.int64)

    def add(self, lanes: Ints, at_s: Floats, chips: Floats) -> None:
        """Each of these lanes (each named once) waits for one more return."""
        counts = self._counts[lanes]
        block = counts.argmin(axis=1)
        if (counts[np.arange(lanes.size), block] >= self._width).any():
            self._grow()
            return self.add(lanes, at_s, chips)
        place = np.isinf(self._times[lanes, block]).argmax(axis=1)
        self._times[lanes, block, place] = at_s
        self._chips[lanes, block, place] = chips
        # A slice that never returns takes no place: its time is infinite, as that of a free place is.
        self._counts[lanes, block] += np.isfinite(at_s)
        self._firsts[lanes, block] = np.minimum(self._firsts[lanes, block], at_s)

    def first(self, lanes: Ints) -> Floats:
        """When the earliest comes back; inf if nobody is away for a time that ends."""
        return np.asarray(self._firsts[lanes].min(axis=1))

    def take(self, lanes: Ints, until_s: Floats) -> Floats:
        """Take out all that came back until a time; returns their chips, summed for each lane."""
        back = np.zeros(lanes.size)
        rows = np.flatnonzero(self.first(lanes) <= until_s)
        while rows.size:
            these = lanes[rows]
            block = self._firsts[these].argmin(axis=1)
            times = self._times[these, block]
            place = times.argmin(axis=1)
            back[rows] += self._chips[these, block, place]
            times[np.arange(rows.size), place] = np.inf
            self._times[these, block, place] = np.inf
            self._counts[these, block] -= 1
            self._firsts[these, block] = times.min(axis=1)
            rows = rows[self.first(these) <= until_s[rows]]
        return back

    def hold(self, lanes: Ints, until_s: Floats) -> None:
        """Nothing comes back to these lanes before a time; what would have come back comes then."""
        self._times[lanes] = np.maximum(self._times[lanes], until_s[:, None, None])
        self._firsts[lanes] = np.maximum(self._firsts[lanes], until_s[:, None])

    def _grow(self) -> None:
        """Twice as many blocks of twice the width; what is there keeps its order."""
        lanes, blocks, width = self._times.shape
        self._width = 2 * width
        times = np.full((lanes, 2 * blocks, 2 * width), np.inf)
        chips = np.zeros((lanes, 2 * blocks, 2 * width))
        times[:, :blocks, :width] = self._times
        chips[:, :blocks, :width] = self._chips
        spare = np.full((lanes, blocks), np.inf)
        self._firsts = np.concatenate([self._firsts, spare], axis=1)
        self._counts = np.concatenate([self._counts, np.zeros((lanes, blocks), dtype=np.int64)], axis=1)
        self._times, self._chips = times, chips
