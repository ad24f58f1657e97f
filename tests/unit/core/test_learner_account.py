"""Stories of one learner: what it adopts, and where its tokens go."""

from __future__ import annotations

import pytest

from atoll.core import commands as do
from atoll.core import messages as msg
from tests.unit.core.by_hand import NAME, LearnerByHand, learner, learner_params, only

# Adoption and the account


def test_a_version_is_adopted_at_a_boundary_only():
    hand = learner()
    assert only(hand.publish(1), do.Adopt) == []
    assert hand.holding().version == 0
    assert only(hand.step(), do.Adopt) == [do.Adopt(0, 1, "d0.1", False, False, False)]
    assert hand.holding().version == 1


def test_at_one_boundary_the_ask_is_answered_before_the_adoption_overwrites_the_progress():
    hand = learner()
    hand.ask(round=2)
    hand.publish(1, round=1)
    commands = hand.step()
    kinds = [type(c) for c in commands if isinstance(c, do.Snapshot | do.Adopt)]
    assert kinds == [do.Snapshot, do.Adopt]
    assert only(commands, do.Settle) == []
    assert hand.holding() == msg.Holding(1, "d0.1", 10, 0, 0, 0, 10)


@pytest.mark.parametrize("adopt", ["overwrite", "blend"])
def test_overwrite_and_blend_settle_the_offer_as_merged_and_the_rest_as_overwritten(adopt):
    hand = learner(adopt=adopt)
    hand.offer()
    hand.step(5)
    hand.publish(1, round=1, verdict="merged", merged_upto=10)
    commands = hand.step(3)
    assert only(commands, do.Adopt) == [do.Adopt(0, 1, "d0.1", True, False, False)]
    assert only(commands, do.Settle) == [do.Settle(0, 0, 10, "merged"), do.Settle(0, 10, 18, "overwritten")]
    assert only(commands, do.Drop) == [do.Drop(0, True)]
    assert hand.holding() == msg.Holding(1, "d0.1", 18, 0, 10, 8, 0)


def test_rebase_keeps_what_came_after_the_snapshot_of_a_merged_offer():
    hand = learner(adopt="rebase")
    hand.offer()
    hand.step(5)
    hand.publish(1, round=1, verdict="merged", merged_upto=10)
    commands = hand.step(3)
    assert only(commands, do.Settle) == [do.Settle(0, 0, 10, "merged")]
    assert hand.holding() == msg.Holding(1, "d0.1", 10, 2, 10, 0, 0)
    header = hand.offer(round=2)
    assert (header.start, header.end, header.steps, header.base_version) == (10, 28, 3, 1)


def test_rebase_keeps_everything_of_an_offer_that_was_not_merged():
    hand = learner(adopt="rebase")
    hand.offer()
    hand.publish(1, round=1, verdict="late")
    commands = hand.step(3)
    assert only(commands, do.Settle) == []
    assert only(commands, do.Drop) == [do.Drop(0, False)]
    assert hand.holding() == msg.Holding(1, "d0.1", 0, 2, 0, 0, 0)


def test_rebase_overwrites_what_was_trained_before_the_first_version():
    hand = LearnerByHand(learner_params(adopt="rebase"))
    hand.start()
    hand.welcome()
    hand.step(6)
    hand.publish(4)
    assert only(hand.step(2), do.Settle) == [do.Settle(0, 0, 8, "overwritten")]


@pytest.mark.parametrize(
    ("verdict", "fate"),
    [
        ("late", "late"),
        ("none", "late"),
        ("stale", "stale"),
        ("rejected", "rejected"),
        ("cancelled", "cancelled"),
    ],
)
def test_an_offer_that_was_not_merged_meets_the_fate_that_the_verdict_names(verdict, fate):
    hand = learner()
    hand.offer()
    hand.publish(1, round=1, verdict=verdict)
    commands = hand.step()
    assert only(commands, do.Settle) == [do.Settle(0, 0, 10, fate), do.Settle(0, 10, 20, "overwritten")]
    assert only(commands, do.Drop) == [do.Drop(0, False)]


def test_a_publish_of_a_later_round_proves_a_pending_offer_late():
    hand = learner()
    hand.offer(round=1)
    hand.publish(1, round=2, verdict="rejected")
    assert only(hand.step(), do.Settle)[0] == do.Settle(0, 0, 10, "late")


def test_a_late_verdict_settles_an_offer_over_which_a_version_was_adopted_before():
    hand = learner()
    hand.offer(round=2)
    hand.publish(1, round=1)
    hand.step()
    hand.publish(2, round=2, verdict="merged", merged_upto=10)
    commands = hand.step()
    assert only(commands, do.Settle) == [do.Settle(0, 0, 10, "merged"), do.Settle(0, 20, 30, "overwritten")]
    assert hand.holding() == msg.Holding(2, "d0.2", 30, 0, 10, 20, 0)


def test_a_merge_that_is_learned_of_through_a_later_version_still_counts():
    hand = learner()
    hand.offer(round=1)
    hand.publish(7, round=6, merged_upto=10)
    assert only(hand.step(), do.Settle)[0] == do.Settle(0, 0, 10, "merged")


def test_the_fragments_have_accounts_of_their_own():
    hand = learner()
    hand.step()
    hand.publish(1, p=1)
    hand.step()
    assert (hand.holding(0).origin, hand.holding(1).origin) == (0, 20)


# What is not adopted


def test_an_update_on_an_unknown_base_makes_it_want_the_whole_fragment():
    hand = learner()
    update = hand.publication(2, base_version=1, base_digest="d0.1")
    assert hand.hear(update) == [do.Tell(msg.Want(NAME, 1, 1, 0))]


def test_an_update_on_another_history_makes_it_want_the_whole_fragment():
    hand = learner()
    update = hand.publication(1, base_version=0, base_digest="other")
    assert hand.hear(update) == [do.Tell(msg.Want(NAME, 1, 1, 0))]


def test_an_update_on_the_base_that_it_holds_is_staged():
    hand = learner()
    update = hand.publication(1, base_version=0, base_digest="d0.0")
    assert hand.hear(update) == [do.Stage(update)]


def test_a_version_that_does_not_decode_to_its_digest_is_wanted_whole():
    hand = learner()
    publish = hand.publication(1)
    hand.hear(publish)
    assert hand.stage(publish, ok=False) == [do.Tell(msg.Want(NAME, 1, 1, 0))]
    assert only(hand.step(), do.Adopt) == []


def test_the_same_version_twice_is_staged_once():
    hand = learner()
    publish = hand.publication(1)
    assert only(hand.hear(publish), do.Stage) == [do.Stage(publish)]
    assert hand.hear(publish) == []
    hand.stage(publish)
    assert hand.hear(publish) == []
    hand.step()
    assert hand.hear(publish) == []


def test_an_overtaken_version_is_not_adopted():
    hand = learner()
    hand.publish(3)
    hand.step()
    assert hand.publish(2) == []


def test_after_a_rejected_offer_the_published_value_is_taken_whatever_the_mode():
    hand = learner(adopt="rebase")
    hand.ask()
    hand.step()
    hand.publish(1, round=1, verdict="rejected")
    (adopt,) = only(hand.step(), do.Adopt)
    assert adopt.reset
    holding = hand.machine.slots[0].holding(hand.machine.steps)
    assert holding.origin == hand.machine.tokens
