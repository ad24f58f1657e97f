"""`atoll rollback`: a run goes on from an earlier tick."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli import options as opt

if TYPE_CHECKING:
    from atoll.runtime.rollback import Plan

__all__ = ["rollback"]


def rollback(
    run: Annotated[Path, typer.Argument(help="A run directory; its syncer must not be running.")],
    to: Annotated[int, typer.Option(help="The tick to go back to.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be given up, and end.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Take a run back to an earlier tick, under a new epoch.

    Each fragment returns to its newest version that was committed at that
    tick or before. What came later counts no more, but no file is deleted.
    Says first what is given up, and asks.

    [dim]atoll rollback runs/gemma-1 --to 400[/dim]

    Then go on with `atoll syncer --run-dir RUN` or `atoll train --resume RUN`.
    Learners that are still training are served the older versions.
    """
    from atoll.runtime.rollback import WayBack, plan_way_back

    if dry_run:
        plan = plan_way_back(run, to)
        _show(plan, as_json)
    else:
        with WayBack(run, to) as way:
            plan = way.plan
            _show(plan, as_json)
            if not yes:
                typer.confirm("Go back?", abort=True, err=True)
            way.take()
        if not as_json:
            typer.echo(f"the run stands at tick {plan.t:,}, epoch {plan.epoch}; start its syncer to go on")
    if as_json:
        typer.echo(json.dumps(_json(plan, is_taken=not dry_run)))


def _show(plan: Plan, as_json: bool) -> None:
    for line in _lines(plan):
        typer.echo(line, err=as_json)


def _lines(plan: Plan) -> Iterator[str]:
    yield f"from tick {plan.now_t:,} back to tick {plan.t:,} gives up {plan.num_commits:,} commits:"
    for back in plan.rollbacks:
        yield f"fragment {back.fragment}: version {back.from_version} back to {back.to_version}"
    for name, tokens in plan.tokens.items():
        yield f"{name}: {tokens:,} merged tokens"
    if plan.was_finished:
        yield "the run was finished, and is not any more"


def _json(plan: Plan, *, is_taken: bool) -> dict[str, Any]:
    return {
        "taken": is_taken,
        "t": plan.t,
        "from_t": plan.now_t,
        "epoch": plan.epoch,
        "commits": plan.num_commits,
        "tokens": plan.tokens,
        "was_finished": plan.was_finished,
        "fragments": [
            {
                "fragment": back.fragment,
                "from": back.from_version,
                "to": back.to_version,
                "digest": back.digest,
            }
            for back in plan.rollbacks
        ],
    }
