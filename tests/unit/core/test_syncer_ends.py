"""Stories of the syncer: the budget, the drain and the end of a run."""

from __future__ import annotations

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.records import FinishRecord
from tests.unit.core.by_hand import notes, only, running, sent, syncer


def test_at_the_budget_of_ticks_every_fragment_has_one_last_round_and_the_run_is_finished():
    hand = running("a", "b", budget_ticks=2)
    commands = hand.tick("a", "b", to=2)
    assert notes(commands, "drain") == ["budget of 2 ticks spent"]
    assert [(o.fragment, o.due) for o in only(commands, do.Opened)] == [(0, -1)]
    hand.log.clear()
    hand.merge_round(commands, "a", "b")
    assert [(o.fragment, o.due) for o in only(hand.log, do.Opened)] == [(1, -1)]
    hand.tokens.clear()
    last = hand.merge_round(list(hand.log), "a", "b")
    assert hand.records[-1] == FinishRecord(1, 2, "budget of 2 ticks spent")
    assert notes(last, "finished") == ["budget of 2 ticks spent"]
    assert [b.finished for b in sent(last, msg.Beat)][-2:] == [True, True]
    hand.log.clear()
    hand.tick("a", "b", to=8)
    assert only(hand.log, do.Opened) == []


def test_a_drain_ends_at_its_deadline_without_those_who_do_not_answer():
    hand = running("a", "b", budget_ticks=2)
    hand.tick("a", "b", to=2)
    commands = hand.fire("beat", hand.params.drain_ns)
    assert hand.machine.desk.state.finished
    assert [type(r) for r in hand.records][-1] is FinishRecord
    assert only(commands, do.Opened) == []


def test_the_budget_of_tokens_counts_what_was_merged_per_fragment():
    hand = running("a", "b", budget_tokens=20)
    hand.merge_round(hand.tick("a", "b", to=2), "a", "b")
    assert notes(hand.log, "drain") == []
    hand.tokens.clear()
    hand.merge_round(hand.tick("a", "b", to=4), "a", "b")
    assert notes(hand.log, "drain") == ["budget of 20 tokens spent"]


def test_an_operator_may_end_a_run_before_its_budget_and_only_once():
    hand = running("a", "b")
    hand.tick("a", "b", to=1)
    commands = hand.handle(ev.FinishRequested(hand.now_ns, "asked to"))
    assert notes(commands, "drain") == ["asked to"]
    assert hand.handle(ev.FinishRequested(hand.now_ns, "again")) == []


def test_a_learner_of_a_finished_run_is_told_so_at_the_door():
    hand = running("a", "b", budget_ticks=2)
    hand.tick("a", "b", to=2)
    hand.fire("beat", hand.params.drain_ns)
    (welcome,) = sent(hand.hello("c"), msg.Welcome)
    assert welcome.finished


def test_a_run_that_was_never_seeded_can_be_finished():
    hand = syncer()
    hand.handle(ev.FinishRequested(hand.now_ns, "changed my mind"))
    assert hand.machine.desk.state.finished
