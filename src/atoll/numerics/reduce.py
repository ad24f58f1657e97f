"""Sums of squares with the same bits on every x86 level.

A library's dot product or norm splits its sum over as many lanes as the processor's vectors have, so
its last bits depend on the machine, and in f32 it drifts: at 32M values `vector_norm` is off by 2e-3.
Here the order of every addition is fixed by the data's length alone:

1. values are squared into a kept buffer, a plain multiply;
2. the squares are seen as 16 rows and summed over the rows. Each column is one short sum, whose order
   does not depend on how many columns a vector instruction takes at once;
3. these column sums go on in f64, over rows again, into `LANES` running sums;
4. the lanes are added by `math.fsum`, which is exact.

Step 2 is the only f32 addition, sixteen terms long: the result is right to about 1e-7. What does not
fill 16 x `LANES` values is squared in f64 (exact: 24 + 24 bits fit 53) and added lane by lane.

f32 squares overflow above 1.8e19 and fade below 1e-19. A sum that is infinite or tiny is therefore
worth repeating with `wide=True`, all in f64; `trusted` says when.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from atoll.numerics.scratch import BLOCK, borrow

__all__ = ["SquareSum", "sum_of_squares", "trusted"]

LANES = 1024
ROWS = 16
STRIDE = ROWS * LANES

FADING = 1e-30
"""Below this, squares lost to f32's smallest number could matter at 1e-6 (64M x 1.4e-45 = 9e-38)."""


class SquareSum:
    """A running sum of squares of f32 pieces, in the order they are added."""

    def __init__(self, wide: bool = False) -> None:
        self._wide = wide
        self._lanes = torch.zeros(LANES, dtype=torch.float64)

    def add(self, values: Tensor) -> None:
        """Add the squares of a flat f32 tensor of at most `BLOCK` values; the values are kept."""
        whole = 0 if self._wide else values.numel() // STRIDE * STRIDE
        if whole:
            squares = torch.mul(values[:whole], values[:whole], out=borrow("squares", whole))
            columns = torch.sum(squares.view(ROWS, -1), dim=0, out=borrow("columns", whole // ROWS))
            self._fold(columns)
        rest = values[whole:]
        if rest.numel():
            wide = borrow("wide", rest.numel(), torch.float64).copy_(rest)
            self._fold(torch.mul(wide, wide, out=wide))

    def total(self) -> float:
        """The sum so far; `nan` or `inf` if a value was."""
        lanes: list[float] = self._lanes.tolist()
        return math.fsum(lanes) if all(map(math.isfinite, lanes)) else sum(lanes)

    def take(self) -> float:
        """Return the sum and start again from zero."""
        total = self.total()
        self._lanes.zero_()
        return total

    def _fold(self, values: Tensor) -> None:
        whole = values.numel() // LANES * LANES
        if whole:
            wide = borrow("folded", whole, torch.float64).copy_(values[:whole]).view(-1, LANES)
            self._lanes.add_(torch.sum(wide, dim=0, out=borrow("lanes", LANES, torch.float64)))
        rest = values[whole:]
        if rest.numel():
            self._lanes[: rest.numel()].add_(borrow("rest", rest.numel(), torch.float64).copy_(rest))


def trusted(total: float) -> bool:
    """Whether a sum taken in f32 squares is right to 1e-6; if not, take it again with `wide=True`."""
    return FADING <= total < math.inf


def sum_of_squares(values: Tensor) -> float:
    """Sum of squares of a flat f32 tensor, right to 1e-6; `nan` or `inf` if a value is."""
    total = _sum(values, wide=False)
    return total if trusted(total) else _sum(values, wide=True)


def _sum(values: Tensor, wide: bool) -> float:
    running = SquareSum(wide)
    for start in range(0, values.numel(), BLOCK):
        running.add(values[start : start + BLOCK])
    return running.total()
