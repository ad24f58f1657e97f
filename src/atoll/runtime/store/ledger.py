"""run.db: the records of a run, chained, in SQLite with a write-ahead log.

A commit is one transaction. It is visible to readers at once, and with `sync` it is on the disk when it
returns. SQLite in WAL mode gives both: FULL forces the log at every commit, NORMAL leaves that to the
next forced one, which takes all before it along. Readers in other processes never wait and are never
waited for.

After a failed fsync the log may have lost pages that SQLite believes written. So a failure makes the
ledger suspect: before the next transaction the whole log is copied into the database file and emptied (a
checkpoint, which forces both to disk), and the newest record must be the one that was last acknowledged.
Until that succeeds nothing is committed.

Every commit asserts that the chain of the records ends where this process left it, so a second writer that
got past the lock would be caught. After a synced commit the `head` says so beside the database.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from atoll.core.records import Record
from atoll.errors import ModelError, StoreError
from atoll.numerics.manifest import Manifest
from atoll.runtime import tape_file
from atoll.runtime.store import chain, tables
from atoll.runtime.store.files import Files
from atoll.runtime.store.head import HEAD, Head, loss, read_head, write_head
from atoll.runtime.store.interface import PreparedSnapshot
from atoll.tape.entries import Entry

__all__ = ["Ledger", "Refusal", "SnapshotRow", "damaged", "meta_digest", "read_snapshots"]

BUSY_S = 5.0
"""Longest wait for another process that holds the database."""

T = TypeVar("T")


class Refusal(Exception):
    """A record that must not be committed; says why. Never leaves the store."""


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A registered snapshot."""

    name: str
    record_id: int
    merges: int
    versions: tuple[int, ...]
    digest: str
    is_voided: bool
    """Whether it holds versions that were rolled back since."""


class Ledger:
    """An open run.db. A failing disk raises `sqlite3.Error` or `OSError`, damage raises `StoreError`."""

    def __init__(
        self,
        path: Path,
        files: Files,
        *,
        readonly: bool = False,
        has_files: bool = False,
        settings: str = "{}",
    ) -> None:
        """Open a database, or make a new one; `has_files` says that there must be an old one. A new one keeps
        the settings."""
        self.path = path
        self._files = files
        # A log that is still there was left by a process that died: nobody knows what it had to repair.
        self._is_suspect = not readonly and path.with_name(f"{path.name}-wal").exists()
        self._tail = (0, b"")
        self._head_path = path.with_name(HEAD)
        # Read before the database, so that beside a running syncer the database is never the older one.
        self._head = read_head(self._head_path)
        mode = "ro" if readonly else "rwc"
        try:
            # Python's own transactions are off: they would begin and end where we do not look.
            uri = f"{path.resolve().as_uri()}?mode={mode}"
            self._db = sqlite3.connect(
                uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise _unusable(path, error) from error
        try:
            if not readonly:
                self._create(has_files, settings)
            self._check_format()
            self._tail = self._read_tail()
            self.epoch = self._guarded(chain.read_epoch)
        except BaseException as error:
            self.close()
            if isinstance(error, (sqlite3.Error, UnicodeDecodeError)):  # the latter from SQLite's own words
                raise _unusable(path, error) from error
            raise

    @property
    def last_id(self) -> int:
        """The number of the newest record."""
        return self._tail[0]

    def close(self) -> None:
        """Close the database; an error of the disk now changes nothing that was acknowledged."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    # Writing

    @contextlib.contextmanager
    def transaction(self, *, sync: bool) -> Iterator[sqlite3.Connection]:
        """All or nothing; with `sync`, on the disk when it returns."""
        self._mend()
        try:
            self._db.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._files.step("commit", self.path)
            self._db.execute("COMMIT")
        except (OSError, sqlite3.Error):
            self._is_suspect = True
            raise
        finally:
            if self._db.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")

    def commit(self, record: Record, *, sync: bool, lines: list[Entry]) -> None:
        """Append a record, what follows from it, and tape lines."""
        kind, body = chain.encode(record)
        number, linked = self.last_id + 1, chain.link(self._tail[1], kind, body)
        with self.transaction(sync=sync) as db:
            if self._read_tail() != self._tail:
                raise Refusal("run.db was written by another process; only the holder of the lock may")
            db.execute("INSERT INTO records VALUES (?, ?, ?, ?)", (number, kind, body, linked))
            tables.derive(db, number, record)
            tape_file.append(db, lines)
        self._tail = (number, linked)
        self.epoch = record.epoch
        if sync:
            self._put_head()

    def write_tape(self, lines: list[Entry]) -> None:
        """Append tape lines; the next synced transaction forces them to disk."""
        with self.transaction(sync=False) as db:
            tape_file.append(db, lines)

    def put_manifest(self, manifest: Manifest) -> None:
        """Write the manifest, or check that it is the one already written."""
        held = self.manifest()
        if held is None:
            with self.transaction(sync=True) as db:
                _put_meta(db, "manifest", json.dumps(manifest.to_dict()))
        elif difference := held.first_difference(manifest):
            raise Refusal(f"the run has another model: {difference}")

    def register(self, prepared: PreparedSnapshot) -> None:
        """Make a snapshot count."""
        versions = json.dumps(prepared.versions)
        row = (prepared.name, self.last_id, prepared.merges, versions, prepared.digest)
        with self.transaction(sync=True) as db:
            db.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?, NULL)", (*row, tables.seal(row)))
        self._put_head()

    def forget_snapshots(self, names: list[str]) -> None:
        """Make snapshots count no more, durably, before their files are deleted."""
        if names:
            with self.transaction(sync=True) as db:
                db.executemany("DELETE FROM snapshots WHERE name = ?", [(name,) for name in names])

    def tape_bytes(self) -> int:
        """How much tape there is."""
        return tape_file.size(self._db)

    def cut(self, row: SnapshotRow) -> chain.Past | None:
        """Let the run begin at a snapshot: of tape and records before it only their fold stays.

        None, and nothing is cut, if the tape has no image of that moment or no record lies before it.
        """
        past, records = self.past(), self.records()
        with self.transaction(sync=True) as db:
            new = chain.past_before(db, past, records, row.versions, row.record_id)
            if new is None or not tape_file.cut(db, row.merges):
                return None
            chain.put_past(db, new)
        self._put_head()
        return new

    def _put_head(self) -> None:
        """Say beside the database how far it has come. If that fails the head is older than it could be."""
        number = self._head.number + 1 if self._head is not None else 1
        with contextlib.suppress(OSError, sqlite3.Error):
            block = self._db.execute("SELECT id, chain FROM blocks ORDER BY id DESC LIMIT 1").fetchone()
            head = Head(number, self.epoch, *self._tail, *(block or (0, b"")))
            write_head(self._files, self._head_path, head)
            self._head = head

    def _mend(self) -> None:
        """After a failure, here or before us: force everything acknowledged onto the disk, or raise."""
        if not self._is_suspect:
            return
        self._files.step("checkpoint", self.path)
        busy, _, _ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise sqlite3.OperationalError("a reader keeps the log from being repaired")
        if self._read_tail() != self._tail:
            raise sqlite3.DatabaseError("the newest record is not the one that was last committed")
        self._is_suspect = False

    # Reading

    def past(self) -> chain.Past:
        """What stands for the records that were cut away; `StoreError` if it is damaged."""
        return self._guarded(chain.read_past)

    def records(self) -> list[Record]:
        """Every record after the base, each held against the chain; `StoreError` names the first misfit."""
        records, why = chain.read_records(self._db, self.past())
        if why:
            raise damaged(self.path, why)
        return records

    def loss(self) -> str:
        """What the database lacks of what was certainly in it once; "" if nothing."""
        head, past = self._head, self.past()
        return loss(self._db, past, head) if head is not None else ""

    def accept_loss(self) -> None:
        """Go on without what is lost. Epochs that it may have known are not counted again."""
        if self._head is not None:
            self.epoch = max(self.epoch, self._head.epoch)

    def manifest(self) -> Manifest | None:
        """The manifest of the run, if there is one yet."""
        text = self._meta("manifest")
        try:
            return None if text is None else Manifest.from_dict(json.loads(text))
        except (ModelError, ValueError) as error:
            raise damaged(self.path, f"the manifest cannot be read: {error}") from error

    def settings(self) -> str | None:
        """What was kept of the settings when the database was made; older ones have none."""
        return self._meta("settings")

    def has_seed(self) -> bool:
        """Whether version 0 was committed."""
        row = self._db.execute(
            "SELECT 1 FROM records WHERE kind = 'seed' UNION SELECT 1 FROM base"
        ).fetchone()
        return row is not None

    def snapshots(self) -> list[SnapshotRow]:
        """The registered snapshots, newest first."""
        try:
            return read_snapshots(self._db)
        except ValueError as error:
            raise damaged(self.path, str(error)) from error

    def entries(self) -> Iterator[Entry]:
        """The tape, from its beginning; `TapeError` names a damaged block."""
        return tape_file.read(self._db)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Whatever is read inside is of one instant."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    # Opening

    def _create(self, has_files: bool, settings: str) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        if self._db.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
            if has_files:
                raise damaged(
                    self.path, "it is empty, although there are deltas or initial weights beside it"
                )
            self._is_suspect = False  # a start that was cut off acknowledged nothing that could need repair
            with self.transaction(sync=True) as db:
                tables.create(db)
                _put_meta(db, "format", str(tables.FORMAT))
                _put_meta(db, "settings", settings)

    def _check_format(self) -> None:
        found = self._meta("format")
        if found != str(tables.FORMAT):
            raise StoreError(
                f"{self.path} has format {found}, and this Atoll reads format {tables.FORMAT}.",
                "Its records would be misread.",
                "Use the version of Atoll that wrote it, or another run directory.",
            )

    def _meta(self, key: str) -> str | None:
        # All of them, without the index: damage to it, or to a key, would hide an entry that is there.
        rows = self._db.execute(
            "SELECT coalesce(CAST(key AS TEXT), ''), coalesce(CAST(value AS TEXT), ''),"
            " CAST(digest AS BLOB) FROM meta ORDER BY rowid"
        )
        held = {}
        for name, value, digest in rows:
            if meta_digest(name, value) != digest:
                raise damaged(self.path, f"the entry {name!r} does not have its digest")
            held[name] = value
        return held.get(key)

    def _read_tail(self) -> tuple[int, bytes]:
        return self._guarded(chain.read_tail)

    def _guarded(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Read something; what cannot be understood is damage."""
        try:
            return read(self._db)
        except ValueError as error:
            raise damaged(self.path, str(error)) from error


def read_snapshots(db: sqlite3.Connection) -> list[SnapshotRow]:
    """The registered snapshots, newest first; raises `ValueError` if they are damaged."""
    rows = db.execute(
        "SELECT name, record_id, merges, versions, digest, voided_by FROM snapshots ORDER BY rowid DESC"
    )
    try:
        return [
            SnapshotRow(name, record_id, merges, _versions(versions), digest, voided_by is not None)
            for name, record_id, merges, versions, digest, voided_by in rows
        ]
    except (msgspec.MsgspecError, TypeError) as error:
        raise ValueError(f"the list of snapshots cannot be read: {error}") from error


def _versions(text: str) -> tuple[int, ...]:
    return msgspec.json.decode(text, type=tuple[int, ...])


def _unusable(path: Path, error: Exception) -> StoreError:
    """Damage, or only a file that cannot be opened now."""
    if not isinstance(error, sqlite3.OperationalError):
        return damaged(path, str(error))
    return StoreError(
        f"{path} cannot be opened: {error}.",
        "The run can be neither read nor continued.",
        "Check that the folder exists, may be written, and has space left.",
    )


def damaged(path: Path, why: str) -> StoreError:
    """The error for a database that cannot be trusted."""
    return StoreError(
        f"{path} is damaged: {why}.",
        "What the run has merged cannot be told from it, so nothing is started or changed.",
        "Restore the run directory from a copy, or start a new run from an exported model.",
    )


def _put_meta(db: sqlite3.Connection, key: str, value: str) -> None:
    db.execute("INSERT INTO meta VALUES (?, ?, ?)", (key, value, meta_digest(key, value)))


def meta_digest(key: str, value: str) -> bytes:
    """The digest that stands beside an entry of `meta`."""
    return hashlib.blake2b(f"{key}\0{value}".encode(), digest_size=16).digest()
