"""The shapes of the lean networks, by kind and size: `tiny` and `small` for the recipes, all for the lab.

A text's sizes go from 0.05M to 0.8M parameters; `tiny` is about 0.1M and `small` about 0.8M of every kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["LEAN_SHAPES", "NUM_PATCHES", "PATCH", "SIDE", "WINDOW"]

WINDOW = 64
"""Tokens of one example of text; a network has as many places."""
SIDE, PATCH = 8, 2
NUM_PATCHES = (SIDE // PATCH) ** 2
"""Places of one picture."""

LEAN_SHAPES: Mapping[tuple[str, str], Mapping[str, int]] = MappingProxyType({
    ("text", "0.05M"): {"width": 40, "layers": 2, "heads": 2},
    ("text", "tiny"): {"width": 56, "layers": 2, "heads": 2},
    ("text", "0.2M"): {"width": 72, "layers": 3, "heads": 3},
    ("text", "0.4M"): {"width": 96, "layers": 3, "heads": 3},
    ("text", "small"): {"width": 128, "layers": 4, "heads": 4},
    ("moe", "tiny"): {"width": 48, "layers": 2, "heads": 2, "experts": 4, "hidden": 96},
    ("moe", "small"): {"width": 96, "layers": 4, "heads": 3, "experts": 4, "hidden": 192},
    ("vision", "tiny"): {"width": 56, "layers": 2, "heads": 2},
    ("vision", "small"): {"width": 128, "layers": 4, "heads": 4},
})  # fmt: skip
