"""Random numbers by place: a hash of seed, repetition, learner and count, for all lanes at once.

Every lane has a stream of its own (SplitMix64: a counter times an odd constant, mixed), so what a
learner meets does not depend on who else is simulated with it, and two fleets that differ in one
constant meet the same luck.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Keys", "exponential", "lane_keys", "uniform"]

Keys = NDArray[np.uint64]
Floats = NDArray[np.float64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_A = np.uint64(0xBF58476D1CE4E5B9)
MIX_B = np.uint64(0x94D049BB133111EB)
S30, S27, S31, S11 = (np.uint64(n) for n in (30, 27, 31, 11))


def lane_keys(seed: int, repetitions: NDArray[np.int64], learners: NDArray[np.int64], salt: int = 0) -> Keys:
    """One key for each (repetition, learner); `salt` gives the same lane a second, unrelated stream."""
    start = np.array([(seed * 2 + 1) & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
    with np.errstate(over="ignore"):
        by_salt = _mix(_mix(start) + np.uint64(salt) * GOLDEN)
        by_repetition = _mix(by_salt + (repetitions.astype(np.uint64) + np.uint64(1)) * GOLDEN)
        return _mix(by_repetition + (learners.astype(np.uint64) + np.uint64(1)) * GOLDEN)


def uniform(keys: Keys, place: NDArray[np.uint64]) -> Floats:
    """Numbers in [0, 1) with 53 bits, one for each key and place in its stream (shapes broadcast)."""
    with np.errstate(over="ignore"):
        bits = _mix(keys + (place + np.uint64(1)) * GOLDEN)
    return (bits >> S11).astype(np.float64) * 2.0**-53


def exponential(uniforms: Floats) -> Floats:
    """Exponential numbers with mean 1."""
    return -np.log1p(-uniforms)


def _mix(bits: Keys) -> Keys:
    bits = (bits ^ (bits >> S30)) * MIX_A
    bits = (bits ^ (bits >> S27)) * MIX_B
    return bits ^ (bits >> S31)
