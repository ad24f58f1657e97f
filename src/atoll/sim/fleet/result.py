"""What a simulated fleet came to."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.sim.fleet.model import Fleet
from atoll.sim.fleet.trace import CapacityTrace

__all__ = ["SHARES", "FleetResult"]

SHARES = ("useful", "away", "shrinking", "growing", "restarting", "redone", "waiting")
"""Where chip time goes: steps that count; chips that failed or are not granted; pauses to shrink and to
grow; restarts of a learner that is not elastic; work since a checkpoint done again; fast chips in
lock-step with slower ones."""


@dataclass(frozen=True, slots=True)
class FleetResult:
    """Means over repetitions of one fleet over one span of time. All ratios are fractions of 1."""

    fleet: Fleet
    horizon_s: float
    repetitions: int
    seed: int
    goodput: float
    """Share of allocated chip time spent on useful steps."""
    stderr: float
    """Standard error of goodput over repetitions."""
    uptime: tuple[float, ...]
    """uptime[k]: share of time in which at least k learners step; uptime[0] is 1."""
    uptime_stderr: tuple[float, ...]
    merging: float
    """Share of time in which at least K learners step and the syncer is there."""
    participation: float
    """Learners that step, of those that live (paused ones live, those without a chip do not)."""
    shares: dict[str, float]
    """Where the chip time went: a share for each name of SHARES; together 1."""
    samples: tuple[float, ...]
    """Goodput of each repetition; the same for the same seed however many are run."""
    learner_goodput: tuple[float, ...]
    work: float
    """Mean work done per second, in chips of speed 1: tokens follow from it."""
    num_failures: float
    """Interruptions of slices, shocks included, per repetition."""
    num_events: int
    """Events of all its repetitions: what simulating it cost."""
    traces: dict[str, CapacityTrace]
    """Chips at work over time, of the first repetition, by learner; empty unless asked for."""

    @property
    def uptime_one(self) -> float:
        """Share of time in which somebody steps."""
        return self.uptime[1]

    @property
    def uptime_quorum(self) -> float:
        """Share of time in which a quorum steps."""
        return self.uptime[self.fleet.quorum]
