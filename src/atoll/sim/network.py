"""The simulated network: every message on its own way, nothing promised.

Each learner has one link to the syncer, each link two directions. A small message takes the
latency and its jitter; a bulk message first waits in the queue of its direction (control never
does), where a newer one on the same fragment takes the place of an older one, and then for its own
bytes at the bandwidth of the hour. Faults lie over the links while they last: a direction may be
cut, lose, repeat, overtake, spoil or slow messages down. A fault counts as having struck when it
changed the fate of a message that somebody would have read.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from atoll.sim.engine import Engine

__all__ = ["DOWN", "UP", "Direction", "Link", "Network", "Trouble"]

UP, DOWN = "up", "down"
MAX_OVERTAKEN = 150
"""A reordered message may take so many times its usual time: it may outlive an epoch."""

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
class Parcel:
    """A message on its way, with what the faults have in store for it."""

    message: Any
    num_bytes: int
    deliver: Deliver
    delay_ns: float
    copies: int
    intact: bool


@dataclass(slots=True)
class Direction:
    """One way of a link."""

    latency_ns: int
    bytes_per_s: float
    troubles: list[Trouble] = field(default_factory=list)
    queue: list[Parcel] = field(default_factory=list)
    """Bulk; the first one is being sent."""
    since_ns: int = 0
    left_bytes: float = 0.0
    """Of the first one, counted from `since_ns` at `sending_rate`."""
    sending_rate: float = 1.0
    num_changes: int = 0

    def rate(self) -> float:
        """Bandwidth as it is now."""
        thin = [trouble.strength for trouble in self.troubles if trouble.kind == "thin-link"]
        return self.bytes_per_s / max(thin, default=1.0)

    def holds(self, message: Any) -> bool:
        """Whether a message still waits here."""
        return any(parcel.message is message for parcel in self.queue)


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
        parcel = Parcel(message, num_bytes, deliver, delay_ns, 1, True)
        for trouble in direction.troubles:
            if not self._pass(parcel, trouble, is_heard):
                return
        if not num_bytes:
            self._carry(parcel)
            return
        key = (type(message), message.fragment)
        direction.queue[1:] = [p for p in direction.queue[1:] if (type(p.message), p.message.fragment) != key]
        direction.queue.append(parcel)
        if len(direction.queue) == 1:
            self._transmit(direction, num_bytes)

    def _pass(self, parcel: Parcel, trouble: Trouble, is_heard: Callable[[], bool]) -> bool:
        """Let one trouble have its way with a parcel; False if it is lost."""
        kind = trouble.kind
        if kind in ("partition", "one-way"):
            self._struck(trouble, is_heard)
            return False
        if kind == "thin-link":
            if parcel.num_bytes:
                self._struck(trouble, is_heard)
            return True
        if self.rng.random() >= trouble.strength:
            return True
        if kind == "corruption" and not parcel.num_bytes:
            return True
        self._struck(trouble, is_heard)
        if kind == "corruption":
            parcel.intact = False
        elif kind == "duplication":
            parcel.copies += 1
        elif kind == "reordering":
            parcel.delay_ns *= 1 + MAX_OVERTAKEN * self.rng.random() ** 2
        return kind != "loss"

    def trouble(self, direction: Direction, trouble: Trouble, *, begins: bool) -> None:
        """Lay a trouble over a direction or take it away; what is being sent feels it at once."""
        if begins:
            direction.troubles.append(trouble)
        elif trouble in direction.troubles:
            direction.troubles.remove(trouble)
        if direction.queue:
            elapsed_s = (self.engine.now_ns - direction.since_ns) / 1e9
            left = direction.left_bytes - elapsed_s * direction.sending_rate
            self._transmit(direction, max(0.0, left))

    def _transmit(self, direction: Direction, num_bytes: float) -> None:
        direction.since_ns, direction.left_bytes = self.engine.now_ns, num_bytes
        direction.sending_rate = direction.rate()
        direction.num_changes += 1
        delay_ns = 1e9 * num_bytes / direction.sending_rate
        self.engine.after(delay_ns, self._sent, direction, direction.num_changes)

    def _sent(self, direction: Direction, num_changes: int) -> None:
        if num_changes != direction.num_changes:
            return
        self._carry(direction.queue.pop(0))
        if direction.queue:
            self._transmit(direction, direction.queue[0].num_bytes)

    def _carry(self, parcel: Parcel) -> None:
        delay_ns = parcel.delay_ns
        for _ in range(parcel.copies):
            self.engine.after(delay_ns, parcel.deliver, parcel.message, parcel.intact)
            delay_ns *= 1 + 3 * self.rng.random()

    def _struck(self, trouble: Trouble, is_heard: Callable[[], bool]) -> None:
        if not trouble.has_struck and is_heard():
            trouble.has_struck = True
            self.strike(trouble)
