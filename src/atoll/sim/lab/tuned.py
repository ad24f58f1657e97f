"""The settings that the sweeps found, for every method alike, and cells made with them.

At `tiny` and M = 4 each method was swept by coordinate (`atoll lab run sweep`); at other M and sizes three
learning rates around the transferred best were tried (`atoll lab run rates`). docs/results.md shows it all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from atoll.sim.lab.cell import Cell, Method, Size, Task
from atoll.sim.lab.sizes import tokens_of

__all__ = ["Tuned", "cell_for", "fragments_of", "tuned"]


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a sweep chooses."""

    learning_rate: float
    batch: int
    eta: float = 0.4
    mu: float = 0.9


SWEPT: dict[Method, Tuned] = {
    "data-parallel": Tuned(8e-3, 8),
    "diloco": Tuned(8e-3, 16, 0.7, 0.9),
    "streaming": Tuned(8e-3, 16, 0.4, 0.9),
    "decoupled": Tuned(8e-3, 16, 0.4, 0.9),
}
"""At `tiny`, text, M = 4. Elastic Data-Parallel takes the settings of Data-Parallel."""

RATES: dict[tuple[Task, Size, Method, int], float] = {}
"""Learning rates chosen among three, where they differ from the transferred one; M is 1 for Data-Parallel."""


FEW_FRAGMENTS = 12
"""P of the smallest models, as in the recipes of that size: half the rounds, each of twice the values."""
MOST_FRAGMENTS = 24


def fragments_of(size: Size, interval_steps: int = 24) -> int:
    """P for models of this size, at most H."""
    return min(interval_steps, FEW_FRAGMENTS if size in ("0.05M", "tiny") else MOST_FRAGMENTS)


def tuned(task: Task, size: Size, method: Method, learners: int) -> Tuned:
    """The settings for one method at one place of the table."""
    base: Method = "data-parallel" if method == "elastic" else method
    found = SWEPT[base]
    num_learners = 1 if base == "data-parallel" else learners
    rate = RATES.get((task, size, base, num_learners), found.learning_rate)
    batch = -(-found.batch // num_learners) * num_learners
    return replace(found, learning_rate=rate, batch=batch)


def cell_for(
    method: Method, learners: int, seed: int, *, task: Task = "text", size: Size = "tiny", **changes: Any
) -> Cell:
    """A cell at its tuned settings, with changes on top."""
    found = tuned(task, size, method, learners)
    settings: dict[str, Any] = {
        "tokens": tokens_of(task, size),
        "batch": found.batch,
        "learning_rate": found.learning_rate,
        "eta": found.eta,
        "mu": found.mu,
        "num_fragments": fragments_of(size, changes.get("interval_steps", 24)),
        **changes,
    }
    return Cell(task=task, size=size, method=method, learners=learners, seed=seed, **settings)
