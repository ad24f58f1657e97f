"""The bandwidth that a method needs, as formulas: what the event model gives, without events.

Write T for the step, c for the compute utilisation (CU), S for the bits that a site sends per model
averaged over a ring, h = H/P, x for the time that one payload occupies the link, l for the latency of the
ring. A payload can begin to leave when the backward pass begins, T/3 into the step, and its last bucket when
the pass ends. So the time from one payload to the next is

    data-parallel   max(T, T/3 + x) + l                                          x = S/B
    diloco          max(H T, (H - 2/3) T + x) + l                                x = S/B
    streaming       max(h T, x, h T + w/n), w = max(x - 2T/3, 0) + l - tau T     x = S/(P B)

The deadlines that fall within one payload's way number n = ceil((tau + 1)/h): a wait at each of them gives
it time. A link that is busy without a break is the middle case. The functions below solve these for B or
for c; the tests hold them to the event model (timeline.py) within 1 % wherever P divides H. Where it does
not, fragments come unevenly, and streaming with overlap needs somewhat more than its formula says.

Decoupled never waits: its link must carry N bits every H steps in each direction, at the pace c. On a thinner
link the fragments come later (staleness) and less often. A fragment has one round at a time, from one step
boundary to another, so a round that takes longer than H steps cannot be held every H steps, on any link:

    rounds held     min(1, H T B/(N bits), H/ceil((x + RTT)/T))                  x = N bits/(P B)

There x is the way up alone: published bucket by bucket, a fragment comes down while it goes up. Atoll's own
syncer publishes whole fragments, so that its rounds take 2x + RTT (`whole` below). That makes them later; it
makes them fewer only with one or two fragments, or where the round trip is almost as long as H steps.

All are ours, derived from the author's public timeline model. Units: bit/s, seconds, steps. Infinity means
that no link is fast enough.
"""

from __future__ import annotations

import math

from atoll.errors import ConfigError
from atoll.sim.bandwidth.traffic import Traffic, check_method

__all__ = [
    "mean_bits_per_s",
    "most_rounds",
    "needed_bits_per_s",
    "peak_bits_per_s",
    "scavenging",
    "staleness_steps",
    "syncer_bits_per_s",
    "utilisation",
]

BACKWARD = 2 / 3
ROUNDING = 1e-9


def needed_bits_per_s(method: str, traffic: Traffic, cu: float) -> float:
    """The thinnest link, per site and direction, on which the method reaches this compute utilisation."""
    method = check_method(method)
    if not 0 < cu <= 1:
        raise ConfigError(
            f"The compute utilisation asked for is {cu:g}.",
            "It is the share of time spent computing.",
            "Give a number above 0, up to 1; 0.9 is 90 %.",
        )
    step_s, latency_s = traffic.step_s, traffic.ring_latency_s
    if method == "decoupled":
        return max(cu * mean_bits_per_s(method, traffic), _round_needs(traffic, cu))
    if method == "streaming":
        return _streaming_needed(traffic, cu)
    num_steps = 1 if method == "data-parallel" else traffic.interval_steps
    wait_s = num_steps * step_s * (1 / cu - 1) - latency_s
    return _rate(traffic.ring_bits, wait_s + BACKWARD * step_s, wait_s)


def utilisation(method: str, traffic: Traffic, bits_per_s: float) -> float:
    """Compute utilisation on a link of this speed: the inverse of needed_bits_per_s.

    For decoupled always 1: learners never wait. What a thin link costs them is staleness_steps.
    """
    method = check_method(method)
    _check_link(bits_per_s)
    if method == "decoupled":
        return 1.0
    step_s, latency_s = traffic.step_s, traffic.ring_latency_s
    whole_s = traffic.ring_bits / bits_per_s
    if method == "streaming":
        link_s = whole_s / traffic.fragments
        busy_s = traffic.steps_between * step_s
        late_s = max(link_s - BACKWARD * step_s, 0.0) + latency_s - traffic.overlap_steps * step_s
        return busy_s / max(busy_s, link_s, busy_s + late_s / _deadlines_within(traffic))
    busy_s = step_s * (1 if method == "data-parallel" else traffic.interval_steps)
    return busy_s / (max(busy_s, busy_s - BACKWARD * step_s + whole_s) + latency_s)


def staleness_steps(traffic: Traffic, bits_per_s: float, *, whole: bool = False) -> int:
    """Decoupled: steps by which a merged fragment arrives later than tau, on a link of this speed.

    The paper's syncer merges and publishes bucket by bucket, so that the way up and the way down overlap.
    Atoll's has the whole fragment before it publishes: with `whole` set, it travels twice.
    """
    _check_link(bits_per_s)
    way_s = _transfers(whole) * traffic.model_bits / (traffic.fragments * bits_per_s) + traffic.rtt_s
    return max(0, math.ceil(way_s / traffic.step_s - ROUNDING) - traffic.overlap_steps)


def mean_bits_per_s(method: str, traffic: Traffic) -> float:
    """What a site sends on average while nobody waits, per direction."""
    method = check_method(method)
    period_s = traffic.step_s * (1 if method == "data-parallel" else traffic.interval_steps)
    return (traffic.model_bits if method == "decoupled" else traffic.ring_bits) / period_s


def peak_bits_per_s(method: str, traffic: Traffic, *, whole: bool = False) -> float:
    """What the link must carry while it carries, so that nobody waits and nothing is later than tau.

    `whole` is that of staleness_steps.
    """
    method = check_method(method)
    if method != "decoupled":
        return needed_bits_per_s(method, traffic, 1.0)
    way_s = traffic.overlap_steps * traffic.step_s - traffic.rtt_s
    bits = _transfers(whole) * traffic.model_bits / traffic.fragments
    return max(mean_bits_per_s(method, traffic), _rate(bits, way_s, way_s))


def syncer_bits_per_s(traffic: Traffic) -> float:
    """Decoupled: what the syncer receives and sends over all sites together, at full pace."""
    return 2 * traffic.sites * mean_bits_per_s("decoupled", traffic)


def scavenging(extra: float) -> float:
    """Time to finish, against none, if extra compute (1 is as much again) joins for half of the work."""
    if not (math.isfinite(extra) and extra >= 0):
        raise ConfigError(
            f"The extra compute is {extra}.",
            "It is a share of what there is.",
            "Give 0 or more; 1 is +100 %.",
        )
    return 1 / 2 + 1 / (2 * (1 + extra))


def most_rounds(traffic: Traffic) -> float:
    """Decoupled: the share of its rounds that the round trip leaves it on the fastest link."""
    return min(1.0, traffic.interval_steps / max(1, math.ceil(traffic.rtt_s / traffic.step_s - ROUNDING)))


def _round_needs(traffic: Traffic, cu: float) -> float:
    """The link on which a fragment's round is over before its next, if this share of rounds is held."""
    way_s = math.floor(traffic.interval_steps / cu + ROUNDING) * traffic.step_s - traffic.rtt_s
    return _rate(traffic.model_bits / traffic.fragments, way_s, way_s)


def _transfers(whole: bool) -> int:
    return 2 if whole else 1


def _streaming_needed(traffic: Traffic, cu: float) -> float:
    """The link must be free when the next payload comes, and its payload on time for its deadline."""
    step_s = traffic.step_s
    busy_s = traffic.steps_between * step_s
    spare_s = _deadlines_within(traffic) * busy_s * (1 / cu - 1) + traffic.overlap_steps * step_s
    spare_s -= traffic.ring_latency_s
    link_s = min(busy_s / cu, spare_s + BACKWARD * step_s)
    return _rate(traffic.ring_bits / traffic.fragments, link_s, spare_s)


def _deadlines_within(traffic: Traffic) -> int:
    """n: the deadlines that fall within one payload's way, its own among them."""
    return -(-(traffic.overlap_steps + 1) * traffic.fragments // traffic.interval_steps)


def _rate(bits: float, link_s: float, spare_s: float) -> float:
    """Bits over the time they may take; none is enough if the last bucket alone comes too late."""
    late = spare_s < -ROUNDING * max(link_s, 1.0)
    return math.inf if late or link_s <= 0 else bits / link_s


def _check_link(bits_per_s: float) -> None:
    if not bits_per_s > 0:
        raise ConfigError(
            f"The link carries {bits_per_s} bit/s.",
            "Nothing would ever arrive.",
            "Give a speed above 0, for example 2e9 for 2 Gbit/s.",
        )
