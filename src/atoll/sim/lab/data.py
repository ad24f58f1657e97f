"""What the lab trains on: one stream of examples for everybody, dealt out to the learners.

The examples of a task are put into one order that follows from the seed. Step j of the whole fleet takes
examples j B to (j + 1) B of it, and learner m the m-th part of those. So Data-Parallel at the same batch sees
in step j exactly what all learners together see in theirs, whatever their number: that makes runs pairs. A
learner that is slower falls behind in its own part of the stream; one with fewer chips takes fewer examples
and leaves the rest for later.

With `own_parts` each learner is dealt from another part of the library instead, in an order of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from atoll.recipes import examples, order, text
from atoll.sim.lab.cell import Cell, Size, Task
from atoll.sim.lab.sizes import WINDOW

__all__ = ["Data", "Examples", "Stream", "data_of"]

TRAIN_BYTES = {"0.05M": 4_000_000, "tiny": 4_000_000}
"""Of text to read; for larger models all there is."""
ALL_BYTES = 32_000_000
HELDOUT_BYTES = 128_000
HELDOUT_VARIANTS = 64
"""Of every held-out digit. With eight, which images happened to be there moved the difference of two runs by
1.1 % (standard error, seed 3); with these by 0.4 %. On 128,000 bytes of text it is 0.15 %."""
REACH = torch.arange(WINDOW + 1)
"""A window and the byte after it."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs and targets of some examples."""

    inputs: Tensor
    """[N, T] bytes or [N, 1, 8, 8] pictures."""
    targets: Tensor
    """[N, T] or [N]."""


@dataclass(frozen=True, slots=True)
class Data:
    """One side of a task's data, or one learner's part of it."""

    values: Tensor
    """A row of bytes, or pictures."""
    labels: Tensor | None = None
    """What the pictures show; None for a text."""

    def __len__(self) -> int:
        return len(self.values) if self.labels is not None else (len(self.values) - 1) // WINDOW

    def take(self, indices: Tensor) -> Examples:
        """The examples with these numbers."""
        if self.labels is not None:
            return Examples(self.values[indices], self.labels[indices])
        windows = self.values[(indices * WINDOW)[:, None] + REACH].long()
        return Examples(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())


@dataclass(slots=True)
class Stream:
    """One learner's examples in order. `place` is its cursor, and stays when the learner dies."""

    data: Data
    seed: int
    part: int
    """Names the order: 0 for the one that all share."""
    first: int = 0
    size: int = 1
    stride: int = 1
    """Of every `stride` examples the learner gets `size`, from `first` on."""
    place: int = 0
    epoch: int = field(default=-1)
    perm: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))

    def take(self, count: int) -> Examples:
        """The next examples."""
        numbers = range(self.place, self.place + count)
        self.place += count
        places = [at // self.size * self.stride + self.first + at % self.size for at in numbers]
        whole = len(self.data)
        epochs = range(places[0] // whole, places[-1] // whole + 1)
        parts = [self._of(epoch, [at % whole for at in places if at // whole == epoch]) for epoch in epochs]
        return self.data.take(torch.cat(parts) if len(parts) > 1 else parts[0])

    def _of(self, epoch: int, places: list[int]) -> Tensor:
        """The examples at these places of one epoch."""
        if epoch != self.epoch:
            self.epoch, self.perm = epoch, order.permutation(len(self.data), self.seed, self.part, epoch)
        return self.perm[places]


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides."""

    train: Data
    heldout: Data


def data_of(cell: Cell) -> tuple[list[Stream], Examples]:
    """A stream for every learner, those beyond the first ones too, and all held-out examples."""
    found = _load(cell.task, cell.size)
    slots = cell.learners + cell.fleet.extra
    each = cell.batch // cell.learners
    if cell.own_parts:
        parts = _parts(slots, cell.size)
        streams = [Stream(part, cell.seed, 1 + m) for m, part in enumerate(parts)]
    else:
        streams = [Stream(found.train, cell.seed, 0, m * each, each, slots * each) for m in range(slots)]
    return streams, found.heldout.take(torch.arange(len(found.heldout)))


@lru_cache(maxsize=2)
def _load(task: Task, size: Size) -> Sides:
    if task == "vision":
        split = examples.augmented_digits(HELDOUT_VARIANTS)
        return Sides(*(Data(side.pixels, side.labels) for side in (split.train, split.heldout)))
    texts = text.read(None, TRAIN_BYTES.get(size, ALL_BYTES), HELDOUT_BYTES)
    return Sides(_joined(texts.train), _joined(texts.heldout))


@lru_cache(maxsize=2)
def _parts(count: int, size: Size) -> list[Data]:
    parts, _ = examples.parts(count, WINDOW, TRAIN_BYTES.get(size, ALL_BYTES), HELDOUT_BYTES)
    return [Data(part) for part in parts]


def _joined(documents: list[bytes]) -> Data:
    return Data(torch.frombuffer(bytearray(b"\0".join(documents)), dtype=torch.uint8))
