"""The whole question: the best candidate, the next, lock-step, each island's worth, what would change it.

Simulated: every distinct learner and lock-step under failures, and the layouts that are shown, whole.
Closed forms: shocks, how many learners step at once, links, staleness, lock-step's wait for its links,
quality. All of it follows from the fleet
file and the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from atoll.errors import ConfigError
from atoll.sim.fleet.result import FleetResult
from atoll.sim.plan.evaluate import Candidate, Outcome, World, evaluate
from atoll.sim.plan.fleet_file import FleetSpec
from atoll.sim.plan.layouts import Layout
from atoll.sim.plan.lock_step import Line, LockStep, arithmetic, best_lock_step, lock_step_layouts
from atoll.sim.plan.pace import simulate_paces, simulate_whole
from atoll.sim.plan.search import TIE, Search, Used

__all__ = ["SETTINGS", "Change", "Plan", "Worth", "make_plan", "setting", "used_of"]

SETTINGS = {
    "learners": "M",
    "quorum": "K",
    "interval": "H",
    "fragments": "P",
    "overlap": "tau",
    "codec": "codec",
    "channels": "channels",
}
"""Every setting of a candidate, with its letter."""


@dataclass(frozen=True, slots=True)
class Worth:
    """One kind of island: the best plan with those that are used (or one, if none is), and with one fewer."""

    site: int
    used: int
    with_it: Outcome | str
    without: Outcome | str
    """Or the reason why there is no such plan."""

    @property
    def is_worth(self) -> bool:
        """Whether the plan is better with it."""
        if isinstance(self.with_it, str):
            return False
        return isinstance(self.without, str) or (self.used > 0 if self.is_even else self.change > 0)

    @property
    def change(self) -> float:
        """What is lost without it, as a share; below 0: what is won."""
        assert isinstance(self.with_it, Outcome), self.with_it
        assert isinstance(self.without, Outcome), self.without
        return self.without.score / self.with_it.score - 1.0

    @property
    def is_even(self) -> bool:
        """Whether it makes no difference to what is minimised."""
        return abs(self.change) <= TIE


@dataclass(frozen=True, slots=True)
class Change:
    """Another input, and what would then be best."""

    what: str
    best: Outcome | None
    """None: nothing works then."""
    flips: tuple[str, ...]
    """Each setting that would be another, with both values."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer."""

    world: World
    best: Outcome
    five: tuple[Outcome, ...]
    whole: dict[Layout, FleetResult]
    """The layouts of the five, simulated with all learners together."""
    lock_step: LockStep
    lines: tuple[Line, ...]
    worths: tuple[Worth, ...]
    changes: tuple[Change, ...]
    time_range_s: tuple[float, float]
    """Time with the gap one uncertainty smaller and larger."""

    @property
    def times_faster(self) -> float:
        """Than the best lock-step over these links, to the same loss."""
        return self.lock_step.time_s / self.best.time_s


def make_plan(spec: FleetSpec, *, money: bool = False, seed: int = 1) -> Plan:
    """The best way to train this model on this fleet, by time or by money."""
    free = next((site.name for site in spec.sites if not site.price), None)
    if money and free is not None:
        raise ConfigError(
            f"--money is asked for, and island {free} has no price.",
            "Its chips would be free, and every plan would end there.",
            "Give each island a price above 0 for one chip and hour.",
        )
    world = World(spec, simulate_paces(spec, seed), money=money)
    search = Search(world)
    best = search.best()
    worths = tuple(_worth(search, used_of(spec, best), site) for site in range(len(spec.sites)))
    five = tuple(search.five_best())
    layouts = {o.candidate.layout: o.candidate.quorum for o in five}
    whole, alternatives = simulate_whole(spec, layouts, lock_step_layouts(world, best), seed)
    locked = best_lock_step(world, alternatives)
    smaller, larger = (_same(replace(world, gap_shift=shift), best).time_s for shift in (-1.0, 1.0))
    return Plan(
        world=world,
        best=best,
        five=five,
        whole=whole,
        lock_step=locked,
        lines=tuple(arithmetic(world, locked, best)),
        worths=worths,
        changes=tuple(_change(world, best, what, change) for what, change in _changes(world, best)),
        time_range_s=(smaller, larger),
    )


def setting(candidate: Candidate, name: str) -> int | str | None:
    """One of SETTINGS; None where one learner alone has no such thing."""
    value: int | str = getattr(candidate, name)
    return None if candidate.is_alone and name not in ("learners", "quorum") else value


def used_of(spec: FleetSpec, outcome: Outcome) -> Used:
    """How many islands of each kind a candidate uses."""
    used = {share.site: share.used for share in outcome.candidate.layout}
    return tuple(used.get(index, 0) for index in range(len(spec.sites)))


def _worth(search: Search, used: Used, site: int) -> Worth:
    here = used[site]
    low, high = (here - 1, here) if here else (0, 1)

    def best_with(many: int) -> Outcome | str:
        near = (*used[:site], many, *used[site + 1 :])
        return search.best_with(near) if any(near) else "no island is left"

    return Worth(site, here, with_it=best_with(high), without=best_with(low))


def _same(world: World, outcome: Outcome) -> Outcome:
    found = evaluate(world, outcome.crew, outcome.candidate.interval, outcome.candidate.codec)
    assert isinstance(found, Outcome), "a candidate that works does so whatever the gap is"
    return found


def _changes(world: World, best: Outcome) -> list[tuple[str, Callable[[World], World]]]:
    """The inputs that are known least, each changed on its own."""
    found: list[tuple[str, Callable[[World], World]]] = [
        ("links half as fast", lambda w: _with_links(w, 0.5)),
        ("links twice as fast", lambda w: _with_links(w, 2.0)),
        ("ten times as many failures", lambda w: replace(w, mtbi_factor=0.1)),
        ("gap to lock-step larger by its uncertainty", lambda w: replace(w, gap_shift=1.0)),
        ("gap to lock-step smaller by its uncertainty", lambda w: replace(w, gap_shift=-1.0)),
    ]
    sites = world.spec.sites
    if world.spec.has_prices:
        dearest = max(best.candidate.layout, key=lambda share: sites[share.site].price).site
        found.append((f"{sites[dearest].name} at twice the price", lambda w: _with_price(w, dearest, 2.0)))
        other = "time instead of money" if world.money else "money instead of time"
        found.append((f"minimise {other}", lambda w: replace(w, money=not w.money)))
    return found


def _with_links(world: World, factor: float) -> World:
    sites = tuple(
        replace(
            site, up_bits_per_s=site.up_bits_per_s * factor, down_bits_per_s=site.down_bits_per_s * factor
        )
        for site in world.spec.sites
    )
    return replace(world, spec=replace(world.spec, sites=sites))


def _with_price(world: World, site: int, factor: float) -> World:
    sites = list(world.spec.sites)
    sites[site] = replace(sites[site], price=sites[site].price * factor)
    return replace(world, spec=replace(world.spec, sites=tuple(sites)))


def _change(world: World, best: Outcome, what: str, change: Callable[[World], World]) -> Change:
    try:
        other = Search(change(world)).best()
    except ConfigError:
        return Change(what, None, ("no plan works",))
    return Change(what, other, tuple(_flips(world.spec, best, other)))


def _flips(spec: FleetSpec, before: Outcome, after: Outcome) -> list[str]:
    flips = []
    pairs = zip(spec.sites, used_of(spec, before), used_of(spec, after), strict=True)
    for site, had, has in pairs:
        if had != has:
            many = f" ({had} to {has})" if site.count > 1 else ""
            flips.append(f"{'leaves out' if has < had else 'takes in'} {site.name}{many}")
    for name, letter in SETTINGS.items():
        old, new = setting(before.candidate, name), setting(after.candidate, name)
        if old != new and None not in (old, new):
            flips.append(f"{letter} {old} to {new}")
    if before.candidate.is_alone != after.candidate.is_alone:
        flips.append("no syncer" if after.candidate.is_alone else "with a syncer")
    return flips
