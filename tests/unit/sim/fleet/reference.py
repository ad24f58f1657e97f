"""One learner, simulated a second time: slow, scalar, one event after another, in plain Python.

Written from the text of the model (the docstring of `atoll.sim.fleet.model` and section 3 of the notes on
the paper), not from the engine, so that the two can be wrong only in different ways. Slices are things in
a list here, not a number; returns and shocks wait in heaps; chip time is spent on the learner's own
clock, and every spending has a name.

Where the text leaves room, the two agree on this. A shock takes its share of all slices from those at
work, and one that takes all holds back those that are away; a learner that is not elastic waits until
they are back, and then restarts. A grant takes chips that are there first: what is away is away within
the grant. Its change is a pause to shrink or to grow, or a restart that loses no work. What comes
during a pause, and is no return, comes at its end.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from scipy.stats import exponweib  # type: ignore[import-untyped]  # it has no types

from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.model import Island, Shock
from atoll.sim.fleet.result import SHARES

__all__ = ["Estimate", "Learner", "estimate"]


@dataclass
class Learner:
    """One life of one learner, from time 0 to the horizon."""

    island: Island
    horizon_s: float
    rng: random.Random
    shocks: tuple[Shock, ...] = ()
    now: float = 0.0
    stepping_s: float = 0.0
    num_failures: int = 0
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SHARES, 0.0))
    home: list[int] = field(default_factory=list)
    """Sizes of the slices that are there."""
    returning: list[tuple[float, int]] = field(default_factory=list)
    """Heap of (time, size)."""
    striking: list[tuple[float, int]] = field(default_factory=list)
    """Heap of (time, which shock)."""
    granting: list[tuple[float, float]] = field(default_factory=list)
    """Heap of (time, chips)."""
    grant: float = math.inf
    unsaved: float = 0.0
    """Chip time since the last checkpoint."""
    unsaved_s: float = 0.0

    def run(self) -> Learner:
        full, rest = divmod(self.island.chips, self.island.slice_chips)
        self.home = [self.island.slice_chips] * full + [rest] * (rest > 0)
        self.striking = [(self.exponential(shock.every_s), k) for k, shock in enumerate(self.shocks)]
        heapq.heapify(self.striking)
        trace = self.island.trace
        if trace is not None:
            self.grant = trace.at(0.0)
            self.granting = [row for row in zip(trace.times_s, trace.chips, strict=True) if row[0] > 0]
        while self.now < self.horizon_s:
            if self.island.pauses.elastic:
                self.one_event()
            else:
                self.one_life()
        self.spent["useful"] += self.unsaved
        return self

    # Elastic.

    def one_event(self) -> None:
        """Step until something happens, and then do what it asks."""
        failure, back = self.next_failure(), first(self.returning)
        shock, grant = first(self.striking), first(self.granting)
        self.spend("useful", min(failure, back, shock, grant))
        if self.now >= self.horizon_s:
            return
        if self.now >= grant:
            self.regrant()
        elif self.now >= shock:
            self.strike()
        elif self.now >= back:
            self.pause("growing", self.island.pauses.up_s)
        else:
            which = self.rng.choices(range(len(self.home)), weights=self.home)
            self.lose(which, self.now + self.delay(self.island.pauses.returns))

    def lose(self, which: list[int], at: float) -> None:
        """Slices leave, the step in flight finishes without them, and the learner shrinks."""
        self.num_failures += 1
        for index in sorted(which, reverse=True):
            heapq.heappush(self.returning, (at, self.home.pop(index)))
        self.shrink()

    def shrink(self) -> None:
        self.spend("useful", self.now + self.rng.random() * self.island.pauses.quantum_s)
        self.pause("shrinking", self.island.pauses.down_s)

    def strike(self) -> None:
        """A shock takes its share of all slices from those at work, unless it was over before a pause was."""
        began, shock = first(self.striking), self.next_shock()
        back = began + self.delay(shock.returns)
        if back <= self.now:
            return
        wanted = round(shock.share * (len(self.home) + len(self.returning)))
        at_work = math.ceil(self.working() / self.island.slice_chips)
        hit = self.rng.sample(range(len(self.home)), min(wanted, at_work))
        if shock.share == 1:
            self.returning = [(max(at, back), size) for at, size in self.returning]
            heapq.heapify(self.returning)
        if hit:
            self.lose(hit, back)

    def regrant(self) -> None:
        """The market takes chips, or gives chips that join at the end of a pause."""
        before, old = self.working(), self.grant
        self.grant = self.newest_grant()
        if self.working() < before:
            self.shrink()
        elif self.working() > before:
            new, self.grant = self.grant, old
            self.pause("growing", self.island.pauses.up_s)
            self.grant = new

    def pause(self, name: str, seconds: float) -> None:
        """Nothing fails meanwhile; what returns meanwhile joins at the end for free."""
        self.spend(name, self.now + seconds)
        while self.returning and self.returning[0][0] <= self.now:
            self.home.append(heapq.heappop(self.returning)[1])

    # Not elastic.

    def one_life(self) -> None:
        """Step until the next failure, restart, and forget what was not saved."""
        failure, shock, grant = self.next_failure(), first(self.striking), first(self.granting)
        self.step_and_save_until(min(failure, shock, grant))
        if self.now >= self.horizon_s:
            return
        if self.now >= grant:
            self.regrant_and_restart()
        elif self.now >= shock:
            back = shock + self.delay(self.next_shock().returns)
            if back > self.now:
                self.fall()
                self.spend("restarting", max(self.now, back))
                self.restart()
        else:
            self.fall()
            self.restart()

    def step_and_save_until(self, time: float) -> None:
        """Steps, with a checkpoint now and then."""
        every_s = self.island.pauses.checkpoint_s
        while every_s and self.working() and self.now + every_s - self.unsaved_s < min(time, self.horizon_s):
            self.step_until(self.now + every_s - self.unsaved_s)
            self.save()
        self.step_until(time)

    def regrant_and_restart(self) -> None:
        before, grant = self.working(), self.newest_grant()
        self.grant = min(grant, self.grant)
        if min(grant, self.island.chips) != before:
            self.save()
            self.restart()
        self.grant = grant

    def save(self) -> None:
        self.spent["useful"] += self.unsaved
        self.unsaved = self.unsaved_s = 0.0

    def fall(self) -> None:
        """The step in flight finishes. What is in no checkpoint will be done again, if there are any."""
        self.num_failures += 1
        self.step_and_save_until(self.now + self.rng.random() * self.island.pauses.quantum_s)
        if self.island.pauses.checkpoint_s:
            self.spent["redone"] += self.unsaved
            self.unsaved = self.unsaved_s = 0.0
        else:
            self.save()

    def restart(self) -> None:
        self.spend("restarting", self.now + self.island.pauses.outage_s + self.island.pauses.reload_s)

    def step_until(self, time: float) -> None:
        """Steps that count once they are saved."""
        begin, before = self.now, self.spent["useful"]
        self.spend("useful", time)
        self.unsaved += self.spent["useful"] - before
        self.unsaved_s += self.now - begin
        self.spent["useful"] = before

    # Time and chips.

    def spend(self, name: str, until: float) -> None:
        """All chips until then: those at work for this, the others are away."""
        lasting = max(0.0, min(until, self.horizon_s) - self.now)
        working = self.working()
        self.spent[name] += working * lasting
        self.spent["away"] += (self.island.chips - working) * lasting
        self.stepping_s += lasting * (name == "useful" and working > 0)
        self.now = max(self.now, min(until, self.horizon_s))

    def newest_grant(self) -> float:
        """Of those that are due, the last: what came and went during a pause was never seen."""
        grant = self.grant
        while first(self.granting) <= self.now:
            _, grant = heapq.heappop(self.granting)
        return grant

    def working(self) -> float:
        """Chips that are there and granted; what is away is away within the grant."""
        away = self.island.chips - sum(self.home)
        return max(min(self.grant, self.island.chips) - away, 0)

    # Chance.

    def next_failure(self) -> float:
        working = self.working()
        return self.now + self.exponential(self.island.mtbi_s / working) if working else math.inf

    def next_shock(self) -> Shock:
        """The one that is due; the next of its kind is drawn from its own time."""
        at, k = heapq.heappop(self.striking)
        heapq.heappush(self.striking, (at + self.exponential(self.shocks[k].every_s), k))
        return self.shocks[k]

    def exponential(self, mean: float) -> float:
        return math.inf if math.isinf(mean) else self.rng.expovariate(1.0) * mean

    def delay(self, delay: Delay) -> float:
        if math.isinf(delay.mean_s):
            return math.inf
        inner = (1.0 - self.rng.random()) ** (1.0 / delay.power)
        scale = delay.mean_s / _unit_mean(delay.shape, delay.power)
        return scale * (-math.log(max(1.0 - inner, 1e-300))) ** (1.0 / delay.shape)


def first(heap: list[tuple[float, int]] | list[tuple[float, float]]) -> float:
    """When the next of these is due."""
    return heap[0][0] if heap else math.inf


@dataclass(frozen=True)
class Estimate:
    """Means over repetitions, with their standard errors."""

    goodput: float
    stderr: float
    stepping: float
    stepping_stderr: float
    shares: dict[str, float]
    shares_stderr: dict[str, float]
    num_failures: float
    failures_stderr: float


def estimate(
    island: Island, *, horizon_s: float, repetitions: int, seed: int, shocks: tuple[Shock, ...] = ()
) -> Estimate:
    """What the reference says of one learner alone."""
    rng = random.Random(seed)
    lives = [Learner(island, horizon_s, rng, shocks).run() for _ in range(repetitions)]
    allocated = island.chips * horizon_s
    shares = {name: mean_and_error([life.spent[name] / allocated for life in lives]) for name in SHARES}
    stepping = mean_and_error([life.stepping_s / horizon_s for life in lives])
    failures = mean_and_error([life.num_failures for life in lives])
    means = {name: mean for name, (mean, _) in shares.items()}
    errors = {name: error for name, (_, error) in shares.items()}
    return Estimate(*shares["useful"], *stepping, means, errors, *failures)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


@lru_cache(maxsize=64)
def _unit_mean(shape: float, power: float) -> float:
    return float(exponweib.mean(power, shape))
