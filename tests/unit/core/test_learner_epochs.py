"""Stories of one learner: restarts of the syncer, and words meant for another life."""

from __future__ import annotations

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from tests.unit.core.by_hand import LIFE, learner, only, told


def test_what_a_lower_epoch_says_is_refused():
    hand = learner()
    hand.welcome(epoch=3)
    assert hand.hear(msg.Welcome(2, LIFE, 1, 0, 0, False)) == []
    assert hand.hear(hand.publication(9, epoch=2)) == []
    assert hand.hear(msg.Ask(2, 1, 9, 0, 0, 0, msg.NO_VERSION, False)) == []
    assert hand.hear(msg.Fenced(2, 1, "")) == []
    assert hand.hear(msg.WhoIs(2)) == []
    commands = hand.step()
    assert only(commands, do.Adopt) == []
    assert told(commands, msg.Header) == []
    assert hand.machine.epoch == 3


def test_what_is_meant_for_another_incarnation_is_refused():
    hand = learner()
    assert hand.hear(hand.publication(9, incarnation=2)) == []
    assert hand.hear(msg.Welcome(1, LIFE, 2, 0, 0, False)) == []
    assert hand.hear(msg.Fenced(1, 2, "")) == []
    assert hand.machine.incarnation == 1


def test_after_a_restart_of_the_syncer_even_a_lower_version_is_adopted():
    hand = learner()
    hand.publish(5)
    hand.step()
    hand.welcome(epoch=2)
    commands = hand.publish(3)
    assert len(only(commands, do.Stage)) == 1
    assert only(hand.step(), do.Adopt) == [do.Adopt(0, 3, "d0.3", False, False, False)]
    assert hand.holding().version == 3


def test_after_a_restart_another_history_of_the_same_version_is_adopted_and_the_same_one_is_not():
    hand = learner()
    hand.publish(5)
    hand.step()
    hand.welcome(epoch=2)
    assert hand.publish(5) == []
    hand.publish(5, digest="other")
    assert only(hand.step(), do.Adopt) == [do.Adopt(0, 5, "other", False, False, False)]


def test_a_version_staged_from_an_earlier_syncer_is_not_adopted():
    hand = learner()
    hand.publish(5)
    hand.welcome(epoch=2)
    assert only(hand.step(), do.Adopt) == []
    assert hand.holding().version == 0


def test_a_publish_of_a_later_syncer_ends_the_offers_made_to_an_earlier_one():
    hand = learner()
    hand.offer(round=8)
    hand.welcome(epoch=2)
    hand.publish(1, round=1)
    assert only(hand.step(), do.Settle)[0] == do.Settle(0, 0, 10, "cancelled")


def test_an_offer_that_the_earlier_syncer_merged_counts_after_its_restart():
    hand = learner()
    hand.offer(round=8)
    hand.welcome(epoch=2)
    hand.publish(1, round=0, merged_upto=10)
    assert only(hand.step(), do.Settle)[0] == do.Settle(0, 0, 10, "merged")


def test_a_body_of_an_earlier_epoch_is_not_sent_to_the_new_one():
    hand = learner()
    hand.offer(round=1)
    hand.welcome(epoch=2)
    assert hand.handle(ev.Encoded(0, 0, 1, 1, "b", 9)) == []


def test_an_ask_of_an_earlier_epoch_is_not_answered_in_the_new_one():
    hand = learner()
    hand.ask(round=1)
    hand.welcome(epoch=2)
    commands = hand.step()
    assert not told(commands, msg.Header)
    assert not told(commands, msg.Abstain)
