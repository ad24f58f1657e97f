"""The models of the lab: their shapes, which are those of the recipes, and how long each is trained.

Sizes go from 0.05M to 0.8M parameters, a factor of 16; `tiny` is about 0.1M and `small` about 0.8M. Texts are
trained on about 17 tokens per parameter, mixtures of experts on 15 to 18, pictures on 1.3 (`tiny`) or 0.5
(`small`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from atoll.errors import ConfigError
from atoll.recipes.shapes import LEAN_SHAPES, NUM_PATCHES, WINDOW
from atoll.sim.lab.cell import Size, Task

__all__ = ["NUM_PATCHES", "WINDOW", "shape_of", "tokens_of"]

Value = TypeVar("Value")

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
    return _look_up(LEAN_SHAPES, task, size)


def tokens_of(task: Task, size: Size) -> int:
    """Tokens (images) that a run at this size is given."""
    return _look_up(TOKENS, task, size)


def _look_up(table: Mapping[Any, Value], task: Task, size: Size) -> Value:
    if (task, size) not in table:
        there = [other for known, other in TOKENS if known == task]
        raise ConfigError(
            f"The lab has no {task} model of size {size}.",
            "There is nothing to train.",
            f"Choose one of {', '.join(there)}.",
        )
    return table[task, size]
