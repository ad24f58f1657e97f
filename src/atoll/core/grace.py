"""How long a round waits after its quorum for those who are late.

Waiting is not free: learners that have offered train on, and the publish will overwrite what they train
meanwhile (where they adopt by rebase it overwrites nothing, and waiting only makes it stale). By `worth`, our
default, a round waits as long as the late bring more tokens than waiting for them costs. Reports tell when
each learner's step began, how long its steps take and how much it has trained since its base, and the beats
that they echo how far away it is: so the syncer knows whom it is worth to wait for, and until when.

By `slack`, the paper's rule, a round has tau steps of time, because tau rounds overlap; what quorum and merge
do not use of it is slack, and a share gamma of that goes to the late, whoever they are. All three quantities
are exponential moving averages of what was measured; until there are three samples the window is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "GRACE_RULES", "MIN_SAMPLES", "GraceRule", "Late", "MovingAverage", "median_ns", "slack_window_ns",
    "worth_until_ns",
]  # fmt: skip

GraceRule = Literal["worth", "slack"]
GRACE_RULES: tuple[GraceRule, ...] = ("worth", "slack")
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
class Late:
    """A learner that was asked and has not answered yet."""

    tokens: int
    """What it has trained since its base; its offer will have a step more."""
    due_ns: float
    """When its answer should be here."""
    step_ns: float
    """How long its steps take."""


def worth_until_ns(late: Sequence[Late], tokens_per_ns: float, now_ns: int, latest_ns: int) -> int:
    """Until when the late are worth waiting for, at most until `latest_ns`; `now_ns` if they are not.

    `tokens_per_ns` is what those who have offered train meanwhile, all of it to be overwritten. Of all
    moments at which somebody is due, the one is chosen by which the late bring most beyond what waiting until
    then costs; what was waited already is spent and does not count. Nobody is due to the nanosecond: one who
    does not come is given up when being late has cost what it would bring, or has lasted a step of its own.
    So a learner that is far slower than the rest, or far away, is waited for when it is about to come, and
    never in vain: who is due after `latest_ns` does not count.

    Differs from the paper, whose window (`slack_window_ns`) neither knows who is missing nor what it costs.
    """
    until_ns = end_ns = float(now_ns)
    brought = best = 0.0
    for one in sorted(late, key=lambda one: one.due_ns):
        patience_ns = min(one.step_ns, one.tokens / tokens_per_ns) if tokens_per_ns > 0 else one.step_ns
        if one.due_ns + patience_ns <= now_ns or one.due_ns > latest_ns:
            continue  # given up, or out of reach
        brought += one.tokens
        until_ns = max(until_ns, one.due_ns + patience_ns)
        gain = brought - max(0.0, one.due_ns - now_ns) * tokens_per_ns
        if gain > best:
            best, end_ns = gain, until_ns
    return int(min(end_ns, max(now_ns, latest_ns)))


def slack_window_ns(
    step_ns: float, quorum: MovingAverage, merge: MovingAverage, overlap: int, fraction: float
) -> int:
    """gamma * (tau xi_step - xi_quorum - xi_sync), from the K-th header on; never below 0.

    Paper: adaptive grace window, arXiv:2604.21428v1, which is at most about one step long. gamma and the
    averaging constant are unpublished; ours are in `RunParams`.
    """
    if step_ns <= 0 or min(quorum.num_samples, merge.num_samples) < MIN_SAMPLES:
        return 0
    return max(0, int(fraction * (overlap * step_ns - quorum.value - merge.value)))


def median_ns(samples: list[int]) -> int:
    """The lower median: a real sample, the same on every machine; 0 if there is none."""
    if not samples:
        return 0
    return sorted(samples)[(len(samples) - 1) // 2]
