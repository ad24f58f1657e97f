"""How many learners step at once, from the intervals in which each does not.

Intervals are collected while lanes run, and counted up one window of time after another, so that memory
holds a window and not a month. Within a window, the ends of all intervals of one fleet are sorted by
repetition and time; the running sum is the number of learners that stand still.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atoll.sim.fleet.model import Fleet, SyncerOutages
from atoll.sim.fleet.outside import FLEET_LANE, poisson_times
from atoll.sim.fleet.streams import lane_keys, uniform

__all__ = ["Stops", "syncer_absences"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SYNCER_SALT = 7


class Stops:
    """Collects intervals without steps, and knows how long how many learners stood still."""

    def __init__(
        self, fleets: list[Fleet], repetitions: int, lane_fleet: Ints, lane_repetition: Ints
    ) -> None:
        self._fleets = fleets
        self._lane_fleet = lane_fleet
        self._lane_repetition = lane_repetition
        self._window_start = 0.0
        self._kept: list[tuple[Ints, Floats, Floats]] = []
        self._absences: dict[int, tuple[Ints, Floats, Floats]] = {}
        # still[fleet][repetition, syncer away, learners that stand still]: seconds; none still is the rest.
        self.still = [np.zeros((repetitions, 2, fleet.num_learners + 1)) for fleet in fleets]

    def add(self, lanes: Ints, start_s: Floats, end_s: Floats) -> None:
        """These lanes stand still for a while; intervals of one lane never overlap."""
        real = end_s > start_s
        if real.all():
            self._kept.append((lanes, start_s, end_s))
        elif real.any():
            self._kept.append((lanes[real], start_s[real], end_s[real]))

    def syncer_away(self, fleet: int, by_repetition: list[tuple[Floats, Floats]]) -> None:
        """The syncer of a fleet is away: starts and ends, for each repetition."""
        self._absences[fleet] = _joined(
            [(np.full(start.size, number), start, end) for number, (start, end) in enumerate(by_repetition)]
        )

    def close_window(self, end_s: float) -> None:
        """Count what lies before a time, and keep what lies after it."""
        lanes, start, end = _joined(self._kept)
        later = end > end_s
        self._kept = [(lanes[later], np.maximum(start[later], end_s), end[later])]
        start, end = np.minimum(start, end_s), np.minimum(end, end_s)
        fleet_of = self._lane_fleet[lanes]
        order = np.argsort(fleet_of, kind="stable")
        bounds = np.searchsorted(fleet_of[order], np.arange(len(self._fleets) + 1))
        for number in range(len(self._fleets)):
            rows = order[bounds[number] : bounds[number + 1]]
            self._count(number, self._lane_repetition[lanes[rows]], start[rows], end[rows], end_s)
        self._window_start = end_s

    def _count(self, number: int, repetitions: Ints, start: Floats, end: Floats, until_s: float) -> None:
        still = self.still[number]
        width = still.shape[2]
        weight = np.ones(repetitions.size, dtype=np.int64)
        if number in self._absences:
            away, away_start, away_end = self._absences[number]
            repetitions, weight = (
                np.concatenate([repetitions, away]),
                np.concatenate([weight, 0 * away + width]),
            )
            start = np.concatenate([start, away_start.clip(self._window_start, until_s)])
            end = np.concatenate([end, away_end.clip(self._window_start, until_s)])
        if not repetitions.size:
            return
        span = until_s - self._window_start
        keys = (
            np.concatenate([start, end]) - self._window_start + np.concatenate([repetitions] * 2) * (2 * span)
        )
        order = np.argsort(keys)  # ties last no time, so their order does not matter
        count = np.cumsum(np.concatenate([weight, -weight])[order])[:-1]
        lasting = np.diff(keys[order])
        busy = (count > 0) & (lasting > 0)
        bins = np.concatenate([repetitions] * 2)[order[:-1]][busy] * (2 * width) + count[busy]
        still += np.bincount(bins, weights=lasting[busy], minlength=still.size).reshape(still.shape)


def syncer_absences(
    syncer: SyncerOutages, repetition: int, horizon_s: float, seed: int
) -> tuple[Floats, Floats]:
    """When the syncer is away in one repetition: start and end of each absence, in order."""
    failures = poisson_times(syncer.every_s, horizon_s, seed, repetition, FLEET_LANE, SYNCER_SALT)
    key = lane_keys(seed, np.array([repetition]), np.array([FLEET_LANE]), SYNCER_SALT + 1)
    down = syncer.down.draw(uniform(key, np.arange(failures.size, dtype=np.uint64)))
    # The clock to the next failure starts at the return: absences push all later ones back.
    start = failures + np.concatenate([[0.0], np.cumsum(down)[:-1]])[: failures.size]
    inside = start < horizon_s
    return start[inside], (start + down)[inside]


def _joined(parts: list[tuple[Ints, Floats, Floats]]) -> tuple[Ints, Floats, Floats]:
    empty = (np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))
    lanes, start, end = zip(empty, *parts, strict=True)
    return np.concatenate(lanes), np.concatenate(start), np.concatenate(end)
