"""Stories of one learner: it is fenced, it leaves, or the run is finished."""

from __future__ import annotations

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.params import SECOND
from tests.unit.core.by_hand import NAME, PARAMS, learner, notes, only, told


def test_a_fenced_learner_stops():
    hand = learner()
    hand.ask()
    assert notes(hand.hear(msg.Fenced(1, 1, "a newer one came")), "fenced") == ["a newer one came"]
    assert hand.step() == []
    assert hand.ask() == []
    assert hand.pulse(PARAMS.alive_ns * 9) == []


def test_a_learner_that_leaves_says_goodbye_once_and_is_silent():
    hand = learner()
    leave = ev.LeaveRequested(0)
    assert hand.handle(leave) == [do.Tell(msg.Leave(NAME, 1, 1))]
    assert hand.handle(leave) == hand.step() == hand.pulse(PARAMS.alive_ns * 9) == []


def test_a_finished_run_is_noted_once_and_no_offer_is_made_after_it():
    hand = learner()
    beat = msg.Beat(1, 1, 90, 0, 0, True, ())
    assert notes(hand.hear(beat), "finished") == ["budget spent at tick 90"]
    assert hand.hear(beat) == []
    hand.ask()
    commands = hand.step()
    assert told(commands, msg.Header) == []
    assert [a.reason for a in told(commands, msg.Abstain)] == ["the run has finished"]


def test_a_learner_of_a_finished_run_still_adopts_the_last_version():
    hand = learner()
    hand.hear(msg.Beat(1, 1, 90, 0, 0, True, ()))
    hand.publish(1)
    assert len(only(hand.step(), do.Adopt)) == 1


def test_a_repeated_old_welcome_does_not_reopen_a_finished_run():
    hand = learner()
    hand.hear(msg.Beat(1, 1, 90, 0, 0, True, ()))
    hand.welcome()
    hand.ask()
    told = [c.message for c in hand.step() if isinstance(c, do.Tell)]
    assert not any(isinstance(message, msg.Header) for message in told)


def test_a_run_is_complete_for_a_learner_only_once_it_holds_the_last_versions():
    hand = learner()
    assert not hand.machine.is_complete(hand.now_ns)
    hand.hear(msg.Beat(1, 1, 90, 0, 0, True, (1, 0)))
    assert hand.machine.finished
    assert not hand.machine.is_complete(hand.now_ns)
    hand.publish(1)
    assert not hand.machine.is_complete(hand.now_ns)
    hand.step()
    assert hand.machine.is_complete(hand.now_ns)


def test_a_finished_learner_that_hears_nothing_more_does_not_wait_for_the_last_versions():
    hand = learner()
    hand.hear(msg.Beat(1, 1, 90, 0, 0, True, (1, 0)))
    silence = hand.machine.params.alive_ns + 1
    assert not hand.machine.is_complete(hand.now_ns + silence - 1)
    assert hand.machine.is_complete(hand.now_ns + silence)


def test_boundaries_that_were_missed_are_made_up_for_at_the_next_one():
    hand = learner()
    before = hand.machine.steps, hand.machine.clock
    hand.handle(ev.Stepped(hand.now_ns, 30, SECOND, 0, 3))
    assert (hand.machine.steps - before[0], hand.machine.clock - before[1]) == (3, 3)
    (report,) = told(hand.handle(ev.Stepped(hand.now_ns, 0, SECOND, 0, 0)), msg.Report)
    assert report.clock == before[1] + 3
