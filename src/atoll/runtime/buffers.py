"""Float buffers of learners, for export: reported every H steps, kept as they came last.

Buffers (running means of a BatchNorm, for example) stay local to a learner and are never merged. So that an
exported model is whole, each learner reports its own; the export takes their mean, weighted by tokens.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import safetensors.torch
import torch
from torch import Tensor

from atoll.errors import WireError
from atoll.wire.messages import BufferValues

__all__ = ["BUFFER_LIMIT", "LearnerBuffers", "in_groups"]

GROUP = 256
"""Buffers reported in one message, so that their names fit it."""
BUFFER_LIMIT = 256 << 20
"""Bytes of buffers, as f32, that the syncer keeps of one learner."""


@dataclass(slots=True)
class LearnerBuffers:
    """The newest values of one learner, and the tokens that stand behind them."""

    tokens: int = 0
    values: dict[str, Tensor] = field(default_factory=dict)
    is_news: bool = False
    """Not on disk yet."""

    def take(self, message: BufferValues, content: memoryview, known: Collection[str]) -> None:
        """A report of buffers that the model has; one whose shapes do not fit its content is a mistake."""
        sizes = [math.prod(shape) for shape in message.shapes]
        extents = [extent for shape in message.shapes for extent in shape]
        fits = len(sizes) == len(message.names) and 4 * sum(sizes) == len(content) > 0
        if not fits or min(extents, default=0) < 0 or message.tokens < 0:
            raise WireError(f"{message.name} reported buffers whose shapes do not fit their content.")
        flat = torch.frombuffer(content, dtype=torch.float32)
        parts = torch.split(flat, sizes)
        for name, shape, part in zip(message.names, message.shapes, parts, strict=True):
            if name in known:
                self.values[name] = part.reshape(shape)
        self.tokens, self.is_news = message.tokens, True
        if sum(value.nbytes for value in self.values.values()) > BUFFER_LIMIT:
            self.values.clear()
            raise WireError(f"{message.name} reported more than {BUFFER_LIMIT} bytes of buffers.")

    def to_bytes(self) -> bytes:
        """As a safetensors file."""
        tensors = {name: value.clone() for name, value in self.values.items()}
        return safetensors.torch.save(tensors, {"tokens": str(self.tokens)})


def in_groups(buffers: list[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    """Groups small enough for one message."""
    for at in range(0, len(buffers), GROUP):
        yield buffers[at : at + GROUP]
