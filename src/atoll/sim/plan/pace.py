"""How much of its time a learner spends on useful steps: simulated once for each distinct learner.

Learners fail on their own, so that a fleet's goodput is the mean of theirs, and the number that step at
once follows from each one's uptime. The planner therefore simulates every learner that a layout could have
(each island, split in each way, at each failure rate it will ask about) in one pass, and puts candidates
together from that.

Shocks are rare: a simulated month sees none or two, and candidates would differ by luck. For the choice
they are taken in closed form, as a share of time lost. The few layouts that are shown are simulated whole,
shocks and syncer included, and lock-step with them: that is where uptime and participation come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from atoll.sim.fleet.model import Fleet, Pauses, Shock, lock_step
from atoll.sim.fleet.result import FleetResult
from atoll.sim.fleet.simulate import simulate
from atoll.sim.plan.fleet_file import FleetSpec
from atoll.sim.plan.layouts import SPLITS, Layout, can_split, fleet_of, island_of
from atoll.sim.units import DAY

__all__ = [
    "MTBI_FACTORS",
    "REPETITIONS",
    "Paces",
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
class Paces:
    """Results by kind of island, parts and MTBI factor."""

    learners: dict[Key, FleetResult]
    horizon_s: float
    num_distinct: int
    shocked: tuple[tuple[float, float], ...]
    """Of each kind of island: what shocks leave of its goodput and of its uptime."""

    def goodput(self, site: int, parts: int, mtbi_factor: float) -> float:
        """Share of a learner's chip time spent on useful steps."""
        return self.learners[site, parts, mtbi_factor].goodput * self.shocked[site][0]

    def uptime(self, site: int, parts: int, mtbi_factor: float) -> float:
        """Share of time in which a learner steps."""
        return min(1.0, self.learners[site, parts, mtbi_factor].uptime_one) * self.shocked[site][1]


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
    )


def simulate_whole(
    spec: FleetSpec, chosen: dict[Layout, int], locked: Sequence[Layout], seed: int
) -> tuple[dict[Layout, FleetResult], dict[Layout, FleetResult]]:
    """Layouts with their quorums, each as one fleet, and others in lock-step.

    What only shows with all learners together: uptime under shocks of the whole fleet, a quorum's absence.
    """
    fleets = [fleet_of(spec, layout, quorum) for layout, quorum in chosen.items()]
    fleets += [lock_step(fleet_of(spec, layout)) for layout in locked]
    results = simulate(fleets, horizon_s=_horizon_s(spec, fleets), repetitions=REPETITIONS, seed=seed)
    split = len(chosen)
    return dict(zip(chosen, results[:split], strict=True)), dict(zip(locked, results[split:], strict=True))


@lru_cache(maxsize=4096)
def at_least(uptimes: tuple[tuple[float, int], ...]) -> tuple[float, ...]:
    """at_least(...)[k]: the chance that k or more learners step, from (uptime, how many) of each kind."""
    chances = [1.0]
    for uptime, many in uptimes:
        for _ in range(many):
            up = [0.0, *(chance * uptime for chance in chances)]
            down = [*(chance * (1.0 - uptime) for chance in chances), 0.0]
            chances = [a + b for a, b in zip(up, down, strict=True)]
    tail, tails = 0.0, []
    for chance in reversed(chances):
        tail += chance
        tails.append(min(1.0, tail))
    return tuple(reversed(tails))


def _shocked(shocks: tuple[Shock, ...], pauses: Pauses) -> tuple[float, float]:
    """What shocks leave of a learner's goodput and uptime: the chips away on average, and two pauses each."""
    goodput, uptime = 1.0, 1.0
    for shock in shocks:
        returns_s = shock.returns.mean_s
        away = 1.0 / (1.0 + shock.every_s / returns_s) if returns_s else 0.0
        still = (pauses.down_s + pauses.up_s) / (shock.every_s + pauses.down_s + pauses.up_s)
        goodput *= max(0.0, 1.0 - shock.share * away - still)
        uptime *= max(0.0, 1.0 - (away if shock.share == 1.0 else 0.0) - still)
    return goodput, uptime


def _horizon_s(spec: FleetSpec, fleets: Sequence[Fleet]) -> float:
    """Long enough for many failures, short enough to be quick; the whole of every trace."""
    per_s = max(island.chips / island.mtbi_s for fleet in fleets for island in fleet.islands)
    quick = MAX_FAILURES / min(per_s, 1.0 / SHORTEST_PAUSE_S) if per_s else math.inf
    span = max((site.trace.times_s[-1] for site in spec.sites if site.trace), default=0.0)
    return span or min(LONGEST_S, max(SHORTEST_S, quick))
