"""Which deltas the run still needs, kept beside the records as they are committed.

Asked of the records, which are chained, and not of the tables derived from them: what is deleted by a
wrong answer is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from atoll.core.records import EpochRecord, Record, RoundRecord

__all__ = ["LiveDeltas"]


@dataclass(slots=True)
class LiveDeltas:
    """Digests of the deltas of all versions that count."""

    digests: dict[tuple[int, int], str] = field(default_factory=dict)
    """By fragment and version."""

    def apply(self, record: Record) -> None:
        """Take a committed record in."""
        if isinstance(record, RoundRecord):
            self.digests[record.fragment, record.version] = record.delta_digest
        elif isinstance(record, EpochRecord):
            for rollback in record.rollbacks:
                for version in range(rollback.to_version + 1, rollback.from_version + 1):
                    self.digests.pop((rollback.fragment, version), None)

    def after(self, versions: tuple[int, ...]) -> set[str]:
        """The deltas that lead from these versions to the newest ones."""
        return {name for (p, version), name in self.digests.items() if version > versions[p]}

    def forget(self, versions: tuple[int, ...]) -> None:
        """These versions will not be gone back behind."""
        self.digests = {key: name for key, name in self.digests.items() if key[1] > versions[key[0]]}
