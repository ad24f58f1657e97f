"""One event for every lane at a time: failures, returns, visits from outside, and the pauses they cost.

Elastic lanes and lanes that restart as a whole follow different rules, so they run in pools of their
own. Within a pool, all lanes whose next event lies before the end of the window take one event each,
until none is left: the cost follows the number of events, not the length of time or the number of
chips.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from atoll.sim.fleet.lanes import (
    Fixed,
    Lanes,
    Now,
    chips_at_work,
    draws,
    next_event,
    return_delays,
    set_next_failure,
)
from atoll.sim.fleet.outside import Outside
from atoll.sim.fleet.recorder import Recorder
from atoll.sim.fleet.returns import Returns
from atoll.sim.fleet.streams import Keys, exponential
from atoll.sim.fleet.uptime import Stops

__all__ = ["Pool"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Pool:
    """Lanes of one kind, on their way to the horizon."""

    def __init__(
        self,
        lanes: Lanes,
        elastic: bool,
        outside: Outside,
        stops: Stops,
        recorder: Recorder,
        horizon_s: float,
    ) -> None:
        self._ids = np.flatnonzero(lanes.is_elastic == elastic)
        self._lanes = lanes
        self._outside = outside
        self._stops = stops
        self._recorder = recorder
        self._horizon_s = horizon_s
        self._returns = Returns(len(lanes.fleet)) if elastic and self._ids.size else Returns(0)
        self._is_elastic = elastic
        self._strike = self._strike_elastic if elastic else self._strike_rigid
        lanes.now[Now.OUTSIDE_AT, self._ids] = outside.next_at(self._ids)
        self._stay_dark(self._ids, lanes.now[:, self._ids])

    def advance(self, until_s: float) -> None:
        """All events before a time."""
        lanes = self._lanes
        ids = self._ids[next_event(lanes.now[:, self._ids]) < until_s]
        now, fixed, keys = lanes.now[:, ids], lanes.fixed[:, ids], lanes.keys[ids]
        while ids.size:
            now[Now.NUM_EVENTS] += 1
            self._strike(ids, now, fixed, keys)
            left = next_event(now) < until_s
            if not left.all():
                lanes.now[:, ids[~left]] = now[:, ~left]
                ids, now, fixed, keys = ids[left], now[:, left], fixed[:, left], keys[left]

    def finish(self) -> None:
        """Spend the time that is left until the horizon."""
        now = self._lanes.now[:, self._ids]
        end = np.full(self._ids.size, self._horizon_s)
        open_ = now[Now.TIME] < end
        ids, now = self._ids[open_], now[:, open_]
        self._run(ids, now, self._lanes.fixed[:, ids], end[open_])
        self._lanes.now[:, ids] = now

    def _run(self, ids: Ints, now: Floats, fixed: Floats, at: Floats) -> Floats:
        """Step from where each lane is until its event; returns the chips at work meanwhile."""
        chips = chips_at_work(now)
        lasting = at - now[Now.TIME]
        work = chips * lasting
        now[Now.USEFUL] += work
        now[Now.MISSING] += fixed[Fixed.CHIPS] * lasting - work
        now[Now.HAZARD] -= fixed[Fixed.RATE] * work
        steps = np.where(chips > 0, lasting, 0.0)
        now[Now.STEPPING_S] += steps
        now[Now.SINCE_SAVED] += steps
        return chips

    def _stay_dark(self, ids: Ints, now: Floats) -> None:
        """Lanes without a chip stand still until their next event; told in the window in which it begins."""
        dark = chips_at_work(now) <= 0
        if dark.any():
            self._stops.add(ids[dark], now[Now.TIME, dark], next_event(now[:, dark]))

    def _strike_elastic(self, ids: Ints, now: Floats, fixed: Floats, keys: Keys) -> None:
        """One event each: a slice fails, slices return, or something comes from outside."""
        at = next_event(now)
        chips = self._run(ids, now, fixed, at)
        from_outside = (now[Now.OUTSIDE_AT] <= now[Now.FAILS_AT]) & (
            now[Now.OUTSIDE_AT] <= now[Now.RETURNS_AT]
        )
        fails = (now[Now.FAILS_AT] < now[Now.RETURNS_AT]) & ~from_outside
        lost = np.where(fails, np.minimum(fixed[Fixed.SLICE], chips), 0.0)
        hazard, residual, delay = draws(keys, now[Now.PLACE])
        back_at = at + return_delays(fixed, delay)
        if from_outside.any():
            self._visit(ids, now, chips, at, from_outside, lost, back_at)
        is_loss = lost > 0
        now[Now.AWAY] += lost
        self._returns.add(ids[is_loss], back_at[is_loss], lost[is_loss])
        now[Now.NUM_LOSSES] += is_loss
        now[Now.HAZARD] = np.where(fails, exponential(hazard), np.maximum(now[Now.HAZARD], 0.0))
        left = chips_at_work(now)
        shrinks = left < chips
        now[Now.PLACE] += is_loss | shrinks
        # What grew by a grant, and what returns: both join at the end of a pause to grow.
        pause = np.where(shrinks, fixed[Fixed.DOWN], fixed[Fixed.UP])
        idle_visit = from_outside & (left == chips)
        pause[idle_visit] = 0.0
        finishing = np.where(shrinks, residual * fixed[Fixed.QUANTUM], 0.0)
        self._pause(ids, now, fixed, at, np.minimum(chips, left), finishing, pause, shrinks)
        now[Now.AWAY] -= self._returns.take(ids, now[Now.TIME])
        now[Now.RETURNS_AT] = self._returns.first(ids)
        set_next_failure(now, fixed)
        self._stay_dark(ids, now)
        self._recorder.add(ids, now[Now.TIME], chips_at_work(now))

    def _visit(
        self,
        ids: Ints,
        now: Floats,
        chips: Floats,
        at: Floats,
        visited: NDArray[np.bool_],
        lost: Floats,
        back_at: Floats,
    ) -> None:
        """Take what comes from outside: a shock is a loss with an end of its own, a grant a new limit.

        A shock that comes during a pause is felt at its end, if it lasts so long. One that takes everything
        also holds back what was away: nothing returns to a dark site.
        """
        rows = np.flatnonzero(visited)
        entries = self._outside.take(ids[rows], at[rows])
        is_grant = ~np.isnan(entries[:, 3])
        now[Now.GRANT, rows[is_grant]] = entries[is_grant, 3]
        struck, shocks = rows[~is_grant], entries[~is_grant]
        ends = shocks[:, 0] + shocks[:, 2]
        lost[struck] = np.where(ends > at[struck], np.minimum(shocks[:, 1], chips[struck]), 0.0)
        back_at[struck] = ends
        dark = struck[shocks[:, 1] >= self._lanes.fixed[Fixed.CHIPS, ids[struck]]]
        if self._is_elastic:
            self._returns.hold(ids[dark], back_at[dark])
        now[Now.OUTSIDE_AT, rows] = self._outside.next_at(ids[rows])

    def _pause(
        self,
        ids: Ints,
        now: Floats,
        fixed: Floats,
        at: Floats,
        chips: Floats,
        finishing: Floats,
        pause: Floats,
        shrinks: NDArray[np.bool_],
    ) -> None:
        """Finish the step in flight with the chips left, then stand still; the horizon cuts both off."""
        stop, end = at + finishing, at + finishing + pause
        self._finish(now, fixed, at, stop, chips)
        still_s = np.minimum(end, self._horizon_s) - np.minimum(stop, self._horizon_s)
        now[Now.MISSING] += (fixed[Fixed.CHIPS] - chips) * still_s
        still = chips * still_s
        now[Now.SHRINKING] += np.where(shrinks, still, 0.0)
        now[Now.GROWING] += np.where(shrinks, 0.0, still)
        alive = chips > 0
        now[Now.PAUSED_S] += np.where(alive, still_s, 0.0)
        self._stops.add(ids, np.where(alive, stop, at), end)
        self._recorder.add(ids, at, chips)
        self._recorder.add(ids, stop, np.zeros(ids.size))
        now[Now.TIME] = end

    def _finish(self, now: Floats, fixed: Floats, at: Floats, stop: Floats, chips: Floats) -> None:
        """The rest of the step in flight, with the chips left."""
        step_s = np.minimum(stop, self._horizon_s) - at
        now[Now.USEFUL] += chips * step_s
        now[Now.MISSING] += (fixed[Fixed.CHIPS] - chips) * step_s
        steps = np.where(chips > 0, step_s, 0.0)
        now[Now.STEPPING_S] += steps
        now[Now.SINCE_SAVED] += steps

    def _strike_rigid(self, ids: Ints, now: Floats, fixed: Floats, keys: Keys) -> None:
        """One event each: the step in flight finishes, all stop, unsaved work is lost, all start again."""
        at = next_event(now)
        chips = self._run(ids, now, fixed, at)
        from_outside = now[Now.OUTSIDE_AT] <= now[Now.FAILS_AT]
        lost, back_at = np.where(from_outside, 0.0, 1.0), at.copy()
        if from_outside.any():
            self._visit(ids, now, chips, at, from_outside, lost, back_at)
        is_loss = (lost > 0) & (chips > 0)
        hazard, residual, _ = draws(keys, now[Now.PLACE])
        stop = at + np.where(is_loss, residual * fixed[Fixed.QUANTUM], 0.0)
        self._finish(now, fixed, at, stop, chips)
        fresh = is_loss & ~from_outside
        now[Now.HAZARD] = np.where(fresh, exponential(hazard), np.maximum(now[Now.HAZARD], 0.0))
        now[Now.NUM_LOSSES] += is_loss
        now[Now.PLACE] += is_loss
        self._redo(now, fixed, chips, is_loss)
        stops = is_loss | (chips_at_work(now) != chips)
        # A restart for another grant is planned: it saves, so what is redone was done with the chips at hand.
        now[Now.SINCE_SAVED, stops] = 0.0
        end = np.where(stops, np.maximum(stop, back_at) + fixed[Fixed.OUTAGE], at)
        still_s = np.minimum(end, self._horizon_s) - np.minimum(stop, self._horizon_s)
        still = np.minimum(chips, chips_at_work(now))
        now[Now.RESTARTING] += still * still_s
        now[Now.MISSING] += (fixed[Fixed.CHIPS] - still) * still_s
        now[Now.PAUSED_S] += np.where(still > 0, still_s, 0.0)
        self._stops.add(ids, stop, end)
        self._recorder.add(ids, stop, np.zeros(ids.size))
        now[Now.TIME] = end
        set_next_failure(now, fixed)
        self._stay_dark(ids, now)
        self._recorder.add(ids, now[Now.TIME], chips_at_work(now))

    @staticmethod
    def _redo(now: Floats, fixed: Floats, chips: Floats, is_loss: NDArray[np.bool_]) -> None:
        """Move the steps since the last checkpoint from useful to redone."""
        every = fixed[Fixed.CHECKPOINT]
        unsaved = np.mod(now[Now.SINCE_SAVED], every, out=np.zeros_like(every), where=every > 0)
        again = np.where(is_loss, unsaved * chips, 0.0)
        now[Now.USEFUL] -= again
        now[Now.REDONE] += again
