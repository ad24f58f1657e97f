"""`atoll train --resume RUN`: what is known of a run from its directory, so that it can go on.

Nothing is asked of the user but the directory: the recipe stands in recipe.json, the settings in config.toml,
the learners and their speeds in fleet.json. Weights, moments and data cursors are found by those whose they
are, when they start again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from atoll.cli.judge import read_recipe
from atoll.cli.settings import config_of
from atoll.config import RunConfig
from atoll.errors import ConfigError, StoreError
from atoll.recipes import Recipe, recipe_from
from atoll.runtime.fleet_file import FleetFile

__all__ = ["SUMMARY", "Plan", "check_flags", "resumed"]

SUMMARY = "summary.json"
MAY_CHANGE = ("resume", "accept_loss", "steps", "kills", "settings", "as_json")
"""Parameters of `atoll train` that may be given again; the others made the run what it is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that is to begin, or to go on."""

    run_dir: Path
    recipe: Recipe
    config: RunConfig
    fleet: FleetFile
    is_old: bool = False
    """There is something in its directory to go on with."""
    is_finished: bool = False
    summary: dict[str, Any] | None = None
    """Of a run that was finished and judged."""
    accepts_loss: bool = False
    """Whether it may go on without merges that its directory has lost."""


def check_flags(context: typer.Context) -> None:
    """Refuse flags that a run which goes on cannot take."""
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name is not None
        and option.name not in MAY_CHANGE
        and getattr(context.get_parameter_source(option.name), "name", "") == "COMMANDLINE"
    ]
    if given:
        raise ConfigError(
            f"--resume goes on with the run as it is: {', '.join(given)} cannot be given with it.",
            "The learners would train something else than before.",
            "Leave it out; --steps, --kill and --set may be given. Or start a new run without --resume.",
        )


def resumed(run_dir: Path, steps: int | None, settings: Iterable[str]) -> Plan:
    """Read all that is needed. Raises `StoreError` if the directory holds no run that can go on."""
    place = run_dir.absolute()
    recipe = read_recipe(place)
    if recipe is None or not (place / "config.toml").exists():
        missing = "recipe.json" if recipe is None else "config.toml"
        raise StoreError(
            f"There is no run of `atoll train` in {run_dir}: its {missing} is missing or cannot be read.",
            "There is nothing to go on with.",
            "Give the directory of a run, for example --resume runs/gemma-1, or start a new one without it.",
        )
    if steps is not None and steps < 1:
        raise ConfigError(
            f"--steps is {steps}.", "The run would be over before it goes on.", "Try --steps 1000."
        )
    changes = {} if steps is None else {"budget": {"ticks": steps}}
    is_finished = _read(place / "status.json").get("state") == "finished"
    summary = _read(place / SUMMARY) if is_finished else {}
    config = config_of(place, None, changes, settings)
    if is_finished and config.budget != config_of(place, None, {}, ()).budget:
        raise ConfigError(
            f"The run in {run_dir} is finished, and its budget can be changed no more.",
            "Its learners have been sent home, so nobody would train for the steps that were added.",
            f"A finished run goes on after `atoll rollback {run_dir} --to T`, which takes it back to tick T.",
        )
    return Plan(
        place,
        recipe_from(recipe),
        config,
        FleetFile.read(place),
        is_old=True,
        is_finished=is_finished,
        summary=summary or None,
    )


def _read(path: Path) -> dict[str, Any]:
    """A file that may be missing, or half written by somebody who was killed."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
