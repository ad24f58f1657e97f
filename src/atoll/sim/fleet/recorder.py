"""Traces of the first repetition: chips at work from each moment on, for every learner."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atoll.sim.fleet.trace import CapacityTrace

__all__ = ["Recorder"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Recorder:
    """Writes down every change of the lanes it watches; watches none unless asked to."""

    def __init__(self, watched: NDArray[np.bool_]) -> None:
        self._watched = watched
        self._is_on = bool(watched.any())
        self._parts: list[tuple[Ints, Floats, Floats]] = []

    def add(self, lanes: Ints, from_s: Floats, chips: Floats) -> None:
        """From these times on these lanes have so many chips at work; later words for one moment win."""
        if self._is_on:
            seen = self._watched[lanes]
            self._parts.append((lanes[seen], from_s[seen], chips[seen]))

    def traces(self, horizon_s: float) -> dict[int, CapacityTrace]:
        """By lane, until the horizon, without rows that change nothing."""
        if not self._is_on:
            return {}
        lanes, times, chips = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        order = np.lexsort((np.arange(times.size), times, lanes))
        lanes, times, chips = lanes[order], times[order], chips[order]
        bounds = np.searchsorted(lanes, np.flatnonzero(self._watched))
        return {
            int(lanes[start]): _trace(times[start:end], chips[start:end], horizon_s)
            for start, end in zip(bounds, [*bounds[1:], lanes.size], strict=True)
        }


def _trace(times: Floats, chips: Floats, horizon_s: float) -> CapacityTrace:
    inside = times < horizon_s
    times, chips = times[inside], chips[inside]
    last = np.append(times[1:] != times[:-1], True)
    times, chips = times[last], chips[last]
    changed = np.append(True, chips[1:] != chips[:-1])
    return CapacityTrace(tuple(times[changed].tolist()), tuple(chips[changed].tolist()))
