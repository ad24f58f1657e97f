"""Stories of one learner: asks, offers, abstentions and cancelled rounds."""

from __future__ import annotations

import pytest

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from tests.unit.core.by_hand import NAME, PARAMS, LearnerByHand, held_learner, learner, only, told

# Offers


def test_an_ask_is_answered_at_the_next_boundary_and_not_before():
    hand = learner()
    assert hand.ask() == []
    assert len(told(hand.step(), msg.Header)) == 1


def test_an_offer_is_the_whole_open_interval_and_its_header_goes_before_the_body():
    hand = learner()
    hand.step(10)
    hand.step(20)
    hand.ask(round=3)
    commands = hand.step(30)
    header = msg.Header(NAME, 1, 1, 3, 0, 0, "d0.0", 0, 60, 3, (0, 0))
    assert commands[:3] == [do.Snapshot(0, 1, 3), do.Tell(header), do.Encode(0, 1, 3)]
    body = msg.Body(NAME, 1, 1, 3, 0, "b", 99)
    assert hand.handle(ev.Encoded(0, 0, 1, 3, "b", 99)) == [do.Tell(body)]


def test_tokens_after_the_snapshot_are_not_in_the_offer():
    hand = learner()
    hand.offer()
    hand.step(500)
    (header,) = told(hand.ask(), msg.Header)
    assert (header.start, header.end, header.steps) == (0, 10, 1)


def test_asked_again_it_answers_in_the_same_words():
    hand = learner()
    header = hand.offer()
    body = msg.Body(NAME, 1, 1, 1, 0, "b", 99)
    assert hand.ask() == [do.Tell(header)]
    hand.handle(ev.Encoded(0, 0, 1, 1, "b", 99))
    assert hand.ask() == [do.Tell(header), do.Resend(body)]
    assert hand.ask(want_body=True) == [do.Resend(body)]


def test_a_repeated_ask_of_a_round_that_ended_is_not_answered_again():
    hand = learner()
    hand.offer(round=2)
    hand.hear(msg.Cancelled(1, 1, 2, 0, "below quorum"))
    hand.ask(round=2)
    assert told(hand.step(), msg.Header) == []


def test_without_a_step_since_the_adoption_it_abstains():
    hand = held_learner()
    hand.publish(1, 1)
    (abstain,) = told(hand.ask(1), msg.Abstain)
    assert abstain == msg.Abstain(NAME, 1, 1, 1, 1, "no step on this fragment since it was adopted")


def test_it_abstains_while_its_last_offer_is_in_a_version_that_it_does_not_hold():
    hand = learner()
    hand.offer(round=1)
    hand.hear(msg.Ask(1, 1, 2, 0, 0, 1, 1, False))
    commands = hand.step()
    reason = "my last offer is in version 1, I hold 0"
    assert told(commands, msg.Abstain) == [msg.Abstain(NAME, 1, 1, 2, 0, reason)]
    assert only(commands, do.Drop) == []
    assert hand.machine.slots[0].offer is not None


@pytest.mark.parametrize("current", [2, 3])
def test_it_abstains_on_a_base_that_is_too_old(current):
    hand = learner()
    hand.hear(msg.Ask(1, 1, 1, 0, 0, current, msg.NO_VERSION, False))
    (abstain,) = told(hand.step(), msg.Abstain)
    assert abstain.reason == f"my base 0 is not the current {current} or the one before"


def test_it_abstains_without_a_base():
    hand = LearnerByHand(PARAMS)
    hand.start()
    hand.welcome()
    hand.ask()
    (abstain,) = told(hand.step(), msg.Abstain)
    assert abstain.reason == "not healed: no base"


def test_a_body_encoded_after_its_round_ended_is_not_sent():
    hand = learner()
    hand.offer()
    hand.hear(msg.Cancelled(1, 1, 1, 0, "below quorum"))
    assert hand.handle(ev.Encoded(0, 0, 1, 1, "b", 99)) == []


def test_an_abstention_that_was_lost_is_said_again_in_the_same_words():
    hand = held_learner()
    hand.publish(1, 1)
    first = [c for c in hand.ask(1) if isinstance(c, do.Tell) and isinstance(c.message, msg.Abstain)]
    again = [c for c in hand.ask(1) if isinstance(c, do.Tell) and isinstance(c.message, msg.Abstain)]
    assert first
    assert first == again


# Cancelled


def test_a_cancelled_round_keeps_the_progress_for_the_next_offer():
    hand = learner()
    hand.offer(round=1)
    commands = hand.hear(msg.Cancelled(1, 1, 1, 0, "below quorum"))
    assert commands == [do.Drop(0, False)]
    assert hand.holding() == msg.Holding(0, "d0.0", 0, 1, 0, 0, 0)
    header = hand.offer(round=2)
    assert (header.start, header.end, header.steps) == (0, 20, 2)


def test_an_offer_over_which_a_version_was_adopted_is_lost_when_its_round_is_cancelled():
    hand = learner()
    hand.offer(round=2)
    hand.publish(1, round=1)
    commands = hand.step()
    assert only(commands, do.Adopt) == [do.Adopt(0, 1, "d0.1", False, True, False)]
    assert only(commands, do.Settle) == [do.Settle(0, 10, 20, "overwritten")]
    assert hand.holding().pending == 10
    commands = hand.hear(msg.Cancelled(1, 1, 2, 0, "below quorum"))
    assert only(commands, do.Settle) == [do.Settle(0, 0, 10, "cancelled")]
    assert hand.holding() == msg.Holding(1, "d0.1", 20, 0, 0, 20, 0)


def test_a_newer_ask_proves_that_the_round_of_the_pending_offer_ended():
    hand = learner()
    hand.offer(round=1)
    hand.ask(round=2)
    commands = hand.step()
    assert commands[0] == do.Drop(0, False)
    (header,) = told(commands, msg.Header)
    assert (header.round, header.start, header.end) == (2, 0, 20)


def test_the_cancellation_of_another_round_leaves_the_offer_pending():
    hand = learner()
    hand.offer(round=2)
    assert hand.hear(msg.Cancelled(1, 1, 1, 0, "below quorum")) == []
    assert hand.machine.slots[0].offer is not None


def test_a_cancelled_ask_is_not_answered():
    hand = learner()
    hand.ask(round=1)
    hand.hear(msg.Cancelled(1, 1, 1, 0, "below quorum"))
    assert told(hand.step(), msg.Header) == []
