"""How much of its time a learner spends on useful steps: simulated once for each distinct learner.

Learners fail on their own, so that a fleet's goodput is the mean of theirs, and the number that step at
once follows from each one's uptime. The planner therefore simulates every learner that a layout could have
(each island, split in each way, at each failure rate it will ask about) in one pass, and puts candidates
together from that.

Shocks are rare: a simulated month sees none or two, and candidates would differ by luck. They are taken in
closed form, as a share of time lost. A shock of scope "learner" strikes an island, and all learners that
live there at once; one of scope "fleet" strikes all islands at once. So the chance that k learners step is
found by asking first whether the fleet is struck, then which islands are dark, and only then how many
learners of the others step. An island to which a spot market grants nothing is dark too; that markets of
several islands fail at the same hours is not looked at. Every uptime of a plan comes from there. The few
layouts that are shown are simulated whole too, and lock-step with them: that is where participation comes
from, and a second goodput.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from atoll.sim.fleet.model import Fleet, Pauses, Shock, lock_step
from atoll.sim.fleet.result import FleetResult
from atoll.sim.fleet.simulate import simulate
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.plan.fleet_file import FleetSpec
from atoll.sim.plan.layouts import SPLITS, Layout, can_split, fleet_of, island_of
from atoll.sim.units import DAY

__all__ = [
    "MTBI_FACTORS",
    "REPETITIONS",
    "Group",
    "Paces",
    "Shocked",
    "at_least",
    "simulate_paces",
    "simulate_whole",
]

MTBI_FACTORS = (1.0, 0.1)
"""As given, and ten times as many failures."""
REPETITIONS = 8
MAX_FAILURES = 2000
"""Of the learner that fails most often, in one repetition."""
SHORTEST_S, LONGEST_S = DAY / 2, 60 * DAY
SHORTEST_PAUSE_S = 10.0
"""About as often a learner can fail at most: while it stands still its chips do not."""

Key = tuple[int, int, float]


@dataclass(frozen=True, slots=True)
class Shocked:
    """What shocks leave to one kind of island."""

    goodput: float
    island: float
    """Share of time in which no shock of its own keeps the island still."""
    fleet: float
    """Share of time in which no shock of the whole fleet keeps it still."""


@dataclass(frozen=True, slots=True)
class Group:
    """Islands of one kind, for the chance that so many learners step."""

    islands: int
    parts: int
    """Learners of each."""
    uptime: float
    """Of one learner while no shock keeps its island still."""
    shocked: Shocked


@dataclass(frozen=True, slots=True)
class Paces:
    """Results by kind of island, parts and MTBI factor."""

    learners: dict[Key, FleetResult]
    horizon_s: float
    num_distinct: int
    shocked: tuple[Shocked, ...]
    """Of each kind of island."""
    market: tuple[float, ...]
    """Of each kind of island: share of time in which it is granted any chip."""

    def goodput(self, site: int, parts: int, mtbi_factor: float) -> float:
        """Share of a learner's chip time spent on useful steps."""
        return self.learners[site, parts, mtbi_factor].goodput * self.shocked[site].goodput

    def group(self, site: int, islands: int, parts: int, mtbi_factor: float) -> Group:
        """So many islands of a kind, each in so many learners."""
        market, shocked = self.market[site], self.shocked[site]
        uptime = min(1.0, self.learners[site, parts, mtbi_factor].uptime_one / market)
        return Group(islands, parts, uptime, replace(shocked, island=shocked.island * market))


def simulate_paces(spec: FleetSpec, seed: int) -> Paces:
    """All that the planner will ask of the fleet simulator before it has chosen."""
    step_s = spec.model.batch / spec.rate
    keys = [
        (index, parts, factor)
        for index, site in enumerate(spec.sites)
        for parts in SPLITS
        if can_split(spec.model, site, parts)
        for factor in MTBI_FACTORS
    ]
    alone = [
        Fleet(islands=(island_of(spec.sites[index], parts, step_s, factor),)) for index, parts, factor in keys
    ]
    distinct = list(dict.fromkeys(alone))
    horizon_s = _horizon_s(spec, distinct)
    results = simulate(distinct, horizon_s=horizon_s, repetitions=REPETITIONS, seed=seed)
    found = dict(zip(distinct, results, strict=True))
    return Paces(
        learners={key: found[fleet] for key, fleet in zip(keys, alone, strict=True)},
        horizon_s=horizon_s,
        num_distinct=len(distinct),
        shocked=tuple(_shocked(spec.shocks, site.pauses) for site in spec.sites),
        market=tuple(_market(site.trace, horizon_s) for site in spec.sites),
    )


def simulate_whole(
    spec: FleetSpec, chosen: dict[Layout, int], locked: Sequence[Layout], seed: int
) -> tuple[dict[Layout, FleetResult], dict[Layout, FleetResult]]:
    """Layouts with their quorums, each as one fleet, and others in lock-step.

    The simulator strikes every learner on its own, also those that share an island. Means over learners,
    goodput and participation, are right all the same; how many step at once is not, and is not read there.
    """
    fleets = [fleet_of(spec, layout, quorum) for layout, quorum in chosen.items()]
    fleets += [_locked(fleet_of(spec, layout)) for layout in locked]
    results = simulate(fleets, horizon_s=_horizon_s(spec, fleets), repetitions=REPETITIONS, seed=seed)
    split = len(chosen)
    return dict(zip(chosen, results[:split], strict=True)), dict(zip(locked, results[split:], strict=True))


def _locked(fleet: Fleet) -> Fleet:
    """All in lock-step; it shrinks and grows if any of its islands can."""
    return lock_step(fleet, elastic=any(island.pauses.elastic for island in fleet.islands))


@lru_cache(maxsize=4096)
def at_least(groups: tuple[Group, ...]) -> tuple[float, ...]:
    """at_least(...)[k]: the chance that k or more learners step.

    A shock of the fleet keeps all still at once, for as long as the kind that recovers first; what others
    need beyond that counts for each island on its own, as do shocks of the island: all its learners stand
    still. Failures strike each learner on its own.
    """
    together = max(group.shocked.fleet for group in groups)
    if not together:
        return (1.0, *(0.0 for group in groups for _ in range(group.islands * group.parts)))
    chances = np.ones(1)
    for group in groups:
        awake = group.shocked.island * group.shocked.fleet / together
        island = np.ones(1)
        for _ in range(group.parts):
            island = np.convolve(island, (1.0 - group.uptime, group.uptime))
        island *= awake
        island[0] += 1.0 - awake
        for _ in range(group.islands):
            chances = np.convolve(chances, island)
    tails = together * np.cumsum(chances[::-1])[::-1]
    return (1.0, *(min(1.0, float(tail)) for tail in tails[1:]))


def _shocked(shocks: tuple[Shock, ...], pauses: Pauses) -> Shocked:
    """What shocks leave of a learner's goodput and uptime: the chips away on average, and two pauses each.

    A learner that is not elastic stands still until all of it is back, however little was struck, and then
    has one pause, the restart.
    """
    goodput, left = 1.0, {"learner": 1.0, "fleet": 1.0}
    pause_s = pauses.down_s + pauses.up_s if pauses.elastic else pauses.outage_s + pauses.reload_s
    for shock in shocks:
        returns_s = shock.returns.mean_s
        away = 1.0 / (1.0 + shock.every_s / returns_s) if returns_s else 0.0
        still = pause_s / (shock.every_s + pause_s)
        share = shock.share if pauses.elastic else 1.0
        goodput *= max(0.0, 1.0 - share * away - still)
        left[shock.scope] *= max(0.0, 1.0 - (away if share == 1.0 else 0.0) - still)
    return Shocked(goodput, island=left["learner"], fleet=left["fleet"])


def _market(trace: CapacityTrace | None, horizon_s: float) -> float:
    """Share of time in which a trace grants any chip; a trace that grants none at all was refused."""
    if trace is None:
        return 1.0
    return (
        CapacityTrace(trace.times_s, tuple(float(chips > 0) for chips in trace.chips)).mean(horizon_s) or 1.0
    )


def _horizon_s(spec: FleetSpec, fleets: Sequence[Fleet]) -> float:
    """Long enough for many failures, short enough to be quick; the whole of every trace."""
    per_s = max(island.chips / island.mtbi_s for fleet in fleets for island in fleet.islands)
    quick = MAX_FAILURES / min(per_s, 1.0 / SHORTEST_PAUSE_S) if per_s else math.inf
    span = max((site.trace.times_s[-1] for site in spec.sites if site.trace), default=0.0)
    return span or min(LONGEST_S, max(SHORTEST_S, quick))
