"""`atoll simulate`: the production protocol in virtual time."""

from __future__ import annotations

import json
import os
import sys
import time

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from atoll.cli import bandwidth, goodput, scale
from atoll.errors import ConfigError
from atoll.sim import demo as demo_run
from atoll.sim.faults import KINDS, PHASES
from atoll.sim.protocol import SeedResult, Summary, run_scenario, run_seeds, shrink
from atoll.sim.story import Line, account, narrate

__all__ = ["commands"]

commands = typer.Typer(help="The production protocol in virtual time.", no_args_is_help=True)

MOODS = {"fault": "yellow", "good": "green", "wrong": "bold red", "plain": ""}
MAX_STORY_LINES = 60
MAX_STORIES = 3


@commands.command()
def protocol(
    seeds: int = typer.Option(100, help="How many seeds to run."),
    start: int = typer.Option(1, help="The first seed."),
    jobs: int = typer.Option(min(2, os.cpu_count() or 1), help="Processes to run them in."),
    faults: bool = typer.Option(True, "--faults/--no-faults", help="Inject faults (the point of it)."),
    story: bool = typer.Option(False, help="Tell what happened (for a single seed)."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object as the last line."),
) -> None:
    """Run the protocol core under seeded faults and check every invariant on every tape.

    Each seed draws a fleet (2..8 learners, 2..8 fragments, quorum, algorithm, links, disk) and a
    plan of faults: crashes between any two commands, pauses, partitions, loss, duplication,
    reordering, corruption, thin links, torn and lost writes, full disks, twins, poison. Then
    everything is healed, and the run must make progress again. A failing seed prints the command
    that repeats it, and is shrunk to a short story.
    """
    _check_counts(seeds, start, jobs)
    if story and seeds != 1:
        raise ConfigError(
            f"--story tells one seed, and --seeds is {seeds}.",
            "The stories would run into each other.",
            f"Try --start {start} --seeds 1 --story.",
        )
    console = Console(stderr=as_json)
    began = time.perf_counter()
    summary = _run(range(start, start + seeds), jobs, faults, console)
    elapsed_s = time.perf_counter() - began
    _print_summary(console, summary, elapsed_s, jobs)
    if story:
        _print_seed_story(console, start, faults)
    for failure in summary.failures[:MAX_STORIES]:
        _print_failure(console, failure, faults)
    if as_json:
        typer.echo(json.dumps(_as_json(summary, elapsed_s)))
    if summary.failures:
        raise typer.Exit(1)


@commands.command()
def demo(
    seed: int = typer.Option(7, help="Another seed, another run."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object as the last line."),
) -> None:
    """A short simulated run, told: learners die and return, merges go on, tokens add up."""
    console = Console(stderr=as_json)
    result = demo_run.run(seed)
    console.print("\n" + demo_run.INTRODUCTION.format(**result.facts) + "\n", highlight=False)
    for line in narrate(result.world.tape, result.checker.violations, brief=True):
        _print_line(console, line)
    console.print()
    console.print(_account_table(result))
    console.print(demo_run.conclusion(result), highlight=False)
    if as_json:
        typer.echo(json.dumps(result.facts))
    if result.checker.violations:
        raise typer.Exit(1)


def _check_counts(seeds: int, start: int, jobs: int) -> None:
    for name, value, least in (("seeds", seeds, 1), ("start", start, 0), ("jobs", jobs, 1)):
        if value < least:
            raise ConfigError(
                f"--{name} is {value}.",
                f"It must be at least {least}, or there is nothing to run.",
                f"Try --{name} {max(least, 1)}.",
            )


def _run(seeds: range, jobs: int, faults: bool, console: Console) -> Summary:
    summary = Summary()
    columns = (
        TextColumn("seeds"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[violations]} violations"),
    )
    bar_console = Console(stderr=True)
    with Progress(*columns, console=bar_console, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("seeds", total=len(seeds), violations=0)
        for result in run_seeds(seeds, jobs, faults=faults):
            summary.add(result)
            progress.update(task, advance=1, violations=len(summary.failures))
    return summary


def _print_summary(console: Console, summary: Summary, elapsed_s: float, jobs: int) -> None:
    table = Table(title="Protocol simulation", title_justify="left", show_header=False, box=box.SIMPLE)
    num_faults = sum(summary.struck.values())
    rows = (
        ("seeds", f"{summary.seeds:,}"),
        ("simulated time", f"{summary.simulated_ns / 3.6e12:,.1f} hours"),
        ("wall time", f"{elapsed_s:,.1f} s with {jobs} processes"),
        ("events", f"{summary.events:,}"),
        ("faults that changed something", f"{num_faults:,} ({num_faults / summary.seeds:.1f} a seed)"),
        ("merges", f"{summary.merges:,} (at least {summary.min_merges} a seed)"),
        ("participation", f"{summary.participation:.3f}"),
        ("invariant checks", f"{summary.checks.total():,}"),
        ("violations", f"{sum(len(f.violations) for f in summary.failures):,}"),
        ("digest", summary.digest),
    )
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)
    if num_faults:
        console.print(_phase_table(summary))


def _phase_table(summary: Summary) -> Table:
    table = _compact_table(
        "Faults that changed something, by kind and by the phase they began in", ("kind", *PHASES)
    )
    for kind in KINDS:
        cells = [summary.struck[kind, phase] for phase in PHASES]
        table.add_row(kind, *(str(cell) if cell else "[red]-[/red]" for cell in cells))
    return table


def _compact_table(title: str, names: tuple[str, ...]) -> Table:
    """A table that fits 80 columns: the first column is text, the others are numbers."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name == names[0] else "right", no_wrap=True)
    return table


def _print_failure(console: Console, failure: SeedResult, faults: bool) -> None:
    flag = "" if faults else " --no-faults"
    console.print(f"\n[bold red]seed {failure.seed} breaks:[/bold red]")
    for violation in failure.violations:
        console.print(f"  {violation}", markup=False, highlight=False)
    console.print(f"  repeat it: atoll simulate protocol --start {failure.seed} --seeds 1 --story{flag}")
    small = shrink(failure.seed) if faults else None
    if small is None or failure.violations[0].startswith("I0"):
        return
    world, checker = run_scenario(small)
    console.print(f"  shrunk to {len(small.plan)} faults:")
    lines = list(narrate(world.tape, checker.violations[:3]))
    wrong = next((i for i, line in enumerate(lines) if line.mood == "wrong"), len(lines) - 1)
    for line in lines[max(0, wrong - MAX_STORY_LINES) : wrong + 3]:
        _print_line(console, line, indent="    ")


def _print_seed_story(console: Console, seed: int, faults: bool) -> None:
    from atoll.sim.world import draw_scenario

    world, checker = run_scenario(draw_scenario(seed, faults=faults))
    for line in narrate(world.tape, checker.violations):
        _print_line(console, line)


def _print_line(console: Console, line: Line, indent: str = "  ") -> None:
    text = f"{indent}{line.at_ns / 1e9:8.2f} s  {line.text}"
    console.print(text, style=MOODS[line.mood], markup=False, highlight=False, soft_wrap=True)


def _account_table(result: demo_run.DemoResult) -> Table:
    names = ("learner", "lives", "trained", "merged", "overwritten", "dropped", "lost", "open", "sum")
    table = _compact_table("Where the tokens went (each counted once per fragment)", names)
    for book in account(result.world.tape, result.world.scenario.params.num_fragments):
        parts = (book.merged, book.overwritten, book.dropped, book.lost, book.open)
        total = sum(parts)
        mark = "" if total == book.trained else " WRONG"
        table.add_row(
            book.name,
            str(book.lives),
            f"{book.trained:,}",
            *(f"{part:,}" for part in parts),
            f"{total:,}{mark}",
        )
    return table


def _as_json(summary: Summary, elapsed_s: float) -> dict[str, object]:
    return {
        "seeds": summary.seeds,
        "simulated_hours": summary.simulated_ns / 3.6e12,
        "wall_s": elapsed_s,
        "events": summary.events,
        "faults": summary.faults,
        "faults_by_phase": {kind: {phase: summary.struck[kind, phase] for phase in PHASES} for kind in KINDS},
        "merges": summary.merges,
        "min_merges": summary.min_merges,
        "participation": summary.participation,
        "checks": dict(sorted(summary.checks.items())),
        "violations": sum(len(failure.violations) for failure in summary.failures),
        "failing_seeds": [failure.seed for failure in summary.failures],
        "digest": summary.digest,
    }


commands.command()(bandwidth.bandwidth)
commands.command()(goodput.goodput)
commands.command()(scale.scale)
