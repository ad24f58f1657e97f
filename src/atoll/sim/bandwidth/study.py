"""One model, one schedule, every method: what each needs, what it carries, what a given link makes of it.

The needs come from the event model, each with the closed form beside it, so that a reader sees how far to
trust the formula that a planner uses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.sim.bandwidth.closed import mean_bits_per_s, needed_bits_per_s, peak_bits_per_s, staleness_steps
from atoll.sim.bandwidth.timeline import GRID, Floats, play, thinnest_links
from atoll.sim.bandwidth.traffic import METHODS, Method, Traffic

__all__ = [
    "CURVE_POINTS",
    "ENOUGH",
    "NAMES",
    "Load",
    "Need",
    "OnLink",
    "curve",
    "loads",
    "needs",
    "on_link",
    "whole_range",
]

NAMES: dict[Method, str] = {
    "data-parallel": "Data-Parallel",
    "diloco": "DiLoCo",
    "streaming": "Streaming",
    "decoupled": "Decoupled",
}
"""As the papers write them."""

ENOUGH = 0.9
"""Of the time, or of the rounds of decoupled: where a picture has its marks."""
CURVE_POINTS = 160


@dataclass(frozen=True, slots=True)
class Need:
    """The link on which a method reaches a utilisation. Decoupled: on which it holds this share of rounds."""

    method: Method
    bits: float
    cu: float
    bits_per_s: float
    """By the event model; infinity: no link is fast enough."""
    closed_bits_per_s: float

    @property
    def difference(self) -> float:
        """Of the closed form from the event model, as a share."""
        if math.isinf(self.bits_per_s) or math.isinf(self.closed_bits_per_s):
            return 0.0 if self.bits_per_s == self.closed_bits_per_s else math.inf
        return abs(self.closed_bits_per_s / self.bits_per_s - 1)


@dataclass(frozen=True, slots=True)
class Load:
    """What a site's link carries in one direction while nobody waits."""

    method: Method
    bits: float
    mean_bits_per_s: float
    peak_bits_per_s: float


@dataclass(frozen=True, slots=True)
class OnLink:
    """What becomes of a method on a given link."""

    method: Method
    bits: float
    cu: float
    stall_s: float
    pace: float
    staleness_steps: int
    """Decoupled: Atoll's own, whose syncer publishes whole fragments."""
    bucketwise_staleness_steps: int
    """Decoupled: by the paper's formula, published bucket by bucket."""


def needs(traffics: Sequence[Traffic], cus: Sequence[float]) -> list[Need]:
    """Every method for every traffic and utilisation."""
    return [
        Need(method, traffic.bits, cu, bits_per_s, needed_bits_per_s(method, traffic, cu))
        for method in METHODS
        for traffic in traffics
        for cu, bits_per_s in zip(cus, thinnest_links(method, traffic, cus), strict=True)
    ]


def loads(traffics: Sequence[Traffic]) -> list[Load]:
    """Every method for every traffic, at full pace."""
    return [
        Load(
            method,
            traffic.bits,
            mean_bits_per_s(method, traffic),
            peak_bits_per_s(method, traffic, whole=True),
        )
        for method in METHODS
        for traffic in traffics
    ]


def on_link(traffics: Sequence[Traffic], bits_per_s: float) -> list[OnLink]:
    """Every method for every traffic on this one link."""
    rows = []
    for method in METHODS:
        for traffic in traffics:
            line = play(method, traffic, [bits_per_s])
            figures = (float(line.cu[0]), float(line.stall_s[0]), float(line.pace[0]))
            late = (0, 0)
            if method == "decoupled":
                whole, bucketwise = (
                    staleness_steps(traffic, bits_per_s, whole=whole) for whole in (True, False)
                )
                late = (whole, bucketwise)
            rows.append(OnLink(method, traffic.bits, *figures, *late))
    return rows


def whole_range(found: Sequence[Need]) -> Floats:
    """Links from a third of the least need to three times the greatest: what a picture should show.

    Those of the papers if no link meets any need.
    """
    finite = [need.bits_per_s for need in found if math.isfinite(need.bits_per_s)] or [GRID[0], GRID[-1]]
    return np.geomspace(min(finite) / 3, max(finite) * 3, CURVE_POINTS)


def curve(method: Method, traffic: Traffic, links: Floats) -> list[tuple[float, float]]:
    """Points (bit/s, CU) for a picture. Decoupled never waits: its line begins where it holds its rounds.

    The link that reaches 90 % is a point of its own, so that a picture names the figure of the table.
    """
    (enough,) = thinnest_links(method, traffic, [ENOUGH])
    if links[0] < enough < links[-1]:
        links = np.union1d(links, [enough])
    if method == "decoupled":
        links = links[links >= enough]
    if not len(links):
        return []
    return [(float(rate), float(cu)) for rate, cu in zip(links, play(method, traffic, links).cu, strict=True)]
