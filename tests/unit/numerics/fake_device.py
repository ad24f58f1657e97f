"""A device with two streams on the CPU, one of which runs as late as it may.

Operations of the late stream are only queued. They run when somebody waits for an event behind them, and
then no further than to that event. The other stream runs at once. Whoever touches memory that a queued
operation will still touch has forgotten to wait: that is an error here, and a race on a GPU. To see every
race, run a story twice, each stream being the late one once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Stream = Literal["training", "side"]


class RaceError(AssertionError):
    """Two streams, or a stream and the host, touched the same memory without an order between them."""


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    stream: Stream
    behind: int
    """Number of operations of its stream that come before it."""


@dataclass(frozen=True, slots=True)
class Queued:
    what: str
    memory: frozenset[int]
    run: Callable[[], object]


class FakeDevice:
    """Passes for a GPU whose memory is the host's."""

    def __init__(self, late: Stream) -> None:
        self.late = late
        self.current: Stream = "training"
        self.log: list[str] = []
        self._queue: list[Queued] = []
        self._count: dict[Stream, int] = {"training": 0, "side": 0}
        self._names: dict[int, str] = {}

    def empty(self, numel: int) -> Tensor:
        return self._memory("device", numel)

    def pinned(self, numel: int) -> Tensor:
        return self._memory("pinned", numel)

    def copy(self, target: Tensor, source: Tensor) -> None:
        what = f"{self.current}: {self._name(source)} -> {self._name(target)}"
        self.run(what, lambda: target.copy_(source), target, source)

    def run(self, what: str, operation: Callable[[], object], *touched: Tensor) -> None:
        """Queue an operation on the current stream."""
        self._count[self.current] += 1
        queued = Queued(what, frozenset(map(_memory_of, touched)), operation)
        if self.current == self.late:
            self._queue.append(queued)
        else:
            self.touch(queued.what, *touched)
            self.log.append(what)
            with torch.no_grad():
                operation()

    def touch(self, what: str, *touched: Tensor) -> None:
        """Raise if a queued operation still has business with this memory."""
        for queued in self._queue:
            if queued.memory & frozenset(map(_memory_of, touched)):
                raise RaceError(f"{what!r} does not wait for {queued.what!r}")

    @contextmanager
    def side(self) -> Iterator[None]:
        before, self.current = self.current, "side"
        try:
            yield
        finally:
            self.current = before

    def record(self) -> Event:
        return Event(self.current, self._count[self.current])

    def wait(self, event: Event) -> None:
        if self.current != event.stream:
            self.synchronize(event)

    def synchronize(self, event: Event) -> None:
        if event.stream != self.late:
            return
        done = self._count[self.late] - len(self._queue)
        ahead = max(0, event.behind - done)
        ready, self._queue = self._queue[:ahead], self._queue[ahead:]
        for queued in ready:
            self.log.append(queued.what)
            with torch.no_grad():
                queued.run()

    def finish(self) -> None:
        """Run everything that is queued."""
        self.synchronize(Event(self.late, self._count[self.late]))

    def _memory(self, kind: str, numel: int) -> Tensor:
        memory = torch.full((numel,), math.nan)
        self._names[_memory_of(memory)] = kind
        return memory

    def _name(self, tensor: Tensor) -> str:
        return self._names.get(_memory_of(tensor), "other")


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
