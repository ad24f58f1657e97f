"""What comes to a learner from outside: shocks that take many slices, and the grants of a spot market.

Both are known before the simulation starts: they do not depend on what the learner does. A lane has one
list of them, in order of time. A shock of the whole fleet stands in the lists of all its learners, with
the same end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.errors import ConfigError
from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.model import Fleet, Shock
from atoll.sim.fleet.streams import exponential, lane_keys, uniform

__all__ = ["Outside", "poisson_times"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_ENTRIES = 20_000_000
SHOCK_SALT = 101
FLEET_LANE = 1 << 40
"""Stands for the learner in the key of what strikes all learners."""


@dataclass(slots=True)
class Outside:
    """The lists of all lanes in one array, with a place for each lane.

    Columns: time, chips lost, delay, grant. A shock has chips lost and a delay; a grant has its
    chips, and nan for the rest.
    """

    rows: Floats
    place: Ints
    end: Ints

    @staticmethod
    def of(fleets: list[Fleet], repetitions: int, horizon_s: float, seed: int) -> Outside:
        """For lanes in order of fleet, repetition, learner."""
        _check_size(fleets, repetitions, horizon_s)
        lists: list[Floats] = []
        for fleet in fleets:
            for repetition in range(repetitions):
                common = [
                    _shock(s, horizon_s, seed, repetition, FLEET_LANE, i) for i, s in _of(fleet, "fleet")
                ]
                lists.extend(
                    _lane(fleet, learner, common, horizon_s, seed, repetition)
                    for learner in range(fleet.num_learners)
                )
        lengths = np.array([len(rows) for rows in lists], dtype=np.int64)
        end = np.cumsum(lengths)
        return Outside(np.concatenate([*lists, np.zeros((0, 4))]), end - lengths, end)

    @property
    def is_empty(self) -> bool:
        """Nothing comes from outside, to nobody."""
        return self.rows.size == 0

    def next_at(self, lanes: Ints) -> Floats:
        """When the next entry of each lane comes; inf after the last."""
        if self.is_empty:
            return np.full(lanes.size, np.inf)
        place = np.minimum(self.place[lanes], len(self.rows) - 1)
        return np.where(self.place[lanes] < self.end[lanes], self.rows[place, 0], np.inf)

    def take(self, lanes: Ints, at_s: Floats) -> Floats:
        """The next entries of these lanes, as rows; of grants that changed again by then, the last."""
        entries = self.rows[self.place[lanes]]
        self.place[lanes] += 1
        while True:
            following = self.rows[np.minimum(self.place[lanes], len(self.rows) - 1)]
            both_grants = ~np.isnan(entries[:, 3]) & ~np.isnan(following[:, 3])
            stale = both_grants & (self.next_at(lanes) <= at_s)
            if not stale.any():
                return entries
            entries[stale] = following[stale]
            self.place[lanes[stale]] += 1


def poisson_times(
    every_s: float, horizon_s: float, seed: int, repetition: int, lane: int, salt: int
) -> Floats:
    """Times of a Poisson process until the horizon, the same for the same place in the tree of chance."""
    key = lane_keys(seed, np.array([repetition]), np.array([lane]), salt)
    times = np.zeros(0)
    start = 0.0
    count = 0
    while start < horizon_s:
        size = max(16, int(1.2 * (horizon_s - start) / every_s))
        place = np.arange(count, count + size, dtype=np.uint64)
        more = start + every_s * np.cumsum(exponential(uniform(key, place)))
        times, start, count = np.concatenate([times, more]), float(more[-1]), count + size
    return times[times < horizon_s]


def _of(fleet: Fleet, scope: str) -> list[tuple[int, Shock]]:
    return [(number, shock) for number, shock in enumerate(fleet.shocks) if shock.scope == scope]


def _shock(shock: Shock, horizon_s: float, seed: int, repetition: int, lane: int, number: int) -> Floats:
    """Rows (time, share lost, delay, nan) of one kind of shock."""
    salt = SHOCK_SALT + 2 * number
    times = poisson_times(shock.every_s, horizon_s, seed, repetition, lane, salt)
    delays = _draw(shock.returns, len(times), seed, repetition, lane, salt + 1)
    rows = np.full((len(times), 4), np.nan)
    rows[:, 0], rows[:, 1], rows[:, 2] = times, shock.share, delays
    return rows


def _draw(delay: Delay, size: int, seed: int, repetition: int, lane: int, salt: int) -> Floats:
    key = lane_keys(seed, np.array([repetition]), np.array([lane]), salt)
    return delay.draw(uniform(key, np.arange(size, dtype=np.uint64)))


def _lane(
    fleet: Fleet, learner: int, common: list[Floats], horizon_s: float, seed: int, repetition: int
) -> Floats:
    """All that comes to one learner in one repetition, in order of time."""
    island = fleet.islands[learner]
    own = [_shock(s, horizon_s, seed, repetition, learner, i) for i, s in _of(fleet, "learner")]
    rows = np.concatenate([*common, *own, np.zeros((0, 4))])
    rows[:, 1] *= island.chips
    if island.trace is not None:
        times, chips = np.array(island.trace.times_s), np.array(island.trace.chips)
        kept = (times > 0) & (times < horizon_s)
        grants = np.full((int(kept.sum()), 4), np.nan)
        grants[:, 0], grants[:, 3] = times[kept], np.minimum(chips[kept], island.chips)
        rows = np.concatenate([rows, grants])
    return np.asarray(rows[np.argsort(rows[:, 0], kind="stable")])


def _check_size(fleets: list[Fleet], repetitions: int, horizon_s: float) -> None:
    expected = 0.0
    for fleet in fleets:
        expected += sum(len(fleet.islands) * horizon_s / shock.every_s for shock in fleet.shocks)
        expected += horizon_s / fleet.syncer.every_s if fleet.syncer else 0.0
    if expected * repetitions > MAX_ENTRIES:
        raise ConfigError(
            f"About {expected * repetitions:.3g} shocks and outages of syncers would strike.",
            f"More than {MAX_ENTRIES:,} do not fit in memory, and such a fleet does nothing but pause.",
            "Make them rarer, or simulate a shorter time or fewer repetitions.",
        )
