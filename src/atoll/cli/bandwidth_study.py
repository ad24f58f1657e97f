"""The tables of `atoll simulate bandwidth` for a model and links of one's own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from atoll.observe.formats import finite
from atoll.sim.bandwidth import study
from atoll.sim.bandwidth.closed import mean_bits_per_s, most_rounds, syncer_bits_per_s
from atoll.sim.bandwidth.study import NAMES, Load, Need, OnLink
from atoll.sim.bandwidth.traffic import METHODS, Traffic
from atoll.sim.units import say_count, say_duration, say_rate

__all__ = ["draw", "number_table", "tell"]

SPOKEN_CU = 0.9
NEVER = "never"
LATE = (
    "steps late: beyond tau, ours. Atoll's syncer publishes whole fragments, so each travels twice; the"
    " paper's formula, which publishes bucket by bucket, gives the figure in brackets.\n"
)


def tell(
    traffics: Sequence[Traffic], cus: Sequence[float], link: float | None, console: Console, plot: Path | None
) -> dict[str, object]:
    """Compute, print and perhaps draw; returns what a program would want to read."""
    found, carried = study.needs(traffics, cus), study.loads(traffics)
    on_link = [] if link is None else study.on_link(traffics, link)
    console.print(_said(traffics[0]), highlight=False)
    console.print(_needs_table(found, cus))
    console.print(_footnotes(found, traffics[0]) + "\n", highlight=False)
    console.print(_loads_table(carried))
    if link is not None:
        console.print(_link_table(on_link, link))
        console.print(LATE, highlight=False)
    for line in (*_syncer(traffics), "", _meaning(found, cus, traffics[0])):
        console.print(line, highlight=False)
    if plot:
        links = study.whole_range(found)
        curves = {
            f"{NAMES[method]}, {traffic.bits:g} bits": study.curve(method, traffic, links)
            for method in METHODS
            for traffic in traffics
        }
        draw(curves, plot, console)
    return _as_json(traffics, found, carried, on_link)


def draw(curves: Mapping[str, Sequence[tuple[float, float]]], path: Path, console: Console) -> None:
    """Utilisation against bandwidth, into a file."""
    from atoll.observe.plots import plot_utilisation

    plot_utilisation(curves, path)
    console.print(f"Drawn: {path}", highlight=False, soft_wrap=True)
    held = f"{study.ENOUGH:.0%} of the rounds are held"
    lines = [len(points) for label, points in curves.items() if label.startswith(NAMES["decoupled"])]
    if lines:
        where = "begins where" if any(lines) else "is missing: on none of these links"
        console.print(f"Its line for Decoupled {where} {held}.", highlight=False)


def number_table(title: str, names: Sequence[str], *, texts: int = 1) -> Table:
    """The first columns are text, the others are numbers."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place < texts else "right", no_wrap=True)
    return table


def _gbps(bits_per_s: float) -> str:
    """To three digits; `never` if no link is fast enough."""
    if math.isinf(bits_per_s):
        return NEVER
    value = bits_per_s / 1e9
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _said(traffic: Traffic) -> str:
    """The settings in a sentence."""
    return (
        f"\n{say_count(traffic.params)} parameters at {traffic.sites} sites, a step of"
        f" {say_duration(traffic.step_s)}, H = {traffic.interval_steps}, P = {traffic.fragments},"
        f" tau = {traffic.overlap_steps}, round trip {say_duration(traffic.rtt_s)}.\n"
    )


def _needs_table(found: Sequence[Need], cus: Sequence[float]) -> Table:
    names = ("method", "bits", *(f"{cu:.4g}" for cu in cus), "closed form")
    table = number_table("Gbit/s per site and direction, by compute utilisation (event model)", names)
    for first in range(0, len(found), len(cus)):
        row = found[first : first + len(cus)]
        apart = max(need.difference for need in row)
        label = NAMES[row[0].method] + ("*" if row[0].method == "decoupled" else "")
        rates = (_gbps(need.bits_per_s) for need in row)
        table.add_row(label, f"{row[0].bits:g}", *rates, "-" if math.isinf(apart) else f"{apart:.1%} apart")
    return table


def _footnotes(found: Sequence[Need], traffic: Traffic) -> str:
    note = "*Decoupled never waits; its columns are the share of its rounds that it holds."
    never = {need.method for need in found if math.isinf(need.bits_per_s)}
    if never - {"decoupled"}:
        note += f" {NEVER}: not on any link, because a ring of M sites passes M - 1 round trips (our model)."
    if "decoupled" in never:
        note += f" {NEVER}, for Decoupled: {_too_far(traffic)}."
    elif any(_is_far(need, traffic) for need in found):
        note += (
            " Where Decoupled needs more than its mean traffic, the round trip is what limits: a fragment has"
            " one round at a time, and it must be back before its next."
        )
    if traffic.rtt_s > traffic.overlap_steps * traffic.steps_between * traffic.step_s:
        note += (
            " Not counted: Atoll's syncer opens no round while tau others still wait for their headers, so"
            " with a round trip as long as this it holds fewer, unless tau is larger."
        )
    return note


def _is_far(need: Need, traffic: Traffic) -> bool:
    """Whether decoupled needs more than to carry its rounds, because each must be over in time."""
    carries = need.cu * mean_bits_per_s("decoupled", replace(traffic, bits=need.bits))
    return need.method == "decoupled" and need.closed_bits_per_s > carries * 1.001 and traffic.rtt_s > 0


def _too_far(traffic: Traffic) -> str:
    """Why no link is fast enough for decoupled."""
    cycle = say_duration(traffic.interval_steps * traffic.step_s)
    return (
        f"a fragment has one round at a time, and a round takes at least the round trip of"
        f" {say_duration(traffic.rtt_s)} where H steps take {cycle}; so at most {most_rounds(traffic):.1%} of"
        " the rounds are held, on any link"
    )


def _loads_table(carried: Sequence[Load]) -> Table:
    table = number_table(
        "While nobody waits, a site's link carries", ("method", "bits", "on average", "at its peak")
    )
    for load in carried:
        peak = NEVER if math.isinf(load.peak_bits_per_s) else say_rate(load.peak_bits_per_s)
        table.add_row(NAMES[load.method], f"{load.bits:g}", say_rate(load.mean_bits_per_s), peak)
    return table


def _link_table(rows: Sequence[OnLink], link: float) -> Table:
    names = ("method", "bits", "utilisation", "wait per step", "rounds held", "steps late")
    table = number_table(f"On a link of {say_rate(link)}", names)
    for row in rows:
        held = late = "-"
        if row.method == "decoupled":
            held = f"{row.pace:.0%}" if row.pace >= 0.1 else f"{row.pace:.1%}"
            late = f"{row.staleness_steps} ({row.bucketwise_staleness_steps})"
        wait = say_duration(row.stall_s) if row.stall_s else "-"
        table.add_row(NAMES[row.method], f"{row.bits:g}", f"{row.cu:.1%}", wait, held, late)
    return table


def _meaning(found: Sequence[Need], cus: Sequence[float], traffic: Traffic) -> str:
    """The table in plain words: the widest against the narrowest."""
    cu = SPOKEN_CU if SPOKEN_CU in cus else max(cus)
    lock_step = [need for need in found if need.method == "data-parallel" and need.cu == cu]
    decoupled = [need for need in found if need.method == "decoupled" and need.cu == cu]
    most = max(lock_step, key=lambda need: need.bits)
    least = min(decoupled, key=lambda need: need.bits)
    if math.isinf(least.bits_per_s):
        return (
            f"Decoupled never waits, but it cannot hold {cu:.0%} of its rounds: {_too_far(traffic)}. A longer"
            " interval would let it merge on time. Data-Parallel would wait for its round trips in every"
            " step.\n"
        )
    small = f"Decoupled with {least.bits:g} bits holds {cu:.0%} of its rounds on {say_rate(least.bits_per_s)}"
    if math.isinf(most.bits_per_s):
        big = f"Data-Parallel cannot compute {cu:.0%} of the time on any link, for its round trips"
    else:
        ratio = most.bits_per_s / least.bits_per_s
        big = (
            f"Data-Parallel with {most.bits:g} bits needs {say_rate(most.bits_per_s)} to compute {cu:.0%} of"
            f" the time, {ratio:,.0f} times as much"
        )
    return (
        f"{small} and never waits. {big}. On a thinner link Decoupled goes on computing: its fragments are"
        " merged later and less often.\n"
    )


def _syncer(traffics: Sequence[Traffic]) -> list[str]:
    return [
        f"With {traffic.bits:g} bits the syncer of Decoupled carries {say_rate(syncer_bits_per_s(traffic))},"
        f" in and out, over all {traffic.sites} sites."
        for traffic in traffics
    ]


def _as_json(
    traffics: Sequence[Traffic], found: Sequence[Need], carried: Sequence[Load], on_link: Sequence[OnLink]
) -> dict[str, object]:
    """Infinity is no JSON: null says that no link is fast enough."""
    return {
        "settings": [asdict(traffic) for traffic in traffics],
        "rows": [
            {
                "method": need.method,
                "bits": need.bits,
                "cu": need.cu,
                "gbps": finite(need.bits_per_s / 1e9),
                "closed_gbps": finite(need.closed_bits_per_s / 1e9),
            }
            for need in found
        ],
        "loads": [
            {
                "method": load.method,
                "bits": load.bits,
                "mean_gbps": load.mean_bits_per_s / 1e9,
                "peak_gbps": finite(load.peak_bits_per_s / 1e9),
            }
            for load in carried
        ],
        "syncer": [{"bits": traffic.bits, "gbps": syncer_bits_per_s(traffic) / 1e9} for traffic in traffics],
        "link": [asdict(row) for row in on_link],
        "largest_difference": finite(max(need.difference for need in found)),
    }
