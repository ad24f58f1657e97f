"""How much of the outer momentum a moment of the run has.

Momentum makes up for merged deltas that are short because learners partly cancel each other out. At the start
it gets in the way: deltas still turn from round to round, and the first ones, which are the longest, would be
repeated for dozens of rounds. At the end it keeps the model moving around the point that the learners'
falling rate settles on. So mu rises from 0 over the first share of the budget and falls back to 0 over the
last (`momentum_factor`). `atoll lab run closing-the-gap` measures what that is worth.

The factor belongs to the round: it is computed when the merge is asked for and stored in its record, so that
a restart and a replay take the very same step, also after the budget was changed.

Differs: the paper keeps mu as it is, as far as is known; it publishes neither eta nor mu.
"""

from __future__ import annotations

from atoll.core.params import RunParams

__all__ = ["factor_at", "momentum_factor"]


def factor_at(params: RunParams, t: int, merged_tokens: int) -> float:
    """What mu is multiplied by at a tick of a run, with so many tokens merged into all fragments."""
    progress = params.progress(t, merged_tokens)
    return momentum_factor(progress, params.momentum_warmup, params.momentum_cooldown)


def momentum_factor(progress: float | None, warmup: float, cooldown: float) -> float:
    """What mu is multiplied by, 0 to 1; `warmup` and `cooldown` are shares of the budget, 0 turns one off.

    Without a budget there is no progress (None), hence no beginning and no end: 1.
    """
    if progress is None:
        return 1.0
    rise = progress / warmup if warmup else 1.0
    fall = (1.0 - progress) / cooldown if cooldown else 1.0
    return min(1.0, max(0.0, rise)) * min(1.0, max(0.0, fall))
