"""A run directory: run.db, deltas, snapshots, and the lock of the one process that writes them.

A round is committed in two steps. Its delta becomes a file; then one transaction of run.db, which names
the file by digest, is the commit point. A crash between the two leaves a file that no record names:
harmless, and deleted later. Without `sync`, a delta may be lost by a power cut, and its version with it;
so a synced transaction first forces to disk every delta written since the last one.

Deltas that lie before the second-newest usable snapshot are deleted when a snapshot is registered, with the
offers that were merged into them and older snapshots, unless `durability.keep` is "all". If the tape is then
larger than `tape.keep_mb`, tape and records before that snapshot go too, and run.db begins there. The
second-newest is kept so that damage to the newest costs nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from atoll.config import RunConfig
from atoll.core.records import EpochRecord, Record, StoredState
from atoll.errors import StoreError
from atoll.numerics.manifest import Manifest
from atoll.numerics.outer import OuterState, digest
from atoll.runtime import offers
from atoll.runtime.store import snapshots
from atoll.runtime.store.files import Files, reason_of
from atoll.runtime.store.interface import Found, PreparedSnapshot
from atoll.runtime.store.ledger import Ledger, Refusal, SnapshotRow, damaged
from atoll.runtime.store.live import LiveDeltas
from atoll.runtime.store.lock import RunLock
from atoll.runtime.store.rebuild import Base, rebuild
from atoll.runtime.store.rules import Expected
from atoll.runtime.store.settings import check_given, check_kept, fixed, write_settings
from atoll.tape.entries import Entry

__all__ = ["Contents", "RunStore", "bases_of", "read_directory"]

FAILURES = (OSError, sqlite3.Error, StoreError, Refusal)


class RunStore:
    """The store of one run directory. Made by `open`."""

    def __init__(
        self, run_dir: Path, config: RunConfig, files: Files, ledger: Ledger, lock: RunLock | None
    ) -> None:
        self.run_dir = run_dir
        self._config = config
        self._files = files
        self._ledger = ledger
        self._lock = lock
        self._expected = Expected(ledger.epoch, ledger.has_seed(), past=ledger.past().state)
        self._unsynced: dict[str, Path] = {}
        """Deltas by digest that a power cut could still take."""
        self._damaged: list[str] = []
        """Snapshots that could not be read when the run was loaded."""
        self._live = LiveDeltas() if ledger.last_id == 0 else None
        """Unknown until an old run is loaded; until then nothing is deleted."""

    @classmethod
    def open(
        cls,
        run_dir: Path,
        config: RunConfig,
        *,
        readonly: bool = False,
        accepts_loss: bool = False,
        files: Files | None = None,
    ) -> RunStore:
        """Open a run directory, or make one; `readonly` takes no lock and refuses every write.

        Raises `StoreError` if another process holds it, if it is damaged, or if its settings are others.
        Only `budget`, `network`, `security`, `tape` and `durability.keep` may differ from the first start. If
        run.db has lost records or tape that were in it for certain, it is refused, unless `accepts_loss`.
        """
        files = files or Files()
        lock, is_changed = None, False
        try:
            if not readonly:
                _make_folder(files, run_dir)
                lock = RunLock(run_dir)
                is_changed = _prepare(files, run_dir, config)
            has_files, settings = _has_files(run_dir), fixed(config)
            ledger = Ledger(
                run_dir / "run.db", files, readonly=readonly, has_files=has_files, settings=settings
            )
            try:
                check_kept(run_dir, ledger.settings(), config)
                if is_changed:
                    write_settings(files, run_dir, config)
                if not readonly:
                    _face_loss(ledger, accepts_loss)
                    files.sync_folder(run_dir)
                    _discard_strays(files, run_dir, ledger)
                return cls(run_dir, config, files, ledger, lock)
            except BaseException:
                ledger.close()
                raise
        except BaseException as error:
            if lock is not None:
                lock.release()
            if isinstance(error, (OSError, sqlite3.Error)):
                raise _unusable(run_dir, error) from error
            raise

    def load(self) -> Found:
        """Everything in the directory, every digest checked."""
        contents = read_directory(self._ledger, self.run_dir, self._config, self._files)
        # After an accepted loss the epochs that were lost count as well.
        contents.found.state.epoch = max(contents.found.state.epoch, self._ledger.epoch)
        self._damaged, self._live = contents.damaged, LiveDeltas()
        for record in contents.records:
            self._live.apply(record)
        if self._config.durability.mode != "merge":
            self._distrust_deltas(self._live, contents.found.state)
        return contents.found

    def put_manifest(self, manifest: Manifest) -> str:
        """Keep the manifest, once."""
        return self._try(lambda: self._ledger.put_manifest(manifest))

    def put_seed(self, values: list[Tensor]) -> str:
        """Keep version 0, durably."""
        return self._try(lambda: self._put_seed(values))

    def put_delta(self, digest: str, delta: Tensor, *, sync: bool) -> str:
        """Keep a delta under its digest."""
        return self._try(lambda: self._put_delta(digest, delta, sync=sync))

    def commit(self, record: Record, *, sync: bool, lines: list[Entry]) -> str:
        """The commit point of a record."""
        return self._try(lambda: self._commit(record, sync=sync, lines=lines))

    def write_tape(self, lines: list[Entry]) -> str:
        """Keep tape lines."""
        return self._try(lambda: self._ledger.write_tape(lines))

    def write_snapshot(
        self, merges: int, versions: tuple[int, ...], states: list[OuterState]
    ) -> PreparedSnapshot:
        """Write and verify the whole state, from any thread."""
        if self._lock is None:
            return PreparedSnapshot(merges, versions, reason=READONLY)
        folder = self.run_dir / "snapshots"
        return snapshots.write_snapshot(self._files, folder, merges, versions, states)

    def register_snapshot(self, prepared: PreparedSnapshot) -> str:
        """Make a prepared snapshot count, then delete what it makes needless."""
        reason = prepared.reason or self._try(lambda: self._register(prepared))
        if reason and prepared.name:
            self._files.discard(self.run_dir / "snapshots" / prepared.name)
        if not reason and self._config.durability.keep == "recent":
            self._try(self._prune)  # what it fails to delete is deleted with the next snapshot
        return reason

    def take_snapshot(self, merges: int, versions: tuple[int, ...], states: list[OuterState]) -> str:
        """Write a snapshot and register it."""
        return self.register_snapshot(self.write_snapshot(merges, versions, states))

    def close(self) -> None:
        """Close the database and let the next process in."""
        self._ledger.close()
        if self._lock is not None:
            self._lock.release()

    # Inside

    def _try(self, act: Callable[[], None]) -> str:
        """Do something to the disk; a failure becomes its reason."""
        if self._lock is None:
            return READONLY
        try:
            act()
        except FAILURES as error:
            return reason_of(error)
        return ""

    def _put_seed(self, values: list[Tensor]) -> None:
        if self._expected.has_seed:
            raise Refusal("the run already has its initial weights")
        self._expected.seed = ()
        snapshots.write_seed(self._files, self.run_dir / "snapshots", values)
        self._expected.seed = tuple(digest(tensor) for tensor in values)

    def _put_delta(self, name: str, delta: Tensor, *, sync: bool) -> None:
        path = snapshots.delta_path(self.run_dir / "deltas", name)
        snapshots.write_delta(self._files, path, delta, sync=sync)
        if sync:
            self._unsynced.pop(name, None)
        else:
            self._unsynced[name] = path
        self._expected.deltas[name] += 1

    def _commit(self, record: Record, *, sync: bool, lines: list[Entry]) -> None:
        if objection := self._expected.objection(record):
            raise Refusal(objection)
        if sync:
            self._sync_deltas()
        self._ledger.commit(record, sync=sync, lines=lines)
        self._expected.committed(record)
        if self._live is not None:
            self._live.apply(record)

    def _distrust_deltas(self, live: LiveDeltas, state: StoredState) -> None:
        """The last process may have died before it forced its deltas to disk, though they can be read."""
        versions = next((row.versions for row in self._usable()), (0,) * len(state.fragments))
        for name in sorted(live.after(versions)):
            path = snapshots.delta_path(self.run_dir / "deltas", name)
            if path.exists():
                self._unsynced[name] = path

    def _usable(self) -> list[SnapshotRow]:
        """Snapshots that every fragment can be rebuilt from, newest first."""
        rows = self._ledger.snapshots()
        return [row for row in rows if not row.is_voided and row.name not in self._damaged]

    def _sync_deltas(self) -> None:
        """Force to disk what was put without sync; what cannot be forced is written anew."""
        folder = self.run_dir / "deltas"
        for name, path in self._unsynced.items():
            try:
                self._files.sync_file(path)
            except OSError:
                delta = self._read_delta(name)
                snapshots.write_delta(self._files, path, delta, sync=True)
        if self._unsynced:
            self._files.sync_folder(folder)
            self._unsynced.clear()

    def _read_delta(self, name: str) -> Tensor:
        try:
            return snapshots.read_delta(self._files, self.run_dir / "deltas", name)
        except ValueError as error:
            raise Refusal(f"the delta {name} was lost before it reached the disk: {error}") from error

    def _register(self, prepared: PreparedSnapshot) -> None:
        self._sync_deltas()
        self._ledger.register(prepared)

    def _prune(self) -> None:
        """Delete what lies before the second-newest usable snapshot, and what no record names."""
        usable = self._usable()
        if len(usable) < 2 or self._live is None:
            return
        folder = self.run_dir / "snapshots"
        try:
            versions = snapshots.read_versions(self._files, folder / usable[1].name, usable[1].digest)
        except ValueError as error:
            raise Refusal(f"the snapshot {usable[1].name} cannot be relied upon: {error}") from error
        self._drop_needless(usable[:2], versions)
        if self._ledger.tape_bytes() > self._config.tape.keep_mb << 20:
            past = self._ledger.cut(replace(usable[1], versions=versions))
            self._expected.past = past.state if past is not None else self._expected.past

    def _drop_needless(self, kept: list[SnapshotRow], versions: tuple[int, ...]) -> None:
        """Delete other snapshots than these, and what lies before these versions of the fragments."""
        assert self._live is not None
        folder = self.run_dir / "snapshots"
        needless = [row.name for row in self._ledger.snapshots() if row not in kept]
        self._ledger.forget_snapshots(needless)
        for name in needless:
            self._files.discard(folder / name)
        self._live.forget(versions)
        needed = self._live.after(versions) | self._expected.deltas.keys()
        for path in (self.run_dir / "deltas").glob("*.safetensors"):
            if path.stem not in needed:
                self._files.discard(path)
                self._unsynced.pop(path.stem, None)
        offers.prune(self._files, self.run_dir / offers.FOLDER, needed)


READONLY = "the run directory was opened for reading only"


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything that a run directory holds."""

    found: Found
    records: list[Record]
    damaged: list[str]
    """Names of snapshots that could not be used."""


def read_directory(ledger: Ledger, run_dir: Path, config: RunConfig, files: Files) -> Contents:
    """Read a whole run directory, as of one instant of its ledger."""
    try:
        with ledger.reading():
            past, records = ledger.past(), ledger.records()
            rows, manifest = ledger.snapshots(), ledger.manifest()
    except sqlite3.Error as error:
        raise damaged(ledger.path, str(error)) from error
    folder = run_dir / "snapshots"

    read_delta = partial(snapshots.read_delta, files, run_dir / "deltas")
    bases = partial(bases_of, rows, records, past.record_id, files, folder)
    result = rebuild(records, bases, read_delta, config, past.state)
    return Contents(Found(result.state, result.fragments, manifest), records, result.damaged)


def bases_of(
    rows: list[SnapshotRow], records: list[Record], first: int, files: Files, folder: Path, p: int
) -> Iterator[Base]:
    """What a directory has of a fragment, newest first. `first` is the number of the record before these."""
    for row in rows:
        if p < len(row.versions) and not _is_rolled_back(row, p, records[max(row.record_id - first, 0) :]):
            read = partial(snapshots.read_fragment, files, folder / row.name, p, row.digest)
            yield Base(row.versions[p], row.name, read)
    yield Base(0, snapshots.SEED, partial(snapshots.read_seed, files, folder, p))


def _is_rolled_back(row: SnapshotRow, fragment: int, later: list[Record]) -> bool:
    """Whether a snapshot's version of a fragment was given up after it was taken."""
    return any(
        rollback.fragment == fragment and rollback.to_version < row.versions[fragment]
        for record in later
        if isinstance(record, EpochRecord)
        for rollback in record.rollbacks
    )


def _face_loss(ledger: Ledger, accepts_loss: bool) -> None:
    """Refuse a database that lacks what was in it, or go on without that."""
    lost = ledger.loss()
    if lost and not accepts_loss:
        raise StoreError(
            f"{ledger.path} is damaged: {lost}.",
            "They were on the disk, and learners may have adopted what they say, so nothing is started.",
            "Restore the run directory from a copy, or start with --accept-loss to go on without them.",
        )
    if lost:
        ledger.accept_loss()


def _make_folder(files: Files, run_dir: Path) -> None:
    """Make the folder of a run; a new run's is forced to disk, or a power cut would take it whole."""
    missing = [folder for folder in run_dir.parents if not folder.exists()]
    files.make_folder(run_dir)
    if not (run_dir / "run.db").exists():
        for folder in (run_dir, *missing):
            files.sync_folder(folder.parent)


def _prepare(files: Files, run_dir: Path, config: RunConfig) -> bool:
    """Folders and settings, before the database is opened; says whether an old run's settings change."""
    is_new = not (run_dir / "run.db").exists()
    if is_new and _has_files(run_dir):
        raise StoreError(
            f"{run_dir / 'run.db'} is missing, although there are deltas or initial weights beside it.",
            "A new run started here would delete what is left of the old one.",
            "Restore run.db from a copy, or choose another run directory.",
        )
    if is_new:
        write_settings(files, run_dir, config)
    for folder in (run_dir / "deltas", run_dir / "snapshots"):
        files.make_folder(folder)
        files.discard_unfinished(folder)
    files.discard_unfinished(run_dir)
    return not is_new and check_given(run_dir, config)


def _has_files(run_dir: Path) -> bool:
    """Whether a run has left more than its database here."""
    return (run_dir / "snapshots" / snapshots.SEED).exists() or any(
        (run_dir / "deltas").glob("*.safetensors")
    )


def _discard_strays(files: Files, run_dir: Path, ledger: Ledger) -> None:
    """Delete snapshots that were written and never registered."""
    registered = {row.name for row in ledger.snapshots()}
    for path in (run_dir / "snapshots").iterdir():
        if path.is_dir() and path.name not in registered:
            files.discard(path)


def _unusable(run_dir: Path, error: Exception) -> StoreError:
    return StoreError(
        f"The run directory {run_dir} cannot be used: {reason_of(error)}.",
        "The run could not be kept, so it is not started.",
        "Choose a directory that can be written, on a disk with space left.",
    )
