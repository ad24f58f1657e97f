"""What the syncer asks of a store, whoever keeps it: a run directory, memory, or a test.

A store acknowledges. A method that writes returns "" when what it was given is kept as promised, or the
reason why it is not; then nothing of it is visible, and the same call may be made again. Failures of the
disk are ordinary here, so they are never exceptions. A `StoreError` is for a directory that cannot be
used at all.

The order of a commit is the caller's: `put_delta` (or `put_seed`), then `commit` of the record that names
it, then publish. `sync` says whether it must survive a power cut before the call returns; a synced commit
takes everything before it along, records and deltas.

All methods belong to one thread, the store's. Only `write_snapshot` may be called from any other: it is
slow, touches nothing but files of its own, and `register_snapshot` then makes them count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from atoll.core.records import Record, StoredState
from atoll.numerics.manifest import Manifest
from atoll.numerics.outer import OuterState
from atoll.tape.entries import Entry

__all__ = ["Found", "PreparedSnapshot", "Store"]


@dataclass(frozen=True, slots=True)
class Found:
    """What a store held when it was loaded."""

    state: StoredState
    """The fold of the records, with the rollbacks and problems that damage makes necessary."""
    fragments: list[OuterState] | None
    """Every fragment, rebuilt bit for bit, at its version after those rollbacks; None before the seed."""
    manifest: Manifest | None
    """What the first learner's model looks like; None before it came."""


@dataclass(frozen=True, slots=True)
class PreparedSnapshot:
    """A snapshot that is written and verified but does not count yet; or the reason why there is none."""

    merges: int
    versions: tuple[int, ...]
    name: str = ""
    """Its folder below `snapshots/`."""
    digest: str = ""
    """Of its list of contents."""
    reason: str = ""
    """Why it could not be written; "" if it could."""


class Store(Protocol):
    """Keeps a run. See the module for what the answers mean."""

    def load(self) -> Found:
        """Everything that is kept, checked. Raises `StoreError` if the records themselves are damaged."""
        ...

    def put_manifest(self, manifest: Manifest) -> str:
        """Keep the manifest, once; the same one again is fine, another one is refused."""
        ...

    def put_seed(self, values: list[Tensor]) -> str:
        """Keep the content of version 0, durably, before its `SeedRecord` is committed."""
        ...

    def put_delta(self, digest: str, delta: Tensor, *, sync: bool) -> str:
        """Keep a merged delta (flat f32) under its digest, before its `RoundRecord` is committed."""
        ...

    def commit(self, record: Record, *, sync: bool, lines: list[Entry]) -> str:
        """The commit point: the record and the tape lines since the last flush, both or neither."""
        ...

    def write_tape(self, lines: list[Entry]) -> str:
        """Keep tape lines that no record waits for."""
        ...

    def write_snapshot(
        self, merges: int, versions: tuple[int, ...], states: list[OuterState]
    ) -> PreparedSnapshot:
        """Write and verify the whole state, from any thread; `states` must not change meanwhile."""
        ...

    def register_snapshot(self, prepared: PreparedSnapshot) -> str:
        """Make a prepared snapshot count, and delete what it makes needless."""
        ...

    def take_snapshot(self, merges: int, versions: tuple[int, ...], states: list[OuterState]) -> str:
        """Write a snapshot and register it, in one thread."""
        ...

    def close(self) -> None:
        """Let go of everything; what was acknowledged stays."""
        ...
