"""How much an offer counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["capped", "token_weight"]


def token_weight(tokens: int, steps: int) -> float:
    """w = c_tokens * (c_tokens / c_steps): linear in steps, quadratic in the batch.

    Paper: token weighting of contributors, arXiv:2604.21428v1. Exact oracle: 22 steps of
    1e6 tokens weigh 2.2e13, with half the batch 5.5e12.
    """
    if steps <= 0 or tokens <= 0:
        return 0.0
    return tokens * tokens / steps


def capped(weights: Sequence[float], max_share: float) -> list[float]:
    """The same weights, with none above its share of their sum; equal ones, if there are too few for that.

    Whoever is above gets exactly the share; the others keep their weights, and so their ratios.
    """
    if max_share * len(weights) <= 1.0:
        return [1.0] * len(weights) if max_share < 1.0 and len(weights) > 1 else list(weights)
    above: set[int] = set()
    while True:
        rest = math.fsum(weight for index, weight in enumerate(weights) if index not in above)
        left = 1.0 - max_share * len(above)
        if left <= 0.0:  # only by rounding, if the others weigh nothing beside those above
            return [1.0] * len(weights)
        limit = rest * max_share / left
        more = {i for i, weight in enumerate(weights) if i not in above and weight > limit}
        if not more:
            return [limit if index in above else weight for index, weight in enumerate(weights)]
        above |= more
