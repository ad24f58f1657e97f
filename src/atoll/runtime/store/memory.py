"""A store without a disk, for tests and for a run in one process that nobody wants to keep.

It keeps its promises as long as the process lives: what it acknowledged is what it loads. The content of
the newest snapshot replaces the deltas and records before it, of which only the fold stays, so memory stays
bounded; of the tape it keeps the newest lines only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from torch import Tensor

from atoll.config import RunConfig
from atoll.core.records import Record, StoredState, fold, history, version_in
from atoll.numerics.manifest import Manifest
from atoll.numerics.outer import OuterState, digest
from atoll.runtime.store.chain import num_before
from atoll.runtime.store.interface import Found, PreparedSnapshot
from atoll.runtime.store.rebuild import Base, rebuild
from atoll.runtime.store.rules import Expected
from atoll.tape.entries import Entry

__all__ = ["MAX_LINES", "MemoryStore"]

MAX_LINES = 8_192
"""Tape lines that are remembered."""


class MemoryStore:
    """Keeps a run in memory."""

    def __init__(self, config: RunConfig) -> None:
        self.base: StoredState | None = None
        """The fold of the records that are not kept any more."""
        self.records: list[Record] = []
        self.tape: deque[Entry] = deque(maxlen=MAX_LINES)
        self._config = config
        self._expected = Expected()
        self._manifest: Manifest | None = None
        self._seed: list[Tensor] = []
        self._deltas: dict[str, Tensor] = {}
        self._prepared: list[OuterState] = []
        self._versions: tuple[int, ...] = ()
        self._snapshot: list[OuterState] = []

    def load(self) -> Found:
        """Everything that was acknowledged."""
        result = rebuild(self.records, self._bases, self._deltas.__getitem__, self._config, self.base)
        return Found(result.state, result.fragments, self._manifest)

    def put_manifest(self, manifest: Manifest) -> str:
        """Keep the manifest, once."""
        difference = self._manifest and self._manifest.first_difference(manifest)
        if difference:
            return f"the run has another model: {difference}"
        self._manifest = manifest
        return ""

    def put_seed(self, values: list[Tensor]) -> str:
        """Keep version 0."""
        if self._expected.has_seed:
            return "the run already has its initial weights"
        self._seed = [tensor.clone() for tensor in values]
        self._expected.seed = tuple(digest(tensor) for tensor in values)
        return ""

    def put_delta(self, digest: str, delta: Tensor, *, sync: bool) -> str:
        """Keep a delta under its digest; the tensor must not change any more."""
        self._deltas[digest] = delta
        self._expected.deltas[digest] += 1
        return ""

    def commit(self, record: Record, *, sync: bool, lines: list[Entry]) -> str:
        """The commit point of a record."""
        if objection := self._expected.objection(record):
            return objection
        self.records.append(record)
        self._expected.committed(record)
        return self.write_tape(lines)

    def write_tape(self, lines: list[Entry]) -> str:
        """Keep tape lines."""
        self.tape.extend(lines)
        return ""

    def write_snapshot(
        self, merges: int, versions: tuple[int, ...], states: list[OuterState]
    ) -> PreparedSnapshot:
        """Copy the whole state."""
        self._prepared = [_copy(state) for state in states]
        return PreparedSnapshot(merges, versions)

    def register_snapshot(self, prepared: PreparedSnapshot) -> str:
        """Let the copy stand for the deltas before it."""
        self._versions, self._snapshot, self._prepared = prepared.versions, self._prepared, []
        num_cut = num_before(self.base, self.records, self._versions)
        if num_cut:
            self.base, self.records = fold(self.records[:num_cut], self.base), self.records[num_cut:]
            self._expected.past = self.base
        needed = set(self._expected.deltas)
        for p, chain in history(self.records, self.base).items():
            first = self._versions[p] - version_in(self.base, p)
            needed.update(record.delta_digest for record in chain[first:])
        self._deltas = {name: delta for name, delta in self._deltas.items() if name in needed}
        return ""

    def take_snapshot(self, merges: int, versions: tuple[int, ...], states: list[OuterState]) -> str:
        """Write a snapshot and register it."""
        return self.register_snapshot(self.write_snapshot(merges, versions, states))

    def close(self) -> None:
        """Nothing to let go of: it may be loaded again."""

    def _bases(self, p: int) -> Iterator[Base]:
        if self._snapshot:
            yield Base(self._versions[p], "the snapshot", lambda: _copy(self._snapshot[p]))
        yield Base(0, "the seed", lambda: OuterState.start(self._seed[p]))


def _copy(state: OuterState) -> OuterState:
    return OuterState(state.served.clone(), state.remainder.clone(), state.momentum.clone())
