"""`atoll simulate scale`: the production protocol on the capacity traces of a large fleet."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from atoll.cli.goodput_options import Shocks, SyncerDown, SyncerMtbf
from atoll.cli.options import AsJson
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from atoll.sim.fleet.model import Fleet, SyncerOutages
    from atoll.sim.scale.run import ScaleResult
    from atoll.sim.scale.scenario import ScaleScenario

__all__ = ["scale", "verdict"]

CHIPS, LEARNERS, MTBI, SYNCER_DOWN = "2.4M", "16", "1y", "60s"
MAX_ROWS = 16
REASON = "probably because"
FATES = (
    "overwritten: trained between a snapshot and the adoption of its merge; late: trained on a fragment that "
    "was merged while its learner paused. Goodput counts both, as design and fleet model do.\n"
)

Chips = Annotated[str | None, typer.Option(help="Of the whole fleet.", show_default=CHIPS)]
Learners = Annotated[str | None, typer.Option(help="How many share them.", show_default=LEARNERS)]
Mtbi = Annotated[
    str | None, typer.Option(help="Mean time between interruptions of one chip.", show_default=MTBI)
]
Merges = Annotated[str, typer.Option(help="Outer steps: the run ends with so many.")]
Step = Annotated[str, typer.Option(help="One step of a learner.")]
Quorum = Annotated[int, typer.Option(help="K: fewest offers that may merge.")]
Traces = Annotated[
    Path | None,
    typer.Option(help="A CSV with time_s,learner,chips instead of a drawn fleet, e.g. of a spot market."),
]
Seed = Annotated[int, typer.Option(help="Another seed, other failures.")]
Check = Annotated[str, typer.Option(help="Check every invariant over the first so many merges; 0: none.")]


def scale(
    chips: Chips = None,
    learners: Learners = None,
    merges: Merges = "10000",
    mtbi: Mtbi = None,
    step: Step = "1s",
    quorum: Quorum = 1,
    shocks: Shocks = None,
    syncer_mtbf: SyncerMtbf = None,
    syncer_down: SyncerDown = None,
    traces: Traces = None,
    seed: Seed = 1,
    check: Check = "500",
    as_json: AsJson = False,
) -> None:
    """Run the syncer and the learners themselves, in virtual time, on a fleet whose chips fail and return.

    The fleet simulator draws what each learner has at work at any time; the machines of the production core
    live through it: pauses, darkness, returns, outages of the syncer. What they came to is told beside what
    the fleet model says of the same traces.

    [dim]atoll simulate scale --chips 2.4M --learners 16 --merges 10000 --mtbi 1y --step 1s[/dim]

    [dim]atoll simulate scale --merges 2000 --shock site:every=2h,share=1,down=20m --syncer-mtbf 30m[/dim]
    """
    from atoll.sim.fleet.trace import read_traces
    from atoll.sim.scale.run import run_scale
    from atoll.sim.scale.scenario import draw_outages, from_fleet, from_traces
    from atoll.sim.units import read_count, read_duration

    if seed < 0:
        raise ConfigError(f"--seed is {seed}.", "Seeds count from 0.", "Try --seed 1.")
    num_merges, step_s = read_count(merges, "--merges"), read_duration(step, "--step")
    check_merges, syncer = read_count(check, "--check", least=0), _syncer(syncer_mtbf, syncer_down)
    if traces is not None:
        _refuse_both(chips=chips, learners=learners, mtbi=mtbi, shock=shocks)
        scenario = from_traces(
            read_traces(traces), merges=num_merges, step_s=step_s, seed=seed, quorum=quorum
        )
        scenario = replace(scenario, outages=draw_outages(syncer, scenario.until_s, seed))
    else:
        fleet = _fleet(chips or CHIPS, learners or LEARNERS, mtbi or MTBI, step_s, quorum, shocks or [])
        scenario = from_fleet(replace(fleet, syncer=syncer), merges=num_merges, step_s=step_s, seed=seed)
    with _progress(num_merges) as progress:
        task = progress.add_task("merges", total=num_merges)
        result = run_scale(
            scenario,
            check_merges=check_merges,
            on_progress=lambda done: progress.update(task, completed=min(done, num_merges)),
        )
    _print(Console(stderr=as_json), result)
    if as_json:
        typer.echo(json.dumps(_as_json(result)))
    if result.violations:
        raise typer.Exit(1)


def _refuse_both(**given: object) -> None:
    names = [name.replace("_", "-") for name, value in given.items() if value]
    if names:
        raise ConfigError(
            f"--traces was given, and --{' and --'.join(names)} too.",
            "A trace says already what each learner has at work and when.",
            "Leave one or the other out.",
        )


def _fleet(chips: str, learners: str, mtbi: str, step_s: float, quorum: int, shocks: list[str]) -> Fleet:
    from atoll.cli.goodput_shocks import read_shock
    from atoll.sim.fleet.model import Pauses, even_fleet
    from atoll.sim.units import read_count, read_duration

    return even_fleet(
        read_count(chips, "--chips"),
        read_count(learners, "--learners"),
        mtbi_s=read_duration(mtbi, "--mtbi"),
        pauses=Pauses(quantum_s=step_s),
        quorum=quorum,
        shocks=tuple(read_shock(text) for text in shocks),
    )


def _syncer(mtbf: str | None, down: str | None) -> SyncerOutages | None:
    from atoll.sim.fleet.delay import Delay
    from atoll.sim.fleet.model import SyncerOutages
    from atoll.sim.units import read_duration

    if mtbf is None:
        if down is not None:
            raise ConfigError(
                "--syncer-down was given without --syncer-mtbf.",
                "It is not known how often the syncer is away.",
                "Add for example --syncer-mtbf 30m.",
            )
        return None
    return SyncerOutages(
        every_s=read_duration(mtbf, "--syncer-mtbf"),
        down=Delay(mean_s=read_duration(down or SYNCER_DOWN, "--syncer-down", zero=True)),
    )


def _progress(num_merges: int) -> Progress:
    columns = (TextColumn("merges"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())


def _print(console: Console, result: ScaleResult) -> None:
    scenario = result.scenario
    console.print(f"\n{_headline(scenario)}\n", highlight=False)
    table = Table(box=box.SIMPLE, title="Protocol and fleet model on the same traces", title_justify="left")
    for name in ("", "protocol", "fleet model", "difference", REASON):
        table.add_column(name, justify="left" if name in ("", REASON) else "right")
    for row in result.comparisons():
        text = (
            f"{value:,.4f}" if abs(value) <= 2 else f"{value:,.0f}" for value in (row.measured, row.model)
        )
        difference = f"{row.difference:+,.4f}" if abs(row.model) <= 2 else f"{row.difference:+,.0f}"
        table.add_row(row.name, *text, difference, row.why)
    console.print(table)
    console.print(verdict(result), highlight=False)
    facts = Table(box=box.SIMPLE, show_header=False)
    for name, value in _facts(result):
        facts.add_row(name, value)
    console.print(facts, highlight=False)
    console.print(FATES, highlight=False)
    console.print(_learner_table(result))
    for violation in result.violations[:5]:
        console.print(f"[bold red]{violation}[/bold red]")
    if not result.is_complete:
        console.print(
            f"The time given, {scenario.until_s:,.0f} s, was over after {result.merges:,} of "
            f"{scenario.merges:,} merges: too few learners had chips at work, or the syncer was away.",
            style="yellow",
        )


def _headline(scenario: ScaleScenario) -> str:
    from atoll.sim.units import say_count

    chips = say_count(sum(scenario.chips.values()))
    return (
        f"{len(scenario.traces)} learners with {chips} chips in all; H = {scenario.interval_steps}, "
        f"P = {scenario.num_fragments}, tau = {scenario.overlap_steps}, K = {scenario.quorum}; "
        f"seed {scenario.seed}. A learner with fewer chips takes smaller batches in the same time."
    )


def verdict(result: ScaleResult) -> str:
    """Whether protocol and fleet model tell the same goodput, and if not, what part was lost with lives."""
    from atoll.sim.scale.run import TOLERANCE

    within = f"on goodput (within {100 * TOLERANCE:g} point)"
    if result.agrees:
        return f"Protocol and fleet model agree {within}."
    points = 100 * (result.goodput - result.model.goodput)
    words = (
        f"Protocol and fleet model do NOT agree {within}: {points:+.2f} points. The model does not know what"
        f" is lost with a life: {100 * result.lost:.2f} points were trained by processes that died before"
        " offering it."
    )
    rest = points + 100 * result.lost
    if abs(rest) <= 100 * TOLERANCE:
        return f"{words} But for that they agree."
    return f"{words} That leaves {rest:+.2f} points unexplained."


def _facts(result: ScaleResult) -> list[tuple[str, str]]:
    rate = result.events / max(1e-9, result.wall_s)
    fates = ", ".join(f"{fate} {share:.3f}" for fate, share in result.fates.items())
    checked = "not looked for"
    if result.checked_merges:
        checked = (
            f"{len(result.violations)} in {result.checks:,} checks, first {result.checked_merges:,} merges"
        )
    return [
        ("merges", f"{result.merges:,} of {result.rounds:,} rounds in {result.virtual_s / 3600:,.2f} hours"),
        ("offers in a merge", f"{result.participants:.2f} on average"),
        ("staleness", f"{result.staleness_steps:.2f} steps from snapshot to adoption"),
        ("tokens, once settled", fates),
        ("lost with a life", f"{result.lost:.4f}: trained by a process that died before offering it"),
        ("held by the protocol", f"{result.held_s:g} s (0: nobody ever waits)"),
        ("outages of the syncer", f"{result.outages:,}"),
        ("violations", checked),
        (
            "learner steps",
            f"{result.steps:,}, each {1e6 * result.cpu_s / max(1, result.steps):,.0f} us on a core",
        ),
        ("events", f"{result.events:,}: {rate:,.0f} a second"),
        ("wall time", f"{result.wall_s:,.1f} s, of that {result.cpu_s:,.1f} s on one core"),
        ("digest", result.digest),
    ]


def _learner_table(result: ScaleResult) -> Table:
    table = Table(box=box.SIMPLE, title="Merged tokens, by learner", title_justify="left")
    for name in ("learner", "lives", "merged tokens", "share"):
        table.add_column(name, justify="left" if name == "learner" else "right")
    total = max(1, sum(result.merged_tokens.values()))
    for name, tokens in list(result.merged_tokens.items())[:MAX_ROWS]:
        table.add_row(name, str(result.incarnations[name]), f"{tokens:,}", f"{tokens / total:.4f}")
    if len(result.merged_tokens) > MAX_ROWS:
        table.add_row(f"and {len(result.merged_tokens) - MAX_ROWS} more", "", "", "")
    return table


def _as_json(result: ScaleResult) -> dict[str, object]:
    """Only what follows from the seed: the same seed, the same bytes. Times are in the tables."""
    scenario = result.scenario
    return {
        "chips": round(sum(scenario.chips.values())),
        "learners": len(scenario.traces),
        "quorum": scenario.quorum,
        "seed": scenario.seed,
        "merges": result.merges,
        "merges_asked": scenario.merges,
        "rounds": result.rounds,
        "cancelled": result.cancelled,
        "simulated_s": result.virtual_s,
        "goodput": result.goodput,
        "lost": result.lost,
        "participation": result.participation,
        "participants": result.participants,
        "merges_per_hour": result.merges_per_hour,
        "staleness_steps": result.staleness_steps,
        "uptime_one": result.uptime_one,
        "uptime_quorum": result.uptime_quorum,
        "held_s": result.held_s,
        "fates": result.fates,
        "merged_tokens": result.merged_tokens,
        "incarnations": result.incarnations,
        "syncer_outages": result.outages,
        "agrees": result.agrees,
        "model": [
            {"name": row.name, "protocol": row.measured, "model": row.model, "difference": row.difference}
            for row in result.comparisons()
        ],
        "checked_merges": result.checked_merges,
        "checks": result.checks,
        "violations": len(result.violations),
        "learner_steps": result.steps,
        "events": result.events,
        "digest": result.digest,
    }
