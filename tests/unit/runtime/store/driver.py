"""Drives a store through a small run and remembers what it acknowledged, bit for bit."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from atoll.config import DurabilityConfig, RunConfig, SyncConfig
from atoll.core.params import Durability
from atoll.core.records import (
    Contributor,
    EpochRecord,
    MemberRecord,
    Record,
    Rollback,
    RoundRecord,
    SeedRecord,
)
from atoll.numerics.codec import codec_for
from atoll.numerics.outer import OuterState, digest, fold
from atoll.runtime.store import Found, RunStore, Store
from atoll.runtime.store.files import Files
from atoll.tape.entries import Entry, Milestone

SIZES = (40, 25)


def config(mode: Durability = "merge", keep: str = "recent") -> RunConfig:
    durability = replace(DurabilityConfig(), mode=mode, keep=keep)  # type: ignore[arg-type]
    return RunConfig(sync=SyncConfig(num_fragments=len(SIZES)), durability=durability)


def copy(state: OuterState) -> OuterState:
    return OuterState(state.served.clone(), state.remainder.clone(), state.momentum.clone())


def same(a: OuterState, b: OuterState) -> bool:
    pairs = ((a.served, b.served), (a.remainder, b.remainder), (a.momentum, b.momentum))
    return all(torch.equal(x.view(torch.int32), y.view(torch.int32)) for x, y in pairs)


def line(text: str) -> Entry:
    return Entry(1, "syncer", Milestone(text))


class Driver:
    """A syncer that only commits."""

    def __init__(self, store: Store, run: RunConfig | None = None) -> None:
        self.store = store
        self.config = run or config()
        self.noise = torch.Generator().manual_seed(1)
        self.records: list[Record] = []
        self.in_flight: Record | None = None
        """A record that was given to the store and not acknowledged."""
        self.states: list[OuterState] = []
        self.past: dict[tuple[int, str], OuterState] = {}
        """Every version of every fragment, by fragment and digest."""
        self.versions = [0] * len(SIZES)
        self.epoch = 0
        self.num_rounds = 0

    @property
    def run_dir(self) -> Path:
        assert isinstance(self.store, RunStore)
        return self.store.run_dir

    def commit(self, record: Record, *, sync: bool = True, lines: list[Entry] | None = None) -> str:
        self.in_flight = record
        reason = self.store.commit(record, sync=sync, lines=lines or [])
        if not reason:
            self.records.append(record)
            self.in_flight = None
        return reason

    def begin(self) -> Driver:
        """An epoch, a learner and its weights."""
        self.next_epoch()
        seed = [torch.randn(size, generator=self.noise) for size in SIZES]
        digests = tuple(digest(values) for values in seed)
        assert self.commit(MemberRecord(1, "a", "key", 7, 1, 0)) == ""
        assert self.store.put_seed(seed) == ""
        assert self.commit(SeedRecord(1, "a", 1, digests)) == ""
        self.states = [OuterState.start(values) for values in seed]
        self.remember()
        return self

    def next_epoch(self, found: Found | None = None) -> None:
        """Boot; with what a restart found, go on from there."""
        self.epoch += 1
        rollbacks: tuple[Rollback, ...] = ()
        if found is not None:
            rollbacks = found.state.rollbacks
            for rollback in rollbacks:
                self.versions[rollback.fragment] = rollback.to_version
            assert found.fragments is not None
            self.states = [copy(state) for state in found.fragments]
        assert self.commit(EpochRecord(self.epoch, rollbacks)) == ""

    def round(self, p: int, *, sync: bool = True) -> str:
        """One merge: delta, commit, install; or the reason it went no further."""
        state, delta, record = self.merge(p)
        reason = self.store.put_delta(record.delta_digest, delta, sync=sync)
        reason = reason or self.commit(record, sync=sync, lines=[line(f"round {record.round}")])
        if not reason:
            self.install(p, state)
        return reason

    def merge(self, p: int) -> tuple[OuterState, Tensor, RoundRecord]:
        """Compute the next version of a fragment aside."""
        self.num_rounds += 1
        number = self.num_rounds
        delta = torch.randn(SIZES[p], generator=self.noise)
        state = copy(self.states[p])
        factor = min(1.0, number / 4)  # as in a run that warms up
        fold(state, delta, *self.config.outer.step(factor), codec_for(self.config.codec.down))
        self.past[p, digest(state.served)] = copy(state)
        part = Contributor("a", 1, 100 * number, 100 * number + 60, 3, self.versions[p], 1200.0)
        version, served = self.versions[p] + 1, digest(state.served)
        record = RoundRecord(self.epoch, number, p, version, served, digest(delta), number, (part,), factor)
        return state, delta, record

    def install(self, p: int, state: OuterState) -> None:
        self.states[p] = state
        self.versions[p] += 1

    def snapshot(self) -> str:
        return self.store.take_snapshot(self.num_rounds, tuple(self.versions), self.states)

    def twin(self, store: Store) -> Driver:
        """The same run so far, going on with a copy of its store."""
        other = Driver(store, self.config)
        other.noise.set_state(self.noise.get_state())
        other.records, other.past = list(self.records), dict(self.past)
        other.states, other.versions = [copy(state) for state in self.states], list(self.versions)
        other.epoch, other.num_rounds = self.epoch, self.num_rounds
        return other

    def remember(self) -> None:
        for p, state in enumerate(self.states):
            self.past[p, digest(state.served)] = copy(state)

    def assert_whole(self, found: Found) -> None:
        """Everything acknowledged is there, bit for bit; beyond it at most what was in flight."""
        assert found.state.rollbacks == ()
        assert found.state.merges in (self.num_acknowledged(), self.num_acknowledged() + 1)
        self.assert_true(found)
        held = [fragment.version for fragment in found.state.fragments]
        flying = self.in_flight if isinstance(self.in_flight, RoundRecord) else None
        for p, version in enumerate(held):
            extra = int(flying is not None and flying.fragment == p)
            assert self.versions[p] <= version <= self.versions[p] + extra

    def num_acknowledged(self) -> int:
        return sum(self.versions)

    def assert_true(self, found: Found) -> None:
        """Whatever version each fragment came back at, it has the bits of that version."""
        assert found.fragments is not None
        ends = {rollback.fragment: rollback.digest for rollback in found.state.rollbacks}
        for p, (fragment, state) in enumerate(zip(found.state.fragments, found.fragments, strict=True)):
            wanted = ends.get(p, fragment.digest)
            assert digest(state.served) == wanted
            assert same(state, self.past[p, wanted])


class FailingFiles(Files):
    """The n-th operation from now fails, with an error number or by stopping the world."""

    def __init__(self) -> None:
        self.fail_at = 0
        self.error: int | None = None
        self.operations: list[str] = []

    def arm(self, n: int, error: int | None) -> None:
        """`error` None is a crash."""
        self.fail_at, self.error, self.operations = n, error, []

    def step(self, operation: str, path: Path) -> None:
        self.operations.append(f"{operation} {path.name}")
        if len(self.operations) == self.fail_at:
            if self.error is None:
                raise Crash
            raise OSError(self.error, os.strerror(self.error), str(path))

    @property
    def has_failed(self) -> bool:
        return 0 < self.fail_at <= len(self.operations)


class Crash(BaseException):
    """The process is gone; nothing after this happens."""


ERRORS = (errno.ENOSPC, errno.EIO)


def image(run_dir: Path, target: Path) -> Path:
    """The directory as a new process would find it now."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(run_dir, target)
    return target


def reload(run_dir: Path, run: RunConfig) -> Found:
    """Open a directory, load it, close it."""
    store = RunStore.open(run_dir, run)
    try:
        return store.load()
    finally:
        store.close()
