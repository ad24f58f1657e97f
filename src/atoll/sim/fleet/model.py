"""What a fleet is: learners made of slices of chips, how they fail, and what a failure costs them.

A learner loses a slice when one of its chips fails (every chip once per `mtbi_s` on average, a Poisson
process). If it is elastic, the step in flight finishes, the slice leaves, and the learner stands still
for `down_s` while it shrinks; the slice returns after a random delay, and the learner stands still for
`up_s` while it grows, unless the return falls into another pause: then it joins for free. If it is not
elastic, the step in flight finishes too; then everything stands still for `outage_s` (and for `reload_s`
where there are checkpoints), and the work since the last checkpoint is done again. While a learner stands
still its chips do not fail.

Shocks take many slices at once: a rack, a power feed, a site, or a bad software push in the whole fleet
at the same time. While a shock holds all of a learner, nothing returns to it. A trace says how many
chips a spot market grants at any time.

The default pauses are constants of ours: fitted to Table 1 of the paper (arXiv:2604.21428), which gives
inputs and results and not the pauses. Only their sums are pinned by it; docs/scale.md says how far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from atoll.errors import ConfigError
from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.units import YEAR

__all__ = ["Fleet", "Island", "Pauses", "Shock", "SyncerOutages", "even_fleet", "lock_step"]

Scope = Literal["learner", "fleet"]

MAX_LEARNERS = 4096
LEAST_MTBI_S = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Pauses:
    """What failures and returns cost a learner, in seconds."""

    elastic: bool = True
    """Goes on with fewer slices; otherwise every failure stops the whole learner."""
    quantum_s: float = 5.0
    """One step: after a failure the step in flight finishes, a uniform part of this."""
    down_s: float = 17.5
    """Standing still to shrink."""
    up_s: float = 13.0
    """Standing still to grow."""
    returns: Delay = field(default_factory=lambda: Delay(mean_s=70.0))
    """From the failure of a slice until it, or a spare, is back."""
    outage_s: float = 82.0
    """Not elastic: from the failure until the learner steps again."""
    reload_s: float = 0.0
    """Not elastic: reading the checkpoint back, on top of the outage."""
    checkpoint_s: float = 0.0
    """Not elastic: time between checkpoints; the work since the last is done again. 0: nothing is lost."""

    def __post_init__(self) -> None:
        for name in ("quantum_s", "down_s", "up_s", "outage_s", "reload_s", "checkpoint_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(
                    f"pauses.{name} is {value}.",
                    "A pause cannot be negative, endless or undefined.",
                    "Give seconds, 0 or more.",
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class Shock:
    """Failures that come together."""

    name: str
    """What it is, for tables: rack, power, site, push."""
    every_s: float
    """Mean time between two of them: per learner, or in the whole fleet."""
    share: float
    """Part of a learner's slices that is lost, above 0 up to 1."""
    returns: Delay
    """Until they are back, all together."""
    scope: Scope = "learner"
    """`learner`: strikes each learner on its own. `fleet`: strikes all learners at the same moment."""

    def __post_init__(self) -> None:
        if not self.every_s > 0:
            raise ConfigError(
                f"Shock {self.name!r} comes every {self.every_s} s.",
                "The fleet would never run.",
                "Give a mean time above 0, such as 30 days.",
            )
        if not 0 < self.share <= 1:
            raise ConfigError(
                f"Shock {self.name!r} takes {self.share} of a learner.",
                "It is a share of the slices.",
                "Give a share above 0 and at most 1.",
            )
        if self.scope not in ("learner", "fleet"):
            raise ConfigError(
                f"Shock {self.name!r} has scope {self.scope!r}.",
                "It is not known whom it strikes.",
                'Use "learner" (each on its own) or "fleet" (all at once).',
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncerOutages:
    """When the syncer is away. Learners train on meanwhile; merges wait."""

    every_s: float
    """Mean time from one return to the next outage."""
    down: Delay
    """How long it is away."""

    def __post_init__(self) -> None:
        if not self.every_s > 0:
            raise ConfigError(
                f"The syncer fails every {self.every_s} s.",
                "It would never be there.",
                "Give a mean time above 0.",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Island:
    """The home of one learner: chips that share a fast interconnect."""

    chips: int
    mtbi_s: float = YEAR
    """Mean time between interruptions of one chip; inf: it never fails."""
    slice_chips: int = 256
    """Chips that leave and return together; the last slice may be smaller."""
    speed: float = 1.0
    """Steps per second of one chip's share, relative to the others."""
    pauses: Pauses = field(default_factory=Pauses)
    trace: CapacityTrace | None = None
    """What a spot market grants; None: all chips, always."""
    waiting: float = 0.0
    """Share of its chips' stepping time spent waiting for slower chips in lock-step with them."""
    name: str = ""

    def __post_init__(self) -> None:
        for name, value in (("chips", self.chips), ("slice_chips", self.slice_chips)):
            if value < 1:
                raise ConfigError(
                    f"{name} is {value}.", "There would be nothing to train on.", f"Give {name} of 1 or more."
                )
        for name, number, least in (("mtbi_s", self.mtbi_s, LEAST_MTBI_S), ("speed", self.speed, 0.0)):
            if not (number > 0 and number >= least):
                raise ConfigError(
                    f"{name} is {number}.",
                    "Such a chip would never do a step.",
                    f"Give {name} above {least:g} (mtbi_s may be inf: a chip that never fails).",
                )

    @property
    def num_slices(self) -> float:
        """Slices, not rounded: the last one may be smaller."""
        return self.chips / self.slice_chips


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """All learners of a run, and what strikes them together."""

    islands: tuple[Island, ...]
    quorum: int = 1
    """K: fewest learners that may merge."""
    shocks: tuple[Shock, ...] = ()
    syncer: SyncerOutages | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.islands) <= MAX_LEARNERS:
            raise ConfigError(
                f"The fleet has {len(self.islands)} islands.",
                "Without one there is nobody to train, and more than "
                f"{MAX_LEARNERS} are beyond what a syncer serves.",
                f"Give between 1 and {MAX_LEARNERS}.",
            )
        names = [island.name for island in self.islands if island.name]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(
                f"Two islands are called {twice!r}.",
                "Their traces and results could not be told apart.",
                "Give every island a name of its own, or none.",
            )
        if not 1 <= self.quorum <= len(self.islands):
            raise ConfigError(
                f"The quorum is {self.quorum} and the fleet has {len(self.islands)} learners.",
                "No round could merge." if self.quorum > 1 else "Every round would merge nothing.",
                f"Give a quorum between 1 and {len(self.islands)}.",
            )

    @property
    def chips(self) -> int:
        """Of all islands."""
        return sum(island.chips for island in self.islands)

    @property
    def num_learners(self) -> int:
        """M."""
        return len(self.islands)


def even_fleet(
    chips: int,
    learners: int = 1,
    *,
    mtbi_s: float = YEAR,
    slice_chips: int = 256,
    pauses: Pauses | None = None,
    speed_spread: float = 0.0,
    quorum: int = 1,
    shocks: tuple[Shock, ...] = (),
    syncer: SyncerOutages | None = None,
) -> Fleet:
    """`chips` split evenly over learners; speeds run evenly from 1 down to 1 - speed_spread.

    A single learner has chips of all these speeds, in lock-step: the slowest set the pace, the others wait.
    """
    if chips < learners or learners < 1:
        raise ConfigError(
            f"{chips} chips cannot make {learners} learners.",
            "Every learner needs at least one chip, and a fleet at least one learner.",
            "Give more chips or fewer learners.",
        )
    if not 0 <= speed_spread < 1:
        raise ConfigError(
            f"The speed spread is {speed_spread}.",
            "The slowest learner would stand still or run backwards.",
            "Give a share from 0 to below 1, such as 0.18.",
        )
    share, rest = divmod(chips, learners)
    slowest, waiting = 1.0 - speed_spread, 0.0
    if learners == 1 and speed_spread:
        waiting = 1.0 + slowest * math.log(slowest) / speed_spread  # the mean of 1 - slowest/speed
    islands = tuple(
        Island(
            chips=share + (m < rest),
            mtbi_s=mtbi_s,
            slice_chips=slice_chips,
            speed=slowest if learners == 1 else 1.0 - speed_spread * m / (learners - 1),
            waiting=waiting,
            pauses=pauses or Pauses(),
            name=f"learner-{m}",
        )
        for m in range(learners)
    )
    return Fleet(islands=islands, quorum=quorum, shocks=shocks, syncer=syncer)


def lock_step(fleet: Fleet, *, elastic: bool = True) -> Fleet:
    """The same chips as one Data-Parallel learner: every failure stops all, the slowest sets the pace.

    A chip of twice the slowest speed waits half of its time: `waiting`, a loss of goodput. The mean time
    between interruptions is that of the mix, the pauses are those of the first island. Shocks of one
    learner strike the whole as often as they struck all of them, each with its share.
    """
    first = fleet.islands[0]
    rate = sum(island.chips / island.mtbi_s for island in fleet.islands)
    slowest = min(island.speed for island in fleet.islands)
    whole = Island(
        chips=fleet.chips,
        mtbi_s=fleet.chips / rate if rate else math.inf,
        slice_chips=first.slice_chips,
        speed=slowest,
        waiting=1.0 - sum(island.chips * slowest / island.speed for island in fleet.islands) / fleet.chips,
        pauses=replace(first.pauses, elastic=elastic),
        trace=_sum_of_traces(fleet),
        name="lock-step",
    )
    parts = len(fleet.islands)
    shocks = tuple(
        replace(shock, every_s=shock.every_s / parts, share=shock.share / parts)
        if shock.scope == "learner"
        else shock
        for shock in fleet.shocks
    )
    return Fleet(islands=(whole,), shocks=shocks)


def _sum_of_traces(fleet: Fleet) -> CapacityTrace | None:
    """What the markets grant to all islands together; None where none of them is a market."""
    traces = [island.trace or CapacityTrace((0.0,), (float(island.chips),)) for island in fleet.islands]
    if all(island.trace is None for island in fleet.islands):
        return None
    times = sorted({time for trace in traces for time in trace.times_s})
    return CapacityTrace(tuple(times), tuple(sum(trace.at(time) for trace in traces) for time in times))
