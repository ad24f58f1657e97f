"""Named moments at which a test may kill a process: the points of the protocol that are worth dying at.

The runtime says `reach("S9")` where a point lies. That does nothing: no setting and no environment variable
makes it do anything. Only a test that has started a process, and calls `arm` inside it, sets a trap there;
one process has one trap. By default the process then ends by SIGKILL: no handler runs, no
buffer is flushed, and the thread that reached the point does not go on.

    arm("S9", nth=5)            # dies when it has committed its fifth merge, before anybody hears of it

Points that lie half way (a message half sent) are reached between the parts, so `nth` chooses the part too.
`docs/failpoints.md` has the table.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["POINTS", "arm", "disarm", "die", "reach"]

POINTS: dict[str, str] = {
    "L0": "before hello",
    "L1": "hello sent, not admitted",
    "L2": "admitted, without any weights",
    "L3": "half of the fragments received",
    "L4": "all fragments received, before the first step",
    "L5": "asked for an offer, before the snapshot",
    "L6": "header sent, nothing of the body",
    "L7": "offer half sent",
    "L8": "offer all sent, no verdict yet",
    "L9": "publish half received",
    "L10": "publish staged, not adopted",
    "L11": "publish adopted, not reported",
    "L12": "own state half saved",
    "L13": "goodbye half said",
    "S0": "before the run directory is locked",
    "S1": "directory locked, epoch not durable",
    "S2": "epoch durable, not listening",
    "S3": "admission durable, learner not told",
    "S4": "half of the seed received",
    "S5": "round open, not all asks sent",
    "S6": "first body of a round received, others not",
    "S7": "merged, nothing written",
    "S8": "delta written, before the commit point",
    "S9": "after the commit point, nobody told",
    "S10": "publish half sent",
    "S11": "snapshot half written",
    "S12": "snapshot written, not registered",
}
"""Every point: L for learners, S for the syncer, in the order in which a life meets them."""


def reach(name: str) -> None:
    """This point is reached. Does nothing, unless a test has set a trap in this very process."""
    if _trap is not None:
        _trap.reached(name)


def die() -> None:
    """Kill -9 of the own process: not one more instruction of it is run."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(name: str, nth: int = 1, action: Callable[[], None] = die) -> None:
    """Act when this process reaches a point for the nth time, from 1; replaces an earlier trap."""
    if name not in POINTS:
        raise ValueError(f"there is no point {name!r}; the points are {', '.join(POINTS)}")
    global _trap
    _trap = _Trap(name, nth, action)


def disarm() -> None:
    """Take the trap away."""
    global _trap
    _trap = None


@dataclass(frozen=True, slots=True)
class _Trap:
    name: str
    nth: int
    action: Callable[[], None]
    times: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    """One thread or many: each reaching gets a number of its own."""

    def reached(self, name: str) -> None:
        if name == self.name and next(self.times) == self.nth:
            self.action()


_trap: _Trap | None = None
