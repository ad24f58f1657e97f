"""The settings that the sweeps found, for every method alike, and cells made with them.

At `tiny` and M = 4 each method was swept by coordinate (`atoll lab run sweep`); at other M and sizes three
learning rates around the transferred best were tried (`atoll lab run rates`). docs/results.md shows it all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from atoll.sim.lab.cell import Cell, Method, Size, Task
from atoll.sim.lab.sizes import tokens_of

__all__ = ["TUNING_SEED", "Tuned", "cell_for", "fragments_of", "transferred", "tuned"]


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


TUNING_SEED = 0
"""Settings are chosen at a seed that no comparison uses."""
NUM_FRAGMENTS = 12
"""P of all models: they are small, and twelve rounds per cycle cost half of the paper's 24."""
SIZE_EXPONENT = -0.25


def fragments_of(interval_steps: int) -> int:
    """P, at most H."""
    return min(interval_steps, NUM_FRAGMENTS)


def transferred(task: Task, size: Size, method: Method) -> float:
    """The swept learning rate, moved to another size with tokens to the power -1/4, to three digits.

    That is compute to the -1/8, the rule of DeepSeek LLM (arXiv 2401.02954) for language models.
    """
    ratio = tokens_of(task, size) / tokens_of(task, "tiny")
    return float(f"{SWEPT[method].learning_rate * ratio**SIZE_EXPONENT:.3g}")


def tuned(task: Task, size: Size, method: Method, learners: int) -> Tuned:
    """The settings for one method at one place of the table."""
    base: Method = "data-parallel" if method == "elastic" else method
    found = SWEPT[base]
    num_learners = 1 if base == "data-parallel" else learners
    rate = RATES.get((task, size, base, num_learners), transferred(task, size, base))
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
        "num_fragments": fragments_of(changes.get("interval_steps", 24)),
        **changes,
    }
    return Cell(task=task, size=size, method=method, learners=learners, seed=seed, **settings)
