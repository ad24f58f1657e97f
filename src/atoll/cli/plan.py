"""`atoll plan`: which M, K, H, P, tau, codec and channels for a fleet, and what to expect of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from atoll.cli.options import AsJson
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from atoll.sim.plan.evaluate import Outcome
    from atoll.sim.plan.plan import Plan

__all__ = ["plan"]

WIDTH = 100

FleetFile = Annotated[
    Path | None, typer.Argument(metavar="FLEET.toml", help="The fleet. Three stand in examples/fleets.")
]
Money = Annotated[bool, typer.Option("--money", help="Minimise money instead of time.")]
SimSeed = Annotated[int, typer.Option("--seed", help="Of the simulated failures.")]
Example = Annotated[bool, typer.Option("--example", help="Print a fleet file with every key, and end.")]


def plan(
    fleet: FleetFile = None,
    money: Money = False,
    seed: SimSeed = 1,
    example: Example = False,
    as_json: AsJson = False,
) -> None:
    """Recommend M, K, H, P, tau, codec and channels for a fleet, and say what to expect.

    The file names the model (params, tokens, batch), the islands (chips, flops, mtbi, price, up, down,
    rtt and more), shocks and the syncer; --example prints every key with its meaning.

    Minimised is the time (or the money) to the loss that lock-step training reaches on the same tokens.
    Failures are simulated; links and quality are closed forms, and what is our own rule is said to be.
    """
    from atoll.sim.plan.answer import as_json as answer
    from atoll.sim.plan.fleet_file import read_fleet
    from atoll.sim.plan.keys import example as example_file
    from atoll.sim.plan.plan import make_plan

    if example:
        typer.echo(example_file(), nl=False)
        return
    if fleet is None:
        raise ConfigError(
            "No fleet file is given.",
            "There is nothing to plan.",
            "Try examples/fleets/four-regions.toml, or begin with atoll plan --example > fleet.toml.",
        )
    if seed < 0:
        raise ConfigError(f"--seed is {seed}.", "Seeds count from 0.", "Try --seed 1.")
    found = make_plan(read_fleet(fleet), money=money, seed=seed)
    _print(Console(stderr=as_json, width=WIDTH, highlight=False, soft_wrap=False), found)
    if as_json:
        typer.echo(json.dumps(answer(found)))


def _print(console: Console, found: Plan) -> None:
    _print_recommendation(console, found)
    _print_expected(console, found)
    _print_islands(console, found)
    _print_arithmetic(console, found)
    _print_candidates(console, found)
    _print_changes(console, found)
    _print_rest(console, found)


def _print_recommendation(console: Console, found: Plan) -> None:
    from atoll.sim.plan.explain import reasons, verdict
    from atoll.sim.plan.plan import SETTINGS

    goal = "money" if found.world.money else "time"
    what = f": {verdict(found)}" if found.best.candidate.is_alone else ""
    table = _table(escape(f"Recommended, for the least {goal} to the loss of lock-step{what}"), header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(no_wrap=True, style="bold green")
    table.add_column(overflow="fold")
    values = {letter: getattr(found.best.candidate, name) for name, letter in SETTINGS.items()}
    for letter, reason in reasons(found).items():
        table.add_row(letter, str(values[letter]), escape(reason))
    console.print(table)


def _print_expected(console: Console, found: Plan) -> None:
    from atoll.sim.plan.explain import percent
    from atoll.sim.units import say_count, say_duration

    best, locked = found.best, found.lock_step
    whole = found.whole[best.candidate.layout]
    table = _table("To expect")
    for name in ("", "this plan", "lock-step", f"{locked.alone_name} alone"):
        table.add_column(escape(name), justify="left" if not name else "right", no_wrap=True)
    fast, slow = found.time_range_s
    gap_range = f"{say_duration(fast)} .. {say_duration(slow)}"
    rows = [
        ("time to the loss", *(map(say_duration, (best.time_s, locked.time_s, locked.alone_time_s)))),
        *([("  gap -/+ its uncertainty", gap_range)] if slow > fast else []),
        ("money to the loss", *(_money(found, cost) for cost in (best.cost, locked.cost, locked.alone_cost))),
        (
            "tokens/s",
            *map(say_count, (best.crew.tokens_per_s, locked.tokens_per_s, locked.alone_tokens_per_s)),
        ),
        ("tokens needed", *map(say_count, (best.tokens, *[found.world.spec.model.tokens] * 2))),
        ("a step takes", say_duration(best.crew.step_s), say_duration(locked.step_s), ""),
        ("goodput", percent(best.crew.goodput, 2), percent(locked.goodput, 2), ""),
        ("  left after waiting for links", "all", percent(locked.utilisation, 2), ""),
        ("participation", percent(whole.participation, 2)),
        *_syncer_rows(found),
    ]
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _syncer_rows(found: Plan) -> list[tuple[str, str]]:
    from atoll.sim.plan.explain import percent
    from atoll.sim.plan.links import merge_cores
    from atoll.sim.units import say_rate

    best, crew = found.best, found.best.crew
    one, quorum = percent(crew.uptimes[1], 2), percent(crew.uptimes[crew.quorum], 2)
    if best.candidate.is_alone:
        return [("uptime", one), ("syncer", "none is needed")]
    cores = merge_cores(found.world.spec.model.params, crew.learners, crew.step_s * best.candidate.interval)
    return [
        ("uptime, of one / of K", f"{one} / {quorum}"),
        ("K step, the syncer is there", percent(crew.merging, 2)),
        ("staleness beyond tau", f"{best.staleness} steps"),
        ("syncer, in and out", f"{say_rate(best.syncer_bits_per_s)}, {cores:.1f} cores"),
    ]


def _print_islands(console: Console, found: Plan) -> None:
    from atoll.sim.plan.explain import worth_in_words
    from atoll.sim.units import say_count, say_rate

    spec, best = found.world.spec, found.best
    shares = {share.site: share for share in best.candidate.layout}
    links = {link.island: link for link in best.links}
    table = _table("Islands: what each link carries, and whether the island is worth it")
    for name, justify in (("island", "left"), ("learners", "right"), ("batch each", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]  # words of rich
    table.add_column("needed / carries", justify="right", no_wrap=True)
    table.add_column("worth its link?", overflow="fold")
    for worth in found.worths:
        site, share = spec.sites[worth.site], shares.get(worth.site)
        name = escape(site.name) + (f" ({worth.used} of {site.count})" if site.count > 1 else "")
        words = escape(worth_in_words(found, worth))
        if share is None:
            table.add_row(name, "-", "-", f"- / {say_rate(site.link_bits_per_s)}", words)
            continue
        batch = site.rate / share.parts * best.crew.step_s
        carried = f"- / {say_rate(site.link_bits_per_s)}"
        if link := links.get(site.name):
            carried = f"{say_rate(link.needed_bits_per_s)} / {say_rate(link.available_bits_per_s)}"
        table.add_row(name, str(share.used * share.parts), say_count(round(batch)), carried, words)
    console.print(table)


def _print_arithmetic(console: Console, found: Plan) -> None:
    from atoll.sim.plan.explain import name_layout

    islands = name_layout(found.world.spec, found.lock_step.layout)
    title = f"{found.times_faster:.3g} times faster than lock-step over those links ({islands})"
    table = _table(escape(title), header=False)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold", style="dim")
    table.add_column(justify="right", no_wrap=True)
    for line in found.lines:
        table.add_row(line.what, line.working, f"= {line.shown}")
    console.print(table)
    locked = found.lock_step
    if found.best.candidate.is_alone:
        return
    console.print(
        f"Against lock-step on {escape(locked.alone_name)} alone, which needs no link: "
        f"{locked.alone_time_s / found.best.time_s:.3g} times faster. The authors' figure for 12B over four "
        "U.S. regions on 2..5 Gbit/s is more than 20 times; it is from a blog, without chips or step times.\n"
    )


def _print_candidates(console: Console, found: Plan) -> None:
    from atoll.sim.plan.explain import loses, name_layout, percent, why_worse
    from atoll.sim.units import say_duration

    table = _table("The five best (at most two of one layout)")
    for name in ("M", "K", "H", "P", "tau", "codec", "time", "money", "loses"):
        table.add_column(name, justify="left" if name == "codec" else "right", no_wrap=True)
    table.add_column("islands, and where it loses", overflow="fold")
    for outcome in found.five:
        words = "" if outcome is found.best else f"; {why_worse(found.world, found.best, outcome)}"
        table.add_row(
            *_settings(outcome),
            say_duration(outcome.time_s),
            _money(found, outcome.cost),
            percent(loses(found.best, outcome)),
            escape(name_layout(found.world.spec, outcome.candidate.layout) + words),
        )
    console.print(table)


def _settings(outcome: Outcome) -> list[str]:
    from atoll.sim.plan.plan import setting

    names = ("learners", "quorum", "interval", "fragments", "overlap", "codec")
    values = [setting(outcome.candidate, name) for name in names]
    return ["-" if value is None else str(value) for value in values]


def _print_changes(console: Console, found: Plan) -> None:
    from atoll.sim.units import say_duration

    table = _table("Which input would change the choice")
    table.add_column("if", overflow="fold")
    table.add_column("then", overflow="fold")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("money", justify="right", no_wrap=True)
    for change in found.changes:
        then = escape(", ".join(change.flips)) if change.flips else "[dim]the same choice[/dim]"
        best = change.best
        results = (say_duration(best.time_s), _money(found, best.cost)) if best else ("-", "-")
        table.add_row(escape(change.what), then, *results)
    console.print(table)


def _print_rest(console: Console, found: Plan) -> None:
    from atoll.sim.plan.explain import config_snippet
    from atoll.sim.plan.pace import REPETITIONS
    from atoll.sim.plan.quality import token_exponent

    paces, gap, is_alone = found.world.paces, found.best.crew.gap, found.best.candidate.is_alone
    basis = "extrapolated by us from" if gap.is_extrapolated else "from"
    source = f"by M and size is {basis} Table 4 of arXiv:2503.09799 (+- {100 * gap.uncertainty:.2f} points)"
    if is_alone:
        source = "of plans with a syncer is from Table 4 of arXiv:2503.09799, beyond it extrapolated by us"
    else:
        console.print("[bold]For atoll syncer --config[/bold]\n")
        console.print(config_snippet(found), markup=False)
    console.print(
        f"[bold]Simulated[/bold]: failures, returns and pauses of {paces.num_distinct} distinct fleets over "
        f"{paces.horizon_s / 86400:.3g} days, {REPETITIONS} times: goodput and uptime of each learner, "
        "participation.\n"
        "[bold]Closed forms[/bold]: shocks, uptime of all learners together, bandwidth, staleness, "
        "lock-step's wait for its links.\n"
        f"[bold]Quality[/bold]: the gap {source}, and becomes tokens by "
        f"loss ~ tokens^-{token_exponent():.3f}, half the slope of its Data-Parallel row. That exponent, and "
        "the costs of H above 30, of codecs and of late merges, are rules of ours (sim/plan/quality.py)."
    )


def _money(found: Plan, cost: float) -> str:
    if not found.world.spec.has_prices:
        return "-"
    return f"{cost:,.0f}" if cost < 1e12 else f"{cost:.3g}"


def _table(title: str, *, header: bool = True) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE,
        show_header=header,
        pad_edge=False,
    )
