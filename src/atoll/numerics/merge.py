"""Merge the offers of one round into D, the outer gradient of a fragment.

Each merge unit is one vector v per learner m, with weight w. Weighted mean: sum(w v) / sum(w).
Radial-directional averaging, RDA, averages lengths and directions apart:

    D = (sum w|v| / sum w) * unit(sum w unit(v) / sum w),    unit(0) = 0

Learners' deltas are nearly orthogonal, so a mean of M of them is shorter by 1/sqrt(M) and the outer
rate would have to follow M; RDA keeps the length. If the mean direction (nearly) vanishes there is
nothing to point along, and the unit falls back to the weighted mean.

The norms |v| are taken first (`inspect`, on arrival, which also serves the gates). Then every body is
decoded block by block into one kept buffer, multiplied by w (mean) or w/|v| (RDA) and added to the one
f32 accumulator: multiply and add apart, never fused. At the end each unit is scaled once. Memory beyond
the encoded bodies is the accumulator and a block, whatever M is.

`Merger` takes one offer after the other. `merge`, when all bodies are at hand (in memory or mapped from
a spool), walks block by block through all of them, so that the accumulator passes through the cache
once instead of M times: about a third faster, and the same bits, as every value meets the same
operations in the same order. That order is the caller's: the order of learner names.

Paper: RDA and its exception for embeddings, arXiv:2604.21428v1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.errors import CodecError
from atoll.numerics.codec import Codec
from atoll.numerics.manifest import Fragment
from atoll.numerics.reduce import SquareSum, trusted
from atoll.numerics.scratch import BLOCK, borrow

__all__ = ["Merger", "inspect", "merge"]

DIRECTION_FLOOR = 1e-5
"""|sum w unit(v)| / sum w below which a mean direction is cancellation and rounding, not a direction."""

NORM_FLOOR = 2.0**-100
"""A shorter v counts as zero: w/|v| must stay finite in f32, and nothing that short moves a parameter."""


def inspect(body: Tensor, codec: Codec, fragment: Fragment) -> tuple[float, ...]:
    """Norm of each merge unit of an offer; `nan` or `inf` where a value is. Checks the body's size."""
    codec.check(body, fragment.numel)
    pieces = _pieces(fragment)
    norms = _norms(body, codec, pieces, wide=False)
    doubtful = frozenset(k for k, norm in enumerate(norms) if not trusted(norm * norm))
    if doubtful:
        again = _norms(body, codec, _only(pieces, doubtful), wide=True)
        norms = [again[k] if k in doubtful else norm for k, norm in enumerate(norms)]
    return tuple(norms)


def merge(
    bodies: Sequence[Tensor],
    weights: Sequence[float],
    codec: Codec,
    fragment: Fragment,
    unit_norms: Sequence[tuple[float, ...]] | None = None,
    out: Tensor | None = None,
    scales: Sequence[float] | None = None,
) -> Tensor:
    """Return D of a round, in `out` if given. Bodies come in the order of their learners' names.

    `unit_norms` are the results of `inspect`, taken here if absent. Only the ratios of weights count.
    `scales` multiply the offers themselves: less than 1 for one that was clipped.
    """
    if unit_norms is None:
        unit_norms = [inspect(body, codec, fragment) for body in bodies]
    total = math.fsum(weights)
    if not bodies or not 0.0 < total < math.inf or min(weights) < 0.0:
        raise CodecError(
            f"Cannot merge {len(bodies)} offers with weights {list(weights)}.",
            "The result would be undefined.",
            "Merge at least one offer, with weights that are finite, not negative, and not all zero.",
        )
    offers = [
        (body, weight / total, norms, scale)
        for body, weight, norms, scale in zip(
            bodies, weights, unit_norms, scales or [1.0] * len(bodies), strict=True
        )
    ]
    merger = Merger(codec, fragment, out)
    merger.add_all(offers)
    vanished = merger.vanished()
    if vanished:
        merger.restart(vanished)
        for body, weight, norms, scale in offers:
            merger.add(body, weight, norms, only=vanished, scale=scale)
    return merger.finish()


class Merger:
    """The accumulator of one round on one fragment."""

    def __init__(self, codec: Codec, fragment: Fragment, accumulator: Tensor | None = None) -> None:
        self._codec = codec
        self._fragment = fragment
        if accumulator is None:
            accumulator = torch.empty(fragment.numel, dtype=torch.float32, device="cpu")
        self._acc = accumulator
        self._fresh = True  # the accumulator's contents are still undefined
        self._pieces = _pieces(fragment)
        self._rda = [unit.rule == "rda" for unit in fragment.units]
        self._weight = [0.0] * len(fragment.units)  # sum w
        self._radius = [0.0] * len(fragment.units)  # sum w|v|
        self._length: list[float] | None = None  # |acc| of each unit, once known

    def add(
        self,
        body: Tensor,
        weight: float,
        unit_norms: tuple[float, ...],
        only: Sequence[int] | None = None,
        scale: float = 1.0,
    ) -> None:
        """Add one offer. Call in the order of learner names; `only` names the units of a second pass."""
        factors = self._admit(body, weight, unit_norms, only, scale)
        for block in self._pieces:
            self._clear_if_fresh(block)
            self._add_block(block, body, factors)
        self._fresh = False

    def add_all(self, offers: Sequence[tuple[Tensor, float, tuple[float, ...], float]]) -> None:
        """Add (body, weight, unit norms, scale) of several offers in this order, with the bits of `add`."""
        admitted = [
            (body, self._admit(body, weight, norms, None, scale)) for body, weight, norms, scale in offers
        ]
        lengths = _Lengths(self._pieces)
        for block in self._pieces:
            self._clear_if_fresh(block)
            for body, factors in admitted:
                self._add_block(block, body, factors)
            lengths.add(block, self._acc[block.start : block.stop])  # while it is still in the cache
        self._length = lengths.norms()
        self._fresh = False

    def vanished(self) -> tuple[int, ...]:
        """Units whose mean direction vanished although some offer moved them."""
        lengths = self._lengths()
        return tuple(
            k
            for k, rda in enumerate(self._rda)
            if rda and self._radius[k] > 0.0 and lengths[k] < DIRECTION_FLOOR * self._weight[k]
        )

    def restart(self, units: Sequence[int]) -> None:
        """Clear these units and merge them by the weighted mean from now on."""
        self._length = None
        for block in self._pieces:
            for low, high, unit in block.spans:
                if unit in units:
                    self._acc[low:high].zero_()
        for unit in units:
            self._rda[unit] = False
            self._weight[unit] = self._radius[unit] = 0.0

    def finish(self) -> Tensor:
        """Scale every unit and return D, which lives in the accumulator."""
        if self._fresh:
            return self._acc.zero_()
        lengths = self._lengths() if any(self._rda) else []
        scales = [
            self._rda_scale(k, lengths[k]) if rda else _quotient(1.0, self._weight[k])
            for k, rda in enumerate(self._rda)
        ]
        for block in self._pieces:
            for low, high, factor in _runs(block, scales):
                self._acc[low:high].mul_(factor)
        self._length = None
        return self._acc

    def _admit(
        self,
        body: Tensor,
        weight: float,
        norms: tuple[float, ...],
        only: Sequence[int] | None,
        scale: float,
    ) -> list[float | None]:
        """Check an offer, count its weight, and return the factor of each unit (None: leave out)."""
        self._codec.check(body, self._fragment.numel)
        if not (0.0 <= weight < math.inf and all(map(math.isfinite, norms)) and len(norms) == len(self._rda)):
            raise CodecError(
                f"An offer on fragment {self._fragment.index} has weight {weight} and {len(norms)} norms, "
                f"the largest {max(norms, default=0.0)}.",
                "Merging it would make the global model non-finite.",
                "Reject offers whose `inspect` holds a nan or inf, and pass one norm per merge unit.",
            )
        self._length = None
        factors: list[float | None] = []
        for k, norm in enumerate(norms):
            if only is not None and k not in only:
                factors.append(None)
                continue
            self._weight[k] += weight
            if not self._rda[k]:
                factors.append(weight * scale)
            elif norm >= NORM_FLOOR:
                self._radius[k] += weight * norm * scale
                factors.append(weight / norm)
            else:
                factors.append(None)
        return factors

    def _clear_if_fresh(self, block: _Block) -> None:
        if self._fresh:
            self._acc[block.start : block.stop].zero_()

    def _add_block(self, block: _Block, body: Tensor, factors: list[float | None]) -> None:
        runs = _runs(block, factors)
        if not runs:
            return
        values = self._codec.decode(
            body, block.start, block.stop, borrow("decoded", block.stop - block.start)
        )
        for low, high, factor in runs:
            part = values[low - block.start : high - block.start]
            self._acc[low:high].add_(part.mul_(factor))

    def _lengths(self) -> list[float]:
        if self._length is None:
            lengths = _Lengths(self._pieces)
            for block in self._pieces:
                lengths.add(block, self._acc[block.start : block.stop])
            self._length = lengths.norms()
        return self._length

    def _rda_scale(self, unit: int, length: float) -> float:
        """sum(w|v|) / (sum w * |acc|); zero if nothing moved."""
        return _quotient(self._radius[unit], self._weight[unit] * length)


@dataclass(frozen=True, slots=True)
class _Block:
    """Values [start, stop) of a fragment and the unit of each span in it."""

    start: int
    stop: int
    spans: tuple[tuple[int, int, int], ...]
    """(low, high, index of the unit), in order."""


class _Lengths:
    """Norms of consecutive units, from blocks given in order."""

    def __init__(self, pieces: tuple[_Block, ...], wide: bool = False) -> None:
        self._left = [0] * (1 + max((span[2] for block in pieces for span in block.spans), default=-1))
        for block in pieces:
            for low, high, unit in block.spans:
                self._left[unit] += high - low
        self._running = SquareSum(wide)
        self._norms = [0.0] * len(self._left)

    def add(self, block: _Block, values: Tensor, spend: bool = False) -> None:
        """Add the values of one block; `spend` lets them be lost."""
        for low, high, unit in block.spans:
            self._running.add(values[low - block.start : high - block.start], spend)
            self._left[unit] -= high - low
            if not self._left[unit]:
                self._norms[unit] = math.sqrt(self._running.take())

    def norms(self) -> list[float]:
        """One norm per unit, once every block was added."""
        return self._norms


def _norms(body: Tensor, codec: Codec, pieces: tuple[_Block, ...], wide: bool) -> list[float]:
    lengths = _Lengths(pieces, wide)
    for block in pieces:
        numel = block.stop - block.start
        values = codec.decode(body, block.start, block.stop, borrow("decoded", numel))
        lengths.add(block, values, spend=True)
    return lengths.norms()


def _pieces(fragment: Fragment) -> tuple[_Block, ...]:
    """The blocks of a fragment, each with the spans of its units."""
    spans: list[list[tuple[int, int, int]]] = [[] for _ in range(0, fragment.numel, BLOCK)]
    at = 0
    for index, unit in enumerate(fragment.units):
        end = at + unit.numel
        while at < end:
            high = min(end, (at // BLOCK + 1) * BLOCK)
            spans[at // BLOCK].append((at, high, index))
            at = high
    return tuple(_Block(inside[0][0], inside[-1][1], tuple(inside)) for inside in spans)


def _only(pieces: tuple[_Block, ...], units: frozenset[int]) -> tuple[_Block, ...]:
    """The blocks that hold some of these units, with the spans of these units alone."""
    kept = (
        _Block(block.start, block.stop, tuple(span for span in block.spans if span[2] in units))
        for block in pieces
    )
    return tuple(block for block in kept if block.spans)


def _runs(block: _Block, factors: Sequence[float | None]) -> list[tuple[int, int, float]]:
    """Ranges of a block with one factor each: neighbouring units of equal factor are taken together."""
    runs: list[tuple[int, int, float]] = []
    for low, high, unit in block.spans:
        factor = factors[unit]
        if factor is None:
            continue
        if runs and runs[-1][1] == low and runs[-1][2] == factor:
            runs[-1] = (runs[-1][0], high, factor)
        else:
            runs.append((low, high, factor))
    return runs


def _quotient(above: float, below: float) -> float:
    return above / below if below > 0.0 else 0.0
