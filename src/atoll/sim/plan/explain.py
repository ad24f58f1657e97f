"""A plan in words: one sentence for each choice, what the next best lose, what each island is worth."""

from __future__ import annotations

from atoll.sim.plan.evaluate import (
    CODECS,
    INTERVALS,
    QUORUM_MAY_COST,
    Outcome,
    World,
    evaluate,
    every_setting,
    muster,
)
from atoll.sim.plan.fleet_file import FleetSpec
from atoll.sim.plan.layouts import Layout, layouts_of
from atoll.sim.plan.links import BITS, STREAM_BITS
from atoll.sim.plan.plan import Plan, Worth, used_of
from atoll.sim.plan.quality import MEASURED_INTERVAL, tokens_factor
from atoll.sim.units import say_count, say_duration, say_rate

__all__ = [
    "config_snippet",
    "loses",
    "name_layout",
    "percent",
    "reasons",
    "verdict",
    "why_worse",
    "worth_in_words",
]

NO_DIFFERENCE = 0.0005


def reasons(plan: Plan) -> dict[str, str]:
    """One sentence for each setting of the recommendation, by its letter; one learner alone has only M."""
    if plan.best.candidate.is_alone:
        return {"M": _why_learners(plan)}
    return {
        "M": _why_learners(plan),
        "K": _why_quorum(plan),
        "H": _why_interval(plan),
        "P": _why_fragments(plan),
        "tau": _why_overlap(plan),
        "codec": _why_codec(plan),
        "channels": _why_channels(plan),
    }


def verdict(plan: Plan) -> str:
    """The recommendation in a few words: which islands, and with a syncer or without."""
    islands = name_layout(plan.world.spec, plan.best.candidate.layout)
    if plan.best.candidate.is_alone:
        return f"train on {islands} alone, no syncer needed"
    return f"train on {islands} with a syncer"


def name_layout(spec: FleetSpec, layout: Layout) -> str:
    """The islands that take part, with how many of each and in how many learners."""
    if (
        all(share.used == spec.sites[share.site].count for share in layout)
        and len(layout) == len(spec.sites) > 1
    ):
        parts = {share.parts for share in layout}
        if len(parts) == 1:
            (each,) = parts
            return "all islands" if each == 1 else f"all islands, each in {each} learners"
    names = []
    for share in layout:
        site = spec.sites[share.site]
        many = f"{share.used} x " if site.count > 1 else ""
        names.append(f"{many}{site.name}" + (f" in {share.parts}" if share.parts > 1 else ""))
    return ", ".join(names)


def percent(fraction: float, digits: int = 1) -> str:
    """A share in percent."""
    return f"{100 * fraction:.{digits}f} %"


def loses(best: Outcome, other: Outcome) -> float:
    """What a candidate loses against the best, as a fraction of its time or money; never below 0."""
    return max(0.0, other.score / best.score - 1.0)


def why_worse(world: World, best: Outcome, other: Outcome) -> str:
    """Where a candidate loses most, and what it gains, in words."""
    parts = {
        "fewer tokens/s": best.crew.tokens_per_s / other.crew.tokens_per_s - 1,
        f"gap of M = {other.candidate.learners}": tokens_factor(other.gap) / tokens_factor(best.gap) - 1,
        _setting_words(best, other): tokens_factor(other.setting_cost) / tokens_factor(best.setting_cost) - 1,
        "later merges": (1 - best.late) / (1 - other.late) - 1,
    }
    if world.money and best.crew.price_per_h:
        parts["dearer by the hour"] = other.crew.price_per_h / best.crew.price_per_h - 1
    worse = [name for name, value in sorted(parts.items(), key=lambda part: -part[1]) if value > 0.0005]
    return ", ".join(f"{name} ({percent(parts[name])})" for name in worse[:2]) or "nothing to speak of"


def worth_in_words(plan: Plan, worth: Worth) -> str:
    """Whether an island is worth its link, by how much, or why not."""
    unit, other = ("money", "time") if plan.world.money else ("time", "money")
    if isinstance(worth.with_it, str):
        return f"no: {worth.with_it}"
    if isinstance(worth.without, str):
        return "yes: the plan is this island alone"
    if worth.is_even:
        with_it, without = (
            outcome.time_s if plan.world.money else outcome.cost for outcome in (worth.with_it, worth.without)
        )
        more = f", {percent(without / with_it - 1)} more {other} without it" if with_it else ""
        return f"{'yes' if worth.used else 'no'}: the same {unit}{more}"
    if worth.is_worth:
        return f"yes: without it {percent(worth.change)} more {unit}"
    return f"no: with it {percent(1 / (1 + worth.change) - 1)} more {unit}"


def config_snippet(plan: Plan) -> str:
    """The settings as config.toml for `atoll syncer --config`."""
    chosen = plan.best.candidate
    if chosen.is_alone:
        return "# One learner alone: no syncer is needed, and there is nothing to configure.\n"
    ticks = max(1, round(plan.best.tokens / plan.world.spec.model.batch))
    return f"""[sync]
num_learners = {chosen.learners}      # M
min_quorum = {chosen.quorum}        # K
interval_steps = {chosen.interval}   # H
num_fragments = {chosen.fragments}    # P
overlap_steps = {chosen.overlap}     # tau

[codec]
up = "{chosen.codec}"
down = "{chosen.codec}"

[network]
data_connections = {chosen.channels}

[budget]
ticks = {ticks}  # steps to the loss of lock-step, by this plan
"""


def _setting_words(best: Outcome, other: Outcome) -> str:
    words = []
    usual = MEASURED_INTERVAL if best.candidate.is_alone else 0
    if best.candidate.interval != other.candidate.interval > usual:
        words.append(f"H = {other.candidate.interval}")
    if best.candidate.codec != other.candidate.codec:
        words.append(other.candidate.codec)
    return " and ".join(words) or "settings"


def _why_learners(plan: Plan) -> str:
    world, best = plan.world, plan.best
    spec, m = world.spec, best.candidate.learners
    known = "extrapolated by us" if best.crew.gap.is_extrapolated else "from the published table"
    text = (
        f"{name_layout(spec, best.candidate.layout)}; "
        f"the gap to lock-step is {percent(best.gap, 2)} of the loss ({known})"
        if m > 1
        else f"{verdict(plan)}: one learner is lock-step within its island, and pays for no gap and no link"
    )
    others = []
    for layout in layouts_of(spec, used_of(spec, best)):
        if layout != best.candidate.layout:
            found = _best_of(world, layout)
            if found is not None:
                others.append(found)
    if others:
        other = min(others, key=lambda o: o.score)
        text += f"; M = {other.candidate.learners} on the same islands "
        less = f"loses {percent(loses(best, other))} ({why_worse(world, best, other)})"
        text += less if loses(best, other) > NO_DIFFERENCE else "makes no difference"
    return text + "."


def _best_of(world: World, layout: Layout) -> Outcome | None:
    crew = muster(world, layout)
    found = [outcome for outcome in every_setting(world, crew) if isinstance(outcome, Outcome)]
    return min(found, key=lambda outcome: outcome.score, default=None)


def _why_quorum(plan: Plan) -> str:
    chosen, uptimes = plan.best.candidate, plan.best.crew.uptimes
    text = f"{chosen.quorum} or more learners step {percent(uptimes[chosen.quorum], 2)} of the time"
    half = -(-chosen.learners // 2)
    if chosen.quorum < half:
        return (
            f"{text}; K = {chosen.quorum + 1} would be missed "
            f"{percent(1.0 - uptimes[chosen.quorum + 1] / uptimes[1], 3)} of the time in which any step, "
            f"and we allow {percent(QUORUM_MAY_COST)} (ours)."
        )
    if chosen.quorum == 1:
        return f"{text}; half of them is one, so that nobody waits for another (the paper runs K = 1 too)."
    missed = percent(1.0 - uptimes[chosen.quorum] / uptimes[1], 3)
    return (
        f"{text}, half of them; that is missed {missed} of the time in which any step, and we allow "
        f"{percent(QUORUM_MAY_COST)} (ours; the paper runs K = 1 with grace)."
    )


def _why_interval(plan: Plan) -> str:
    best = plan.best
    busiest = max(best.links, key=lambda link: link.load)
    text = (
        f"the busiest link, {busiest.island}, carries {say_rate(busiest.needed_bits_per_s)} "
        f"of {say_rate(busiest.available_bits_per_s)}"
    )
    at = INTERVALS.index(best.candidate.interval)
    for other in (INTERVALS[at - 1] if at else None, INTERVALS[at + 1] if at + 1 < len(INTERVALS) else None):
        if other is not None:
            text += f"; H = {other} {_verdict(plan, other, best.candidate.codec)}"
    return text + "."


def _verdict(plan: Plan, interval: int, codec: str) -> str:
    """What another H or codec would do on the same layout."""
    found = evaluate(plan.world, plan.best.crew, interval, codec)
    if isinstance(found, str):
        return f"cannot be ({found})"
    if loses(plan.best, found) <= NO_DIFFERENCE:
        return "makes no difference"
    return f"loses {percent(loses(plan.best, found))}"


def _why_fragments(plan: Plan) -> str:
    chosen, params = plan.best.candidate, plan.world.spec.model.params
    size = params / chosen.fragments
    payload = size * BITS[chosen.codec] / 8e6
    every = chosen.interval / chosen.fragments
    when = "every step" if every == 1 else f"every {every:g} steps"
    small = "" if every == 1 else "; more would make fragments of fewer than 1M parameters"
    text = f"one fragment of {say_count(size)} parameters ({payload:,.0f} MB) in {when}"
    return f"{text}, the flattest traffic{small}."


def _why_overlap(plan: Plan) -> str:
    best = plan.best
    text = (
        f"the slowest way brings a merged fragment back within {best.way_steps} "
        f"step{'s' if best.way_steps > 1 else ''} of {say_duration(best.crew.step_s)}"
    )
    if best.staleness:
        return f"{text}; we allow a quarter of H, so that merges are {best.staleness} steps late (ours)."
    if best.way_steps < best.candidate.overlap:
        return f"{text}; {best.candidate.overlap}, as in the paper, leaves room for a grace window of a step."
    return f"{text}, so that nothing is late."


def _why_codec(plan: Plan) -> str:
    best = plan.best
    at = CODECS.index(best.candidate.codec)
    texts = [f"{BITS[best.candidate.codec]:g} bits for each parameter, both ways"]
    if at:
        texts.append(f"{CODECS[at - 1]} {_verdict(plan, best.candidate.interval, CODECS[at - 1])}")
    if at + 1 < len(CODECS):
        texts.append(f"{CODECS[at + 1]} {_verdict(plan, best.candidate.interval, CODECS[at + 1])}")
    return "; ".join(texts) + "."


def _why_channels(plan: Plan) -> str:
    name, parts, rate, rtt_s = max(
        plan.best.crew.links, key=lambda link: (link[2] / link[1] * link[3], link[0])
    )
    if not rtt_s:
        return "links without a round trip are filled by one connection."
    one = min(STREAM_BITS / rtt_s, rate / parts)
    number = plan.best.candidate.channels
    link = next(site.link_bits_per_s for site in plan.world.spec.sites if site.name == name) / parts
    if link > rate / parts * 1.001:
        return (
            f"the most there are: at {say_duration(rtt_s)} one carries about {say_rate(one)}, so that "
            f"{number} get {say_rate(rate / parts)} out of the {say_rate(link)} of a learner on {name}."
        )
    if number == 1:
        return f"one connection fills the link of {name} at {say_duration(rtt_s)}."
    return (
        f"one connection carries about {say_rate(one)} at {say_duration(rtt_s)}, and {number} fill the "
        f"{say_rate(rate / parts)} of a learner on {name} (measured: four carry 700 Mbit/s at 100 ms)."
    )
