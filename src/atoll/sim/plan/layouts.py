"""Which islands take part, and as how many learners each: a layout.

An island is the home of one learner, or is split into several that share its link: smaller learners lose
less to failures (M learners on N chips behave like one on N/M), but M grows, and with it the gap to
lock-step and the traffic of that link. A layout is found from how many islands of each kind are used and
how large the largest learner may be: big islands are split before small ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from atoll.sim.fleet.model import Fleet, Island
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.plan.fleet_file import FleetSpec, ModelSpec, Site

__all__ = ["SPLITS", "Layout", "Share", "can_split", "fleet_of", "island_of", "layouts_of"]

SPLITS = (1, 2, 4, 8, 16)
"""Learners that one island may be split into."""
MAX_LEARNERS = 256


@dataclass(frozen=True, slots=True)
class Share:
    """What one kind of island contributes."""

    site: int
    """Index of its kind in the fleet file."""
    used: int
    """How many such islands take part."""
    parts: int
    """Learners in each of them."""


Layout = tuple[Share, ...]


def can_split(model: ModelSpec, site: Site, parts: int) -> bool:
    """Whether equal parts have a slice of chips each, and the memory for the model, if that is known."""
    if parts == 1:
        return True
    chips, rest = divmod(site.chips, parts)
    fits = site.memory_gb is None or chips * site.memory_gb * 1e9 >= model.params * model.bytes_per_param
    return rest == 0 and chips >= site.slice_chips and fits


def layouts_of(spec: FleetSpec, used: tuple[int, ...]) -> list[Layout]:
    """Every layout of so many islands of each kind: as they are, then with ever smaller learners."""
    shares = [(index, count) for index, count in enumerate(used) if count]
    if not shares:
        return []
    largest = max(spec.sites[index].chips for index, _ in shares)
    found: dict[Layout, None] = {}
    for split in SPLITS:
        layout = tuple(
            Share(index, count, _parts(spec.model, spec.sites[index], largest / split))
            for index, count in shares
        )
        if sum(share.used * share.parts for share in layout) <= MAX_LEARNERS:
            found[layout] = None
    return list(found)


def island_of(site: Site, parts: int, step_s: float, mtbi_factor: float = 1.0) -> Island:
    """One learner of a site for the fleet simulator; without a name, so that equal ones are equal."""
    chips = site.chips // parts
    trace = site.trace
    if trace is not None:
        trace = CapacityTrace(trace.times_s, tuple(min(n / parts, chips) for n in trace.chips))
    return Island(
        chips=chips,
        mtbi_s=site.mtbi_s * mtbi_factor,
        slice_chips=min(site.slice_chips, chips),
        speed=site.tokens_per_s,
        pauses=replace(site.pauses, quantum_s=step_s),
        trace=trace,
    )


def fleet_of(spec: FleetSpec, layout: Layout, quorum: int = 1, mtbi_factor: float = 1.0) -> Fleet:
    """All learners of a layout for the fleet simulator, each with a name of its own."""
    step_s = spec.model.batch / spec.rate
    islands = []
    for share in layout:
        site = spec.sites[share.site]
        one = island_of(site, share.parts, step_s, mtbi_factor)
        many = share.used * share.parts
        islands += [replace(one, name=f"{site.name}-{n}" if many > 1 else site.name) for n in range(many)]
    return Fleet(islands=tuple(islands), quorum=quorum, shocks=spec.shocks, syncer=spec.syncer.outages)


def _parts(model: ModelSpec, site: Site, most_chips: float) -> int:
    """The fewest parts that make learners of at most so many chips, as far as it can be split."""
    parts = 1
    for split in SPLITS:
        if not can_split(model, site, split):
            break
        parts = split
        if site.chips / split <= most_chips:
            break
    return parts
