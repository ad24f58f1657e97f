"""The models of the lab: their shapes, and how long each is trained.

Sizes go from 0.05M to 0.8M parameters, a factor of 16; `tiny` is about 0.1M and `small` about 0.8M. All are
trained on about 17 tokens per parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from atoll.sim.lab.cell import Size, Task

__all__ = ["SHAPES", "WINDOW", "shape_of", "tokens_of"]

WINDOW = 64
"""Tokens of one example of text."""

SHAPES: Mapping[tuple[Task, Size], Mapping[str, int]] = MappingProxyType({
    ("text", "0.05M"): {"width": 40, "layers": 2, "heads": 4},
    ("text", "tiny"): {"width": 56, "layers": 2, "heads": 4},
    ("text", "0.2M"): {"width": 72, "layers": 3, "heads": 4},
    ("text", "0.4M"): {"width": 96, "layers": 3, "heads": 6},
    ("text", "small"): {"width": 128, "layers": 4, "heads": 8},
    ("moe", "tiny"): {"width": 48, "layers": 2, "heads": 3, "experts": 4, "hidden": 96},
    ("moe", "small"): {"width": 96, "layers": 4, "heads": 6, "experts": 4, "hidden": 192},
    ("vision", "tiny"): {"width": 56, "layers": 2, "heads": 4},
    ("vision", "small"): {"width": 128, "layers": 4, "heads": 8},
})  # fmt: skip

TOKENS: Mapping[tuple[Task, Size], int] = MappingProxyType({
    ("text", "0.05M"): 860_160,
    ("text", "tiny"): 1_572_864,
    ("text", "0.2M"): 3_538_944,
    ("text", "0.4M"): 6_291_456,
    ("text", "small"): 13_762_560,
    ("moe", "tiny"): 1_572_864,
    ("moe", "small"): 13_762_560,
    ("vision", "tiny"): 98_304,
    ("vision", "small"): 393_216,
})  # fmt: skip


def shape_of(task: Task, size: Size) -> Mapping[str, int]:
    """Arguments of the network."""
    return SHAPES[task, size]


def tokens_of(task: Task, size: Size) -> int:
    """Tokens (images) that a run at this size is given."""
    return TOKENS[task, size]
