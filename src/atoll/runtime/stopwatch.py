"""How long steps take and how long Atoll held them: bounded memory, cheap enough for every step."""

from __future__ import annotations

import math
import resource
import time
from collections import deque
from dataclasses import dataclass, field

__all__ = ["Stopwatch", "percentile", "process_cpu_ns"]

KEPT = 4096
"""Steps that percentiles are taken over."""


@dataclass(slots=True)
class Stopwatch:
    """Written by the training thread at every boundary, read by anybody."""

    began_ns: int = field(default_factory=time.monotonic_ns)
    entered_ns: int = 0
    num_steps: int = 0
    num_tokens: int = 0
    step_ns: int = 0
    """Of the last step, boundary to boundary."""
    held_ns: int = 0
    """Of the last boundary."""
    total_held_ns: int = 0
    max_held_ns: int = 0
    held: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT))
    steps: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT))

    def enter(self, now_ns: int, tokens: int) -> None:
        """The user's loop came to a boundary."""
        if self.entered_ns:
            self.step_ns = now_ns - self.entered_ns
            self.steps.append(self.step_ns)
        self.entered_ns = now_ns
        self.num_steps += 1
        self.num_tokens += tokens

    def leave(self, now_ns: int) -> None:
        """The user's loop goes on."""
        self.held_ns = now_ns - self.entered_ns
        self.held.append(self.held_ns)
        self.total_held_ns += self.held_ns
        self.max_held_ns = max(self.max_held_ns, self.held_ns)

    def stall_fraction(self, now_ns: int) -> float:
        """Time held over wall time."""
        return self.total_held_ns / max(1, now_ns - self.began_ns)


def percentile(values: list[int], share: float) -> int:
    """The smallest value with at least that share of all at or below it; 0 of none."""
    if not values:
        return 0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def process_cpu_ns() -> int:
    """CPU time of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return int((usage.ru_utime + usage.ru_stime) * 1e9)
