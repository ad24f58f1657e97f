"""The alternative: every chip in lock-step over the same links, and how many times slower that is.

Conventional Data-Parallel averages all gradients over a ring at every step. The step takes as long as its
compute and as the slowest link allows, and every failure stops all. We are kind to it throughout: every
chip gets a part of the batch in proportion to its speed, as learners do in a plan, so that none waits for
slower ones; it may leave out the islands that the plan leaves out; it shrinks and grows by slices like a
learner if any island can; its ring is perfect, its gradients are bf16; and of a spot market it feels only
the missing chips. Its pauses are those of the first island.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from atoll.sim.bandwidth.closed import utilisation
from atoll.sim.bandwidth.traffic import Traffic
from atoll.sim.fleet.result import FleetResult
from atoll.sim.plan.evaluate import Outcome, World
from atoll.sim.plan.fleet_file import Site
from atoll.sim.plan.layouts import Layout, Share
from atoll.sim.units import HOUR, say_count, say_duration, say_rate

__all__ = ["Line", "LockStep", "arithmetic", "best_lock_step", "lock_step_layouts", "lock_step_on"]

GRADIENT_BITS = 16.0


@dataclass(frozen=True, slots=True)
class Line:
    """One line of arithmetic: what, from what, and the number."""

    what: str
    working: str
    value: float
    shown: str


@dataclass(frozen=True, slots=True)
class LockStep:
    """Lock-step on several islands over their links, and on the best island alone without any link."""

    layout: Layout
    islands: int
    payload_bits: float
    """Sent by each island at every step."""
    link_bits_per_s: float
    """The slowest."""
    compute_s: float
    """One step without the links."""
    utilisation: float
    goodput: float
    """Under failures, with what spot markets grant; apart from the links."""
    tokens_per_s: float
    time_s: float
    cost: float
    alone_name: str
    alone_tokens_per_s: float
    alone_time_s: float
    alone_cost: float

    @property
    def step_s(self) -> float:
        """One step with the links."""
        return self.compute_s / self.utilisation


def lock_step_layouts(world: World, best: Outcome) -> list[Layout]:
    """All islands, and those of the plan, where these are several."""
    sites = world.spec.sites
    whole = tuple(Share(index, site.count, 1) for index, site in enumerate(sites))
    same = tuple(replace(share, parts=1) for share in best.candidate.layout)
    several = sum(share.used for share in same) > 1
    return list(dict.fromkeys([whole, same] if several else [whole]))


def best_lock_step(world: World, results: Mapping[Layout, FleetResult]) -> LockStep:
    """The best that Data-Parallel comes to on any of these islands."""
    found = [lock_step_on(world, layout, result) for layout, result in results.items()]
    return min(found, key=lambda locked: locked.cost if world.money else locked.time_s)


def lock_step_on(world: World, layout: Layout, result: FleetResult) -> LockStep:
    """What Data-Parallel comes to on these islands, and on the island that does best alone."""
    model = world.spec.model
    sites = [world.spec.sites[share.site] for share in layout for _ in range(share.used)]
    islands = len(sites)
    compute_s = model.batch / sum(site.rate for site in sites)
    link = min(site.link_bits_per_s for site in sites)
    payload, share = 0.0, 1.0
    if islands > 1:
        rtt_s = max(site.rtt_s for site in sites)
        traffic = Traffic(
            params=model.params, step_s=compute_s, bits=GRADIENT_BITS, sites=islands, rtt_s=rtt_s
        )
        payload, share = traffic.ring_bits, utilisation("data-parallel", traffic, link)
    goodput = result.goodput * _by_speed(sites, result)
    tokens_per_s = model.batch / compute_s * share * goodput
    time_s = model.tokens / tokens_per_s
    price = sum(site.price_per_h for site in sites)
    name, alone_rate, alone_time_s, alone_cost = _alone(world)
    return LockStep(
        layout=layout,
        islands=islands,
        payload_bits=payload,
        link_bits_per_s=link,
        compute_s=compute_s,
        utilisation=share,
        goodput=goodput,
        tokens_per_s=tokens_per_s,
        time_s=time_s,
        cost=time_s / HOUR * price,
        alone_name=name,
        alone_tokens_per_s=alone_rate,
        alone_time_s=alone_time_s,
        alone_cost=alone_cost,
    )


def _by_speed(sites: list[Site], result: FleetResult) -> float:
    """From a share of chip time, with equal batches, to a share of tokens, with batches by speed.

    No chip waits for slower ones, and one that a market withholds counts as many tokens as it would train.
    """
    chips = sum(site.chips for site in sites)
    granted_chips = sum(site.chips * site.granted for site in sites) / chips
    granted_tokens = sum(site.rate * site.granted for site in sites) / sum(site.rate for site in sites)
    return granted_tokens / granted_chips / (1.0 - result.fleet.islands[0].waiting)


def arithmetic(world: World, locked: LockStep, best: Outcome) -> list[Line]:
    """From the inputs to how many times faster, one step in each line."""
    batch, tokens = say_count(world.spec.model.batch), say_count(world.spec.model.tokens)
    needed = best.tokens / world.spec.model.tokens
    times = locked.time_s / best.time_s
    step, compute = f"{locked.step_s:.4g} s", f"{locked.compute_s:.4g} s"
    rate, our_rate = say_count(locked.tokens_per_s), say_count(best.crew.tokens_per_s)
    time, our_time = say_duration(locked.time_s), say_duration(best.time_s)
    full_rate = say_count(world.spec.model.batch / locked.compute_s)
    share = f"{locked.utilisation:.4g} compute utilisation"
    return [
        *_wire(world, locked),
        Line(
            "compute of one step, every chip with a batch by its speed",
            f"{batch} tokens / {full_rate} tokens/s",
            locked.compute_s,
            compute,
        ),
        Line(
            "with its link, from the backward pass on",
            f"{compute} / {share}",
            locked.step_s,
            step,
        ),
        Line(
            "lock-step tokens/s, with failures",
            f"{batch} / {step} x goodput {locked.goodput:.4g}",
            locked.tokens_per_s,
            rate,
        ),
        Line("lock-step time", f"{tokens} tokens / {rate}/s", locked.time_s, time),
        Line(
            "time alone, without links" if best.candidate.is_alone else "Decoupled time, same loss",
            f"{tokens} x {needed:.4g} tokens / {our_rate}/s",
            best.time_s,
            our_time,
        ),
        Line("times faster", f"{time} / {our_time}", times, f"{times:.3g}"),
    ]


def _wire(world: World, locked: LockStep) -> list[Line]:
    """What travels at every step of lock-step; nothing within one island."""
    if locked.islands == 1:
        return []
    factor, wire_s = 2 * (1 - 1 / locked.islands), locked.payload_bits / locked.link_bits_per_s
    params, payload = say_count(world.spec.model.params), f"{locked.payload_bits / 1e9:.4g} Gbit"
    return [
        Line(
            "gradients sent by each island, every step",
            f"{params} x {GRADIENT_BITS:g} bit x {factor:.4g} (ring of {locked.islands})",
            locked.payload_bits,
            payload,
        ),
        Line(
            "over the slowest link",
            f"{payload} / {say_rate(locked.link_bits_per_s)}",
            wire_s,
            say_duration(wire_s),
        ),
    ]


def _alone(world: World) -> tuple[str, float, float, float]:
    """Name, tokens/s, time and cost of the island that is best without the others."""

    def result(index: int, site: Site) -> tuple[float, str, float, float, float]:
        rate = site.rate * world.paces.goodput(index, 1, world.mtbi_factor)
        time_s = world.spec.model.tokens / rate if rate else float("inf")
        cost = time_s / HOUR * site.price_per_h
        return (cost if world.money else time_s, site.name, rate, time_s, cost)

    _, name, rate, time_s, cost = min(result(index, site) for index, site in enumerate(world.spec.sites))
    return name, rate, time_s, cost
