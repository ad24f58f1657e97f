"""Who trains on which part of the data, and what becomes of a part whose learner is gone."""

from __future__ import annotations

from atoll.core import commands as do
from atoll.core import messages as msg
from atoll.core.params import SECOND
from atoll.core.records import StoredMember
from atoll.core.shards import shard_for
from tests.unit.core.by_hand import SyncerByHand, sent, syncer


def members(*shards: tuple[str, int]) -> dict[str, StoredMember]:
    return {name: StoredMember(name, "", 1, shard, (1,)) for name, shard in shards}


def present(*names: str):
    return lambda name: name in names


def test_the_first_that_nobody_ever_had_then_one_whose_learner_is_gone():
    held = members(("a", 0), ("b", 1))
    assert shard_for("c", {}, 4, present()) == 0
    assert shard_for("c", held, 4, present("a")) == 2
    assert shard_for("c", held, 2, present("a")) == 1


def test_a_name_gets_its_own_again_unless_somebody_present_has_it():
    held = members(("a", 0), ("b", 1), ("c", 1))
    assert shard_for("b", held, 4, present("a")) == 1
    assert shard_for("b", held, 4, present("a", "c")) == 2


def test_more_learners_than_shards_share_the_least_crowded():
    held = members(("a", 0), ("b", 1), ("c", 0))
    assert shard_for("d", held, 2, present("a", "b", "c")) == 1


def admitted(hand: SyncerByHand, name: str, life: int = 1) -> int:
    return sent(hand.hello(name, life=life), msg.Welcome)[0].shard


def test_a_leaver_s_shard_is_handed_on_after_its_absence_and_not_before():
    hand = syncer(num_shards=2, hand_on_ns=60 * SECOND)
    assert [admitted(hand, name) for name in ("a", "b")] == [0, 1]
    hand.now_ns += 50 * SECOND
    hand.report("b", 1)
    assert admitted(hand, "early") == 0, "all are taken: shared with the first"
    hand = syncer(num_shards=2, hand_on_ns=60 * SECOND)
    hand.hello("a")
    hand.hello("b")
    hand.hear(msg.Leave("a", 1, 1))
    hand.now_ns += 61 * SECOND
    hand.report("b", 1)
    assert admitted(hand, "late") == 0
    hand.now_ns += 50 * SECOND
    hand.report("late", 1)
    hand.now_ns += 50 * SECOND
    assert admitted(hand, "a", life=2) == 1, "its own has another learner now, and b is gone"


def test_two_that_come_at_the_same_moment_get_two_shards():
    hand = syncer(num_shards=8)
    hand.keep = (do.Commit,)
    hand.hello("a")
    hand.hello("b")
    assert [command.record.shard for command in hand.kept] == [0, 1]
