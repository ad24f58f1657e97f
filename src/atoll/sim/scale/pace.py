"""How a learner gets on with the chips it has: steps of fixed working time, batches in proportion.

An elastic island that loses a slice goes on with fewer examples per step, in the same time. So a step is a
fixed span of working time, and its tokens are the full batch times the mean share of the chips that were
at work during it. A gap without chips suspends the step: a pause to shrink or grow. A gap longer than
`dark_s` is no pause but a site that went out, and the step is gone with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from atoll.sim.fleet.trace import CapacityTrace

__all__ = ["NEVER_NS", "Pace", "Stint"]

NEVER_NS = 1 << 62
"""After every run."""


class Stint(NamedTuple):
    """One step, done at `end_ns`; or, with `back_ns` set, a darkness from `end_ns` until then."""

    end_ns: int
    share: float
    """Mean share of the full chips over the working time."""
    back_ns: int = 0


@dataclass(slots=True)
class Pace:
    """One learner's way through its trace. Times asked for must not fall."""

    times_ns: list[int]
    shares: list[float]
    dark_ns: int
    cursor: int = 0

    @classmethod
    def of(cls, trace: CapacityTrace, chips: float, dark_s: float) -> Pace:
        """From a trace in seconds, and the chips that count as all."""
        times = [0, *(int(1e9 * time) for time in trace.times_s[1:])]
        return cls(times, [value / chips for value in trace.chips], int(1e9 * dark_s))

    def begin_ns(self, now_ns: int) -> int:
        """The first moment from now on at which there are chips; NEVER_NS if there will be none."""
        i = self._seek(now_ns)
        return now_ns if self.shares[i] > 0 else self._next_work(i)

    def work(self, now_ns: int, work_ns: int) -> Stint:
        """Do a step of so much working time from now on."""
        at_ns, left_ns, done = now_ns, work_ns, 0.0
        while left_ns > 0:
            i = self._seek(at_ns)
            if self.shares[i] <= 0:
                back_ns = self._next_work(i)
                if back_ns - at_ns > self.dark_ns:
                    return Stint(at_ns, 0.0, back_ns)
                at_ns = back_ns
                continue
            until_ns = self.times_ns[i + 1] if i + 1 < len(self.times_ns) else NEVER_NS
            span_ns = min(left_ns, until_ns - at_ns)
            done += span_ns * self.shares[i]
            at_ns += span_ns
            left_ns -= span_ns
        return Stint(at_ns, done / work_ns)

    def _seek(self, now_ns: int) -> int:
        times, i = self.times_ns, self.cursor
        while i + 1 < len(times) and times[i + 1] <= now_ns:
            i += 1
        self.cursor = i
        return i

    def _next_work(self, i: int) -> int:
        for j in range(i, len(self.shares)):
            if self.shares[j] > 0:
                return self.times_ns[j]
        return NEVER_NS
