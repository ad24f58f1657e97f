"""A syncer that only commits, on a recorded disk, and what it was promised.

A promise is what a power cut must leave: the records and tape lines of the last synced transaction, and the
versions of the fragments then. What was given to the store after that may be there or not, in order.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from atoll.config import RunConfig
from atoll.core.records import MemberRecord, Record, SeedRecord, StoredState, fold
from atoll.numerics.outer import OuterState, digest
from atoll.numerics.partition import partition
from atoll.runtime.store import Found, RunStore, read_run
from atoll.tape.entries import Entry, Image
from tests.crash.disk import Disk, RecordedFiles
from tests.unit.runtime.store.driver import SIZES, Driver, copy

__all__ = ["Promise", "Syncer", "recorded"]

MANIFEST = partition(nn.Linear(4, 3), 2)
LOG_PAGES = 40
"""A short log, so that checkpoints are frequent."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What must be on the disk, and what may be."""

    records: tuple[Record, ...] = ()
    """All that were ever given, in order; the newest may be under way."""
    num_synced: int = 0
    """So many of them must be there."""
    lines: tuple[Entry, ...] = ()
    num_synced_lines: int = 0
    versions: tuple[int, ...] = (0,) * len(SIZES)
    """No fragment may come back older."""


class Syncer(Driver):
    """One life of a syncer; keeps `promise`, here and in the moments of its disk."""

    def __init__(self, store: RunStore, run: RunConfig, disk: Disk | None, promise: Promise) -> None:
        super().__init__(store, run)
        self.disk = disk
        self.promise = promise
        self.num_lost_records = 0
        self.num_lost_versions = 0

    @classmethod
    def boot(
        cls,
        run_dir: Path,
        run: RunConfig,
        past: dict[tuple[int, str], OuterState],
        promise: Promise,
        files: RecordedFiles | None = None,
        after_power_cut: bool = True,
        kind: type[RunStore] = RunStore,
    ) -> Syncer:
        """Start on what is there, hold it against the promise, and make the next epoch durable."""
        if files is not None:
            files.disk.promise = promise
        store = kind.open(run_dir, run, files=files)
        try:
            self = cls(store, run, files.disk if files is not None else None, promise)
            self.past = past
            found = store.load()
            self.take(found)
            self.take_tape(tuple(read_run(run_dir).entries()))
            if after_power_cut:  # what can be read is what the disk has
                self.keep_promise(self.versions_of(found))
            self.next_epoch(found if found.fragments is not None else None)
            return self
        except BaseException:
            store.close()
            raise

    def take(self, found: Found) -> None:
        """Hold what was found against the promise, and go on from there."""
        given, state = self.promise.records, found.state
        counts = range(self.promise.num_synced, len(given) + 1)
        held = next((n for n in counts if is_fold(state, given[:n])), None)
        assert held is not None, (
            f"the state is not the fold of {counts.start} to {len(given)} records: {state}"
        )
        self.num_lost_records = len(given) - held
        self.num_lost_versions = sum(r.from_version - r.to_version for r in state.rollbacks)
        self.records = list(given[:held])
        self.promise = replace(self.promise, records=given[:held])
        self.epoch, self.num_rounds = state.epoch, len(given)
        self.noise.manual_seed(1000 + len(given))
        self.versions = [fragment.version for fragment in state.fragments] or [0] * len(SIZES)
        assert (found.fragments is None) == (not state.fragments)
        for problem in state.problems:
            assert "delta" in problem, problem
        if self.config.durability.mode == "merge":
            assert (state.rollbacks, state.problems) == ((), ())
        for reached, wanted in zip(self.versions_of(found), self.promise.versions, strict=True):
            assert reached >= wanted, f"versions {self.versions_of(found)}, promised {self.promise.versions}"
        if found.fragments is not None:
            self.assert_true(found)
            self.states = [copy(fragment) for fragment in found.fragments]

    def take_tape(self, entries: tuple[Entry, ...]) -> None:
        """The tape ends no earlier than promised; it begins at its beginning or, after a cut, at an image."""
        given = self.promise.lines
        starts = [0, *(i for i, entry in enumerate(given) if isinstance(entry.item, Image))]
        ends = [i + len(entries) for i in starts if given[i : i + len(entries)] == entries]
        assert ends, "the tape is not a part of what was written to it"
        assert ends[0] >= self.promise.num_synced_lines, "the tape lost its end"
        self.promise = replace(self.promise, lines=given[: ends[0]])

    def versions_of(self, found: Found) -> tuple[int, ...]:
        """What each fragment came back at."""
        versions = [fragment.version for fragment in found.state.fragments] or [0] * len(SIZES)
        for rollback in found.state.rollbacks:
            versions[rollback.fragment] = rollback.to_version
        return tuple(versions)

    def commit(self, record: Record, *, sync: bool = True, lines: list[Entry] | None = None) -> str:
        """Commit a record; the promise grows when it begins, and is binding when it is acknowledged."""
        self._given(record, lines or [])
        reason = super().commit(record, sync=sync, lines=lines)
        assert reason == ""
        if sync:
            self.keep_promise()
        return reason

    def install(self, p: int, state: OuterState) -> None:
        """A version is the syncer's after its commit; was that synced, the version is promised too."""
        super().install(p, state)
        if self.promise.num_synced == len(self.records):
            self.keep_promise()

    def seed(self) -> None:
        """The first learner and its weights."""
        self.admit("a")
        values = [torch.randn(size, generator=self.noise) for size in SIZES]
        assert self.store.put_manifest(MANIFEST) == ""
        assert self.store.put_seed(values) == ""
        self.past.update({(p, digest(v)): OuterState.start(v.clone()) for p, v in enumerate(values)})
        self.states = [OuterState.start(v) for v in values]
        self.commit(SeedRecord(self.epoch, "a", 1, tuple(digest(v) for v in values)))

    def write(self, entry: Entry) -> None:
        """A tape line that no record waits for."""
        self._given(None, [entry])
        assert self.store.write_tape([entry]) == ""

    def admit(self, name: str) -> None:
        """A learner joins."""
        incarnation = 1 + sum(isinstance(r, MemberRecord) and r.name == name for r in self.records)
        self.commit(MemberRecord(self.epoch, name, f"key of {name}", len(self.records), incarnation, 0))

    def snapshot(self) -> str:
        """The whole state; it takes everything before it along."""
        self._settle()
        reason = super().snapshot()
        assert reason == ""
        self.keep_promise()
        return reason

    def close(self) -> None:
        """An orderly end."""
        if self.disk is not None:
            self.disk.before("close", self.run_dir / "run.db")
        self.store.close()
        self._settle()

    def keep_promise(self, versions: tuple[int, ...] | None = None) -> None:
        """From now on everything so far must survive."""
        self._settle()
        now = tuple(self.versions) if versions is None else versions
        self.promise = replace(
            self.promise,
            num_synced=len(self.records),
            num_synced_lines=len(self.promise.lines),
            versions=now,
        )
        self._tell()

    def _given(self, record: Record | None, lines: list[Entry]) -> None:
        self._settle()
        records = (*self.promise.records, record) if record else self.promise.records
        self.promise = replace(self.promise, records=records, lines=(*self.promise.lines, *lines))
        self._tell()

    def _settle(self) -> None:
        if self.disk is not None:
            self.disk.settle()

    def _tell(self) -> None:
        if self.disk is not None:
            self.disk.promise = self.promise


def is_fold(state: StoredState, records: tuple[Record, ...]) -> bool:
    """Whether a state is what these records amount to, apart from what damage adds to it."""
    return replace(state, rollbacks=(), problems=()) == fold(records)


@contextlib.contextmanager
def recorded(root: Path) -> Iterator[Disk]:
    """Every connection of SQLite that is made inside is recorded, and has a short log."""
    disk, connect = Disk(root), sqlite3.connect

    def recording(name: str, **options: Any) -> sqlite3.Connection:
        connection = connect(name, **options)
        if "mode=ro" not in name:
            connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
            path = Path(name.removeprefix("file://").partition("?")[0])
            connection.set_trace_callback(lambda sql: disk.statement(sql, path))
        return connection

    with mock.patch.object(sqlite3, "connect", recording):
        try:
            yield disk
        finally:
            disk.close()
