"""Everything that a run directory says, held against itself: what is damaged, and what can be saved.

First run.db, as of one instant (`store.checks`): SQLite's own check, the chain of the records, the head, the
tables derived from the records, the token ledger, the chain of the tape. Then the files that the records name
(`store.file_checks`): every delta, every snapshot, every kept offer. Last the fold: each fragment from the
oldest base that a restart may need to the newest version, the digest compared at every commit. Where that
fails, each fragment is rebuilt as a restart would, and the report says how far that goes.

Nothing is locked or written. Beside a running syncer files may go between the moment that run.db was read and
their turn; when the run has moved on and something is missing, everything is looked at again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from atoll.config import RunConfig
from atoll.core.records import Record, StoredState, fold
from atoll.errors import StoreError, TapeError
from atoll.runtime import tape_file
from atoll.runtime.store.chain import Past, read_past, read_records
from atoll.runtime.store.checks import (
    check_derived,
    check_integrity,
    check_meta,
    check_schema,
    check_settings,
    check_snapshot_list,
    check_tokens,
)
from atoll.runtime.store.file_checks import FileChecks, Saved
from atoll.runtime.store.files import TEMPORARY, Files
from atoll.runtime.store.head import HEAD, Head, loss, read_slots
from atoll.runtime.store.ledger import SnapshotRow, read_snapshots
from atoll.runtime.store.settings import CONFIG, is_as_written, read_settings

__all__ = ["Check", "Report", "check_store"]

MAX_LOOKS = 5
"""How often a run may move on under a look before what is missing counts as missing."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    what: str
    """How much of it there was."""
    num_problems: int


@dataclass(frozen=True, slots=True)
class Report:
    """What was found. `problems` has one exact sentence for each thing that is wrong."""

    commits: int
    """Merges that count."""
    since: str
    """Where the fold began."""
    problems: tuple[str, ...]
    strays: tuple[str, ...]
    """Files that belong to nothing, left by a crash or about to be named: harmless, deleted in time.

    Empty if records are lost: then nobody knows what belongs to nothing.
    """
    given_up: tuple[str, ...]
    """Files of versions that were rolled back."""
    checks: tuple[Check, ...]
    fragments: tuple[Saved, ...]
    """What can be saved, by fragment."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def check_store(run_dir: Path, files: Files | None = None) -> Report:
    """Check a run directory. Raises `StoreError` if there is no run in it."""
    if not any((run_dir / name).exists() for name in ("run.db", CONFIG, "deltas", "snapshots")):
        raise StoreError(
            f"There is no run in {run_dir}.",
            "There is nothing to check.",
            "Give the directory of a run, for example runs/my-run.",
        )
    for _ in range(MAX_LOOKS):
        before = _moment(run_dir)
        report = _Look(run_dir, files or Files()).report()
        if report.ok or _moment(run_dir) == before:
            break
    return report


def _moment(run_dir: Path) -> tuple[object, ...]:
    """What changes whenever the syncer deletes files, or begins or ends."""
    has_log = _log_of(run_dir).exists()
    try:
        with closing(_connect(run_dir)) as db:
            names = db.execute("SELECT name FROM snapshots").fetchall()
            return (has_log, *names, *db.execute("SELECT record_id FROM base").fetchall())
    except sqlite3.Error:
        return (has_log,)


def _log_of(run_dir: Path) -> Path:
    return run_dir / "run.db-wal"


def _connect(run_dir: Path) -> sqlite3.Connection:
    """Where there is no log nobody has the database open, and reading it need not leave one behind."""
    mode = "mode=ro" if _log_of(run_dir).exists() else "mode=ro&immutable=1"
    uri = f"{(run_dir / 'run.db').resolve().as_uri()}?{mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None)


@dataclass(slots=True)
class _Look:
    """One look at a directory."""

    run_dir: Path
    files: Files
    problems: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    past: Past = field(default_factory=Past)
    records: list[Record] = field(default_factory=list)
    rows: list[SnapshotRow] = field(default_factory=list)
    state: StoredState = field(default_factory=StoredState)
    is_complete: bool = False
    """Whether no record is lost, as far as can be told."""

    def report(self) -> Report:
        """Look at everything."""
        config = self._settings()
        self._database(config)
        beside = FileChecks(self.run_dir, self.files, config, self.past, self.records, self.rows)
        deltas = beside.deltas()
        self._note("deltas", f"{beside.num_deltas:,}", deltas)
        self._note("snapshots", f"{len(self.rows)}", beside.snapshots())
        offers = beside.offers()
        if beside.num_offers:
            self._note("offers", f"{beside.num_offers:,}", offers)
        folded = beside.fold()
        is_short = any(part.recoverable != part.version for part in beside.saved)
        extent = f"{self.state.merges:,} merges, from {beside.since}{', not to the end' if is_short else ''}"
        if self.is_complete or beside.saved:
            self._note("fold", extent, folded)
        strays = [*beside.strays, *(path.name for path in sorted(self.run_dir.glob(f"{TEMPORARY}*")))]
        return Report(
            self.state.merges,
            beside.since,
            tuple(self.problems),
            tuple(strays) if self.is_complete else (),
            tuple(beside.given_up),
            tuple(self.checks),
            tuple(beside.saved),
        )

    def _note(self, name: str, what: str, problems: list[str]) -> None:
        self.problems += problems
        self.checks.append(Check(name, what, len(problems)))

    def _settings(self) -> RunConfig | None:
        try:
            config = read_settings(self.run_dir)
        except StoreError as error:
            so_what = "without the settings no version can be folded"
            self._note(CONFIG, "", [f"{CONFIG}: {error.what.rstrip('.')}; {so_what}."])
            return None
        edited = f"{CONFIG}: it does not have the digest in its last line: it is damaged, or was edited."
        self._note(CONFIG, "readable", [] if is_as_written(self.run_dir) else [edited])
        return config

    # run.db

    def _database(self, config: RunConfig | None) -> None:
        if not (self.run_dir / "run.db").exists():
            self._note("run.db", "", ["run.db is missing; without it nobody knows what was merged."])
            return
        slots = read_slots(self.run_dir / HEAD)  # first, so that run.db is never the older one
        try:
            with closing(_connect(self.run_dir)) as db:
                db.execute("BEGIN")
                db.execute("SELECT name FROM sqlite_master").fetchall()  # if this fails, so does all else
                self._note("pages", "SQLite", self._ask(check_integrity, db))
                self._note("schema", "tables, indexes", self._ask(check_schema, db))
                self._note("meta", "format, manifest, settings", self._meta(db, config))
                self._records(db)
                self._head(db, slots)
                self._tables(db)
                self._tape(db)
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter from SQLite's own words
            self._note("run.db", "", [f"run.db: it cannot be read: {error}; no version can be told from it."])

    def _ask(self, check: Callable[[sqlite3.Connection], list[str]], db: sqlite3.Connection) -> list[str]:
        try:
            return [f"run.db: {problem}." for problem in check(db)]
        except (sqlite3.Error, ValueError, TypeError) as error:
            return [f"run.db: {error}."]

    def _meta(self, db: sqlite3.Connection, config: RunConfig | None) -> list[str]:
        problems = self._ask(check_meta, db)
        if config is not None and not problems:
            problems = self._ask(lambda db: check_settings(db, config), db)
        return problems

    def _records(self, db: sqlite3.Connection) -> None:
        problems = []
        try:
            self.past = read_past(db)
        except (ValueError, sqlite3.Error) as error:
            problems.append(f"run.db: {error}; no version can be told from it.")
        else:
            self.records, why = read_records(db, self.past)
            self.state, self.is_complete = fold(self.records, self.past.state), not why
            if why:
                problems.append(f"run.db: {why}; {_beyond(self.state)}.")
        since = f"from {self.past.record_id + 1:,} on" if self.past.record_id else "from the beginning"
        self._note("records", f"{len(self.records):,}, {since}", problems)

    def _head(self, db: sqlite3.Connection, slots: list[Head | str]) -> None:
        heads = [slot for slot in slots if isinstance(slot, Head)]
        problems = [
            f"{HEAD}: slot {n}: {slot}." for n, slot in enumerate(slots) if slot and slot not in heads
        ]
        if heads:
            newest = max(heads)
            lost = self._ask(lambda db: [lost] if (lost := loss(db, self.past, newest)) else [], db)
            self.is_complete = self.is_complete and not lost
            problems += lost
        elif problems:
            self.is_complete = False  # there were heads, and nobody knows what they said
        self._note(HEAD, f"record {max(heads).record_id:,}" if heads else "none", problems)

    def _tables(self, db: sqlite3.Connection) -> None:
        try:
            self.rows = read_snapshots(db)
        except (ValueError, sqlite3.Error) as error:
            self._note("snapshot list", "", [f"run.db: {error}."])
        problems = self._ask(check_snapshot_list, db)
        problems += self._ask(lambda db: check_derived(db, self.past, self.records), db)
        self._note("tables", "commits, contributions, members", problems)
        tokens = f"{self.state.merged_tokens:,} tokens"
        self._note("ledger", tokens, self._ask(lambda db: check_tokens(db, self.past, self.state), db))

    def _tape(self, db: sqlite3.Connection) -> None:
        num_lines, problems = 0, []
        try:
            for _ in tape_file.read(db):
                num_lines += 1
        except TapeError as error:
            problems.append(f"run.db: {error.what.rstrip('.')}; decisions cannot be replayed past it.")
        self._note("tape", f"{num_lines:,} lines", problems)


def _beyond(state: StoredState) -> str:
    """Which versions a break in the records leaves without proof."""
    held = [f"fragment {p} after version {f.version}" for p, f in enumerate(state.fragments)]
    return f"not proven: {', '.join(held)}" if held else "no version is proven"
