"""The settings that the sweeps found, for every method alike, and cells made with them.

At `tiny` and M = 4 each method was swept by coordinate (`atoll lab run sweep`); at other M and sizes learning
rates around the transferred best were tried (`rates`), and at other sizes batches (`batches`).
docs/results.md shows it all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from atoll.sim.lab.cell import SIZES, Cell, Method, Size, Task
from atoll.sim.lab.sizes import NUM_PATCHES, WINDOW, tokens_of

__all__ = [
    "PAPER_WINDOW",
    "RATE_STEP",
    "TUNING_SEED",
    "Settings",
    "Tuned",
    "at_law",
    "carried",
    "cell_for",
    "doubled",
    "fragments_of",
    "is_floored",
    "rounded",
    "steps_above",
    "steps_below",
    "transferred",
    "tuned",
]


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a sweep chooses."""

    learning_rate: float
    batch: int
    eta: float = 0.4
    mu: float = 0.9
    merge_rule: str = "mean"
    """Not swept. DiLoCo and Streaming were published with the mean; for Decoupled `merge-rule` compared."""
    momentum_warmup: float = 0.0
    momentum_cooldown: float = 0.0
    overlap_steps: int = 2
    grace_rule: str = "slack"
    grace_max_steps: float = 1.0


Settings: TypeAlias = Method | Literal["defaults"]
"""Whose settings: a method's, with momentum that stays as it is, or those of Decoupled by our defaults, where
it warms up and cools down and rounds wait for the late by worth. Most experiments were made before those
were known."""

SWEPT: dict[Settings, Tuned] = {
    "data-parallel": Tuned(1.41e-3, 1),
    "diloco": Tuned(4e-3, 4, 0.7, 0.9),
    "streaming": Tuned(7.99e-3, 4, 0.4, 0.9),
    "decoupled": Tuned(4e-3, 4, 0.7, 0.9),
}
"""At `tiny`, text, M = 4. Elastic Data-Parallel takes the settings of Data-Parallel."""
SWEPT["defaults"] = replace(
    SWEPT["decoupled"],
    momentum_warmup=0.1,
    momentum_cooldown=0.2,
    overlap_steps=5,
    grace_rule="worth",
    grace_max_steps=4.0,
)
"""Batch, eta and mu were not swept again with the schedule of momentum; rates were tried (RATES)."""
PAPER_WINDOW: Mapping[str, Any] = MappingProxyType(
    {"overlap_steps": 2, "grace_rule": "slack", "grace_max_steps": 1.0}
)
"""How many rounds gather at once and how long they wait in the paper. Methods that wait for everybody keep
it, whosever settings they take, and so do the runs that choose rates, which are older than our own."""

RATES: dict[tuple[Task, Settings, int], float] = {
    ("text", "diloco", 2): 2e-3,
    ("text", "diloco", 8): 1.6e-2,
    ("text", "streaming", 8): 1.6e-2,
    ("text", "decoupled", 1): 2.83e-3,
    ("text", "decoupled", 8): 1.13e-2,
    ("text", "decoupled", 16): 1.13e-2,
    ("text", "defaults", 2): 1.41e-3,
    ("text", "defaults", 4): 2.83e-3,
    ("text", "defaults", 8): 1.6e-2,
    ("moe", "data-parallel", 1): 1.99e-3,
    ("moe", "streaming", 4): 5.65e-3,
    ("moe", "defaults", 4): 2e-3,
    ("vision", "data-parallel", 1): 7.05e-4,
    ("vision", "streaming", 4): 9.99e-4,
    ("vision", "decoupled", 4): 7.07e-4,
    ("vision", "defaults", 4): 1e-3,
}
"""At `tiny`: the best of those tried where it is not the transferred rate; M is 1 for Data-Parallel. What it
is by more or less than the transferred rate is carried to other sizes."""
STEPS: dict[tuple[Size, Settings, int], int] = {
    ("0.05M", "data-parallel", 1): 2,
    ("0.05M", "defaults", 2): 1,
    ("0.05M", "defaults", 4): 0,
    ("0.05M", "defaults", 8): -1,
    ("0.2M", "data-parallel", 1): 1,
    ("0.2M", "defaults", 2): 0,
    ("0.2M", "defaults", 4): -1,
    ("0.2M", "defaults", 8): -5,
    ("0.4M", "data-parallel", 1): -1,
    ("0.4M", "defaults", 2): -1,
    ("0.4M", "defaults", 4): -2,
    ("0.4M", "defaults", 8): -7,
    ("small", "data-parallel", 1): -1,
    ("small", "defaults", 2): 0,
    ("small", "defaults", 4): -3,
    ("small", "defaults", 8): -6,
}
"""At other sizes: how many steps of `RATE_STEP` the best rate is above the one that follows from `tiny`, for
Data-Parallel (M is 1) and for Decoupled by its defaults at each M, which all others with learners follow.
Where it was not tried yet, that of the next smaller size is taken (`atoll lab run rates`). Tried on text, and
so for text alone."""
DOUBLINGS: dict[tuple[Size, Settings, int], int] = {
    ("0.05M", "data-parallel", 1): 1,
    ("0.2M", "data-parallel", 1): 1,
    ("0.2M", "defaults", 2): -1,
    ("0.4M", "data-parallel", 1): 1,
    ("small", "data-parallel", 1): 2,
}
"""In the same way: how many times the best batch is twice that of the law, with the rate times the root
(`atoll lab run batches`). Where it was not tried, the batch is that of the law."""

RATE_STEP = math.sqrt(2)
"""Between two learning rates that are tried."""
LARGER: tuple[Size, ...] = SIZES[SIZES.index("tiny") + 1 :]
"""Sizes above `tiny`, where what one chose is tried at the next."""
TUNING_SEED = 0
"""Settings are chosen at a seed that no comparison uses."""
NUM_FRAGMENTS = 12
"""P of all models: they are small, and twelve rounds per cycle cost half of the paper's 24."""
RATE_EXPONENT, BATCH_EXPONENT = -0.125, 0.3271
"""Of compute: best rate and best batch of language models by DeepSeek LLM (arXiv 2401.02954)."""


def fragments_of(interval_steps: int) -> int:
    """P, at most H."""
    return min(interval_steps, NUM_FRAGMENTS)


def is_floored(task: Task, size: Size, learners: int) -> bool:
    """Whether Decoupled takes a larger batch than it would choose, because each learner takes an example."""
    return transferred(task, size, "decoupled", learners).batch > _wanted(task, size, "decoupled")


def transferred(task: Task, size: Size, method: Settings, learners: int) -> Tuned:
    """The swept settings, moved to another size and M.

    Rate and batch follow compute, which grows as the square of the tokens, for tokens are in proportion to
    parameters. The batch is a power of two, and at least one example for each learner; where that makes it
    larger, the rate grows by the root. Rates have three digits. Four images take the place of a window.
    """
    found = SWEPT[method]
    wanted = _wanted(task, size, method)
    batch = math.ceil(wanted / learners) * learners
    rate = found.learning_rate * _compute(task, size) ** RATE_EXPONENT * math.sqrt(batch / wanted)
    return replace(found, learning_rate=rounded(rate), batch=batch)


def _wanted(task: Task, size: Size, method: Settings) -> float:
    """The batch by compute alone; below one example where the law goes there."""
    each = WINDOW // NUM_PATCHES if task == "vision" else 1
    return each * 2.0 ** round(math.log2(SWEPT[method].batch * _compute(task, size) ** BATCH_EXPONENT))


def _compute(task: Task, size: Size) -> float:
    """Of a run at this size, in runs at `tiny`: tokens are in proportion to parameters."""
    return (tokens_of(task, size) / tokens_of(task, "tiny")) ** 2


def carried(task: Task, size: Size, method: Settings, learners: int) -> Tuned:
    """The transferred settings, with the rate that `tiny` chose at this M carried to the size."""
    found = transferred(task, size, method, learners)
    at_tiny = transferred(task, "tiny", method, learners).learning_rate
    rate = found.learning_rate * RATES.get((task, method, learners), at_tiny) / at_tiny
    return replace(found, learning_rate=rounded(rate))


def steps_below(size: Size, settings: Settings, learners: int) -> int:
    """The steps that were best at the next smaller size at which it was tried; 0 where that is `tiny`, whose
    rate is carried."""
    smaller = LARGER[: LARGER.index(size)] if size in LARGER else ()
    tried = [STEPS[one, settings, learners] for one in smaller if (one, settings, learners) in STEPS]
    return tried[-1] if tried else 0


def steps_above(size: Size, settings: Settings, learners: int) -> int | None:
    """The steps that were best at the next larger size; None if none is larger, or it was not tried there."""
    larger = LARGER[LARGER.index(size) + 1 :] if size in LARGER else ()
    return STEPS.get((larger[0], settings, learners)) if larger else None


def at_law(task: Task, size: Size, method: Settings, learners: int) -> Tuned:
    """The settings for one method at one place of the table, at the batch that follows from `tiny`."""
    found = carried(task, size, method, learners)
    if task != "text":
        return found
    tried = _tried_for(method)
    steps = STEPS.get((size, tried, learners), steps_below(size, tried, learners))
    return replace(found, learning_rate=rounded(found.learning_rate * RATE_STEP**steps))


def tuned(task: Task, size: Size, method: Settings, learners: int) -> Tuned:
    """The settings for one method at one place of the table."""
    base: Settings = "data-parallel" if method == "elastic" else method
    found = at_law(task, size, base, learners)
    return found if task != "text" else doubled(found, DOUBLINGS.get((size, _tried_for(base), learners), 0))


def doubled(found: Tuned, times: int) -> Tuned:
    """The same with the batch doubled so many times (halved if below zero), the rate times the root of it.
    Whether so many learners can have such a batch is the caller's to know."""
    rate = rounded(found.learning_rate * RATE_STEP**times)
    return replace(found, learning_rate=rate, batch=int(found.batch * 2.0**times))


def _tried_for(method: Settings) -> Settings:
    """At other sizes: whose rates and batches were tried for it."""
    return method if method == "data-parallel" else "defaults"


def rounded(rate: float) -> float:
    """Rates have three digits."""
    return float(f"{rate:.3g}")


def cell_for(
    method: Method, learners: int, seed: int, *, task: Task = "text", size: Size = "tiny", **changes: Any
) -> Cell:
    """A cell at its tuned settings, with changes on top. Data-Parallel has no learners: M is 1."""
    learners = 1 if method in ("data-parallel", "elastic") else learners
    found = tuned(task, size, method, learners)
    settings: dict[str, Any] = {
        "tokens": tokens_of(task, size),
        **asdict(found),
        "num_fragments": fragments_of(changes.get("interval_steps", 24)),
        **changes,
    }
    return Cell(task=task, size=size, method=method, learners=learners, seed=seed, **settings)
