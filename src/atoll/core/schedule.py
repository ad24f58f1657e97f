"""When fragments are due: the syncer's clock t, counted in learner steps.

t follows the K-th largest clock among the learners that count (healed and connected), so slow
ones never hold it back. Clocks are the learners' own; when the leaders vanish, the K-th largest
falls below t, and the rest are shifted up to t, because t may pause but never falls and must not
wait for them to repeat the leaders' steps. A leap of more than half a cycle is an outage: t jumps and
the rounds that it passes over do not fire.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from atoll.core.params import RunParams

__all__ = ["Schedule", "kth_largest"]


def kth_largest(values: list[int], k: int) -> int:
    """The k-th largest, counted from 1; `values` must have at least k entries."""
    return max(values) if k == 1 else sorted(values, reverse=True)[k - 1]


@dataclass(slots=True)
class Schedule:
    """t, the shift of each learner's clock, and which fragments wait for their round."""

    params: RunParams
    t: int = 0
    shifts: dict[str, int] = field(default_factory=dict)
    due: dict[int, int] = field(default_factory=dict)
    """Fragment -> tick at which it became due, in order of becoming due."""

    def advance(self, clocks: dict[str, int]) -> tuple[int, int] | None:
        """Let t follow the clocks; returns (from, to) if ticks were skipped.

        `clocks` holds the learners that count. With fewer than K of them t stands still.
        """
        quorum = len(clocks) if self.params.waits else self.params.min_quorum
        if not clocks or len(clocks) < self.params.min_quorum:
            return None
        shift = self.shifts.get
        shifted = [clock + shift(name, 0) for name, clock in clocks.items()]
        target = kth_largest(shifted, quorum)
        if target < self.t:
            for name in clocks:
                self.shifts[name] = self.shifts.get(name, 0) + self.t - target
            return None
        start, self.t = self.t, target
        if target - start > self.jump_steps:
            self.due.clear()
            return start, target
        for tick in range(start + 1, target + 1):
            self._fire(tick)
        return None

    @property
    def jump_steps(self) -> int:
        """The largest leap whose rounds are still fired."""
        return max(1, self.params.interval_steps // 2)

    def _fire(self, tick: int) -> None:
        phase = tick % self.params.interval_steps
        fragment = -(-phase * self.params.num_fragments // self.params.interval_steps)
        if fragment < self.params.num_fragments and self.params.offset(fragment) == phase:
            self.due.setdefault(fragment, tick)

    def next_due(self, fragment: int) -> int:
        """The tick at which a fragment is due next, counted from now on."""
        wait = (self.params.offset(fragment) - self.t - 1) % self.params.interval_steps
        return self.t + 1 + wait
