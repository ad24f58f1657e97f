"""Lanes: one learner in one repetition each, side by side in arrays.

A lane holds where it is in time, how many of its chips are away, when its next failure, return and
visit from outside are due, and what its chip time was spent on so far. Between two events nothing
changes, so lanes go from event to event, each at its own pace, and one array operation moves all of
them.

Failures are drawn as an amount of hazard, used up by chips at work: the i-th failure of a lane has the
same luck whatever the constants are, so that two fleets can be compared without noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from atoll.sim.fleet.delay import scale_of
from atoll.sim.fleet.model import Fleet, Island
from atoll.sim.fleet.streams import Keys, exponential, lane_keys, uniform

__all__ = ["Fixed", "Lanes", "Now", "chips_at_work", "draws", "make_lanes", "next_event", "return_delays"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NUM_DRAWS = 3
"""For each failure: hazard until the next one, part of the step still to do, delay of the return."""
DRAWS = np.array([[3], [1], [2]], dtype=np.uint64)
"""Their places in the stream; place 0 is the hazard until the first failure."""


class Now(IntEnum):
    """Rows of a lane's state."""

    TIME = 0
    """It steps from here on, if it has chips."""
    AWAY = 1
    """Chips that failed and are not back."""
    GRANT = 2
    """Chips it may have at all."""
    HAZARD = 3
    """Left until the next failure."""
    FAILS_AT = 4
    RETURNS_AT = 5
    OUTSIDE_AT = 6
    NUM_LOSSES = 7
    """Failures and shocks so far."""
    SINCE_SAVED = 8
    """Seconds of steps since the last restart: what is not in a checkpoint follows from it."""
    STEPPING_S = 9
    PAUSED_S = 10
    USEFUL = 11
    """From here on: chip seconds, in the order of result.SHARES (waiting is taken from useful at the end)."""
    MISSING = 12
    SHRINKING = 13
    GROWING = 14
    RESTARTING = 15
    REDONE = 16
    PLACE = 17
    """In its stream of chance: how often it lost chips, to failures, to shocks or to the market."""
    NUM_EVENTS = 18


class Fixed(IntEnum):
    """Rows of what never changes in a lane."""

    CHIPS = 0
    SLICE = 1
    RATE = 2
    """Failures per second and chip."""
    QUANTUM = 3
    DOWN = 4
    UP = 5
    OUTAGE = 6
    """With the reload."""
    CHECKPOINT = 7
    RETURN_SCALE = 8
    RETURN_SHAPE = 9
    RETURN_POWER = 10


@dataclass(slots=True)
class Lanes:
    """All lanes of a simulation, in order of fleet, repetition, learner."""

    now: Floats
    """[rows of Now, lanes]"""
    fixed: Floats
    """[rows of Fixed, lanes]"""
    keys: Keys
    fleet: Ints
    repetition: Ints
    learner: Ints
    is_elastic: NDArray[np.bool_]


def make_lanes(fleets: list[Fleet], repetitions: int, seed: int) -> Lanes:
    """Lanes at time 0: everything is there and steps."""
    fleet, repetition, learner = _places(fleets, repetitions)
    first = np.cumsum([0, *(f.num_learners for f in fleets)])
    column = np.array([_fixed(island) for f in fleets for island in f.islands]).T
    of_island = first[fleet] + learner
    fixed = np.ascontiguousarray(column[:, of_island])
    grants = np.array([_first_grant(island) for f in fleets for island in f.islands])
    elastic = np.array([island.pauses.elastic for f in fleets for island in f.islands])
    now = np.zeros((len(Now), len(fleet)))
    now[Now.GRANT] = grants[of_island]
    now[Now.RETURNS_AT] = now[Now.OUTSIDE_AT] = np.inf
    keys = lane_keys(seed, repetition, learner)
    lanes = Lanes(now, fixed, keys, fleet, repetition, learner, elastic[of_island])
    now[Now.HAZARD] = exponential(uniform(keys, np.zeros(len(keys), dtype=np.uint64)))
    set_next_failure(now, fixed)
    return lanes


def chips_at_work(now: Floats) -> Floats:
    """Chips that step when the learner does."""
    return np.asarray(np.maximum(now[Now.GRANT] - now[Now.AWAY], 0.0))


def next_event(now: Floats) -> Floats:
    """When each lane's next event is due; never before the end of its pause."""
    due = np.minimum(np.minimum(now[Now.FAILS_AT], now[Now.RETURNS_AT]), now[Now.OUTSIDE_AT])
    return np.asarray(np.maximum(due, now[Now.TIME]))


def set_next_failure(now: Floats, fixed: Floats) -> None:
    """From the hazard left and the chips at work; never without chips, or with chips that never fail."""
    rate = fixed[Fixed.RATE] * chips_at_work(now)
    now[Now.FAILS_AT] = np.inf
    with np.errstate(over="ignore"):  # a rate too small to matter: it never fails
        np.divide(now[Now.HAZARD], rate, out=now[Now.FAILS_AT], where=rate > 0)
    now[Now.FAILS_AT] += now[Now.TIME]


def draws(keys: Keys, place: Floats) -> Floats:
    """[hazard, residual, delay] uniform numbers for a lane's next loss."""
    return uniform(keys, place.astype(np.uint64) * np.uint64(NUM_DRAWS) + DRAWS)


def return_delays(fixed: Floats, uniforms: Floats) -> Floats:
    """How long each lane's slice is away: an exponentiated Weibull by inversion."""
    shape, power = fixed[Fixed.RETURN_SHAPE], fixed[Fixed.RETURN_POWER]
    if (power != 1.0).any():
        uniforms = np.minimum(np.maximum(uniforms, 1e-300) ** (1.0 / power), 1 - 1e-16)
    delays = -np.log1p(-uniforms)
    if (shape != 1.0).any():
        delays = delays ** (1.0 / shape)
    return np.asarray(fixed[Fixed.RETURN_SCALE] * delays)


def _places(fleets: list[Fleet], repetitions: int) -> tuple[Ints, Ints, Ints]:
    fleet, repetition, learner = [], [], []
    for number, each in enumerate(fleets):
        size = each.num_learners
        fleet.append(np.full(repetitions * size, number))
        repetition.append(np.repeat(np.arange(repetitions), size))
        learner.append(np.tile(np.arange(size), repetitions))
    return np.concatenate(fleet), np.concatenate(repetition), np.concatenate(learner)


def _fixed(island: Island) -> list[float]:
    pauses = island.pauses
    return [
        island.chips,
        min(island.slice_chips, island.chips),
        1.0 / island.mtbi_s,
        pauses.quantum_s,
        pauses.down_s,
        pauses.up_s,
        pauses.outage_s + pauses.reload_s,
        pauses.checkpoint_s,
        scale_of(pauses.returns),
        pauses.returns.shape,
        pauses.returns.power,
    ]


def _first_grant(island: Island) -> float:
    return float(island.chips) if island.trace is None else min(island.trace.at(0.0), island.chips)
