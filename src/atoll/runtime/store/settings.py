"""config.toml: the resolved settings of a run, written once and held against every later start.

Most settings make the run what it is: with another outer learning rate the records would no longer fold
to the same values, with another quorum its tape would not replay. Some may change between two starts: see
`MAY_CHANGE`. People may edit the file, so those that may not are kept in run.db as well (`fixed`), and the
file is held against them whenever the run is opened.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from atoll.config import RunConfig, toml
from atoll.errors import ConfigError, StoreError
from atoll.runtime.store.files import Files

__all__ = [
    "CONFIG",
    "MAY_CHANGE",
    "check_given",
    "check_kept",
    "edits",
    "fixed",
    "is_as_written",
    "read_settings",
    "write_settings",
]

CONFIG = "config.toml"
SEAL = "# blake2b of all above: "
"""Begins the last line. Only a check asks for it: people may edit the file."""
MAY_CHANGE = ("budget", "network", "security", "tape", "durability.keep")
"""What may differ at a later start: when the run ends, how bytes travel, who is let in, which files stay."""


def write_settings(files: Files, run_dir: Path, config: RunConfig) -> None:
    """Make these the settings in the directory, durably."""
    text = config.to_toml()
    files.write_durably(run_dir / CONFIG, [f"{text}{SEAL}{_digest(text)}\n".encode()], sync=True)


def check_given(run_dir: Path, config: RunConfig) -> bool:
    """Whether a later start has settings that are to be written; `StoreError` if they may not change."""
    held = read_settings(run_dir)
    for name, before, now in _differences(held, config):
        if not _may_change(name):
            raise StoreError(
                f"The run in {run_dir} was started with {name} = {before!r}, and is now given {now!r}.",
                "Its past could not be rebuilt or replayed with other settings.",
                f"Set {name} to {before!r}, or start a new run in another directory.",
            )
    return held != config


def fixed(config: RunConfig) -> str:
    """What makes the run what it is, to be kept in run.db: a JSON object of values by name."""
    return json.dumps({name: value for name, value in _named(config).items() if not _may_change(name)})


def edits(kept: str | None, config: RunConfig) -> list[tuple[str, Any, Any]]:
    """Name, kept value and value in `config` of each setting that was changed since `fixed` was kept.

    An Atoll that had fewer settings, or others, kept what it knew; one from before that kept none.
    """
    before, now = json.loads(kept or "{}"), json.loads(fixed(config))
    return [(name, before[name], now[name]) for name in now if before.get(name, now[name]) != now[name]]


def check_kept(run_dir: Path, kept: str | None, config: RunConfig) -> None:
    """Raise `StoreError` if config.toml was edited so that it is of another run than run.db beside it."""
    for name, before, now in edits(kept, config):
        raise StoreError(
            f"{run_dir / CONFIG} says {name} = {now!r}, but the run was started with {before!r}, as its "
            "run.db says.",
            "Its past could not be rebuilt or replayed with other settings. Nothing is lost or changed.",
            f"Set {name} to {before!r} in {run_dir / CONFIG}, or start a new run in another directory.",
        )


def read_settings(run_dir: Path) -> RunConfig:
    """The settings of a run, from its directory."""
    path = run_dir / CONFIG
    try:
        text = toml.read(path)
        return RunConfig.from_tables(_of_today(toml.parse(text, str(path)), is_resolved=SEAL in text))
    except ConfigError as error:
        raise StoreError(
            error.what if str(path) in error.what else f"{path}: {error.what}",
            "Without its settings the run can be neither rebuilt nor continued.",
            f"Restore {run_dir / CONFIG} from a copy, or write the settings of the run into it again.",
        ) from error


def _of_today(tables: dict[str, Any], *, is_resolved: bool) -> dict[str, Any]:
    """The settings of a run that began under an older Atoll, in today's words: a default that has changed
    since must not change a run that goes on. A file that people wrote names only what they want."""
    sync = tables.get("sync")
    if is_resolved and isinstance(sync, dict) and "grace_rule" not in sync:
        older = {name: value for name, value in sync.items() if (name, value) != ("grace_min_steps", 0)}
        return tables | {"sync": older | {"grace_rule": "slack"}}
    return tables


def is_as_written(run_dir: Path) -> bool:
    """Whether config.toml has the digest in its last line. One without that line was written by hand."""
    text, seal, digest = (run_dir / CONFIG).read_text().rpartition(SEAL)
    return not seal or digest == f"{_digest(text)}\n"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _may_change(name: str) -> bool:
    return name in MAY_CHANGE or name.split(".")[0] in MAY_CHANGE


def _named(config: RunConfig) -> dict[str, Any]:
    """Every setting by its name, in the order in which they are written."""
    return {
        f"{section.name}.{setting.name}": getattr(getattr(config, section.name), setting.name)
        for section in fields(config)
        for setting in fields(getattr(config, section.name))
    }


def _differences(held: RunConfig, config: RunConfig) -> list[tuple[str, Any, Any]]:
    """Name, old and new value of each setting that differs."""
    now = _named(config)
    return [(name, before, now[name]) for name, before in _named(held).items() if before != now[name]]
