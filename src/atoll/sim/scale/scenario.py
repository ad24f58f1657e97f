"""What a run at scale is made of: traces, the settings of the protocol, and the syncer's outages.

Traces come from the fleet simulator or from a CSV. Everything that the core measures in time (heartbeats,
patience, deadlines) is set in steps, as in the protocol simulator; links and disks take milliseconds, so a
step must not be much shorter than a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from atoll.core.members import NAME
from atoll.core.params import RunParams
from atoll.errors import ConfigError
from atoll.sim.fleet.model import MAX_LEARNERS, Fleet, SyncerOutages
from atoll.sim.fleet.trace import CapacityTrace

__all__ = ["DARK_S", "ScaleScenario", "draw_outages", "from_fleet", "from_traces", "horizon_s"]

DARK_S = 300.0
"""Without a chip for longer than this, a learner's process is taken for dead; a pause to shrink or grow is
a tenth of it."""
SHORTEST_STEP_S = 0.1
FRAGMENT_BYTES = 1_000_000
"""Of a ghost; links are sized by it, so only the ratio counts."""
SPARE = 3.0
"""Traces are drawn for so many times the time that a learner without failures would need."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleScenario:
    """Everything that a run at scale depends on."""

    traces: Mapping[str, CapacityTrace]
    """Chips at work over time, by learner."""
    chips: Mapping[str, float]
    """All chips of each learner."""
    step_s: Mapping[str, float]
    """Each learner's time for a step with all its chips."""
    merges: int
    """The run ends with this many, or with `until_s`."""
    until_s: float
    quorum: int = 1
    interval_steps: int = 24
    num_fragments: int = 24
    overlap_steps: int = 5
    seed: int = 1
    dark_s: float = DARK_S
    outages: tuple[tuple[float, float], ...] = ()
    """Of the syncer: from, to, in seconds."""

    def __post_init__(self) -> None:
        _check_names(self.traces)
        _check_numbers(self)
        for name in self.traces:
            if not self.chips[name] > 0 or max(self.traces[name].chips) > self.chips[name] * (1 + 1e-9):
                raise ConfigError(
                    f"{name} has {self.chips[name]:g} chips and its trace up to "
                    f"{max(self.traces[name].chips):g}.",
                    "Its share of the work is not defined.",
                    "Give all the chips that its trace ever has at work, and at least one.",
                )
        if list(pairwise(self.outages)) != [(a, b) for a, b in pairwise(self.outages) if a[1] < b[0]] or any(
            not 0 <= start < end for start, end in self.outages
        ):
            raise ConfigError(
                "The outages of the syncer overlap, or end before they begin.",
                "It can only be away or there.",
                "Give them in order, each with its end after its beginning.",
            )

    @property
    def fastest_s(self) -> float:
        """The shortest step of any learner, which sets the pace of t."""
        return min(self.step_s.values())

    def params(self) -> RunParams:
        """The settings of the core: times in steps, no gate on norms, which ghosts do not have."""
        step_ns = int(1e9 * self.fastest_s)
        slowest_ns = int(1e9 * max(self.step_s.values()))
        sizes = (FRAGMENT_BYTES,) * self.num_fragments
        return RunParams(
            num_fragments=self.num_fragments,
            interval_steps=self.interval_steps,
            overlap_steps=self.overlap_steps,
            min_quorum=self.quorum,
            fragment_bytes=sizes,
            publish_bytes=sizes,
            full_bytes=tuple(2 * size for size in sizes),
            norm_gate=0.0,
            heartbeat_ns=5 * step_ns // 2,
            alive_ns=6 * step_ns,
            retry_ns=2 * step_ns,
            live_ns=3 * self.interval_steps * slowest_ns + 15 * slowest_ns,
            num_shards=max(64, len(self.traces)),
        )


def from_fleet(fleet: Fleet, *, merges: int, step_s: float, seed: int = 1) -> ScaleScenario:
    """Draw a fleet's traces and its syncer's outages from a seed."""
    from atoll.sim.fleet.simulate import simulate

    _check_step(step_s)
    until_s = horizon_s(merges, step_s)
    result = simulate([fleet], horizon_s=until_s, repetitions=1, seed=seed, trace=True)[0]
    names = list(result.traces)
    islands = dict(zip(names, fleet.islands, strict=True))
    return ScaleScenario(
        traces=result.traces,
        chips={name: float(island.chips) for name, island in islands.items()},
        step_s={name: step_s / island.speed for name, island in islands.items()},
        merges=merges,
        until_s=until_s,
        quorum=fleet.quorum,
        seed=seed,
        outages=draw_outages(fleet.syncer, until_s, seed),
    )


def from_traces(
    traces: Mapping[str, CapacityTrace],
    *,
    merges: int,
    step_s: float,
    seed: int = 1,
    quorum: int = 1,
    outages: tuple[tuple[float, float], ...] = (),
) -> ScaleScenario:
    """Learners of equal speed on given traces; the most that a trace ever has at work is all of its chips."""
    _check_step(step_s)
    last_s = max((trace.times_s[-1] for trace in traces.values()), default=0.0)
    return ScaleScenario(
        traces=dict(traces),
        chips={name: max(trace.chips) for name, trace in traces.items()},
        step_s=dict.fromkeys(traces, step_s),
        merges=merges,
        until_s=max(last_s, horizon_s(merges, step_s)),
        quorum=quorum,
        seed=seed,
        outages=outages,
    )


def horizon_s(merges: int, step_s: float) -> float:
    """How long a run is given: about one merge a step, and time to spare."""
    return SPARE * merges * step_s + 3600.0


def draw_outages(syncer: SyncerOutages | None, until_s: float, seed: int) -> tuple[tuple[float, float], ...]:
    """When the syncer is away: what the fleet simulator draws for its first repetition."""
    if syncer is None:
        return ()
    from atoll.sim.fleet.uptime import syncer_absences

    starts, ends = syncer_absences(syncer, 0, until_s, seed)
    return tuple(pair for pair in zip(starts.tolist(), ends.tolist(), strict=True) if pair[0] < pair[1])


def _check_step(step_s: float) -> None:
    if not (math.isfinite(step_s) and step_s >= SHORTEST_STEP_S):
        raise ConfigError(
            f"A step takes {step_s:g} s.",
            "Links and disks of the simulated world take some hundredths of a second, so shorter steps would "
            "measure those.",
            f"Give at least {SHORTEST_STEP_S:g} s.",
        )


def _check_names(traces: Mapping[str, CapacityTrace]) -> None:
    if not 1 <= len(traces) <= MAX_LEARNERS:
        raise ConfigError(
            f"There are {len(traces)} traces.",
            f"Each is one learner, and a syncer serves between 1 and {MAX_LEARNERS} of them here.",
            "Give a trace for each learner.",
        )
    for name in traces:
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"A trace belongs to {name!r}.",
                "No learner may be called that, so the syncer would refuse it.",
                "Use small letters, digits, dots, dashes and underscores, at most 64.",
            )


def _check_numbers(scenario: ScaleScenario) -> None:
    for name, step_s in scenario.step_s.items():
        if name in scenario.traces:
            _check_step(step_s)
    if scenario.merges < 1:
        raise ConfigError(
            f"The run is to have {scenario.merges} merges.", "There is nothing to run.", "Give 1 or more."
        )
    if not 1 <= scenario.quorum <= len(scenario.traces):
        raise ConfigError(
            f"The quorum is {scenario.quorum} and there are {len(scenario.traces)} learners.",
            "No round could merge.",
            f"Give a quorum between 1 and {len(scenario.traces)}.",
        )
    if not 1 <= scenario.num_fragments <= scenario.interval_steps or scenario.overlap_steps < 1:
        raise ConfigError(
            f"P is {scenario.num_fragments}, H {scenario.interval_steps}, tau {scenario.overlap_steps}.",
            "Every fragment needs a tick of its own in a cycle, and a round a step to gather in.",
            "Give 1 <= P <= H, and tau of at least 1.",
        )
    if not (math.isfinite(scenario.until_s) and scenario.until_s > 0 and scenario.dark_s > 0):
        raise ConfigError(
            f"The run lasts {scenario.until_s:g} s and darkness begins after {scenario.dark_s:g} s.",
            "There is no time to run in, or every pause is a death.",
            "Give both above 0.",
        )
