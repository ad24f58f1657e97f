"""The syncer's store behind a thread of its own: asked from the loop, answered on the loop.

Everything that touches run.db and the deltas happens on one thread, in the order in which it was asked for.
Snapshots are written beside it, on another, and only registered here. Tape lines go to disk in the
transaction of the next commit; those that the disk refused are carried along to the next attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from atoll.core.records import Record, RoundRecord
from atoll.errors import AtollError
from atoll.numerics.manifest import Manifest
from atoll.numerics.outer import OuterState
from atoll.runtime.failpoints import reach
from atoll.runtime.loop import Loop
from atoll.runtime.offers import KeptOffers
from atoll.runtime.store import Found, Store
from atoll.runtime.worker import Worker
from atoll.tape.entries import SYNCER, Entry, Stored

__all__ = ["MAX_CARRIED", "Answer", "Archive"]

MAX_CARRIED = 100_000
"""Lines of tape kept while the disk refuses; beyond that the oldest go, and the tape has a gap."""

Answer = Callable[[str], None]
"""Called on the loop with "" or the reason of a failure."""


@dataclass(eq=False)
class Archive:
    """See the module. Methods without an underscore are for the loop's thread."""

    store: Store
    loop: Loop
    storing: Worker
    snapshots: Worker
    offers: KeptOffers | None = None
    """With `tape.keep_offers`."""
    carried: list[Entry] = field(default_factory=list)
    """Store's thread only."""
    num_lost: int = 0
    """Lines that went because the disk refused for too long."""
    is_flushing: bool = False
    """Lines were given to be written and are not written yet: on a disk that hangs, more must not pile up."""

    def load(self, then: Callable[[Found], None], failed: Callable[[AtollError], None]) -> None:
        """Read the whole run."""
        self.storing.do(self._load, then, failed)

    def _load(self, then: Callable[[Found], None], failed: Callable[[AtollError], None]) -> None:
        try:
            found = self.store.load()
        except AtollError as error:
            self.loop.call(failed, error)
        else:
            self.loop.call(then, found)

    def put_manifest(self, manifest: Manifest, then: Answer) -> None:
        """Keep the model's description, once."""
        self.storing.do(self._answer, then, lambda: self.store.put_manifest(manifest))

    def put_delta(self, digest: str, delta: Tensor, *, sync: bool, then: Answer) -> None:
        """Keep a merged delta under its digest."""
        self.storing.do(self._answer, then, lambda: self.store.put_delta(digest, delta, sync=sync))

    def keep_offers(self, record: RoundRecord, bodies: dict[str, Tensor], *, sync: bool) -> None:
        """Keep what a round was merged from, before it is committed; a disk that refuses holds up nothing."""
        assert self.offers is not None
        self.storing.do(self.offers.keep, record, bodies, sync)

    def commit(
        self, record: Record, seed: list[Tensor] | None, lines: list[Entry], *, sync: bool, then: Answer
    ) -> None:
        """The commit point: a record, and the tape lines up to it; a seed's content goes first."""
        stored = Entry(self.loop.now_ns(), SYNCER, Stored(record, sync))
        self.storing.do(self._answer, then, lambda: self._commit(record, seed, lines, stored, sync))

    def _commit(
        self, record: Record, seed: list[Tensor] | None, lines: list[Entry], stored: Entry, sync: bool
    ) -> str:
        self._carry(lines)
        reason = self.store.put_seed(seed) if seed is not None else ""
        reason = reason or self.store.commit(record, sync=sync, lines=[*self.carried, stored])
        if not reason:
            self.carried = []
        return reason

    def flush(self, lines: list[Entry], then: Answer = lambda reason: None) -> None:
        """Write tape lines that no record waits for."""
        self.is_flushing = True
        self.storing.do(self._flush, lines, then)

    def _flush(self, lines: list[Entry], then: Answer) -> None:
        self._carry(lines)
        reason = self.store.write_tape(self.carried) if self.carried else ""
        if not reason:
            self.carried = []
        self.loop.call(self._flushed, reason, then)

    def _flushed(self, reason: str, then: Answer) -> None:
        self.is_flushing = False
        then(reason)

    def _carry(self, lines: list[Entry]) -> None:
        self.carried += lines
        self.num_lost += max(0, len(self.carried) - MAX_CARRIED)
        del self.carried[:-MAX_CARRIED]

    def snapshot(
        self, merges: int, versions: tuple[int, ...], states: list[OuterState], then: Answer
    ) -> None:
        """Write the whole state; states are replaced, never changed, so this pauses nobody."""
        self.snapshots.do(self._write_snapshot, merges, versions, states, then)

    def _write_snapshot(
        self, merges: int, versions: tuple[int, ...], states: list[OuterState], then: Answer
    ) -> None:
        prepared = self.store.write_snapshot(merges, versions, states)
        reach("S12")
        register = self.store.register_snapshot
        self.storing.do(self._answer, then, lambda: prepared.reason or register(prepared))

    def _answer(self, then: Answer, what: Callable[[], str]) -> None:
        self.loop.call(then, what())
