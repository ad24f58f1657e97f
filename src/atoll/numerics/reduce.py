"""Sums of squares with the same bits on every x86 level.

A library's dot product or norm splits its sum over as many lanes as the processor's vectors have, so
its last bits depend on the machine, and in f32 it drifts: at 32M values `vector_norm` is off by 2e-3.
Here the order of every addition is fixed by the data's length alone:

1. values are squared into a kept buffer, a plain multiply;
2. the squares are seen as 64 rows and summed over the rows. Each column is one short sum, whose order
   does not depend on how many columns a vector instruction takes at once (as long as the number of
   columns is a multiple of 64, four of the widest vectors);
3. the column sums are added in f64 to `LANES` running sums, each column to its own;
4. the lanes are added by `math.fsum`, which is exact.

Step 2 is the only f32 addition, 64 terms in groups of 16: the result is right to about 2e-7 whatever
the length. What does not fill 64 x 64 values is squared in f64 (exact: 24 + 24 bits fit in 53) and
added to the lanes as it stands.

f32 squares overflow above 1.8e19 and fade below 1e-19. A sum that is infinite or tiny is therefore
worth repeating with `wide=True`, all in f64; `trusted` says when.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from atoll.numerics.scratch import BLOCK, borrow

__all__ = ["SquareSum", "sum_of_squares", "trusted"]

ROWS = 64
LANES = BLOCK // ROWS
STRIDE = ROWS * 64

FADING = 1e-30
"""Below this, squares lost to f32's smallest number could matter at 1e-6 (64M x 1.4e-45 = 9e-38)."""


class SquareSum:
    """A running sum of squares of f32 pieces, in the order they are added."""

    def __init__(self, wide: bool = False) -> None:
        self._wide = wide
        self._lanes = torch.zeros(LANES, dtype=torch.float64, device="cpu")
        self._used = 0

    def add(self, values: Tensor, spend: bool = False) -> None:
        """Add the squares of a flat f32 tensor of at most `BLOCK` values; `spend` lets them be lost."""
        whole = 0 if self._wide else values.numel() // STRIDE * STRIDE
        for start in range(whole, values.numel(), LANES):
            part = values[start : start + LANES]
            wide = borrow("wide", part.numel(), torch.float64).copy_(part)
            self._fold(torch.mul(wide, wide, out=wide))
        if whole:
            body = values[:whole]
            squares = torch.mul(body, body, out=body if spend else borrow("squares", whole))
            columns = torch.sum(squares.view(ROWS, -1), dim=0, out=borrow("columns", whole // ROWS))
            self._fold(borrow("wide", whole // ROWS, torch.float64).copy_(columns))

    def take(self) -> float:
        """Return the sum, `nan` or `inf` if a value was, and start again from zero."""
        lanes: list[float] = self._lanes[: self._used].tolist()
        self._lanes.zero_()
        self._used = 0
        return math.fsum(lanes) if all(map(math.isfinite, lanes)) else sum(lanes)

    def _fold(self, wide: Tensor) -> None:
        self._lanes[: wide.numel()].add_(wide)
        self._used = max(self._used, wide.numel())


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
    return running.take()
