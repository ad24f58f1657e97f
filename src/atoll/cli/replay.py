"""`atoll replay`: a run computed again from its directory, and what follows from being able to."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from atoll.cli import options as opt
from atoll.cli.judge import model_config, read_recipe
from atoll.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from atoll.runtime.replay import Replayed
    from atoll.runtime.run_diff import Parting, RunDiff
    from atoll.runtime.without import Without

__all__ = ["replay"]

SHOWN_PROBLEMS = 20


def replay(
    run: Annotated[Path, typer.Argument(help="A run directory; its syncer may be running.")],
    until: Annotated[int | None, typer.Option(help="Stop at this tick, and say what the model was.")] = None,
    diff: Annotated[Path | None, typer.Option(help="Another run: say where the two part.")] = None,
    without: Annotated[str | None, typer.Option(help="A learner: merge again without its offers.")] = None,
    since: Annotated[int | None, typer.Option(help="With --without: from this tick on.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the model of --until or --without here.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Compute a run again from its directory, and compare every digest.

    Three layers: the machines are given their events again and must decide
    the same; the deltas are folded from the oldest kept base; and where
    tape.keep_offers was on, the merges themselves are computed again. Ends with
    0 only if everything agrees.

    [dim]atoll replay runs/gemma-1[/dim]

    [dim]atoll replay runs/gemma-1 --until 400 --out model-at-400[/dim]

    [dim]atoll replay runs/gemma-1 --diff runs/gemma-2[/dim]

    [dim]atoll replay runs/gemma-1 --without learner-3 --since 400[/dim]
    """
    _check_options(until, diff, without, since, out)
    if diff is not None:
        agrees = _diff(run, diff, as_json)
    elif without is not None:
        agrees = _without(run, without, since, out, as_json)
    else:
        agrees = _replay(run, until, out, as_json)
    if not agrees:
        raise typer.Exit(1)


def _check_options(
    until: int | None, diff: Path | None, without: str | None, since: int | None, out: Path | None
) -> None:
    asked = {"--until": until, "--diff": diff, "--without": without}
    named = [name for name, value in asked.items() if value is not None]
    if len(named) > 1:
        given = " and ".join(named)
        raise ConfigError(
            f"{given} are given together.", "Each asks for another thing.", "Choose one of them."
        )
    if since is not None and without is None:
        cure = "Name a learner with --without."
        raise ConfigError("--since is given without --without.", "It would change nothing.", cure)
    if out is not None and until is None and without is None:
        raise ConfigError(
            "--out is given without --until or --without.",
            "The newest model is not computed here.",
            "Name a tick with --until, or use `atoll export` for the newest model.",
        )


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, if that is a terminal; gone when the work is."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# The whole run, or as far as a tick


def _replay(run: Path, until: int | None, out: Path | None, as_json: bool) -> bool:
    from atoll.runtime.replay import replay_run

    with _progress("replaying") as progress:
        found = replay_run(run, until=until, keep_values=out is not None, progress=progress)
    written = _write_until(run, out, found) if out is not None and found.ok else None
    if as_json:
        typer.echo(json.dumps(_replayed_json(found, until, written)))
    else:
        for line in _replayed_lines(found, until):
            typer.echo(line)
        if written is not None:
            typer.echo(f"written to {written['path']}/model.safetensors; buffers are the run's newest")
    return found.ok


def _write_until(run: Path, out: Path, found: Replayed) -> dict[str, Any]:
    from atoll.runtime.export import write_model
    from atoll.runtime.store import read_run

    manifest = read_run(run).manifest
    if manifest is None or not found.values:
        raise StoreError(
            f"The run in {run} has no weights yet.", "There is no model to write.", "Train first."
        )
    merges = sum(end.version for end in found.ends)
    return write_model(run, out, manifest, found.values, merges, model_config(read_recipe(run)))


def _replayed_json(found: Replayed, until: int | None, written: dict[str, Any] | None) -> dict[str, Any]:
    verdict = found.decisions
    decisions = None if verdict is None else {"checks": verdict.num_checks, "lines": verdict.num_entries}
    return {
        "ok": found.ok,
        "commits": found.commits,
        "verified": found.verified,
        "problems": found.problems,
        "since": found.since,
        "start": found.start,
        "merged_again": found.merges,
        "rolled_back": found.rolled_back,
        "decisions": decisions,
        "until": until,
        "fragments": [
            {"fragment": end.fragment, "version": end.version, "digest": end.digest, "t": end.t}
            for end in found.ends
        ],
        "written": written,
    }


def _replayed_lines(found: Replayed, until: int | None) -> Iterator[str]:
    if found.start:
        yield _decisions_line(found)
        yield f"fold       {found.commits:,} commits folded, every digest compared; {found.start}"
        if found.rolled_back:
            yield f"           {found.rolled_back:,} commits were rolled back and count no more"
        yield _merges_line(found)
    if until is not None:
        for end in found.ends:
            yield f"fragment {end.fragment}: version {end.version} of tick {end.t:,}, digest {end.digest}"
    for problem in found.problems[:SHOWN_PROBLEMS]:
        yield f"problem: {problem}"
    if len(found.problems) > SHOWN_PROBLEMS:
        yield f"and {len(found.problems) - SHOWN_PROBLEMS:,} more problems (--json lists them all)"
    count = "1 problem" if len(found.problems) == 1 else f"{len(found.problems):,} problems"
    yield "everything agrees" if found.ok else f"{count}: the run does not replay"


def _decisions_line(found: Replayed) -> str:
    verdict = found.decisions
    if verdict is None:
        return "decisions  not looked at: with --until only values are computed"
    if verdict.is_cut_off and not verdict.num_entries:
        return "decisions  not looked at: the tape cannot be read"
    num_other = len(verdict.replay) - verdict.is_cut_off
    same = "did not decide the same" if num_other else "decided the same"
    said = "hold" if not verdict.violations else "are broken"
    since = f" {verdict.since}" if verdict.since else ""
    upto = " up to where it is damaged" if verdict.is_cut_off else ""
    return (
        f"decisions  {verdict.num_entries:,} lines of tape{since}{upto}: the machines {same}, "
        f"invariants {said} ({verdict.num_checks:,} checks)"
    )


def _merges_line(found: Replayed) -> str:
    if not found.commits:
        return "merges     none to compute again"
    if found.merges == found.commits:
        return f"merges     all {found.merges:,} computed again from their offers"
    if found.merges:
        rest = found.commits - found.merges
        return f"merges     {found.merges:,} computed again from their offers; {rest:,} have none: fold only"
    return "merges     not computed again: no offers were kept (tape.keep_offers)"


# Two runs


def _diff(run: Path, other: Path, as_json: bool) -> bool:
    from atoll.runtime.run_diff import diff_runs

    found = diff_runs(run, other)
    if as_json:
        typer.echo(json.dumps(_diff_json(found)))
    else:
        for line in _diff_lines(found):
            typer.echo(line)
    return found.equal


def _diff_json(found: RunDiff) -> dict[str, Any]:
    return {
        "equal": found.equal,
        "commits": found.commits,
        "problems": list(found.problems),
        "fragments": [
            {"fragment": one.fragment, "version": one.version, "ticks": one.ticks, "differences": one.words}
            for one in found.partings
        ],
    }


def _diff_lines(found: RunDiff) -> Iterator[str]:
    for problem in found.problems:
        yield f"the runs cannot be compared: {problem}"
    if found.equal:
        yield f"the runs are equal: {found.commits:,} commits, the same bits"
    if found.first is not None:
        yield f"{found.commits:,} commits are the same; the first that differs is {_named(found.first)}"
    for parting in found.partings:
        yield f"{_named(parting)}: {'; '.join(parting.words)}"


def _named(parting: Parting) -> str:
    here, there = ("none" if t is None else f"{t:,}" for t in parting.ticks)
    return f"fragment {parting.fragment}, version {parting.version} (tick {here} against {there})"


# One learner less


def _without(run: Path, learner: str, since: int | None, out: Path | None, as_json: bool) -> bool:
    from atoll.runtime.export import write_model
    from atoll.runtime.without import run_without

    with _progress(f"merging without {learner}") as progress:
        found = run_without(run, learner, since, progress)
    settings = read_recipe(run)
    losses = None if settings is None else _losses(settings, found)
    written = None
    if out is not None:
        written = write_model(run, out, found.manifest, found.other, found.merges, model_config(settings))
    if as_json:
        typer.echo(json.dumps(_without_json(found, since, losses, written)))
    else:
        for line in _without_lines(found, since, losses):
            typer.echo(line)
        if written is not None:
            typer.echo(f"written to {written['path']}/model.safetensors; buffers are the run's own")
    return True


def _losses(settings: dict[str, Any], found: Without) -> dict[str, float]:
    """Held-out loss of the real end and of the other one."""
    from atoll.recipes import recipe_from
    from atoll.runtime.export import weights_of

    recipe = recipe_from(settings)
    model = recipe.build_model()
    losses = {}
    for name, values in (("real", found.real), ("without", found.other)):
        strange = model.load_state_dict(weights_of(found.manifest, values), strict=False).unexpected_keys
        assert not strange, "a run has the names of its recipe"
        losses[name] = recipe.evaluate(model)
    return losses


def _without_json(
    found: Without, since: int | None, losses: dict[str, float] | None, written: dict[str, Any] | None
) -> dict[str, Any]:
    from atoll.runtime.without import CAVEAT

    return {
        "learner": found.learner,
        "since": since,
        "start": found.start,
        "rounds": found.num_rounds,
        "merged_again": found.num_changed,
        "skipped": found.num_skipped,
        "distances": found.distances,
        "heldout_loss": losses,
        "caveat": CAVEAT,
        "written": written,
    }


def _without_lines(found: Without, since: int | None, losses: dict[str, float] | None) -> Iterator[str]:
    from atoll.runtime.without import CAVEAT

    begins = found.start if since is None else f"since tick {since:,}"
    yield (
        f"without {found.learner} ({begins}): {found.num_changed:,} of {found.num_rounds:,} merges computed "
        f"again, {found.num_skipped:,} skipped because it was alone"
    )
    for p, distance in enumerate(found.distances):
        yield f"fragment {p}: {distance:.3%} away from the real end"
    if losses is not None:
        yield f"held-out loss: {losses['real']:.4f} in the real run, {losses['without']:.4f} without it"
    yield CAVEAT
