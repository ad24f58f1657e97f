"""Stories of the syncer under waiting algorithms: everybody is held, so no tick will call for a round."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.core import commands as do
from atoll.core import messages as msg
from tests.unit.core.by_hand import SyncerByHand, only, running, sent


def streaming() -> SyncerByHand:
    """Two learners and two fragments, whose rounds may be open at the same time."""
    return running("a", "b", algorithm="streaming", overlap_steps=2)


def opened(commands: Sequence[do.Command]) -> list[int]:
    """The fragments of the rounds that were opened."""
    return [one.fragment for one in only(commands, do.Opened)]


def test_learners_that_wait_for_different_rounds_get_both():
    hand = streaming()
    assert opened(hand.report("a", 1, steps=1, held_on=0)) == []
    assert opened(hand.report("b", 1, steps=1, held_on=1)) == [0, 1]


def test_whoever_has_nothing_to_offer_in_such_a_round_cancels_it_and_so_all_go_on():
    hand = streaming()
    hand.report("a", 1, steps=1, held_on=0)
    commands = hand.report("b", 1, steps=0, held_on=1)
    ask = sent(commands, msg.Ask, "b")[0]
    assert ask.fragment == 0
    commands = hand.hear(msg.Abstain("b", ask.incarnation, ask.epoch, ask.round, 0, "no new step"))
    assert [one.fragment for one in sent(commands, msg.Cancelled, "a")] == [0]


def test_no_round_is_called_for_whose_result_is_on_its_way_to_the_learner_that_waits():
    hand = streaming()
    hand.merge_round(hand.tick("a", "b", to=2), "a", "b")
    assert [one.version for one in hand.machine.desk.state.fragments] == [0, 1]
    hand.report("a", 3, steps=4, held_on=0)
    commands = hand.report("b", 3, versions=[0, 0], steps=4, held_on=1)
    assert opened(commands) == [0]
    assert 1 not in hand.machine.desk.schedule.due


def test_it_is_called_for_when_the_learner_has_taken_the_result_in_and_waits_again():
    hand = streaming()
    hand.merge_round(hand.tick("a", "b", to=2), "a", "b")
    hand.report("a", 3, steps=4, held_on=0)
    hand.report("b", 3, versions=[0, 0], steps=4, held_on=1)
    hand.report("a", 3, steps=4, held_on=0)
    assert opened(hand.report("b", 3, steps=1, held_on=1)) == [1]


def test_a_round_that_is_open_is_not_called_for_once_more():
    hand = streaming()
    asked = hand.tick("a", "b", to=2)
    assert opened(asked) == [1]
    hand.report("a", 3, steps=4, held_on=1)
    assert opened(hand.report("b", 3, steps=4, held_on=1)) == []
    assert hand.machine.desk.schedule.due == {}
    hand.merge_round(asked, "a", "b")
    hand.report("a", 3, steps=1)
    assert opened(hand.report("b", 3, steps=1)) == []


def test_nobody_is_called_for_while_one_learner_still_steps():
    hand = streaming()
    hand.report("a", 1, steps=1, held_on=0)
    assert opened(hand.report("b", 1, steps=1)) == []
