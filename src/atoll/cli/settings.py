"""From flags to a run: settings from four places, speeds, kills, and a directory of its own.

Settings come from the recipe, then a config file, then the flags, then `--set`; the later wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.config import RunConfig, toml
from atoll.errors import ConfigError, StoreError
from atoll.recipes import Recipe
from atoll.wire.url import RUN_NAME

__all__ = ["RUNS", "Kill", "config_of", "new_run_dir", "parse_kill", "parse_speeds", "run_config", "unusable"]

RUNS = Path("runs")
MAX_RUNS = 100_000
NUM_LEARNERS = 4
KILL = re.compile(r"([^@]+)@(\d+(?:\.\d+)?)(%|s)")

Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill `name` once this share of the budget is spent, or this long after training began."""

    name: str
    share: float | None = None
    after_s: float | None = None

    def is_due(self, progress: float, trained_s: float) -> bool:
        """Whether it is time."""
        if self.share is not None:
            return progress >= self.share
        return self.after_s is not None and trained_s >= self.after_s

    def __str__(self) -> str:
        return f"{100 * self.share:g} %" if self.share is not None else f"{self.after_s:g} s"


def parse_kill(text: str, names: Sequence[str]) -> Kill:
    """`learner-1@40%` or `syncer@12s`."""
    match = KILL.fullmatch(text.strip())
    if not match:
        raise ConfigError(
            f"--kill {text!r} cannot be read.",
            "Nobody would be killed, or the wrong one.",
            "Write who and when: learner-1@40% (of the budget), or learner-1@12s (after training began).",
        )
    name, number, unit = match[1], float(match[2]), match[3]
    if name not in names:
        raise ConfigError(
            f"--kill {text!r}: there is no {name} in this run.",
            "Nobody would be killed.",
            f"The processes are {', '.join(names)}.",
        )
    if unit == "s":
        return Kill(name, after_s=number)
    if number >= 100:
        raise ConfigError(
            f"--kill {text!r}: at 100 % the run is over.",
            "Nobody would be killed.",
            f"Choose an earlier moment, for example {name}@40%.",
        )
    return Kill(name, share=number / 100)


def parse_speeds(text: str | None, num_learners: int | None, flag: str = "--speeds") -> list[float]:
    """One speed per learner; `1,1,0.5` alone also says how many learners there are."""
    if num_learners is not None and num_learners < 1:
        raise ConfigError(f"--learners is {num_learners}.", "Nobody would train.", "Try --learners 2.")
    if text is None:
        return [1.0] * (num_learners or NUM_LEARNERS)
    try:
        speeds = [float(part) for part in text.split(",")]
    except ValueError:
        speeds = []
    if not speeds or not all(0 < speed <= 1 for speed in speeds):
        raise ConfigError(
            f"{flag} {text!r} cannot be read.",
            "A speed is a fraction: 1 is full speed, 0.5 takes twice the time for each step.",
            "Write one per learner, above 0 and at most 1, for example 1,1,0.5,1.",
        )
    if num_learners is not None and len(speeds) != num_learners:
        raise ConfigError(
            f"{flag} has {len(speeds)} numbers, but --learners is {num_learners}.",
            "Somebody would have no speed.",
            "Write one speed per learner, or leave --learners out.",
        )
    return speeds


def run_config(
    recipe: Recipe,
    *,
    num_learners: int,
    steps: int | None = None,
    algorithm: str | None = None,
    seed: int = 0,
    config_file: Path | None = None,
    settings: Iterable[str] = (),
) -> RunConfig:
    """The config of a run of this recipe; see the module for what wins."""
    if steps is not None and steps < 1:
        raise ConfigError(
            f"--steps is {steps}.", "The run would be over before it began.", "Try --steps 100."
        )
    tables: Tables = {name: dict(table) for name, table in recipe.tables.items()}
    _put(tables, {"budget": {"ticks": recipe.steps}})
    _put(tables, _tables_in(config_file))
    _put(tables, {"sync": {"num_learners": num_learners}, "data": {"seed": seed}})
    if steps is not None:
        _put(tables, {"budget": {"ticks": steps}})
    if algorithm is not None:
        _put(tables, {"sync": {"algorithm": algorithm}})
        if algorithm == "diloco":  # the whole model at once, as often as each fragment before
            _put(tables, {"sync": {"num_fragments": 1}})
    _put(tables, _parsed(settings))
    return RunConfig.from_tables(tables)


def config_of(
    run_dir: Path, config_file: Path | None, changes: Mapping[str, Mapping[str, Any]], settings: Iterable[str]
) -> RunConfig:
    """The config of `atoll syncer`: of the run that is there, or of the file, with changes on top.

    That a run was served without TLS once does not last: each start that wants it so has to say it.
    """
    held = run_dir / "config.toml"
    is_held = config_file is None and held.exists()
    tables: Tables = {}
    _put(tables, _tables_in(held if is_held else config_file))
    if is_held:
        tables.get("security", {}).pop("tls", None)
    _put(tables, changes)
    _put(tables, _parsed(settings))
    return RunConfig.from_tables(tables)


def new_run_dir(wanted: Path | None, stem: str) -> Path:
    """The directory that was asked for, which must be new, or the next free `runs/<stem>-<n>`."""
    if wanted is None:
        free = (RUNS / f"{stem}-{n}" for n in range(1, MAX_RUNS))
        wanted = next(path for path in free if not path.exists())
    path = wanted.absolute()
    try:
        is_used = path.exists() and (not path.is_dir() or any(path.iterdir()))
    except OSError as error:
        raise unusable(wanted, error) from error
    if is_used:
        raise StoreError(
            f"{wanted} exists already.",
            "A second run in it would mix with the first.",
            "Choose another --run-dir, or leave it out for the next free one.",
        )
    if not RUN_NAME.fullmatch(path.name):
        raise StoreError(
            f"A run cannot be called {path.name!r}.",
            f"Names of runs match {RUN_NAME.pattern}, because they stand in URLs.",
            "Choose another last part for --run-dir.",
        )
    return path


def unusable(run_dir: Path, error: OSError) -> StoreError:
    """What to say of a run directory that the system refuses."""
    return StoreError(
        f"The run directory {run_dir} cannot be used: {error.strerror}.",
        "The run could not be kept, so it is not started.",
        "Choose a directory that can be written, on a disk with space left.",
    )


def _tables_in(path: Path | None) -> Tables:
    """The tables of a config file, checked, so that a refusal names the file."""
    if path is None:
        return {}
    RunConfig.from_toml(path)
    return toml.parse(toml.read(path), str(path))


def _parsed(settings: Iterable[str]) -> Tables:
    """`sync.min_quorum=2` and the like. A value is TOML; a bare word is a string."""
    tables: Tables = {}
    for text in settings:
        name, equals, value = text.partition("=")
        section, dot, key = name.strip().partition(".")
        if not equals or not dot or not key:
            raise ConfigError(
                f"--set {text!r} cannot be read.",
                "It would have no effect.",
                "Write section.key=value, for example --set sync.min_quorum=2.",
            )
        try:
            found = toml.parse(f"value = {value}", "--set")["value"]
        except ConfigError:
            found = value.strip()
        tables.setdefault(section, {})[key] = found
    return tables


def _put(tables: Tables, more: Mapping[str, Mapping[str, Any]]) -> None:
    for section, table in more.items():
        tables.setdefault(section, {}).update(table)
