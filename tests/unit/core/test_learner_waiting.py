"""Stories of one learner under waiting algorithms: when it is held, and what releases it."""

from __future__ import annotations

import pytest

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from tests.unit.core.by_hand import PARAMS, held_learner, learner, only, told


def test_decoupled_never_holds_a_learner():
    hand = learner()
    for _ in range(20):
        commands = hand.step()
        assert only(commands, do.Hold) == []
        assert [r.held_on for r in told(commands, msg.Report)] == [-1]


def test_diloco_is_held_when_its_interval_has_passed_and_says_so():
    hand = learner(algorithm="diloco")
    for _ in range(PARAMS.interval_steps - 1):
        assert only(hand.step(), do.Hold) == []
    commands = hand.step()
    assert only(commands, do.Hold) == [do.Hold(0, "waiting for fragment 0")]
    assert [r.held_on for r in told(commands, msg.Report)] == [0]


@pytest.mark.parametrize(("algorithm", "is_held"), [("diloco", True), ("streaming", False)])
def test_diloco_trains_nothing_between_its_offer_and_the_adoption(algorithm, is_held):
    hand = learner(algorithm=algorithm)
    hand.step()
    hand.ask(1)
    commands = hand.step()
    assert len(told(commands, msg.Header)) == 1
    assert only(commands, do.Hold) == ([do.Hold(1, "waiting for fragment 1")] if is_held else [])


def test_streaming_holds_when_an_interval_has_passed_since_a_fragment_was_taken_in():
    hand = learner(algorithm="streaming")
    steps = PARAMS.interval_steps
    assert [only(hand.step(), do.Hold) for _ in range(steps - 1)] == [[]] * (steps - 1)
    assert only(hand.step(), do.Hold) == [do.Hold(0, "waiting for fragment 0")]


def test_streaming_counts_from_the_snapshot_where_progress_is_rebased():
    hand = learner(algorithm="streaming", adopt="rebase")
    steps = PARAMS.interval_steps + PARAMS.overlap_steps
    assert [only(hand.step(), do.Hold) for _ in range(steps - 1)] == [[]] * (steps - 1)
    assert len(only(hand.step(), do.Hold)) == 1


def test_a_held_learner_answers_asks_and_is_released_by_the_adoption():
    hand = held_learner()
    commands = hand.ask(0)
    assert len(told(commands, msg.Header)) == 1
    commands = hand.publish(1, 0, round=1, verdict="merged", merged_upto=40)
    assert only(commands, do.Adopt) == [do.Adopt(0, 1, "d0.1", True, False, False)]
    assert only(commands, do.Release) == [do.Release("adopted version 1")]
    assert only(commands, do.Settle) == [do.Settle(0, 0, 40, "merged")]


def test_a_held_learner_adopts_another_fragment_and_stays_held():
    commands = held_learner().publish(1, 1)
    assert len(only(commands, do.Adopt)) == 1
    assert only(commands, do.Release) == []


def test_a_held_learner_is_released_when_its_round_is_cancelled_and_by_no_other():
    hand = held_learner()
    assert only(hand.hear(msg.Cancelled(1, 1, 1, 1, "below quorum")), do.Release) == []
    commands = hand.hear(msg.Cancelled(1, 1, 2, 0, "below quorum"))
    assert only(commands, do.Release) == [do.Release("round cancelled: below quorum")]


def test_a_held_learner_is_released_when_the_syncer_falls_silent():
    hand = held_learner()
    assert only(hand.pulse(PARAMS.alive_ns), do.Release) == []
    assert only(hand.pulse(1), do.Release) == [do.Release("the syncer is silent")]


def test_a_held_learner_is_released_after_the_live_deadline():
    hand = held_learner(live_ns=PARAMS.alive_ns // 2)
    assert only(hand.pulse(PARAMS.alive_ns // 2), do.Release) == [do.Release("waited too long")]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (ev.Received(0, msg.Fenced(1, 1, "")), "fenced"),
        (ev.Received(0, msg.Beat(1, 1, 9, 0, 0, True, ())), "the run has finished"),
        (ev.LeaveRequested(0), "leaving"),
    ],
)
def test_a_held_learner_is_released_at_the_end_of_its_part(event, reason):
    assert only(held_learner().handle(event), do.Release) == [do.Release(reason)]


def test_a_learner_that_is_cut_off_does_not_begin_to_wait():
    hand = learner(algorithm="diloco")
    hand.now_ns = PARAMS.alive_ns + 1
    for _ in range(8):
        assert only(hand.step(), do.Hold) == []


def test_a_welcome_that_says_finished_releases_a_held_learner():
    hand = held_learner()
    commands = hand.welcome(epoch=2, finished=True)
    assert any(isinstance(command, do.Release) for command in commands)
