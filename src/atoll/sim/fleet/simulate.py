"""Many fleets, many repetitions, one pass.

All learners of all fleets and repetitions run as lanes side by side. Time is cut into windows only so
that the count of learners that step at once needs little memory; lanes do not notice the windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.errors import ConfigError
from atoll.sim.fleet.engine import Pool
from atoll.sim.fleet.lanes import Fixed, Lanes, Now, chips_at_work, make_lanes
from atoll.sim.fleet.model import Fleet
from atoll.sim.fleet.outside import Outside
from atoll.sim.fleet.recorder import Recorder
from atoll.sim.fleet.result import SHARES, FleetResult
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.fleet.uptime import Stops, syncer_absences

__all__ = ["simulate"]

Floats = NDArray[np.float64]

EVENTS_PER_WINDOW = 100_000
MAX_EVENTS = 2e9


def simulate(
    fleets: Sequence[Fleet], *, horizon_s: float, repetitions: int, seed: int = 1, trace: bool = False
) -> list[FleetResult]:
    """What each fleet comes to over `horizon_s`, in the order given; the same for the same seed.

    A result does not depend on what else is simulated in the same call (uptime to the last bits of a float).
    `trace` keeps the first repetition's chips at work over time.
    """
    fleets = list(fleets)
    _check(fleets, horizon_s, repetitions)
    if not fleets:
        return []
    lanes = make_lanes(fleets, repetitions, seed)
    outside = Outside.of(fleets, repetitions, horizon_s, seed)
    stops = Stops(fleets, repetitions, lanes.fleet, lanes.repetition)
    for number, fleet in enumerate(fleets):
        if fleet.syncer is not None:
            away = [syncer_absences(fleet.syncer, r, horizon_s, seed) for r in range(repetitions)]
            stops.syncer_away(number, away)
    recorder = Recorder((lanes.repetition == 0) & trace)
    recorder.add(np.arange(len(lanes.fleet)), np.zeros(len(lanes.fleet)), chips_at_work(lanes.now))
    pools = [Pool(lanes, elastic, outside, stops, recorder, horizon_s) for elastic in (True, False)]
    num_windows = max(1, math.ceil(_expected_events(fleets, horizon_s, repetitions) / EVENTS_PER_WINDOW))
    for window in range(1, num_windows + 1):
        end_s = horizon_s * window / num_windows
        for pool in pools:
            pool.advance(end_s)
            if window == num_windows:
                pool.finish()
        stops.close_window(end_s)
    traces = recorder.traces(horizon_s)
    return [
        _result(number, fleet, lanes, stops, traces, horizon_s, repetitions, seed)
        for number, fleet in enumerate(fleets)
    ]


def _result(
    number: int,
    fleet: Fleet,
    lanes: Lanes,
    stops: Stops,
    traces: dict[int, CapacityTrace],
    horizon_s: float,
    repetitions: int,
    seed: int,
) -> FleetResult:
    here = np.flatnonzero(lanes.fleet == number)
    now = lanes.now[:, here].reshape(len(Now), repetitions, fleet.num_learners)
    chips = lanes.fixed[Fixed.CHIPS, here[: fleet.num_learners]]
    waiting = np.array([island.waiting for island in fleet.islands])
    speeds = np.array([island.speed for island in fleet.islands])
    stepping = now[Now.USEFUL]
    useful = stepping * (1.0 - waiting)
    samples = useful.sum(axis=1) / (fleet.chips * horizon_s)
    spent = [useful, *now[Now.MISSING : Now.REDONE + 1], stepping * waiting]
    shares = dict(
        zip(
            SHARES,
            (float(part.sum(axis=1).mean()) / (fleet.chips * horizon_s) for part in spent),
            strict=True,
        )
    )
    uptime, uptime_stderr, merging = _uptimes(stops.still[number], horizon_s, fleet.quorum)
    live_s = (now[Now.STEPPING_S] + now[Now.PAUSED_S]).sum()
    return FleetResult(
        fleet=fleet,
        horizon_s=horizon_s,
        repetitions=repetitions,
        seed=seed,
        goodput=float(samples.mean()),
        stderr=_stderr(samples),
        uptime=uptime,
        uptime_stderr=uptime_stderr,
        merging=merging,
        participation=float(now[Now.STEPPING_S].sum() / live_s) if live_s else 0.0,
        shares=shares,
        samples=tuple(samples.tolist()),
        learner_goodput=tuple((useful.mean(axis=0) / (chips * horizon_s)).tolist()),
        work=float((stepping * speeds).sum(axis=1).mean() / horizon_s),
        num_failures=float(now[Now.NUM_LOSSES].sum(axis=1).mean()),
        num_events=int(now[Now.NUM_EVENTS].sum()),
        traces={
            island.name or f"learner-{m}": traces[int(here[m])]
            for m, island in enumerate(fleet.islands)
            if int(here[m]) in traces
        },
    )


def _uptimes(
    still: Floats, horizon_s: float, quorum: int
) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    """Uptime for k = 0..M with its errors, and the share of time in which merges are possible."""
    parts = still / horizon_s
    # Nobody stands still in the rest of the time; with the syncer away that is counted, otherwise not.
    parts[:, 0, 0] = 0.0
    parts[:, 0, 0] = 1.0 - parts.sum(axis=(1, 2))
    by_still = parts.sum(axis=1)
    at_least = np.cumsum(by_still, axis=1)[:, ::-1]
    merging = np.cumsum(parts[:, 0], axis=1)[:, ::-1][:, quorum].mean()
    means = np.clip(at_least.mean(axis=0), 0.0, 1.0)
    return (
        tuple(means.tolist()),
        tuple(_stderr(at_least[:, k]) for k in range(at_least.shape[1])),
        float(merging),
    )


def _stderr(samples: Floats) -> float:
    """Of the mean; not a number for a single sample."""
    return float(samples.std(ddof=1) / math.sqrt(samples.size)) if samples.size > 1 else math.nan


def _expected_events(fleets: list[Fleet], horizon_s: float, repetitions: int) -> float:
    """An upper estimate: every chip fails at its rate, and every failure returns."""
    per_s = 0.0
    for fleet in fleets:
        for island in fleet.islands:
            rate = island.chips / island.mtbi_s
            pause = island.pauses.down_s if island.pauses.elastic else island.pauses.outage_s
            per_s += 2 * rate / (1 + rate * pause)
            per_s += sum(1 / shock.every_s for shock in fleet.shocks)
    return per_s * horizon_s * repetitions


def _check(fleets: list[Fleet], horizon_s: float, repetitions: int) -> None:
    if not (math.isfinite(horizon_s) and horizon_s > 0):
        raise ConfigError(
            f"The time to simulate is {horizon_s} s.",
            "There is no share of it to report.",
            "Give a time above 0.",
        )
    if repetitions < 1:
        raise ConfigError(
            f"{repetitions} repetitions are asked for.", "Nothing would be simulated.", "Give 1 or more."
        )
    events = _expected_events(fleets, horizon_s, repetitions)
    if events > MAX_EVENTS:
        raise ConfigError(
            f"This would take about {events:.2g} events.",
            "At a few million a second it would not end today.",
            "Simulate a shorter time or fewer repetitions.",
        )
