"""What a setting costs in quality, and what that costs in tokens.

Three things are published and three rules are ours.

Published (scaling laws for DiLoCo, arXiv:2503.09799, Table 4): the loss of Data-Parallel by model size, and
how far DiLoCo with M = 1, 2, 4, 8 stays behind it at the same tokens, each at its own best batch and rate,
with H = 30 and 20 tokens for each parameter. Between its sizes we interpolate in log N, between its M in
log M.

Ours, and said to be ours wherever they are shown:
- Outside the table. Below 35M parameters our own extension. Above it M = 2 and 4 stay as they are, and M =
  8 shrinks as N^-0.3 down to twice the gap of M = 4. Beyond M = 8 each doubling adds 1.5 times what the one
  before added. A gap below 0 counts as 0: no plan is built on DiLoCo being better. The uncertainty is a
  quarter of the gap and at least 0.1 points, twice that outside the table.
- H beyond 30 costs 0.25 % of the loss for each doubling at 150M parameters, shrinking as N^-0.3. Codecs:
  int8 0.01 %, int4 0.05 %, though no loss was seen with four bits: fewer bits have to pay for themselves.
- Late merges. An adopted fragment overwrites what was learned since its snapshot. tau/H = 2/24, the setting
  of the paper, is covered by its results and costs nothing more; steps beyond that count as not done, and
  those beyond tau count twice.

A gap becomes tokens by a power law, loss ~ tokens^-b. The slope of the Data-Parallel row in N is about
0.09; there N and tokens grow together, and at that balance each does half of it: b is half the slope
(ours).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

__all__ = [
    "CODEC_COST",
    "MEASURED_INTERVAL",
    "Gap",
    "gap_to_lock_step",
    "interval_cost",
    "late_share",
    "token_exponent",
    "tokens_factor",
]

LEARNERS = (1, 2, 4, 8)
# Parameters, Data-Parallel's loss, gap in percent for LEARNERS.
TABLE: tuple[tuple[float, float, tuple[float, ...]], ...] = (
    (35e6, 3.485, (-0.1, 0.7, 2.0, 3.9)),
    (90e6, 3.167, (-0.1, 0.5, 1.5, 3.1)),
    (180e6, 2.950, (-0.2, 0.3, 1.1, 2.3)),
    (335e6, 2.784, (-0.3, 0.1, 0.9, 2.0)),
    (550e6, 2.653, (-0.3, 0.2, 0.7, 1.7)),
    (1.3e9, 2.460, (-0.4, 0.2, 0.5, 1.3)),
    (2.4e9, 2.326, (-0.4, -0.1, 0.3, 1.1)),
    (4e9, 2.224, (-0.22, -0.18, 0.18)),
    (10e9, 2.090, (-0.19, -0.19, 0.29)),
)
SMALL = ((1e6, (0.0, 4.0, 10.0, 11.0)), (3e6, (0.0, 2.3, 6.0, 8.0)), (10e6, (0.0, 1.3, 3.5, 5.7)))
"""Our extension of the table to small models."""

LAST_EIGHT = 2.4e9
"""The largest size for which the table has M = 8."""
SHRINKS = 0.3
"""Beyond it the gap of M = 8 falls as N to minus this."""
EIGHT_TO_FOUR = 2.0
"""And not below this times the gap of M = 4, in which the large sizes of the table show no more shrinking."""
BEYOND_EIGHT = 1.5
"""Each doubling of M beyond 8 adds this times what the doubling before added (ours)."""
LEAST_UNCERTAINTY, RELATIVE_UNCERTAINTY, OUTSIDE = 0.001, 0.25, 2.0
MEASURED_INTERVAL = 30
"""H of the published gaps."""
INTERVAL_COST, INTERVAL_PARAMS = 0.0025, 150e6
CODEC_COST = {"bf16": 0.0, "int8": 0.0001, "int4": 0.0005}
FREE_LATE_SHARE = 2 / 24
"""tau/H of the paper's runs, whose quality includes what it costs."""


@dataclass(frozen=True, slots=True)
class Gap:
    """How far M learners stay behind lock-step at the same tokens, as a fraction of its loss."""

    value: float
    uncertainty: float
    is_extrapolated: bool
    """Outside the published table, by size or by M."""

    def shifted(self, by: float) -> float:
        """The gap with so many uncertainties added; never below 0."""
        return max(0.0, self.value + by * self.uncertainty)


def gap_to_lock_step(params: float, learners: int) -> Gap:
    """The published gap for this size and M, between and beyond its rows by the rules of this module."""
    if learners == 1:
        return Gap(0.0, 0.0, is_extrapolated=False)
    nodes = [max(0.0, _column(params, column)) for column in range(len(LEARNERS))]
    if params > LAST_EIGHT:
        nodes[-1] = max(nodes[-1], EIGHT_TO_FOUR * nodes[-2])
    while 2 ** (len(nodes) - 1) < learners:
        nodes.append(nodes[-1] + BEYOND_EIGHT * (nodes[-1] - nodes[-2]))
    value = _between(math.log2(learners), list(enumerate(nodes))) / 100
    last = LAST_EIGHT if learners > 4 else TABLE[-1][0]
    is_outside = learners > LEARNERS[-1] or not TABLE[0][0] <= params <= last
    uncertainty = max(LEAST_UNCERTAINTY, RELATIVE_UNCERTAINTY * value) * (OUTSIDE if is_outside else 1.0)
    return Gap(value, uncertainty, is_outside)


def token_exponent() -> float:
    """b of loss ~ tokens^-b: half the slope of the Data-Parallel row in log-log, by least squares."""
    points = [(math.log(params), math.log(loss)) for params, loss, _ in TABLE]
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return -slope / 2


def tokens_factor(cost: float) -> float:
    """How many times the tokens make up for a loss that is higher by this fraction."""
    return math.pow(1.0 + cost, 1.0 / token_exponent())


def interval_cost(params: float, interval_steps: int) -> float:
    """What H beyond 30 adds to the loss, as a fraction of it; nothing up to there."""
    doublings = max(0.0, math.log2(interval_steps / MEASURED_INTERVAL))
    return INTERVAL_COST * doublings * math.pow(params / INTERVAL_PARAMS, -SHRINKS)


def late_share(overlap_steps: int, extra_steps: int, interval_steps: int) -> float:
    """Share of the steps that counts as not done, because merges overwrite what came after the snapshot."""
    total = (overlap_steps + extra_steps) / interval_steps
    return max(0.0, total - FREE_LATE_SHARE) + extra_steps / interval_steps


def _column(params: float, column: int) -> float:
    """The gap in percent for one M of the table, at any size."""
    rows = [(size, gaps[column]) for size, gaps in SMALL]
    rows += [(size, gaps[column]) for size, _, gaps in TABLE if column < len(gaps)]
    size, last = rows[-1]
    if params > size:
        return last * (params / size) ** -SHRINKS if LEARNERS[column] == 8 else last
    return _between(math.log(params), [(math.log(size), gap) for size, gap in rows])


def _between(x: float, points: list[tuple[float, float]]) -> float:
    """Straight lines between points that rise in x; the end values outside."""
    if x <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[-1][1]
