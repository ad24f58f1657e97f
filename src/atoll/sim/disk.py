"""The simulated disk: records are atomic, files are not, and what is not synced may be lost.

A write takes time. A record is in the store from its commit point on (`Stored` on the tape); if
the process dies before that instant, it never was. Unless a write asked for sync, a crash of the machine
may lose it: records from the end of the log backwards, files each for itself, whole or torn.
Files carry their content's digest as it is read back, so a torn one is told from a good one. No delta is
ever deleted, so an operator may go back to any tick whose versions can be rebuilt.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from atoll.core.records import (
    EpochRecord,
    Record,
    Rollback,
    RoundRecord,
    SeedRecord,
    StoredState,
    fold,
    history,
    recover,
)

__all__ = ["Damage", "Disk", "File"]


@dataclass(slots=True)
class File:
    """A delta or snapshot: what it should be, what can be read back, whether it would survive."""

    digest: str
    content: Any
    synced: bool
    torn: bool = False

    @property
    def is_intact(self) -> bool:
        """Whether reading it back gives the digest it is named by."""
        return not self.torn


@dataclass(slots=True)
class Damage:
    """What a crash did to the disk."""

    landed: list[Record] = field(default_factory=list)
    """Records that reached the log although the process that wrote them was dead."""
    num_writes_lost: int = 0
    """Records that had not reached their commit point."""
    num_records_lost: int = 0
    num_files_lost: int = 0
    num_files_torn: int = 0


@dataclass(slots=True)
class Disk:
    """One syncer's directory."""

    records: list[Record] = field(default_factory=list)
    num_synced: int = 0
    files: dict[str, File] = field(default_factory=dict)
    writing: dict[str, File] = field(default_factory=dict)
    """Files whose write has begun and not ended."""
    committing: list[Record] = field(default_factory=list)
    """Records on their way to their commit point."""
    snapshot: tuple[int, tuple[int, ...], Any] | None = None
    """Number of records, versions, content: of the newest verified snapshot."""
    is_full: bool = False
    fails_commits: bool = False
    """The log cannot be written, though files can."""

    def begin_file(self, digest: str, content: Any) -> None:
        """A write starts; until it ends, a crash leaves a torn file or none."""
        self.writing[digest] = File(digest, content, synced=False)

    def end_file(self, digest: str, *, sync: bool) -> bool:
        """The write ends; False if the disk is full."""
        file = self.writing.pop(digest, None)
        if self.is_full or file is None:
            return False
        file.synced = sync
        self.files[digest] = file
        return True

    def begin_commit(self, record: Record) -> None:
        """A record is on its way; it is in the log only from `commit` on."""
        self.committing.append(record)

    def commit(self, record: Record, *, sync: bool) -> bool:
        """The commit point: append a record whole, or not at all."""
        if record in self.committing:
            self.committing.remove(record)
        if self.is_full or self.fails_commits:
            return False
        self.records.append(record)
        if sync:
            self.num_synced = len(self.records)
        return True

    def take_snapshot(self, versions: tuple[int, ...], content: Any) -> bool:
        """Write and verify the whole state; syncs the log, and makes older deltas needless."""
        if self.is_full:
            return False
        self.snapshot = (len(self.records), versions, content)
        self.num_synced = len(self.records)
        return True

    def crash(self, rng: random.Random, *, lose: bool, tear: bool) -> Damage:
        """The process dies. With `lose` or `tear` the machine goes down with it, and what was not

        synced may be lost. Otherwise what was being written may still get there."""
        damage = Damage()
        for record in self.committing:
            if lose or tear or self.is_full or self.fails_commits or isinstance(record, SeedRecord):
                damage.num_writes_lost += 1
            elif rng.random() < 0.5:
                self.records.append(record)
                damage.landed.append(record)
        self.committing.clear()
        if lose and self.num_synced < len(self.records):
            kept = rng.randint(self.num_synced, len(self.records))
            damage.num_records_lost = len(self.records) - kept
            del self.records[kept:]
            self.num_synced = kept
        begun = [file for file in self.writing.values() if file.digest not in self.files]
        for file in [*begun, *(f for f in self.files.values() if not f.synced)]:
            self._damage_file(file, rng, damage, lose=lose, tear=tear)
        self.writing.clear()
        self.num_synced = len(self.records)
        return damage

    def _damage_file(self, file: File, rng: random.Random, damage: Damage, *, lose: bool, tear: bool) -> None:
        if tear and rng.random() < 0.5:
            file.torn, file.content = True, _torn(file.content)
            self.files[file.digest] = file
            damage.num_files_torn += 1
        elif lose and rng.random() < 0.5:
            self.files.pop(file.digest, None)
            damage.num_files_lost += 1
        elif file.digest in self.files:
            file.synced = True

    def go_back(self, t: int) -> EpochRecord | None:
        """An operator goes back to a tick. None, and nothing is changed, if it cannot be rebuilt."""
        state, chains = fold(self.records), history(self.records)
        if self.is_full or self.fails_commits or not state.fragments or not 0 <= t < state.t:
            return None
        versions = [
            sum(1 for record in chains.get(p, ()) if record.t <= t) for p in range(len(state.fragments))
        ]
        if self.snapshot is not None and any(v < w for v, w in zip(versions, self.snapshot[1], strict=True)):
            kept = [record for p, chain in chains.items() for record in chain[: versions[p]]]
            if not all(self._has_delta(record) for record in kept):
                return None
            self.snapshot = None
        elif not all(
            self.is_readable(record) for p, chain in chains.items() for record in chain[: versions[p]]
        ):
            return None
        backs = [self._rollback(p, chain, versions[p]) for p, chain in sorted(chains.items())]
        real = tuple(back for back in backs if back.to_version < back.from_version)
        self.commit(record := EpochRecord(state.epoch + 1, real, t), sync=True)
        return record

    def _rollback(self, p: int, chain: list[RoundRecord], version: int) -> Rollback:
        seeds = next(record.digests for record in self.records if isinstance(record, SeedRecord))
        digests = ["", seeds[p], *(record.digest for record in chain)]
        voided = tuple(part for record in chain[version:] for part in record.contributors)
        return Rollback(p, len(chain), version, digests[version + 1], digests[version], voided)

    def load(self) -> StoredState:
        """Read the directory back; damage shows as rollbacks and problems."""
        return recover(self.records, self.is_readable)

    def is_readable(self, record: RoundRecord) -> bool:
        """Whether a version can be rebuilt: its delta is good, or a snapshot lies after it."""
        if self.snapshot is not None and record.version <= self.snapshot[1][record.fragment]:
            return True
        return self._has_delta(record)

    def _has_delta(self, record: RoundRecord) -> bool:
        file = self.files.get(record.delta_digest)
        return file is not None and file.is_intact


def _torn(content: Any) -> Any:
    """What is left of a file whose end was not written: half a text, or half a tensor and zeros."""
    if isinstance(content, str):
        return content[: len(content) // 2]
    torn = content.clone()
    torn[torn.numel() // 2 :] = 0
    return torn
