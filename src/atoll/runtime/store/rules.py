"""When a record may be committed, the same for every store.

The machines never ask for what is refused here. The rules stand between a bug above them and the state of
a run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from atoll.core.records import EpochRecord, Record, RoundRecord, SeedRecord

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
        if isinstance(record, RoundRecord) and record.delta_digest not in self.deltas:
            return f"the delta {record.delta_digest} was never put"
        return ""

    def committed(self, record: Record) -> None:
        """Go on to the next record."""
        self.epoch = record.epoch
        if isinstance(record, SeedRecord):
            self.has_seed = True
        elif isinstance(record, RoundRecord):
            self.deltas -= Counter({record.delta_digest: 1})
