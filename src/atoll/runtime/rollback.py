"""An operator's way back: a run goes on from an earlier tick, and what came after it counts no more.

Any vector of committed versions is a legal state, so going back to tick t takes each fragment to the newest
version that was committed at t or before. Nothing is deleted. A record of the next epoch says which versions
are given up and whose tokens were in them; it is the commit point, and state is the fold of the records as
ever. Learners that trained on are served the older versions when they come back, and take their clocks from
t.

The way is planned before it is taken: every version it leads to is rebuilt from what is kept, digest by
digest. A run can only go back as far as its oldest snapshot, or to the beginning if nothing was deleted.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from atoll.core.records import EpochRecord, Rollback
from atoll.errors import StoreError
from atoll.runtime.past import Broken, Past, open_past
from atoll.runtime.store import RunStore
from atoll.tape.entries import SYNCER, Entry, Stored

__all__ = ["Plan", "WayBack", "plan_way_back"]

STALE = ("status.json", "summary.json")
"""What was written for people about a run that no longer is like that."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a way back leads, and what it gives up."""

    t: int
    now_t: int
    """Where the run stands."""
    epoch: int
    """The new one."""
    rollbacks: tuple[Rollback, ...]
    was_finished: bool

    @property
    def num_commits(self) -> int:
        """Commits that are given up."""
        return sum(back.from_version - back.to_version for back in self.rollbacks)

    @property
    def tokens(self) -> dict[str, int]:
        """Merged tokens that are given up, by learner."""
        lost: Counter[str] = Counter()
        for back in self.rollbacks:
            for part in back.voided:
                lost[part.name] += part.end - part.start
        return dict(sorted(lost.items()))

    @property
    def record(self) -> EpochRecord:
        """What makes it so."""
        return EpochRecord(self.epoch, self.rollbacks, self.t)


def plan_way_back(run_dir: Path, t: int) -> Plan:
    """Plan to go back to tick t; locks and changes nothing.

    Raises `StoreError` if that is no way back, or if the model of that tick cannot be rebuilt.
    """
    past = open_past(run_dir)
    state = past.view.state
    if not 0 <= t < state.t or not past.first:
        raise StoreError(
            f"The run in {run_dir} stands at tick {state.t:,}, and {t:,} does not lie before that.",
            "There is nothing to go back from.",
            f"Choose a tick from {past.oldest_t():,} to {max(0, state.t - 1):,}.",
        )
    past.check_reach(t)
    for p in past.chains:
        _rebuild(past, p, past.version_at(p, t))
    backs = tuple(_rollback(past, p, past.version_at(p, t)) for p in past.chains)
    real = tuple(back for back in backs if back.to_version < back.from_version)
    return Plan(t, state.t, state.epoch + 1, real, state.finished)


class WayBack:
    """Holds a run directory while its operator decides; a running syncer is a `StoreError`."""

    def __init__(self, run_dir: Path, t: int) -> None:
        past = open_past(run_dir)  # there must be a run: opening the store would make one
        self._store = RunStore.open(run_dir, past.config)
        try:
            self._store.load()  # so that a synced commit knows what it has to force to disk before
            self.plan = plan_way_back(run_dir, t)
        except BaseException:
            self._store.close()
            raise

    def take(self) -> None:
        """Commit it. From here on the run stands at the earlier tick."""
        record = self.plan.record
        line = Entry(time.monotonic_ns(), SYNCER, Stored(record, True))
        if reason := self._store.commit(record, sync=True, lines=[line]):
            raise StoreError(
                f"The way back could not be committed: {reason}.",
                "The run stands where it stood.",
                "Mend the disk, then try again.",
            )
        for name in STALE:
            (self._store.run_dir / name).unlink(missing_ok=True)

    def __enter__(self) -> WayBack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.close()


def _rebuild(past: Past, p: int, version: int) -> None:
    """Prove that a version can be had."""
    try:
        state = past.base(p)
        for record in past.after(p, past.start.versions[p], version):
            past.advance(state, record, past.delta(record))
    except Broken as error:
        raise StoreError(
            f"The way back is cut off: {error}.",
            "The model of that tick cannot be rebuilt, so nothing was changed.",
            "See `atoll replay` and `atoll fsck` for what is damaged; choose an earlier tick.",
        ) from error


def _rollback(past: Past, p: int, version: int) -> Rollback:
    lost = past.after(p, version)
    voided = tuple(part for record in lost for part in record.contributors)
    first = past.first[p]
    before = past.digest(p, version - 1) if version > first.version else first.previous_digest
    return Rollback(p, version + len(lost), version, past.digest(p, version), before, voided)
