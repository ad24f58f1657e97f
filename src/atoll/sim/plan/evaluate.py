"""One candidate: what it would come to on this fleet, or why it cannot be.

Tokens per second are those of its islands times their simulated goodput. Learners take a part of the batch
in proportion to their speed, so that all step at one pace. Every T seconds a step; every H steps each
fragment goes up and down each link once. Tokens needed are those of lock-step times what the gap, H, the
codec and late merges cost. Time is one divided by the other.

One learner alone is lock-step within its island: it needs no syncer, no link and no rounds, pays for none
of them, and loses nothing to H, codecs or late merges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from atoll.sim.bandwidth.closed import needed_bits_per_s, staleness_steps, syncer_bits_per_s
from atoll.sim.bandwidth.traffic import Traffic
from atoll.sim.plan.fleet_file import FleetSpec
from atoll.sim.plan.layouts import Layout
from atoll.sim.plan.links import BITS, LinkUse, channels_for, usable_bits_per_s
from atoll.sim.plan.pace import Paces, at_least
from atoll.sim.plan.quality import (
    CODEC_COST,
    Gap,
    gap_to_lock_step,
    interval_cost,
    late_share,
    tokens_factor,
)
from atoll.sim.units import HOUR, say_rate

__all__ = [
    "CODECS",
    "INTERVALS",
    "Candidate",
    "Crew",
    "Outcome",
    "World",
    "evaluate",
    "every_setting",
    "muster",
]

INTERVALS = (12, 24, 48, 96, 192)
CODECS = tuple(BITS)
NO_CODEC = "none"
QUORUM_MAY_COST = 0.001
"""K is the largest, up to half of M, that is missed for at most this share of the time in which any step."""
SMALLEST_FRAGMENT = 1e6
"""Parameters; below that a round is mostly overhead (ours)."""
USUAL_OVERLAP = 2
"""tau of the paper, and the least: one step until the learners' next boundary, one for the way."""
WORST_LATE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class World:
    """The question: a fleet, how its learners run, and what is minimised."""

    spec: FleetSpec
    paces: Paces
    money: bool = False
    mtbi_factor: float = 1.0
    gap_shift: float = 0.0
    """Uncertainties to add to the gap."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What would be set. One learner alone has no rounds: 0 for all that only rounds have."""

    layout: Layout
    learners: int
    quorum: int
    interval: int
    fragments: int
    overlap: int
    codec: str
    channels: int

    @property
    def is_alone(self) -> bool:
        """One learner: no syncer is needed."""
        return self.learners == 1


@dataclass(frozen=True, slots=True)
class Crew:
    """What a layout comes to whatever H and the codec are."""

    layout: Layout
    learners: int
    quorum: int
    step_s: float
    tokens_per_s: float
    goodput: float
    """Share of chip time spent on useful steps."""
    uptimes: tuple[float, ...]
    """uptimes[k]: share of time in which at least k step."""
    merging: float
    """Share of time in which K step and the syncer is there."""
    price_per_h: float
    gap: Gap
    links: tuple[tuple[str, int, float, float], ...]
    """Of each kind: island, learners that share one link, its usable bits/s, its round trip."""
    channels: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a candidate is expected to come to."""

    candidate: Candidate
    crew: Crew
    links: tuple[LinkUse, ...]
    syncer_bits_per_s: float
    """In and out together, at full pace."""
    way_steps: int
    """Steps from a snapshot until the slowest link has brought the merged fragment."""
    late: float
    """Share of the steps that counts as not done because merges come late."""
    gap: float
    """To lock-step by M and size, of the loss."""
    setting_cost: float
    """Of H and the codec, of the loss."""
    tokens: float
    """Needed to reach the loss of lock-step."""
    time_s: float
    cost: float
    score: float
    """What is minimised: time_s, or cost."""

    @property
    def staleness(self) -> int:
        """Steps by which merges come later than tau."""
        return max(0, self.way_steps - self.candidate.overlap)


def muster(world: World, layout: Layout) -> Crew:
    """The learners of a layout: how fast, how often up, at what price, behind which links."""
    spec, sites = world.spec, world.spec.sites
    shares = [(share, sites[share.site]) for share in layout]
    goodputs = [world.paces.goodput(share.site, share.parts, world.mtbi_factor) for share in layout]
    rate = sum(share.used * site.rate for share, site in shares)
    useful = sum(share.used * site.rate * g for (share, site), g in zip(shares, goodputs, strict=True))
    chips = sum(share.used * site.chips for share, site in shares)
    busy = sum(share.used * site.chips * g for (share, site), g in zip(shares, goodputs, strict=True))
    learners = sum(share.used * share.parts for share in layout)
    uptimes = at_least(
        tuple(world.paces.group(share.site, share.used, share.parts, world.mtbi_factor) for share in layout)
    )
    quorum = _quorum(uptimes)
    links = tuple(
        (
            site.name,
            share.parts,
            share.parts * usable_bits_per_s(site.link_bits_per_s / share.parts, site.rtt_s),
            site.rtt_s,
        )
        for share, site in shares
    )
    return Crew(
        layout=layout,
        learners=learners,
        quorum=quorum,
        step_s=spec.model.batch / rate,
        # While too few step nothing merges: that time counts as lost (ours; in truth it is merged later).
        tokens_per_s=useful * uptimes[quorum] / uptimes[1] if uptimes[1] else 0.0,
        goodput=busy / chips,
        uptimes=uptimes,
        merging=uptimes[quorum] * spec.syncer.uptime,
        price_per_h=sum(share.used * site.price_per_h for share, site in shares)
        + (spec.syncer.price if learners > 1 else 0.0),
        gap=gap_to_lock_step(spec.model.params, learners),
        links=links,
        channels=max(channels_for(rate / parts, rtt_s) for _, parts, rate, rtt_s in links),
    )


def evaluate(world: World, crew: Crew, interval: int, codec: str) -> Outcome | str:
    """What a layout comes to with this H and codec, or the reason why it cannot be."""
    spec, params = world.spec, world.spec.model.params
    if not crew.tokens_per_s > 0:
        return "no learner ever steps"
    if crew.learners == 1:
        return _alone(world, crew)
    fragments = _fragments(params, interval)
    traffic = Traffic(
        params=params,
        step_s=crew.step_s,
        bits=BITS[codec],
        sites=crew.learners,
        interval_steps=interval,
        fragments=fragments,
        overlap_steps=0,
    )
    need = needed_bits_per_s("decoupled", traffic, 1.0)
    links = tuple(LinkUse(name, parts * need, rate) for name, parts, rate, _ in crew.links)
    if full := next((link for link in links if link.load > 1), None):
        return (
            f"the link of {full.island} would have to carry {say_rate(full.needed_bits_per_s)} "
            f"and carries {say_rate(full.available_bits_per_s)}"
        )
    aggregate = syncer_bits_per_s(traffic)
    limit = spec.syncer.bits_per_s
    if limit is not None and aggregate / 2 > limit:
        return (
            f"the syncer would have to carry {say_rate(aggregate / 2)} each way and carries {say_rate(limit)}"
        )
    way = max(_way_steps(traffic, rate / parts, rtt_s) for _, parts, rate, rtt_s in crew.links)
    overlap = min(max(way, USUAL_OVERLAP), max(USUAL_OVERLAP, interval // 4))
    late = late_share(overlap, max(0, way - overlap), interval)
    if late > WORST_LATE_SHARE:
        return f"merges would come {way} steps after the snapshot, with H = {interval}"
    setting_cost = interval_cost(params, interval) + CODEC_COST[codec]
    gap = crew.gap.shifted(world.gap_shift)
    tokens = spec.model.tokens * tokens_factor(gap + setting_cost) / (1.0 - late)
    time_s = tokens / crew.tokens_per_s
    cost = time_s / HOUR * crew.price_per_h
    settings = (crew.learners, crew.quorum, interval, fragments, overlap, codec, crew.channels)
    return Outcome(
        candidate=Candidate(crew.layout, *settings),
        crew=crew,
        links=links,
        syncer_bits_per_s=aggregate,
        way_steps=way,
        late=late,
        gap=gap,
        setting_cost=setting_cost,
        tokens=tokens,
        time_s=time_s,
        cost=cost,
        score=cost if world.money else time_s,
    )


def every_setting(world: World, crew: Crew) -> list[Outcome | str]:
    """What a layout comes to with every H and codec; one learner alone has neither."""
    if crew.learners == 1:
        return [evaluate(world, crew, INTERVALS[0], CODECS[0])]
    return [evaluate(world, crew, interval, codec) for interval in INTERVALS for codec in CODECS]


def _alone(world: World, crew: Crew) -> Outcome:
    """Lock-step within one island, whatever its link is."""
    tokens = world.spec.model.tokens
    time_s = tokens / crew.tokens_per_s
    cost = time_s / HOUR * crew.price_per_h
    return Outcome(
        candidate=Candidate(crew.layout, 1, 1, 0, 0, 0, NO_CODEC, 0),
        crew=crew,
        links=(),
        syncer_bits_per_s=0.0,
        way_steps=0,
        late=0.0,
        gap=0.0,
        setting_cost=0.0,
        tokens=tokens,
        time_s=time_s,
        cost=cost,
        score=cost if world.money else time_s,
    )


def _way_steps(traffic: Traffic, bits_per_s: float, rtt_s: float) -> int:
    """Up, merged, down: Atoll's syncer publishes a fragment when it has all of it, so it travels twice."""
    return max(1, staleness_steps(replace(traffic, rtt_s=rtt_s, overlap_steps=0), bits_per_s, whole=True))


def _quorum(uptimes: tuple[float, ...]) -> int:
    half = math.ceil((len(uptimes) - 1) / 2)
    most = QUORUM_MAY_COST * uptimes[1]
    return max((k for k in range(1, half + 1) if uptimes[1] - uptimes[k] <= most), default=1)


def _fragments(params: float, interval: int) -> int:
    """P = H, one fragment in every step; a divisor of H where fragments would be very small."""
    fits = [p for p in range(1, interval + 1) if interval % p == 0 and params / p >= SMALLEST_FRAGMENT]
    return max(fits, default=1)
