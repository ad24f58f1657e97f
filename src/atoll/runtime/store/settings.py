"""config.toml: the resolved settings of a run, written once and held against every later start.

Most settings make the run what it is: with another outer learning rate the records would no longer fold
to the same values, with another quorum its tape would not replay. Some may change between two starts: see
`MAY_CHANGE`.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields
from pathlib import Path
from typing import Any

from atoll.config import RunConfig
from atoll.errors import ConfigError, StoreError
from atoll.runtime.store.files import Files

__all__ = ["CONFIG", "MAY_CHANGE", "is_as_written", "read_settings", "settle"]

CONFIG = "config.toml"
SEAL = "# blake2b of all above: "
"""Begins the last line. Only a check asks for it: people may edit the file."""
MAY_CHANGE = ("budget", "network", "security", "tape", "durability.keep")
"""What may differ at a later start: when the run ends, how bytes travel, who is let in, which files stay."""


def settle(files: Files, run_dir: Path, config: RunConfig, *, is_new: bool) -> None:
    """Write the settings of a new run; for an old one check them, and write those that may change."""
    path = run_dir / CONFIG
    if not is_new:
        held = read_settings(run_dir)
        if held == config:
            return
        for name, before, now in _differences(held, config):
            if name not in MAY_CHANGE and name.split(".")[0] not in MAY_CHANGE:
                raise StoreError(
                    f"The run in {run_dir} was started with {name} = {before!r}, and is now given {now!r}.",
                    "Its past could not be rebuilt or replayed with other settings.",
                    f"Set {name} to {before!r}, or start a new run in another directory.",
                )
    text = config.to_toml()
    files.write_durably(path, [f"{text}{SEAL}{_digest(text)}\n".encode()], sync=True)


def read_settings(run_dir: Path) -> RunConfig:
    """The settings of a run, from its directory."""
    try:
        return RunConfig.from_toml(run_dir / CONFIG)
    except ConfigError as error:
        raise StoreError(
            error.what,
            "Without its settings the run can be neither rebuilt nor continued.",
            f"Restore {run_dir / CONFIG} from a copy, or write the settings of the run into it again.",
        ) from error


def is_as_written(run_dir: Path) -> bool:
    """Whether config.toml has the digest in its last line. One without that line was written by hand."""
    text, seal, digest = (run_dir / CONFIG).read_text().rpartition(SEAL)
    return not seal or digest == f"{_digest(text)}\n"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _differences(held: RunConfig, config: RunConfig) -> list[tuple[str, Any, Any]]:
    """Name, old and new value of each setting that differs, in the order in which they are written."""
    found = []
    for section in fields(held):
        before, now = getattr(held, section.name), getattr(config, section.name)
        for setting in fields(before):
            pair = getattr(before, setting.name), getattr(now, setting.name)
            if pair[0] != pair[1]:
                found.append((f"{section.name}.{setting.name}", *pair))
    return found
