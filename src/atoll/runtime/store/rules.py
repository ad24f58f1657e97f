"""When a record may be committed, the same for every store.

The machines never ask for what is refused here. The rules stand between a bug above them and the state of
a run. Where the rows of old records are still there, indexes of run.db stand there too; for what was cut away
only its fold can say no.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from atoll.core.records import EpochRecord, Record, RoundRecord, SeedRecord, StoredState, version_in

__all__ = ["Expected"]


@dataclass(slots=True)
class Expected:
    """What the next record must fit: the epoch, and the content that was put before it."""

    epoch: int = 0
    has_seed: bool = False
    seed: tuple[str, ...] = ()
    """Digests of the initial weights that were put."""
    deltas: Counter[str] = field(default_factory=Counter)
    """Deltas that were put and are in no record yet. Counted: where nothing moved, rounds have equal ones."""
    past: StoredState | None = None
    """The fold of what was cut away."""

    def objection(self, record: Record) -> str:
        """Why a record must not be committed, or ""."""
        if isinstance(record, EpochRecord):
            follows = record.epoch == self.epoch + 1
            return "" if follows else f"epoch {record.epoch} does not follow epoch {self.epoch}"
        if record.epoch != self.epoch:
            return f"the record is of epoch {record.epoch}, but the store is in epoch {self.epoch}"
        if isinstance(record, SeedRecord):
            if self.has_seed:
                return "the run already has its initial weights"
            return "" if record.digests == self.seed else "initial weights with these digests were never put"
        if isinstance(record, RoundRecord):
            if record.delta_digest not in self.deltas:
                return f"the delta {record.delta_digest} was never put"
            return repetition(self.past, record)
        return ""

    def committed(self, record: Record) -> None:
        """Go on to the next record."""
        self.epoch = record.epoch
        if isinstance(record, SeedRecord):
            self.has_seed = True
        elif isinstance(record, RoundRecord):
            self.deltas -= Counter({record.delta_digest: 1})


def repetition(past: StoredState | None, record: RoundRecord) -> str:
    """Why a round repeats what lies in the past already, or ""."""
    p = record.fragment
    if past is None:
        return ""
    if record.version <= version_in(past, p):
        return f"version {record.version} of fragment {p} was committed long ago"
    for part in record.contributors:
        member, held = past.members.get(part.name), past.contributions.get((part.name, p))
        if member is not None and part.incarnation < member.incarnation:
            return f"incarnation {part.incarnation} of {part.name} was followed by another long ago"
        is_same = member is not None and part.incarnation == member.incarnation
        if is_same and held is not None and part.start < held.upto:
            return f"tokens of {part.name} from {part.start} on were merged into fragment {p} long ago"
    return ""
