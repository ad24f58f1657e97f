"""The calendar of virtual time, and the tree of random numbers.

A heap of (time, priority, sequence): equal times run in order of priority, then of being
scheduled, so a run is a function of its seed alone. Every consumer of chance draws from a branch of its
own, named by a path, so that one more draw here changes nothing there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

__all__ = ["Chance", "Engine"]


class Engine:
    """Runs scheduled calls in order; `now_ns` is the time of the current one."""

    __slots__ = ("_heap", "_sequence", "now_ns", "num_events")

    def __init__(self) -> None:
        self.now_ns = 0
        self.num_events = 0
        self._sequence = 0
        self._heap: list[tuple[int, int, int, Callable[..., object], tuple[Any, ...]]] = []

    def at(self, at_ns: int, call: Callable[..., object], *args: Any, priority: int = 0) -> None:
        """Schedule a call; never in the past."""
        self._sequence += 1
        heappush(self._heap, (max(at_ns, self.now_ns), priority, self._sequence, call, args))

    def after(self, delay_ns: float, call: Callable[..., object], *args: Any) -> None:
        """Schedule a call from now. (Not by way of `at`: this is the hottest line of a simulation.)"""
        self._sequence += 1
        at_ns = self.now_ns + int(delay_ns) if delay_ns > 0 else self.now_ns
        heappush(self._heap, (at_ns, 0, self._sequence, call, args))

    def run(self, until_ns: int, stop: Callable[[], bool] | None = None) -> None:
        """Go on until a time, an empty calendar, or `stop` says so."""
        heap = self._heap
        while heap and heap[0][0] <= until_ns:
            self.now_ns, _, _, call, args = heappop(heap)
            self.num_events += 1
            call(*args)
            if stop is not None and stop():
                return
        if stop is None:
            self.now_ns = max(self.now_ns, until_ns)


class Chance:
    """A branch of the tree of random numbers below one seed."""

    __slots__ = ("path",)

    def __init__(self, seed: int | str) -> None:
        self.path = str(seed)

    def branch(self, name: str) -> random.Random:
        """A stream of its own, the same for the same seed and name."""
        return random.Random(f"{self.path}/{name}")
