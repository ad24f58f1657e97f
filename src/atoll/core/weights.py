"""How much an offer counts."""

from __future__ import annotations

__all__ = ["token_weight"]


def token_weight(tokens: int, steps: int) -> float:
    """w = c_tokens * (c_tokens / c_steps): linear in steps, quadratic in the batch.

    Paper: token weighting of contributors, arXiv:2604.21428v1. Exact oracle: 22 steps of
    1e6 tokens weigh 2.2e13, with half the batch 5.5e12.
    """
    if steps <= 0 or tokens <= 0:
        return 0.0
    return tokens * tokens / steps
