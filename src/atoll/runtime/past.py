"""The past of a run, version after version: where it can be folded from, and how.

Each fragment has a chain of round records, those that still count after rollbacks. Its values come back from
a base (version 0, or a snapshot) and the deltas after it. The store deletes old deltas, so the past begins at
version 0 or at the oldest snapshot that is left: `Past.start` says at which, and why. Fragments are
independent, so they are folded one after the other, and memory holds one of them at a time.

Nothing is locked: a syncer that is running may delete files while they are read. Whoever finds one missing
asks `has_moved` whether the past has become shorter, and looks again.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import Tensor

from atoll.config import RunConfig
from atoll.core.records import EpochRecord, RoundRecord, SeedRecord, StoredFragment, StoredState, history
from atoll.errors import StoreError
from atoll.numerics.codec import codec_for
from atoll.numerics.manifest import Manifest
from atoll.numerics.outer import OuterState, digest, fold
from atoll.runtime.store import RunView, read_run, snapshots
from atoll.runtime.store.floor import find_floor
from atoll.runtime.store.ledger import Ledger, SnapshotRow, damaged

__all__ = ["Broken", "Past", "Start", "open_past", "which"]


class Broken(Exception):
    """A version that cannot be had; says which, and why. Never leaves the runtime."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where the past begins."""

    name: str
    """Of the snapshot; "" for version 0."""
    merges: int
    versions: tuple[int, ...]
    digest: str = ""
    """Of the snapshot's list of contents."""
    why: str = ""
    """Why not at version 0."""

    def __str__(self) -> str:
        if not self.name:
            return "starts at version 0, the initial weights"
        return f"starts at the snapshot of merge {self.merges:,}: {self.why}"


@dataclass
class Past:
    """All that a run directory remembers. Made by `open_past`."""

    view: RunView
    snapshots: list[SnapshotRow]
    """Those that hold no version given up since, oldest first."""
    first: tuple[StoredFragment, ...] = field(init=False)
    """Fragments before the first record that is left: at version 0, or later in a run that was cut."""
    chains: dict[int, list[RoundRecord]] = field(init=False)
    """By fragment: the records of the versions after `first`, in order, that count."""

    def __post_init__(self) -> None:
        base = self.cut
        seeds = (record.digests for record in self.view.records if isinstance(record, SeedRecord))
        if base is not None and base.fragments:
            self.first = tuple(base.fragments)
        else:
            self.first = tuple(StoredFragment(0, digest, "") for digest in next(seeds, ()))
        chains = history(self.view.records, base)
        self.chains = {p: chains.get(p, []) for p in range(len(self.first))}

    @property
    def cut(self) -> StoredState | None:
        """The fold of the records that are not there any more."""
        return self.view.base

    @property
    def config(self) -> RunConfig:
        """The settings of the run."""
        return self.view.config

    @property
    def manifest(self) -> Manifest:
        """What the model looks like."""
        assert self.view.manifest is not None, "the seed comes after the manifest"
        return self.view.manifest

    @property
    def num_rolled_back(self) -> int:
        """Commits that were given up."""
        epochs = (record for record in self.view.records if isinstance(record, EpochRecord))
        return sum(r.from_version - r.to_version for epoch in epochs for r in epoch.rollbacks)

    @cached_property
    def start(self) -> Start:
        """Version 0 if its deltas are there, else the oldest snapshot, if their absence is no accident."""
        zero = Start("", 0, (0,) * len(self.first))
        keep = self.config.durability.keep
        row = find_floor(
            self.snapshots,
            self.chains,
            {path.stem for path in self._deltas.glob("*.safetensors")},
            keeps_all=keep == "all",
            is_cut=any(fragment.version for fragment in self.first),
        )
        if row is None:
            return zero
        why = f"older deltas were deleted (durability.keep = {keep})"
        return Start(row.name, row.merges, row.versions, row.digest, why)

    def after(self, p: int, version: int, upto: int | None = None) -> list[RoundRecord]:
        """The records of the versions after one, up to another or to the newest."""
        found = self.chains[p][max(0, version - self.first[p].version) :]
        return found if upto is None else [record for record in found if record.version <= upto]

    def version_at(self, p: int, t: int | None) -> int:
        """The newest version of a fragment that was committed at tick t or before; None means the newest."""
        return self.first[p].version + sum(t is None or record.t <= t for record in self.chains[p])

    def t_of(self, p: int, version: int) -> int:
        """The tick at which a version was committed; 0 for version 0, at the latest this for one cut away."""
        if version > self.first[p].version:
            return self.chains[p][version - self.first[p].version - 1].t
        return self.cut.t if self.cut is not None else 0

    def oldest_t(self) -> int:
        """The earliest tick whose model can be rebuilt."""
        return max((self.t_of(p, version) for p, version in enumerate(self.start.versions)), default=0)

    def base(self, p: int) -> OuterState:
        """A fragment as it was at `start`; raises `Broken`."""
        where, folder = self.start, self.view.run_dir / "snapshots"
        version = where.versions[p]
        try:
            if where.name:
                state = snapshots.read_fragment(self.view.files, folder / where.name, p, where.digest)
            else:
                state = snapshots.read_seed(self.view.files, folder, p)
            if digest(state.served) != self.digest(p, version):
                raise ValueError(f"it is not version {version} of this run")
        except (OSError, ValueError) as error:
            file = f"snapshots/{where.name or snapshots.SEED}"
            raise Broken(f"fragment {p}: {file} cannot be used: {_words(error)}") from error
        return state

    def digest(self, p: int, version: int) -> str:
        """The digest that a version must have; "" if it lies before the first one that is left."""
        first = self.first[p]
        if version <= first.version:
            return first.digest if version == first.version else ""
        return self.chains[p][version - first.version - 1].digest

    def delta(self, record: RoundRecord) -> Tensor:
        """The delta that led to a version; raises `Broken`."""
        name = record.delta_digest
        try:
            delta = snapshots.read_delta(self.view.files, self._deltas, name)
            wanted = self.manifest.fragments[record.fragment].numel
            if delta.numel() != wanted:
                raise ValueError(f"it has {delta.numel()} values, not {wanted}")
        except (OSError, ValueError) as error:
            raise Broken(f"{which(record)}: deltas/{name} cannot be used: {_words(error)}") from error
        return delta

    def fold(self, state: OuterState, record: RoundRecord, delta: Tensor) -> None:
        """Take the outer step of a record with this delta, in place."""
        eta_mu = self.config.outer.step(record.momentum_factor)
        fold(state, delta, *eta_mu, codec_for(self.config.codec.down))

    def advance(self, state: OuterState, record: RoundRecord, delta: Tensor) -> None:
        """Go on to the version of a record; raises `Broken` if the step does not lead there."""
        self.fold(state, record, delta)
        if digest(state.served) != record.digest:
            raise Broken(f"{which(record)}: its delta does not lead to the digest in its record")

    def check_reach(self, t: int) -> None:
        """Raise `StoreError` unless the model of tick t can still be rebuilt."""
        if t < self.oldest_t():
            raise StoreError(
                f"The model of tick {t:,} cannot be rebuilt: the run {self.start}.",
                f"The oldest tick that can be had is {self.oldest_t():,}.",
                f"Choose {self.oldest_t():,} or later; durability.keep = all keeps the whole past of a run.",
            )

    def has_moved(self) -> bool:
        """Whether the past begins later now than when it was opened."""
        return open_past(self.view.run_dir).start != self.start

    @property
    def _deltas(self) -> Path:
        return self.view.run_dir / "deltas"


def open_past(run_dir: Path) -> Past:
    """Look at the past of a run. Raises `StoreError` if there is no run, or if its records are damaged."""
    view = read_run(run_dir)
    ledger = Ledger(run_dir / "run.db", view.files, readonly=True)
    try:
        rows = ledger.snapshots()
    except sqlite3.Error as error:
        raise damaged(ledger.path, str(error)) from error
    finally:
        ledger.close()
    newest = tuple(fragment.version for fragment in view.state.fragments)
    known = [row for row in reversed(rows) if not row.is_voided and _is_within(row.versions, newest)]
    return Past(view, known)


def _is_within(versions: tuple[int, ...], newest: tuple[int, ...]) -> bool:
    """Whether a snapshot was taken before the records were read."""
    return len(versions) == len(newest) and all(a <= b for a, b in zip(versions, newest, strict=True))


def which(record: RoundRecord) -> str:
    """A version in words."""
    return f"fragment {record.fragment}, version {record.version} (tick {record.t:,})"


def _words(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
