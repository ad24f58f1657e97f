"""Where the past of a run directory begins: at version 0, or at a snapshot if what lies before was deleted.

Deltas before a snapshot are deleted on purpose (`durability.keep`). Whoever folds a run must know that from
damage, and must not believe the settings alone: a run may have kept little at first and everything later, and
a rollback may have voided the snapshot for whose sake they went. So the directory is asked: deltas that are
missing all together, up to the oldest snapshot that counts, were deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from atoll.core.records import RoundRecord
from atoll.runtime.store.ledger import SnapshotRow

__all__ = ["find_floor"]


def find_floor(
    usable: Sequence[SnapshotRow],
    chains: Mapping[int, Sequence[RoundRecord]],
    held: Collection[str],
    *,
    keeps_all: bool,
    is_cut: bool,
) -> SnapshotRow | None:
    """The snapshot that a run begins at; None for version 0.

    `usable` are the snapshots that hold nothing given up, oldest first; `chains` the records that count, by
    fragment; `held` the digests of the deltas that are there; `is_cut` says that the oldest records are gone.
    """
    if not usable:
        return None
    oldest = usable[0]
    if is_cut:
        return oldest
    records = [record for chain in chains.values() for record in chain]
    later = {r.delta_digest for r in records if r.version > oldest.versions[r.fragment]}
    before = {r.delta_digest for r in records} - later
    missing = before.difference(held)
    # Only some are missing after a crash amid deleting, which begins with the second snapshot.
    was_pruned = missing == before or (not keeps_all and len(usable) > 1)
    return oldest if missing and was_pruned else None
