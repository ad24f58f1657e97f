"""The ferry: moves fragments between a GPU and the host while training goes on.

Work on a GPU is queued on streams, and two streams know nothing of each other's order unless one waits
for an event of the other. The user's loop runs on the training stream; the ferry has a side stream of its
own. A snapshot goes out in two legs, a published version comes in in two:

    out  training stream: gather the parameters into a device buffer, record
         side stream:     wait for that; copy the buffer to pinned host memory, record the arrival
         worker:          sleep until the arrival, then read the host memory
    in   side stream:     copy the staged version into a device buffer, record `ready`   (`prefetch`)
         training stream: wait for `ready`, scatter into the parameters, record          (`land`)

So the training thread only queues work, and the training stream only copies within the device. A device
buffer is used again by whoever first makes its own stream wait for the buffer's last use. Buffers are
never given back to torch's allocator, which would not know of the other stream.

Snapshots need pinned memory: from elsewhere the copy would hold the training thread. Staged versions do
not: there it is the worker that is held.

On a CPU there is no ferry, and a snapshot is a plain copy. `CudaDevice` has not been run on a GPU by us:
the order of operations is tested with a fake device, which runs one stream as late as it may.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from atoll.numerics.local import Copy

__all__ = ["Cargo", "CudaDevice", "Device", "Ferry"]

NUM_BUFFERS = 2
"""Device buffers in each direction, each as large as the largest fragment."""


class Device(Protocol):
    """What a ferry needs of a GPU. The current stream is the thread's own, as in torch."""

    def empty(self, numel: int) -> Tensor:
        """Device memory for f32 values."""
        ...

    def pinned(self, numel: int) -> Tensor:
        """Host memory for f32 values, which the device can copy to by itself."""
        ...

    def copy(self, target: Tensor, source: Tensor) -> object:
        """Queue a copy on the current stream."""
        ...

    def side(self) -> AbstractContextManager[object]:
        """Make the side stream the current one for a while."""
        ...

    def record(self) -> Any:
        """An event that happens when everything queued so far on the current stream is done."""
        ...

    def wait(self, event: Any) -> None:
        """Let the current stream, not the caller, wait for an event."""
        ...

    def synchronize(self, event: Any) -> None:
        """Let the caller wait for an event."""
        ...


@dataclass(slots=True, eq=False)
class _Buffer:
    """Device memory, and the event after which it may be written again."""

    values: Tensor
    free: Any


@dataclass(frozen=True, slots=True, eq=False)
class Cargo:
    """A version on its way into the device, to be given to `land` or `drop` once."""

    values: Tensor
    ready: Any
    buffer: _Buffer


class Ferry:
    """Device buffers and the order in which two streams and the host may touch them."""

    def __init__(self, device: Device, largest: int) -> None:
        """`largest` is the number of values of the largest fragment. Training thread."""
        self._device = device
        self._out = deque(self._buffer(largest) for _ in range(NUM_BUFFERS))
        self._in = deque(self._buffer(largest) for _ in range(NUM_BUFFERS))

    def pinned(self, numel: int) -> Tensor:
        """Host memory for a snapshot. Slow to get: keep it."""
        return self._device.pinned(numel)

    def lift(self, host: Tensor, gather: Callable[[Tensor, Copy], object]) -> Any:
        """Queue a snapshot: `gather` fills a device buffer, which is then copied to pinned memory.

        Training thread. Returns the arrival, to be given to `arrived` before the host memory is read.
        """
        device, buffer = self._device, self._out[0]
        values = buffer.values[: host.numel()]
        device.wait(buffer.free)
        gather(values, device.copy)
        gathered = device.record()
        with device.side():
            device.wait(gathered)
            device.copy(host, values)
            buffer.free = device.record()
        self._out.rotate(-1)
        return buffer.free

    def arrived(self, arrival: Any) -> None:
        """Sleep until a snapshot is in host memory. Worker."""
        self._device.synchronize(arrival)

    def prefetch(self, version: Tensor) -> Cargo | None:
        """Queue the copy of a staged version to the device; None if all buffers are taken. Worker."""
        if not self._in:
            return None
        device, buffer = self._device, self._in.popleft()
        values = buffer.values[: version.numel()]
        with device.side():
            device.wait(buffer.free)
            device.copy(values, version)
            return Cargo(values, device.record(), buffer)

    def land(self, cargo: Cargo, scatter: Callable[[Tensor, Copy], object]) -> None:
        """Queue the adoption of a prefetched version: `scatter` reads it from the device. Training thread."""
        self._device.wait(cargo.ready)
        scatter(cargo.values, self._device.copy)
        cargo.buffer.free = self._device.record()
        self._in.append(cargo.buffer)

    def drop(self, cargo: Cargo) -> None:
        """Give up a prefetched version."""
        cargo.buffer.free = cargo.ready
        self._in.append(cargo.buffer)

    def _buffer(self, numel: int) -> _Buffer:
        """New memory may still be in use by what the current stream did with it before."""
        return _Buffer(self._device.empty(numel), self._device.record())


class CudaDevice:
    """One CUDA device and a side stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types here

    def empty(self, numel: int) -> Tensor:
        """Device memory for f32 values."""
        return torch.empty(numel, dtype=torch.float32, device=self._device)

    def pinned(self, numel: int) -> Tensor:
        """Page-locked host memory."""
        return torch.empty(numel, dtype=torch.float32, device="cpu", pin_memory=True)

    def copy(self, target: Tensor, source: Tensor) -> object:
        """Queue a copy on the current stream."""
        return target.copy_(source, non_blocking=True)

    def side(self) -> AbstractContextManager[object]:
        """Make the side stream the current one."""
        return torch.cuda.stream(self._side)

    def record(self) -> torch.cuda.Event:
        """An event on the current stream. `blocking`: who waits for it sleeps instead of spinning."""
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch has no types here
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait(self, event: torch.cuda.Event) -> None:
        """Let the current stream wait."""
        torch.cuda.current_stream(self._device).wait_event(event)

    def synchronize(self, event: torch.cuda.Event) -> None:
        """Let the caller sleep until the event."""
        event.synchronize()
