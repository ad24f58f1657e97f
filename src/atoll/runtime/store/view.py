"""A look at a run directory from outside, while its syncer may be running.

Nothing is locked and nothing is written. What is read from run.db is of one instant. Files may be deleted
between that instant and the moment they are read, when a snapshot makes them needless; then the look is
taken again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from atoll.config import RunConfig
from atoll.core.records import Record, StoredState, fold
from atoll.errors import StoreError
from atoll.numerics.manifest import Manifest
from atoll.runtime.store.files import Files
from atoll.runtime.store.interface import Found
from atoll.runtime.store.ledger import Ledger, damaged
from atoll.runtime.store.run_store import read_directory
from atoll.runtime.store.settings import check_kept, read_settings
from atoll.tape.entries import Entry

__all__ = ["RunView", "read_run"]

MAX_LOOKS = 5
"""How often files may vanish under a reader before they count as missing."""


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as its directory shows it: the small things at hand, the large ones on request."""

    run_dir: Path
    config: RunConfig
    records: tuple[Record, ...]
    state: StoredState
    """The fold of the records. Does not look at deltas or snapshots: `found` does."""
    manifest: Manifest | None
    files: Files
    base: StoredState | None = None
    """The fold of the records before these, if the oldest ones were cut away."""

    def entries(self) -> Iterator[Entry]:
        """The tape up to now, line by line; a damaged block is a `TapeError`."""
        ledger = _open(self.run_dir)
        try:
            yield from ledger.entries()
        finally:
            ledger.close()

    def loss(self) -> str:
        """What run.db lacks of what was certainly in it once, in words; "" if nothing."""
        ledger = _open(self.run_dir)
        try:
            with ledger.reading():
                return ledger.loss()
        except sqlite3.Error as error:
            raise damaged(ledger.path, str(error)) from error
        finally:
            ledger.close()

    def found(self) -> Found:
        """State and current fragments, rebuilt and checked as a restart would."""
        ledger = _open(self.run_dir)
        try:
            for _ in range(MAX_LOOKS):
                found = read_directory(ledger, self.run_dir, self.config, self.files).found
                if not found.state.problems:
                    break
            return found
        finally:
            ledger.close()


def read_run(run_dir: Path, files: Files | None = None) -> RunView:
    """Look at a run directory. Raises `StoreError` if there is none, if its records are damaged, or if its
    settings were edited."""
    ledger = _open(run_dir)
    try:
        with ledger.reading():
            base, records, manifest = ledger.past().state, ledger.records(), ledger.manifest()
            kept = ledger.settings()
    except sqlite3.Error as error:
        raise damaged(ledger.path, str(error)) from error
    finally:
        ledger.close()
    state, config = fold(records, base), read_settings(run_dir)
    check_kept(run_dir, kept, config)
    return RunView(run_dir, config, tuple(records), state, manifest, files or Files(), base)


def _open(run_dir: Path) -> Ledger:
    path = run_dir / "run.db"
    if not path.exists():
        raise StoreError(
            f"There is no run in {run_dir}: it has no run.db.",
            "There is nothing to show.",
            "Give the directory of a run, for example runs/my-run.",
        )
    return Ledger(path, Files(), readonly=True)
