"""How long a round waits after its quorum: as long as waiting is free, and no longer.

While tau rounds overlap, a round has tau steps of time; what quorum and merge do not use of it is
slack. A share gamma of the slack goes to learners that are a little late. All three quantities
are exponential moving averages of what was measured; until there are three samples the window is
zero, because a guess would be spent by everybody.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MIN_SAMPLES", "GraceRule", "MovingAverage", "grace_window_ns", "median_ns"]

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


@dataclass(frozen=True, slots=True)
class GraceRule:
    """How long a round may wait, in steps and shares of what is measured."""

    overlap: int
    """tau: steps that a round may take."""
    fraction: float
    """gamma: share of the slack that is spent waiting."""
    least_steps: float = 0.0
    most_steps: float = 1.0


def grace_window_ns(step_ns: float, quorum: MovingAverage, merge: MovingAverage, rule: GraceRule) -> int:
    """gamma * (tau xi_step - xi_quorum - xi_sync), but at least and at most so many steps.

    Paper: adaptive grace window, arXiv:2604.21428v1. gamma and the averaging constant are
    unpublished; ours are in `RunParams`. In the paper the least is 0 and the most about one step.
    Differs, if asked to: where the steps of one learner differ much, a step that began before the round
    may end later than one usual step after the first header, and a longer window waits for it. And
    where merging takes longer than tau steps, as on a thin link, no slack is left and every round would
    close with its first K offers; a least window waits all the same, for a merge that is late anyway.
    """
    if step_ns <= 0:
        return 0
    window = 0.0
    if min(quorum.num_samples, merge.num_samples) >= MIN_SAMPLES:
        window = rule.fraction * (rule.overlap * step_ns - quorum.value - merge.value)
    return int(max(rule.least_steps * step_ns, min(window, rule.most_steps * step_ns)))


def median_ns(samples: list[int]) -> int:
    """The lower median: a real sample, the same on every machine; 0 if there is none."""
    if not samples:
        return 0
    return sorted(samples)[(len(samples) - 1) // 2]
