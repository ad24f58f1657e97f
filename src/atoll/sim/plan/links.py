"""What a link carries, and how many TCP connections it takes to fill it.

One TCP stream fills a long, fat link only in part: it keeps a window of data in flight and waits one round
trip for the answer. Measured on an emulated path of 1 Gbit/s and 100 ms, one stream carried 239 Mbit/s and
four together 700: 17.5 Mbit in flight each. A run has at most 16 data connections for each learner, so that
a link that is longer and fatter than that stays partly empty however it is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = [
    "BITS",
    "MAX_CHANNELS",
    "STREAM_BITS",
    "LinkUse",
    "channels_for",
    "merge_cores",
    "usable_bits_per_s",
]

STREAM_BITS = 17.5e6
"""In flight on one of several streams: 700 Mbit/s over four of them at 100 ms (measured)."""
MAX_CHANNELS = 16
"""The most that `network.data_connections` takes."""
BITS = {"bf16": 16.0, "int8": 8.125, "int4": 4.125}
"""Bits on the wire for each parameter, the scale of every 128 values included."""


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What one island's link has to carry in each direction, against what it can."""

    island: str
    needed_bits_per_s: float
    available_bits_per_s: float

    @property
    def load(self) -> float:
        """Needed of available; above 1 the link cannot keep up."""
        return self.needed_bits_per_s / self.available_bits_per_s


def channels_for(bits_per_s: float, rtt_s: float) -> int:
    """Connections that fill a link of this rate and round trip, from 1 to 16."""
    return min(MAX_CHANNELS, max(1, math.ceil(bits_per_s * rtt_s / STREAM_BITS)))


def usable_bits_per_s(bits_per_s: float, rtt_s: float) -> float:
    """What the most connections get out of a link."""
    return min(bits_per_s, MAX_CHANNELS * STREAM_BITS / rtt_s) if rtt_s else bits_per_s


def merge_cores(params: float, learners: int, interval_s: float) -> float:
    """Cores that merging keeps busy: 1.05 ns per parameter and offer, 1.5 per parameter (measured, bf16)."""
    return params * (1.05e-9 * learners + 1.5e-9) / interval_s
