"""The event model: steps, buckets and a link, played one after the other until they repeat.

A step is a forward pass of T/3 and a backward pass of 2T/3. What must travel is cut into 128 buckets, which
are ready one by one along the backward pass, and leave through one link, first come first served. A step that
needs a payload waits until its last bucket has arrived; compute utilisation is compute / (compute + stall).
This is the author's public timeline model (arthurdouillard.com/diloco). No constant in it is fitted.

Nothing random happens, so the play soon repeats itself: it runs interval after interval until one leaves the
link and the payloads under way as it found them, and is the answer. Where the waits go round in some other
rhythm, the answer is the second half of a long play.

Decoupled is ours. Nobody waits: at a step boundary the learner copies the fragment that is due; it travels
up, is merged and published bucket by bucket, travels down, and is adopted at the next boundary. A round that
comes due while the link is full waits until the link is about to be free, and rounds that came due meanwhile
are skipped, as the production scheduler skips them. A fragment that is due while it is still under way has
its next round when it is back, so a round of more than H steps is held less often than every H, however fast
the link. So a thin or a long link costs no compute. It costs rounds (`pace`, the share held of those that
were due) and staleness.

Everything here is computed for many links at once: an array of bandwidths goes in, arrays come out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.errors import ConfigError
from atoll.sim.bandwidth.traffic import Method, Traffic, check_method

__all__ = ["GRID", "Timeline", "on_time_bandwidth", "play", "thinnest_links"]

Floats = NDArray[np.float64]

BUCKETS = 128
MAX_STEPS = 4096
MIN_INTERVALS = 8
FINENESS = 1024
SAME = 1e-9
GRID: Floats = np.logspace(-1, 3, 50) * 1e9
"""The links of Streaming DiLoCo's tables, in bit/s: 0.1 to 1000 Gbit/s in steps of 21 %."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """What each link gives: one value per bandwidth."""

    bits_per_s: Floats
    cu: Floats
    """Compute utilisation."""
    stall_s: Floats
    """Time waited, per step."""
    pace: Floats
    """Decoupled: rounds held / rounds due. The others hold every round, and wait for it: cu again."""
    staleness_steps: NDArray[np.int64]
    """Decoupled: steps beyond tau that the latest fragment took. The others wait instead: 0."""
    peak_bits_per_s: Floats
    """The most that the link carried in a step."""
    mean_bits_per_s: Floats
    """What it carried on average, stalls included."""


def play(method: str, traffic: Traffic, bits_per_s: Sequence[float] | Floats) -> Timeline:
    """Play the method on each of these links, per site and direction, until nothing changes any more."""
    method = check_method(method)
    links = np.atleast_1d(np.asarray(bits_per_s, dtype=np.float64))
    if not (np.isfinite(links).all() and (links > 0).all()):
        raise ConfigError(
            "A link carries nothing, or without end.",
            "The timeline needs its speed.",
            "Give each as bit/s above 0, for example 2e9 for 2 Gbit/s.",
        )
    return _play_decoupled(traffic, links) if method == "decoupled" else _play_ring(method, traffic, links)


def on_time_bandwidth(method: str, traffic: Traffic, cus: Sequence[float]) -> list[float]:
    """For each utilisation the first link of GRID that reaches it, in bit/s; infinity if none does."""
    pace = play(method, traffic, GRID).pace
    return [float(GRID[pace >= cu][0]) if (pace >= cu).any() else math.inf for cu in cus]


def thinnest_links(method: str, traffic: Traffic, cus: Sequence[float]) -> list[float]:
    """For each utilisation the bandwidth at which the timeline first reaches it, to 0.01 %, in bit/s.

    For decoupled: at which it holds this share of its rounds. Infinity if a link a million times as fast as
    the mean traffic does not reach it: then the round trip is in the way.
    """
    scale = traffic.model_bits / (traffic.interval_steps * traffic.step_s)
    coarse = scale * np.logspace(-4, 6, FINENESS)
    pace = play(method, traffic, coarse).pace
    reached = [int(np.argmax(pace >= cu)) if (pace >= cu).any() else None for cu in cus]
    found = [first for first in reached if first is not None]
    if not found:
        return [math.inf] * len(cus)
    fine = [np.geomspace(coarse[max(first - 1, 0)], coarse[first], FINENESS // 4) for first in found]
    paces = iter(np.split(play(method, traffic, np.concatenate(fine)).pace, len(found)))
    links = iter(fine)
    return [
        math.inf if first is None else float(next(links)[np.argmax(next(paces) >= cu)])
        for cu, first in zip(cus, reached, strict=True)
    ]


class _Link:
    """One direction of one site's link, first come first served; a value per bandwidth."""

    def __init__(self, bits_per_s: Floats) -> None:
        self._bits_per_s = bits_per_s
        self._handed_bits = np.zeros_like(bits_per_s)
        self.free_s = np.zeros_like(bits_per_s)

    def send(self, bits: float, not_before_s: Floats, where: NDArray[np.bool_] | bool = True) -> Floats:
        """Hand a payload over; returns when its last bit leaves, at the earliest at not_before_s."""
        leaves_s = np.maximum(self.free_s + bits / self._bits_per_s, not_before_s)
        self.free_s = np.where(where, leaves_s, self.free_s)
        self._handed_bits = self._handed_bits + np.where(where, bits, 0.0)
        return self.free_s

    def backlog_s(self, now_s: Floats) -> Floats:
        """How long what was handed over will still occupy the link."""
        return np.maximum(self.free_s - now_s, 0.0)

    def carried_bits(self, now_s: Floats) -> Floats:
        """What has left. To be asked when no bucket is still to come, as at the end of a step."""
        return self._handed_bits - self.backlog_s(now_s) * self._bits_per_s


def _play_ring(method: Method, traffic: Traffic, links: Floats) -> Timeline:
    """The three methods that wait, interval by interval until one is like the one before."""
    step_s = traffic.step_s
    due, num_steps, overlap, bits = _schedule(method, traffic)
    alone_s = _last_bucket_leaves(step_s, bits / links)
    link, now = _Link(links), np.zeros_like(links)
    arrivals: dict[int, Floats] = {}
    before, ends = np.zeros((1, len(links))), [now]
    for interval in range(_intervals(num_steps)):
        peak = np.zeros_like(links)
        for step in range(num_steps):
            started, carried = now, link.carried_bits(now)
            index = interval * num_steps + step
            if step in due:
                arrivals[index + overlap] = link.send(bits, now + alone_s) + traffic.ring_latency_s
            now = np.maximum(now + step_s, arrivals.pop(index, 0.0))
            peak = np.maximum(peak, (link.carried_bits(now) - carried) / (now - started))
        ends.append(now)
        state = np.stack([link.backlog_s(now), *(arrivals[index] - now for index in sorted(arrivals))])
        if state.shape == before.shape and np.allclose(state, before, rtol=0.0, atol=SAME * step_s):
            measured = 1
            break
        before = state
    else:
        measured = len(ends) // 2
    lasted = (ends[-1] - ends[-1 - measured]) / measured
    cu = np.minimum(num_steps * step_s / lasted, 1.0)
    return Timeline(
        bits_per_s=links,
        cu=cu,
        stall_s=np.maximum(lasted / num_steps - step_s, 0.0),
        pace=cu,
        staleness_steps=np.zeros(len(links), dtype=np.int64),
        peak_bits_per_s=peak,
        mean_bits_per_s=len(due) * bits / lasted,
    )


def _schedule(method: Method, traffic: Traffic) -> tuple[frozenset[int], int, int, float]:
    """The steps of an interval that send, its length, the steps that a payload may take, its bits."""
    if method == "data-parallel":
        return frozenset({0}), 1, 0, traffic.ring_bits
    if method == "diloco":
        return frozenset({traffic.interval_steps - 1}), traffic.interval_steps, 0, traffic.ring_bits
    bits = traffic.ring_bits / traffic.fragments
    return _due_steps(traffic), traffic.interval_steps, traffic.overlap_steps, bits


def _intervals(num_steps: int) -> int:
    """How many intervals are played at most: enough for the backlog of a link to build up."""
    return max(MIN_INTERVALS, MAX_STEPS // num_steps)


def _due_steps(traffic: Traffic) -> frozenset[int]:
    """Fragment p is due at step floor(p H/P) of every interval."""
    return frozenset(p * traffic.interval_steps // traffic.fragments for p in range(traffic.fragments))


def _last_bucket_leaves(step_s: float, link_s: Floats) -> Floats:
    """After the start of a step, on a link that was free: when the last of the 128 buckets has left.

    Bucket i is ready when its share of the backward pass is done, and the 128 - i from it on must leave
    one after the other; the slowest of these chains decides.
    """
    ready_s = step_s / 3 + np.arange(1, BUCKETS + 1) / BUCKETS * (2 * step_s / 3)
    to_leave = np.arange(BUCKETS, 0, -1) / BUCKETS
    return np.asarray(np.max(ready_s + np.multiply.outer(link_s, to_leave), axis=1))


def _play_decoupled(traffic: Traffic, links: Floats) -> Timeline:
    """The method that does not wait, for many intervals; what is left undone at their end does not count."""
    step_s, due = traffic.step_s, _due_steps(traffic)
    bits = traffic.model_bits / traffic.fragments
    way_back_s = bits / links / BUCKETS + traffic.rtt_s
    link, peak = _Link(links), np.zeros_like(links)
    wanted = np.zeros(len(links), dtype=bool)
    slowest_s = np.zeros_like(links)
    num_steps = _intervals(traffic.interval_steps) * traffic.interval_steps
    for step in range(num_steps):
        now = np.full_like(links, step * step_s)
        carried = link.carried_bits(now)
        wanted |= step % traffic.interval_steps in due
        opens = wanted & (link.free_s < (step + 1) * step_s)
        leaves_s = link.send(bits, now + bits / links, where=opens)
        slowest_s = np.where(opens, np.maximum(slowest_s, leaves_s + way_back_s - now), slowest_s)
        wanted &= ~opens
        peak = np.maximum(peak, (link.carried_bits(now + step_s) - carried) / step_s)
    lasted_s = num_steps * step_s
    mean = link.carried_bits(np.full_like(links, lasted_s)) / lasted_s
    full = traffic.model_bits / (traffic.interval_steps * step_s)
    own_steps = np.maximum(np.ceil((bits / links + way_back_s) / step_s - SAME), 1.0)
    pace = np.minimum(np.minimum(mean / full, 1.0), traffic.interval_steps / own_steps)
    took = np.ceil(slowest_s / step_s - SAME).astype(np.int64)
    return Timeline(
        bits_per_s=links,
        cu=np.ones_like(links),
        stall_s=np.zeros_like(links),
        pace=pace,
        staleness_steps=np.maximum(took - traffic.overlap_steps, 0),
        peak_bits_per_s=peak,
        mean_bits_per_s=np.minimum(mean, pace * full),
    )
