"""A learner made slower than its machine, as if it trained on an older one.

A step at speed s lasts 1/s of its usual time. Usual is the median of the last steps: a step that the
scheduler disturbs takes longer by that disturbance, once, as it would on a slow machine too. Stretching each
step by its own time would stretch the disturbance as well, and at a tenth of the speed ten milliseconds lost
would become a hundred, for which a learner's offers come late.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

__all__ = ["Pace"]

NUM_RECENT = 15
"""Steps that the usual time is taken from."""


@dataclass(slots=True)
class Pace:
    """How long to rest after each step."""

    speed: float
    """0.5: steps last twice as long. 1 or more: no rest."""
    _recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_RECENT))

    def rest_s(self, step_s: float) -> float:
        """The rest after a step that took so long by itself."""
        if self.speed >= 1.0:
            return 0.0
        self._recent_s.append(step_s)
        return median(self._recent_s) * (1.0 / self.speed - 1.0)
