"""What the fleet model says of given traces: the figures that a run of the protocol on them is held against.

A trace is chips at work over time, so the model's answer is an integral of it. Nothing here knows the
protocol; nothing in the protocol's run knows this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.scale.pace import NEVER_NS

__all__ = ["TraceFigures", "figures_of", "uptime_of_steps"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TraceFigures:
    """All ratios are fractions of 1, over the time from 0 to the end of the run."""

    goodput: float
    """Chips at work / all chips."""
    stepping: float
    """Share of time in which a learner has chips at work, mean over learners."""
    participation: float
    """Learners with chips at work / learners that live, which those in the dark do not."""
    uptime: tuple[float, ...]
    """uptime[k]: share of time in which at least k learners have chips at work."""
    merging: float
    """Share of time in which at least K have, and the syncer is there."""


def figures_of(
    traces: Mapping[str, CapacityTrace],
    chips: Mapping[str, float],
    *,
    until_s: float,
    quorum: int = 1,
    dark_s: float,
    outages: Iterable[tuple[float, float]] = (),
) -> TraceFigures:
    """Integrate traces from 0 to a time."""
    outages = tuple(outages)
    inner = [time for trace in traces.values() for time in trace.times_s]
    inner += [time for outage in outages for time in outage]
    edges = np.unique([0.0, *(time for time in inner if 0 < time < until_s), until_s])
    spans, middles = np.diff(edges) / until_s, (edges[1:] + edges[:-1]) / 2
    at_work = np.stack([_values(trace, np.array(trace.chips), middles) for trace in traces.values()])
    dark = np.stack([_values(trace, _dark(trace, dark_s), middles) for trace in traces.values()]) > 0
    steps: Bools = at_work > 0
    count, alive = steps.sum(axis=0), (~dark).sum(axis=0)
    is_there = np.ones(len(middles), dtype=bool)
    for start_s, end_s in outages:
        is_there &= (middles < start_s) | (middles > end_s)
    return TraceFigures(
        goodput=float((at_work @ spans).sum() / sum(chips[name] for name in traces)),
        stepping=float((count @ spans) / len(traces)),
        participation=float((count @ spans) / max(1e-300, alive @ spans)),
        uptime=tuple(float(spans[count >= k].sum()) for k in range(len(traces) + 1)),
        merging=float(spans[(count >= quorum) & is_there].sum()),
    )


def uptime_of_steps(starts_ns: Integers, ends_ns: Integers, until_ns: int, quorum: int) -> float:
    """Share of time in which at least `quorum` learners were in the middle of a step."""
    times = np.concatenate([np.maximum(starts_ns, 0), np.minimum(ends_ns, until_ns)])
    changes = np.concatenate([np.ones(len(starts_ns), np.int64), -np.ones(len(ends_ns), np.int64)])
    order = np.argsort(times, kind="stable")  # at equal times a step begins before another ends
    spans = np.diff(np.append(times[order], until_ns))
    return float(spans[np.cumsum(changes[order]) >= quorum].sum() / until_ns)


def _values(trace: CapacityTrace, values: Floats, times: Floats) -> Floats:
    rows = np.searchsorted(np.array(trace.times_s), times, side="right") - 1
    return np.asarray(values[np.maximum(rows, 0)])


def _dark(trace: CapacityTrace, dark_s: float) -> Floats:
    """1 for the rows of gaps longer than `dark_s`, else 0."""
    dark = np.zeros(len(trace.chips))
    i = 0
    while i < len(trace.chips):
        j = i
        while j < len(trace.chips) and trace.chips[j] <= 0:
            j += 1
        end_s = trace.times_s[j] if j < len(trace.chips) else NEVER_NS
        if j > i and end_s - (trace.times_s[i] if i else 0.0) > dark_s:
            dark[i:j] = 1.0
        i = max(j, i + 1)
    return dark
