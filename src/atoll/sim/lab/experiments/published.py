"""How far DiLoCo is from Data-Parallel by published measurements, and our extension of them to small models.

`AUTHORS` are the figures of the scaling laws of DiLoCo (arXiv 2503.09799, Table 4): H = 30, 20 tokens per
parameter, every method at its own best batch and learning rate, 35M to 10B parameters. Our models are far
smaller, so `extended_gap` continues them downward. That is our inference and nobody's measurement, and is
labelled so wherever it is shown: a power law through the authors' point at 35M for each M, with the exponent
at which their gap shrinks (N^-0.45 at M = 4, N^-0.3 at M = 8; at M = 2, where the gap vanishes within their
range, N^-0.49), and never above the law of a larger M.

The extension spans a factor of hundreds, and gives limits of 10 to 30 % at the lab's sizes. A gap below it is
a weak statement; a gap above it would be a bad sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["AUTHORS", "EXPONENTS", "EXTENSION", "RULE", "extended_gap", "law"]

AUTHORS: Mapping[int, tuple[tuple[float, float], ...]] = MappingProxyType({
    2: ((35e6, 0.7), (90e6, 0.5), (180e6, 0.3), (335e6, 0.1), (550e6, 0.2), (1.3e9, 0.2), (2.4e9, -0.1),
        (4e9, -0.18), (10e9, -0.19)),
    4: ((35e6, 2.0), (90e6, 1.5), (180e6, 1.1), (335e6, 0.9), (550e6, 0.7), (1.3e9, 0.5), (2.4e9, 0.3),
        (4e9, 0.18), (10e9, 0.29)),
    8: ((35e6, 3.9), (90e6, 3.1), (180e6, 2.3), (335e6, 2.0), (550e6, 1.7), (1.3e9, 1.3), (2.4e9, 1.1)),
})  # fmt: skip
"""By M: (parameters, gap to Data-Parallel in percent of its loss)."""

EXPONENTS: Mapping[int, float] = MappingProxyType({2: 0.49, 4: 0.45, 8: 0.3})
"""By M: the gap shrinks as parameters to the minus this."""

EXTENSION = "published, extended (ours)"
"""What a column or a line of `extended_gap` is called."""

RULE = (
    "Published: DiLoCo at H=30 (arXiv 2503.09799, Table 4), measured by its authors from 35M parameters up. "
    "Extended (ours): through their 35M point as N^-0.49, N^-0.45, N^-0.3 for M=2, 4, 8, never above the law "
    "of a larger M. It spans a factor of hundreds in size: below it is weak evidence, above it a bad sign."
)


def extended_gap(parameters: float, learners: int) -> float | None:
    """Percent of Data-Parallel's loss, for a model below 35M parameters; None for an M without figures."""
    if learners not in EXPONENTS:
        return None
    return min(law(parameters, larger) for larger in EXPONENTS if larger >= learners)


def law(parameters: float, learners: int) -> float:
    """The power law of this M alone, in percent: through the authors' point at 35M, by their exponent."""
    anchor, gap = AUTHORS[learners][0]
    return float(gap * (parameters / anchor) ** -EXPONENTS[learners])
