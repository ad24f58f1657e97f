"""Stories of the syncer: nothing is said before it is durable; faults of the store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.params import SECOND, RunParams
from atoll.core.records import EpochRecord, MemberRecord, Rollback, RoundRecord, StoredFragment, fold
from tests.unit.core.by_hand import SyncerByHand, contributor, notes, only, running, sent

# Boot


def test_the_epoch_is_durable_before_the_first_word():
    hand = SyncerByHand(RunParams(num_fragments=2, interval_steps=4), keep=(do.Commit,))
    hand.boot()
    assert hand.kept == [do.Commit(1, EpochRecord(1, ()), True)]
    assert hand.hello("a") == []
    assert hand.fire("beat", SECOND) == []
    hand.answer_kept()
    hand.hello("a")
    assert hand.kept[0].record == MemberRecord(1, "a", "key-a", 1, 1, 0)


def test_an_epoch_that_cannot_be_stored_is_tried_again():
    hand = SyncerByHand(RunParams(num_fragments=2, interval_steps=4), keep=(do.Commit,))
    hand.boot()
    commands = hand.answer_kept(ok=False)
    assert notes(commands, "store") == ["not committed: no space left; will try again"]
    assert only(commands, do.SetTimer) == [do.SetTimer("commit:1", hand.params.retry_ns)]
    hand.fire("commit:1", hand.params.retry_ns)
    assert hand.kept == [do.Commit(1, EpochRecord(1, ()), True)]
    assert not hand.machine.is_active


def test_each_life_counts_the_epoch_up_and_takes_up_where_the_store_ended():
    first = running("a", "b")
    first.merge_round(first.tick("a", "b", to=2), "a", "b")
    second = SyncerByHand(first.params, stored=fold(first.records)).boot()
    state = second.machine.desk.state
    assert (second.epoch, state.merges, second.machine.desk.schedule.t) == (2, 1, 2)
    assert state.fragments == [StoredFragment(0, "d0.0", ""), StoredFragment(1, "d1.1", "d1.0")]


def test_damage_is_named_and_the_rollback_is_stored_with_the_epoch():
    rollback = Rollback(1, 1, 0, "d1.0", "", (contributor("a"), contributor("b")))
    first = running("a", "b")
    first.merge_round(first.tick("a", "b", to=2), "a", "b")
    stored = fold(first.records)
    stored.rollbacks, stored.problems = (rollback,), ("fragment 1: torn",)
    second = SyncerByHand(first.params, stored=stored).boot(accepts_loss=True)
    assert notes(second.log, "damage") == ["fragment 1: torn"]
    assert second.records == [EpochRecord(2, (rollback,))]
    assert second.machine.desk.state.fragments[1] == StoredFragment(0, "d1.0", "")


def test_a_store_that_promised_to_lose_nothing_and_did_is_not_started():
    rollback = Rollback(1, 1, 0, "d1.0", "", (contributor("a"), contributor("b")))
    first = running("a", "b")
    first.merge_round(first.tick("a", "b", to=2), "a", "b")
    stored = fold(first.records)
    stored.rollbacks, stored.problems = (rollback,), ("fragment 1: torn",)
    second = SyncerByHand(first.params, stored=stored).boot()
    assert not second.machine.is_active
    assert second.records == []
    assert "nothing is started on a damaged store" in notes(second.log, "damage")[-1]
    lossy = replace(first.params, durability="cycle")
    assert SyncerByHand(lossy, stored=stored.copy()).boot().machine.is_active


# Merges


def test_nothing_is_published_before_the_commit_and_a_failed_commit_is_tried_again():
    hand = running("a", "b")
    hand.keep = (do.Commit,)
    commands = hand.merge_round(hand.tick("a", "b", to=2), "a", "b")
    (commit,) = hand.kept
    assert isinstance(commit.record, RoundRecord)
    assert not sent(commands, msg.Publish)
    assert not only(commands, do.Install)
    failed = hand.answer_kept(ok=False)
    assert notes(failed, "store") == ["not committed: no space left; will try again"]
    assert not sent(failed, msg.Publish)
    assert not only(failed, do.Install)
    assert hand.machine.desk.state.merges == 0
    hand.fire(f"commit:{commit.ticket}", hand.params.retry_ns)
    assert hand.kept == [commit]
    done = hand.answer_kept()
    assert [p.version for p in sent(done, msg.Publish)] == [1, 1]
    assert hand.machine.desk.state.merges == 1
    assert hand.handle(ev.Committed(hand.now_ns, commit.ticket, True, "")) == []


def test_a_delta_that_cannot_be_written_is_not_committed_and_is_tried_again():
    hand = running("a", "b")
    hand.keep = (do.PutDelta,)
    hand.merge_round(hand.tick("a", "b", to=2), "a", "b")
    commands = hand.answer_kept(ok=False)
    assert notes(commands, "store") == ["not committed: no space left; will try again"]
    assert only(commands, do.Commit) == []
    hand.fire("put:1", hand.params.retry_ns)
    done = hand.answer_kept()
    assert [p.version for p in sent(done, msg.Publish)] == [1, 1]


@pytest.mark.parametrize(
    ("durability", "synced"), [("merge", [1, 1]), ("cycle", [0, 1]), ("snapshot", [0, 0])]
)
def test_durability_says_which_merges_are_forced_to_disk(durability, synced):
    hand = running("a", "b", durability=durability)
    for to in (2, 4):
        hand.merge_round(hand.tick("a", "b", to=to), "a", "b")
    commits = [c for c in only(hand.log, do.Commit) if isinstance(c.record, RoundRecord)]
    assert (
        [c.sync for c in commits]
        == [p.sync for p in only(hand.log, do.PutDelta)]
        == [bool(s) for s in synced]
    )


def test_a_snapshot_is_taken_every_so_many_merges_and_its_failure_is_noted():
    hand = running("a", "b", snapshot_every=2)
    for to in (2, 4):
        hand.merge_round(hand.tick("a", "b", to=to), "a", "b")
    assert only(hand.log, do.TakeSnapshot) == [do.TakeSnapshot(2)]
    commands = hand.handle(ev.SnapshotTaken(0, 2, False, "no space left"))
    assert notes(commands, "store") == ["no snapshot: no space left; the last one stays in force"]
