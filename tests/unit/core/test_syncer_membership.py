"""Stories of the syncer: who is let in, who is fenced, who is missed."""

from __future__ import annotations

import pytest

from atoll.core import commands as do
from atoll.core import messages as msg
from atoll.core.params import SECOND
from atoll.core.records import fold
from tests.unit.core.by_hand import SyncerByHand, notes, only, open_round, running, sent, syncer

# Joining


def test_a_learner_is_welcomed_once_its_admission_is_durable():
    hand = syncer()
    hand.keep = (do.Commit,)
    assert sent(hand.hello("a"), msg.Welcome) == []
    assert hand.hello("a") == []
    commands = hand.answer_kept()
    assert sent(commands, msg.Welcome) == [msg.Welcome(1, 1, 1, 0, 0, False)]
    assert notes(commands, "admitted") == ["incarnation 1"]


def test_a_repeated_hello_is_answered_in_the_same_words_and_stores_nothing():
    hand = syncer()
    first = sent(hand.hello("a"), msg.Welcome)
    num_records = len(hand.records)
    assert sent(hand.hello("a"), msg.Welcome) == first
    assert len(hand.records) == num_records


def test_names_get_shards_in_order_of_admission_and_keep_them():
    hand = syncer()
    for name in ("a", "b"):
        hand.hello(name)
    (welcome,) = sent(hand.hello("a", life=2), msg.Welcome)
    assert (welcome.incarnation, welcome.shard) == (2, 0)
    assert hand.machine.desk.state.members["b"].shard == 1


@pytest.mark.parametrize("name", ["", "Anna", "a b", "-a", "a" * 65, "a\n"])
def test_a_name_that_breaks_the_rules_is_refused(name):
    commands = syncer().hello(name, key="k")
    (refused,) = sent(commands, msg.Refused)
    assert refused.reason.startswith(f"the name {name!r} does not match")
    assert notes(commands, "refused") == [refused.reason]


def test_a_life_that_this_run_never_admitted_is_refused():
    (refused,) = sent(syncer().hello("a", incarnation=3), msg.Refused)
    assert refused == msg.Refused(1, 1, "this run never admitted you; start again as a new learner")


def test_a_new_life_fences_the_old_one():
    hand = syncer()
    hand.hello("a", life=1)
    commands = hand.hello("a", life=2)
    (fenced,) = sent(commands, msg.Fenced)
    assert (fenced.epoch, fenced.incarnation) == (1, 1)
    assert sent(commands, msg.Welcome) == [msg.Welcome(1, 2, 2, 0, 0, False)]


@pytest.mark.parametrize("incarnation", [0, 1])
def test_a_late_hello_of_a_past_life_fences_nobody_but_itself(incarnation):
    hand = syncer()
    hand.hello("a", life=1)
    hand.hello("a", life=2)
    commands = hand.hello("a", life=1, incarnation=incarnation)
    assert [f.incarnation for f in sent(commands, msg.Fenced)] == [incarnation]
    assert hand.incarnation("a") == 2


def test_a_live_name_is_not_given_to_another_key():
    hand = syncer()
    hand.hello("a", life=1)
    (refused,) = sent(hand.hello("a", life=2, key="thief"), msg.Refused)
    assert refused.reason == "the name a is in use by a live learner with another key"
    hand.now_ns += hand.params.alive_ns + 1
    (welcome,) = sent(hand.hello("a", life=2, key="thief"), msg.Welcome)
    assert welcome.incarnation == 2


def test_a_stranger_is_asked_who_it_is():
    first = running("a", "b")
    second = SyncerByHand(first.params, stored=fold(first.records)).boot()
    leave = msg.Leave("a", 1, 1)
    assert second.hear(leave) == [do.Send("a", 1, msg.WhoIs(2))]
    assert second.hear(msg.Leave("nobody", 1, 2)) == [do.Send("nobody", 1, msg.WhoIs(2))]


def test_silence_is_noted_once_and_so_is_the_return():
    hand = running("a", "b")
    assert notes(hand.fire("beat", 5 * SECOND), "lost") == []
    assert notes(hand.fire("beat", SECOND), "lost") == ["silent for 6.0 s"] * 2
    assert notes(hand.fire("beat", SECOND), "lost") == []
    hand.report("a", 1)
    assert notes(hand.fire("beat", SECOND), "back") == ["heard again"]


def test_a_learner_that_does_not_hear_the_syncer_is_not_connected():
    hand = running("a", "b", min_quorum=1)
    deaf = hand.machine.desk.sessions["a"]
    hand.now_ns += hand.params.alive_ns + 1
    holdings = deaf.holdings
    hand.hear(msg.Report("a", 1, 1, 99, 1, 0, SECOND, 0, -1, 0, holdings))
    assert deaf.heard_ns == hand.now_ns
    assert hand.machine.desk.connected(hand.now_ns) == []


def test_a_name_is_not_given_to_another_key_right_after_a_restart():
    before = running("a", "b")
    hand = SyncerByHand(before.params, stored=fold(before.records)).boot()
    assert sent(hand.hello("a", life=99, key="thief"), msg.Refused, "a")
    hand.now_ns += hand.params.alive_ns + 1
    assert sent(hand.hello("a", life=99, key="thief"), msg.Welcome, "a")


def test_the_current_life_with_a_wrong_key_is_refused():
    hand = running("a", "b")
    assert sent(hand.hello("a", life=1, key="thief"), msg.Refused, "a")


# Lives that overlap


@pytest.mark.parametrize("step", [do.Inspect, do.Merge, do.PutDelta, do.Commit])
def test_a_new_incarnation_waits_while_an_offer_of_the_old_one_is_past_recall(step):
    hand = running("a", "b")
    hand.keep = (step,)
    hand.merge_round(hand.tick("a", "b", to=2), "a", "b")
    assert hand.hello("a", life=2) == []
    assert hand.incarnation("a") == 1
    hand.keep = ()
    hand.answer_kept()
    assert hand.machine.desk.state.merges == 1
    (welcome,) = sent(hand.hello("a", life=2), msg.Welcome)
    assert welcome.incarnation == 2
    assert ("a", 1) not in hand.machine.desk.state.contributions


def test_a_new_incarnation_takes_the_old_ones_offer_out_of_a_round_that_is_not_fixed():
    hand = running("a", "b", "c")
    asks = open_round(hand, "a", "b", "c")
    hand.hear(hand.header(asks["a"], "a"))
    hand.body(asks["a"], "a")
    commands = hand.hello("a", life=2)
    assert notes(commands, "dropped") == ["rejected: a newer incarnation was admitted"]
    for name in "bc":
        hand.hear(hand.header(asks[name], name))
        hand.body(asks[name], name)
    (merge,) = only(hand.log, do.Merge)
    assert [part.name for part in merge.contributors] == ["b", "c"]


def test_a_new_incarnation_that_makes_the_quorum_unreachable_cancels_the_round_at_once():
    hand = running("a", "b")
    asks = open_round(hand, "a", "b")
    hand.hear(hand.header(asks["b"], "b"))
    commands = hand.hello("a", life=2)
    assert notes(commands, "cancelled") == ["quorum of 2 out of reach: 1 offered, nobody else is left"]
    assert len(sent(commands, msg.Cancelled, "b")) == 1
    assert only(hand.log, do.Merge) == []
