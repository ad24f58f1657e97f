"""The simulated network: every message on its own way, nothing promised.

Each learner has one link to the syncer, each link two directions. A small message takes the
latency and its jitter; a bulk message also waits for the bulk before it and for its own bytes at
the direction's bandwidth (control never queues behind bulk). Faults lie over the links while they last: a
direction may be cut, lose, repeat, overtake, spoil or slow messages down. A fault counts as
having struck when it changed the fate of a message that somebody would have read.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from atoll.sim.engine import Engine

__all__ = ["DOWN", "UP", "Direction", "Link", "Network", "Trouble"]

UP, DOWN = "up", "down"

Deliver = Callable[[Any, bool], None]
Strike = Callable[["Trouble"], None]


@dataclass(slots=True, eq=False)
class Trouble:
    """A fault that lies over some directions: kind, strength, whether it has struck."""

    kind: str
    strength: float
    has_struck: bool = False
    cell: tuple[str, str] = ("", "")


@dataclass(slots=True)
class Direction:
    """One way of a link."""

    latency_ns: int
    bytes_per_s: float
    free_at_ns: int = 0
    troubles: list[Trouble] = field(default_factory=list)


@dataclass(slots=True)
class Link:
    """A learner's connection to the syncer."""

    up: Direction
    down: Direction

    def direction(self, way: str) -> Direction:
        """One of the two ways."""
        return self.up if way == UP else self.down


class Network:
    """Carries messages over links, with their troubles."""

    def __init__(self, engine: Engine, rng: random.Random, strike: Strike) -> None:
        self.engine = engine
        self.rng = rng
        self.strike = strike
        self.links: dict[str, Link] = {}

    def send(
        self,
        name: str,
        way: str,
        message: Any,
        num_bytes: int,
        deliver: Deliver,
        is_heard: Callable[[], bool],
    ) -> None:
        """Put a message on a link. `deliver(message, intact)` is called when it arrives."""
        direction = self.links[name].direction(way)
        delay_ns = direction.latency_ns * (0.75 + 0.5 * self.rng.random())
        rate = direction.bytes_per_s
        copies = 1
        intact = True
        for trouble in direction.troubles:
            kind = trouble.kind
            if kind == "partition" or kind == "one-way":
                self._struck(trouble, is_heard)
                return
            if kind == "thin-link":
                if num_bytes:
                    rate /= trouble.strength
                    self._struck(trouble, is_heard)
            elif self.rng.random() < trouble.strength:
                if kind == "loss":
                    self._struck(trouble, is_heard)
                    return
                if kind == "corruption":
                    if num_bytes:
                        intact = False
                        self._struck(trouble, is_heard)
                else:
                    self._struck(trouble, is_heard)
                    copies += kind == "duplication"
                    delay_ns *= 1 + 40 * self.rng.random() * (kind == "reordering")
        if num_bytes:
            start_ns = max(self.engine.now_ns, direction.free_at_ns)
            direction.free_at_ns = start_ns + int(1e9 * num_bytes / rate)
            delay_ns += direction.free_at_ns - self.engine.now_ns
        self.engine.after(delay_ns, deliver, message, intact)
        for _ in range(copies - 1):
            self.engine.after(delay_ns * (1 + 3 * self.rng.random()), deliver, message, intact)

    def _struck(self, trouble: Trouble, is_heard: Callable[[], bool]) -> None:
        if not trouble.has_struck and is_heard():
            trouble.has_struck = True
            self.strike(trouble)
