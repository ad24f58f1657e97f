"""Stories of the syncer: what it does not take, and what it says then."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.params import SECOND
from tests.unit.core.by_hand import give_grace, notes, only, open_round, running, sent

# Offers


def test_a_header_of_an_earlier_epoch_is_not_an_offer():
    hand = running("a", "b")
    asks = open_round(hand, "a", "b")
    commands = hand.hear(hand.header(asks["a"], "a", epoch=0))
    assert commands == [do.Send("a", 1, msg.WhoIs(1))]
    assert hand.machine.rounds.open[1].headers == {}


def test_a_header_of_a_fenced_incarnation_is_told_so():
    hand = running("a", "b", "c")
    asks = open_round(hand, "a", "b", "c")
    hand.hello("a", life=2)
    (send,) = only(hand.hear(hand.header(asks["a"], "a")), do.Send)
    assert isinstance(send.message, msg.Fenced)
    assert (send.incarnation, send.message.incarnation) == (1, 1)
    assert hand.machine.rounds.open[1].headers == {}


def test_a_stale_base_is_refused_with_its_reason_and_its_verdict():
    hand = running("a", "b", "c")
    asks = open_round(hand, "a", "b", "c")
    commands = hand.hear(hand.header(asks["c"], "c", base_version=-1, base_digest=""))
    reason = "base -1 is not current 0 or before"
    assert notes(commands, "dropped") == [f"stale: {reason}"]
    for name in "ab":
        hand.hear(hand.header(asks[name], name))
        hand.body(asks[name], name)
    (publish,) = sent(hand.log, msg.Publish, "c")
    assert (publish.verdict, publish.reason) == ("stale", reason)


def test_a_second_offer_on_a_base_from_before_the_first_one_was_merged_is_refused():
    hand = running("a", "b", "c", num_fragments=1, interval_steps=2)
    hand.merge_round(hand.tick("a", "b", "c", to=2), "a", "b", "c")
    for clock in (3, 4):
        hand.report("a", clock, versions=[0])
        hand.report("c", clock)
        hand.report("b", clock)
    ask = sent(hand.log, msg.Ask, "a")[-1]
    assert (ask.fragment, ask.version, ask.contributed) == (0, 1, 1)
    again = hand.header(ask, "a", base_version=0, base_digest="d0.0", start=0, end=40, steps=4)
    assert notes(hand.hear(again), "dropped") == [
        "stale: base 0 is older than version 1, which contains this learner's progress already"
    ]


def test_no_round_is_opened_while_the_publish_of_the_last_one_is_on_its_way_to_the_quorum():
    hand = running("a", "b", num_fragments=1, interval_steps=2)
    hand.merge_round(hand.tick("a", "b", to=2), "a", "b")
    for clock in (3, 4):
        hand.report("a", clock, versions=[0])
        hand.report("b", clock)
    assert not hand.machine.rounds.open
    hand.report("a", 5, versions=[1])
    hand.report("b", 5)
    assert hand.machine.rounds.open


def test_a_header_for_a_round_that_has_ended_is_told_that_it_was_cancelled():
    hand = running("a", "b")
    asks = open_round(hand, "a", "b")
    hand.machine.rounds.cancel(hand.machine.rounds.open[1], "below quorum")
    (cancelled,) = sent(hand.hear(hand.header(asks["a"], "a")), msg.Cancelled)
    assert cancelled == msg.Cancelled(1, 1, 1, 1, "the round had ended when the offer came")


def test_a_late_duplicate_of_a_merged_header_is_not_called_cancelled():
    hand = running("a", "b")
    asks = open_round(hand, "a", "b")
    headers = {name: hand.header(ask, name) for name, ask in asks.items()}
    for name, ask in asks.items():
        hand.hear(headers[name])
        hand.body(ask, name)
    assert hand.hear(headers["a"]) == []


def test_a_delta_that_is_not_finite_or_far_too_large_never_reaches_the_merge():
    hand = running("a", "b", "c")
    hand.norms = {"c": float("nan")}
    asks = open_round(hand, "a", "b", "c")
    give_grace(hand)
    for name, ask in asks.items():
        hand.hear(hand.header(ask, name))
        hand.body(ask, name)
    assert notes(hand.log, "dropped") == ["the delta is not finite"]
    (merge,) = only(hand.log, do.Merge)
    assert [part.name for part in merge.contributors] == ["a", "b"]
    (publish,) = sent(hand.log, msg.Publish, "c")
    assert (publish.verdict, publish.merged_upto) == ("rejected", 0)
    assert list(hand.machine.rounds.gates[1].norms) == [1.0, 1.0]  # later offers are judged by these


def test_gates_that_leave_too_few_cancel_the_round():
    hand = running("a", "b")
    hand.norms = {"a": float("inf")}
    commands = hand.merge_round(hand.tick("a", "b", to=2), "a", "b")
    assert notes(commands, "cancelled") == ["1 of 2 offers passed the gates"]
    assert only(hand.log, do.Merge) == []


def test_a_merge_that_is_not_finite_is_never_committed():
    hand = running("a", "b")
    hand.keep = (do.Merge,)
    hand.merge_round(hand.tick("a", "b", to=2), "a", "b")
    (merge,) = hand.kept
    commands = hand.handle(ev.Merged(0, 1, 1, "x", "d", False, merge.contributors))
    assert notes(commands, "cancelled") == ["the merged fragment is not finite"]
    assert hand.machine.desk.state.merges == 0


# Mistakes of strangers


def malformed() -> list[Any]:
    hand = running("a", "b")
    held = hand.machine.desk.sessions["a"].holdings
    return [
        msg.Report("a", 1, 1, 99, 5, 0, SECOND, 0, -1, 0, held[:-1]),
        msg.Header("a", 1, 1, 1, 0, 0, "", 0, 1, 1, (0,)),
        msg.Header("a", 1, 1, 1, 99, 0, "", 0, 1, 1, tuple(h.version for h in held)),
        msg.Header("a", 1, 1, 1, -1, 0, "", 0, 1, 1, tuple(h.version for h in held)),
        msg.Want("a", 1, 1, 99),
        msg.SeedBody("a", 1, 1, 99, "x", 1),
        msg.Beat(1, 1, 0, 0, 0, False, ()),
    ]


@pytest.mark.parametrize("message", malformed(), ids=lambda m: type(m).__name__)
def test_a_message_that_does_not_fit_the_run_is_noted_and_changes_nothing(message):
    hand = running("a", "b")
    (note,) = hand.hear(message)
    assert isinstance(note, do.Note)
    assert note.kind == "malformed"
