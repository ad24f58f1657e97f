"""How long a round waits after its quorum: as long as waiting is free, and no longer.

While tau rounds overlap, a round has tau steps of time; what quorum and merge do not use of it is
slack. A share gamma of the slack goes to learners that are a little late. All three quantities
are exponential moving averages of what was measured; until there are three samples the window is
zero, because a guess would be spent by everybody.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MIN_SAMPLES", "MovingAverage", "grace_window_ns", "median_ns"]

MIN_SAMPLES = 3


@dataclass(slots=True)
class MovingAverage:
    """xi <- (1 - a) xi + a x, seeded with the first sample."""

    averaging: float
    value: float = 0.0
    num_samples: int = 0

    def add(self, sample: float) -> None:
        """Take in one sample."""
        if self.num_samples == 0:
            self.value = sample
        else:
            self.value += self.averaging * (sample - self.value)
        self.num_samples += 1


def grace_window_ns(
    step_ns: float, quorum: MovingAverage, merge: MovingAverage, overlap: int, fraction: float
) -> int:
    """gamma * (tau xi_step - xi_quorum - xi_sync), at least 0 and at most one step.

    Paper: adaptive grace window, arXiv:2604.21428v1. gamma and the averaging constant are
    unpublished; ours are in `RunParams`. Differs: capped at one step, as the paper describes it.
    """
    if min(quorum.num_samples, merge.num_samples) < MIN_SAMPLES or step_ns <= 0:
        return 0
    slack = overlap * step_ns - quorum.value - merge.value
    return int(max(0.0, min(fraction * slack, step_ns)))


def median_ns(samples: list[int]) -> int:
    """The lower median: a real sample, the same on every machine; 0 if there is none."""
    if not samples:
        return 0
    return sorted(samples)[(len(samples) - 1) // 2]
