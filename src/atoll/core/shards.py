"""Which part of the data is whose: a shard belongs to a name, and waits for it for a while."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from atoll.core.records import StoredMember

__all__ = ["shard_for"]


def shard_for(
    name: str, members: Mapping[str, StoredMember], num_shards: int, is_present: Callable[[str], bool]
) -> int:
    """The shard of a learner that is being admitted.

    Its own from an earlier life, unless somebody who is present has it by now; else one that nobody ever had;
    else one whose learners have all been gone for long; else, with more learners than shards, the one with
    the fewest. Ties go to the lowest number.
    """
    holders: dict[int, list[str]] = {shard: [] for shard in range(num_shards)}
    for member in members.values():
        if member.name != name:
            holders[member.shard % num_shards].append(member.name)
    mine = members.get(name)
    if mine is not None and not any(is_present(other) for other in holders[mine.shard % num_shards]):
        return mine.shard % num_shards

    def order(shard: int) -> tuple[int, int, int]:
        present = sum(1 for other in holders[shard] if is_present(other))
        return present, len(holders[shard]), shard

    return min(holders, key=order)
