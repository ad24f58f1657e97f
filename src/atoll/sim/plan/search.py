"""The search: which islands, in how many learners, with which H and codec.

For a set of islands every layout, H and codec is evaluated: closed forms, a few microseconds each. Sets are
found by climbing: from all islands, from the best kind and from the best island alone, add or leave out one
island or one kind as long as it helps. What was evaluated on the way is kept, so that the next best
candidates come with the best one.
"""

from __future__ import annotations

import math

from atoll.errors import ConfigError
from atoll.sim.plan.evaluate import Outcome, World, every_setting, muster
from atoll.sim.plan.layouts import layouts_of
from atoll.sim.plan.links import BITS

__all__ = ["TIE", "Search", "Used"]

Used = tuple[int, ...]
"""How many islands of each kind take part."""

TIE = 0.005
"""Candidates that differ by less than this share are equal: the inputs are not known so well."""
CLEARLY = 0.05
"""Of such, one is preferred if it is cheaper (with --money: quicker) by this share; else the simpler one."""
NUM_BEST = 5
PER_LAYOUT = 2
"""Of one layout at most so many stand in the list of the best: settings alone would fill it."""


class Search:
    """All candidates of one question that were looked at, best first."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._seen: dict[Used, list[Outcome]] = {}
        self._reasons: dict[Used, str] = {}

    def best(self) -> Outcome:
        """The best candidate; a fleet on which none works is refused with the reason."""
        sites = self.world.spec.sites
        whole = tuple(site.count for site in sites)
        one = [tuple(int(i == n) for i in range(len(sites))) for n in range(len(sites))]
        kind = [tuple(site.count * share for share in only) for site, only in zip(sites, one, strict=True)]
        for start in (whole, min(kind, key=self._score), min(one, key=self._score)):
            self._climb(start)
        ranked = self.ranked()
        if not ranked:
            reason = self._reasons[one[0]]
            raise ConfigError(
                f"No plan works on this fleet: even with {sites[0].name} alone {reason}.",
                "An island alone needs no link, and not even that trains.",
                "Look at mtbi, and at every and returns of the shocks.",
            )
        return ranked[0]

    def ranked(self) -> list[Outcome]:
        """Every candidate seen that works: the one to recommend, then the others by what is minimised."""
        outcomes = [outcome for outcomes in self._seen.values() for outcome in outcomes]
        if not outcomes:
            return []
        best = _simplest(self.world, outcomes)
        return [best, *sorted((o for o in outcomes if o is not best), key=lambda o: o.score)]

    def five_best(self) -> list[Outcome]:
        """The best few, not all of one layout."""
        chosen: list[Outcome] = []
        for outcome in self.ranked():
            alike = sum(other.candidate.layout == outcome.candidate.layout for other in chosen)
            if alike < PER_LAYOUT and len(chosen) < NUM_BEST:
                chosen.append(outcome)
        return chosen

    def best_with(self, used: Used) -> Outcome | str:
        """The best candidate on exactly these islands, or why there is none."""
        if used not in self._seen:
            self._look(used)
        outcomes = self._seen[used]
        return _simplest(self.world, outcomes) if outcomes else self._reasons[used]

    def _look(self, used: Used) -> None:
        outcomes: list[Outcome] = []
        reason = "no island is left"
        for layout in layouts_of(self.world.spec, used):
            crew = muster(self.world, layout)
            for found in every_setting(self.world, crew):
                if isinstance(found, Outcome):
                    outcomes.append(found)
                elif len(outcomes) == 0 and layout[0].parts == 1:
                    reason = found
        self._seen[used] = outcomes
        self._reasons[used] = reason

    def _score(self, used: Used) -> float:
        if used not in self._seen:
            self._look(used)
        return min((outcome.score for outcome in self._seen[used]), default=math.inf)

    def _climb(self, used: Used) -> None:
        here = self._score(used)
        while True:
            around = sorted(self._neighbours(used), key=lambda near: (self._score(near), near))
            if not around or not self._score(around[0]) < here:
                return
            used, here = around[0], self._score(around[0])

    def _neighbours(self, used: Used) -> list[Used]:
        """One island more or fewer of some kind, or all of a kind, or none."""
        found: dict[Used, None] = {}
        for kind, (many, site) in enumerate(zip(used, self.world.spec.sites, strict=True)):
            for other in (many - 1, many + 1, 0, site.count):
                near = (*used[:kind], other, *used[kind + 1 :])
                if 0 <= other <= site.count and near != used and any(near):
                    found[near] = None
        return list(found)


def _simplest(world: World, outcomes: list[Outcome]) -> Outcome:
    """The best; of those as good within `TIE` the cheaper (or the quicker), then the simpler one."""
    enough = min(outcome.score for outcome in outcomes) * (1.0 + TIE)

    def plainness(outcome: Outcome) -> tuple[float, ...]:
        candidate = outcome.candidate
        other = outcome.time_s if world.money else outcome.cost
        scale = round(math.log(other) / CLEARLY) if other > 0 else 0
        bits = BITS.get(candidate.codec, 0.0)
        return (scale, candidate.learners, candidate.interval, -bits, outcome.score)

    return min((outcome for outcome in outcomes if outcome.score <= enough), key=plainness)
