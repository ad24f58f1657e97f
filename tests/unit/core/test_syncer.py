"""Stories of the syncer: membership, seeding, rounds, faults of the store, the end."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.params import SECOND, RunParams
from atoll.core.records import (
    EpochRecord,
    FinishRecord,
    MemberRecord,
    Rollback,
    RoundRecord,
    SeedRecord,
    StoredFragment,
    fold,
)
from tests.unit.core.by_hand import SyncerByHand, contributor, digest, notes, only, sent


def syncer(**values: Any) -> SyncerByHand:
    """Booted: two fragments due at ticks 0 and 2 of 4, a quorum of two."""
    defaults: dict[str, Any] = {
        "num_fragments": 2,
        "interval_steps": 4,
        "overlap_steps": 1,
        "min_quorum": 2,
    }
    return SyncerByHand(RunParams(**(defaults | values))).boot()


def running(*names: str, **values: Any) -> SyncerByHand:
    """Seeded, with these learners healed at tick 0."""
    return syncer(**values).join(*names)


def open_round(hand: SyncerByHand, *names: str) -> dict[str, msg.Ask]:
    """Step to the first due fragment; returns the ask to each learner."""
    commands = hand.tick(*names, to=2)
    assert [o.fragment for o in only(commands, do.Opened)] == [1]
    return {name: sent(commands, msg.Ask, name)[0] for name in names}


def give_grace(hand: SyncerByHand) -> None:
    """As after three rounds that took no time: the grace window is open for a while."""
    for average in (hand.machine.rounds.quorum_ns, hand.machine.rounds.merge_ns):
        for _ in range(3):
            average.add(0)


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
    second = SyncerByHand(first.params, stored=stored).boot()
    assert notes(second.log, "damage") == ["fragment 1: torn"]
    assert second.records == [EpochRecord(2, (rollback,))]
    assert second.machine.desk.state.fragments[1] == StoredFragment(0, "d1.0", "")


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


# Seeding


def test_the_first_learner_seeds_and_only_the_first():
    hand = syncer()
    assert sent(hand.hello("a"), msg.SeedAsk, "a") == [msg.SeedAsk(1, 1, (0, 1))]
    assert sent(hand.hello("b"), msg.SeedAsk) == []
    commands = hand.seed_bodies("a")
    assert hand.records[-1] == SeedRecord(1, "a", 1, (digest(0, 0), digest(0, 1)))
    assert only(commands, do.Install) == [do.Install(-1, 0, 0)]
    num_records = len(hand.records)
    hand.seed_bodies("a")
    hand.seed_bodies("b")
    assert len(hand.records) == num_records


def test_a_seeder_that_stays_silent_is_asked_again_and_then_the_next_one_too():
    hand = syncer()
    hand.hello("a")
    hand.hello("b")
    hand.hear(msg.SeedBody("a", 1, 1, 0, digest(0, 0), 0))
    assert sent(hand.fire("beat", hand.params.retry_ns - 1), msg.SeedAsk) == []
    commands = hand.fire("beat", 1)
    assert sent(commands, msg.SeedAsk, "a") == [msg.SeedAsk(1, 1, (1,))]
    assert sent(commands, msg.SeedAsk, "b") == [msg.SeedAsk(1, 1, (0, 1))]


def test_a_second_complete_seed_is_ignored_while_the_first_is_on_its_way_to_the_disk():
    hand = syncer()
    hand.hello("a")
    hand.hello("b")
    hand.keep = (do.Commit,)
    hand.seed_bodies("a")
    hand.seed_bodies("b")
    assert [c.record.source for c in hand.kept] == ["a"]


def test_nobody_is_healed_before_the_seed_is_durable():
    hand = syncer(min_quorum=1)
    hand.hello("a")
    hand.keep = (do.Commit,)
    hand.seed_bodies("a")
    hand.report("a", 2, versions=[0, 0])
    assert not hand.machine.desk.sessions["a"].healed
    hand.answer_kept()
    hand.report("a", 2, versions=[0, 0])
    assert hand.machine.desk.sessions["a"].healed


# Healing


def test_an_unhealed_learner_is_not_asked():
    hand = running("a", "b")
    hand.hello("c")
    hand.report("c", 0, versions=[0, msg.NO_VERSION])
    commands = hand.tick("a", "b", to=2)
    (opened,) = only(commands, do.Opened)
    assert (opened.asked, opened.num_live) == (("a", "b"), 3)
    assert sent(commands, msg.Ask, "c") == []


def test_whoever_lacks_a_version_is_sent_the_whole_fragment_what_is_due_first_foremost():
    hand = running("a", "b", num_fragments=3, interval_steps=6)
    hand.hello("c")
    hand.tick("a", "b", to=2)  # next due: fragment 2 at 4, 0 at 6, 1 at 8
    commands = hand.report("c", 0, versions=[-1, -1, -1])
    publishes = sent(commands, msg.Publish, "c")
    assert [(p.fragment, p.version, p.base_version) for p in publishes] == [
        (2, 0, msg.FULL),
        (0, 0, msg.FULL),
    ]
    commands = hand.report("c", 0, versions=[-1, -1, 0])
    assert [p.fragment for p in sent(commands, msg.Publish, "c")] == [1]


def test_a_base_of_another_history_is_not_healed_and_is_sent_the_fragment():
    hand = running("a", "b")
    session = hand.machine.desk.sessions["a"]
    wrong = tuple(h._replace(digest="other") for h in session.holdings)
    commands = hand.hear(msg.Report("a", 1, 1, 99, 1, 0, SECOND, 0, -1, 0, wrong))
    assert not session.healed
    assert [p.fragment for p in sent(commands, msg.Publish, "a")] == [1, 0]


def test_an_overtaken_report_is_not_believed():
    hand = running("a", "b")
    held = hand.machine.desk.sessions["a"].holdings
    old = msg.Report("a", 1, 1, 0, 77, 0, SECOND, 0, -1, 0, held)
    assert hand.hear(old) == []
    assert hand.machine.desk.sessions["a"].clock == 0


def test_a_fragment_that_is_wanted_is_sent_at_once_and_then_with_patience():
    hand = running("a", "b")
    want = msg.Want("a", 1, 1, 0)
    assert [p.base_version for p in sent(hand.hear(want), msg.Publish, "a")] == [msg.FULL]
    assert len(sent(hand.hear(want), msg.Publish, "a")) == 1
    assert sent(hand.hear(want), msg.Publish, "a") == []
    hand.now_ns += 2 * hand.params.retry_ns + 2 * SECOND
    assert len(sent(hand.hear(want), msg.Publish, "a")) == 1


# A round


def test_a_round_of_two_goes_from_the_ask_to_the_publish_with_verdicts():
    hand = running("a", "b", "c")
    commands = hand.tick("a", "b", "c", to=2)
    assert only(commands, do.Opened) == [do.Opened(1, 1, 2, 2, ("a", "b", "c"), 3)]
    ask = msg.Ask(1, 1, 1, 1, 2, 0, msg.NO_VERSION, False)
    assert [sent(commands, msg.Ask, name) for name in "abc"] == [[ask]] * 3

    assert hand.hear(hand.header(ask, "b")) == [
        do.SetTimer("round:1", hand.params.interval_steps * 2 * SECOND)
    ]
    closed = hand.hear(hand.header(ask, "a"))
    assert notes(closed, "closed") == ["grace window over, closed without ['c']"]
    late = hand.hear(hand.header(ask, "c"))
    assert notes(late, "dropped") == ["late: header after the close"]

    hand.log.clear()
    hand.body(ask, "b")
    assert only(hand.log, do.Inspect) == []
    hand.body(ask, "a")
    parts = (contributor("a"), contributor("b"))
    kinds = (do.Inspect, do.Merge, do.PutDelta, do.Commit, do.Install, do.Discard)
    assert [c for c in hand.log if isinstance(c, kinds)] == [
        do.Inspect(1, 1, (("a", 1), ("b", 1))),
        do.Merge(1, 1, 1, parts),
        do.PutDelta(1, 1, "x1.1", True),
        do.Commit(hand.machine.desk.num_tickets, RoundRecord(1, 1, 1, 1, "d1.1", "x1.1", 2, parts), True),
        do.Install(1, 1, 1),
        do.Discard(1, 1),
    ]
    publishes = {name: sent(hand.log, msg.Publish, name)[0] for name in "abc"}
    assert publishes["a"] == publishes["b"]
    assert publishes["a"] == msg.Publish(1, 1, 1, 1, 1, "d1.1", 0, "d1.0", "merged", "", 10, 0)
    assert publishes["c"] == msg.Publish(
        1, 1, 1, 1, 1, "d1.1", 0, "d1.0", "late", "the round had closed when the header came", 0, 0
    )


def test_contributors_are_in_order_of_name_whatever_the_order_of_arrival():
    orders = []
    for names in (("a", "b", "c"), ("c", "b", "a"), ("b", "c", "a")):
        hand = running("a", "b", "c", min_quorum=3)
        asks = open_round(hand, "a", "b", "c")
        for name in names:
            hand.body(asks[name], name)
        for name in reversed(names):
            hand.hear(hand.header(asks[name], name))
        (merge,) = only(hand.log, do.Merge)
        orders.append([part.name for part in merge.contributors])
    assert orders == [["a", "b", "c"]] * 3


def test_the_weight_of_a_contributor_is_its_tokens_squared_over_its_steps():
    hand = running("a", min_quorum=1)
    asks = open_round(hand, "a")
    hand.hear(hand.header(asks["a"], "a", end=30, steps=3))
    hand.body(asks["a"], "a")
    (merge,) = only(hand.log, do.Merge)
    assert merge.contributors[0].weight == 300.0


def test_a_round_needs_a_quorum_that_has_worked_half_a_cycle_on_the_fragment():
    hand = running("a", "b")
    for clock in (1, 2):
        hand.report("a", clock, steps=4)
        commands = hand.report("b", clock, steps=1)
    assert only(commands, do.Opened) == []
    assert [o.due for o in only(hand.report("b", 2, steps=2), do.Opened)] == [2]


def test_at_most_tau_rounds_gather_and_a_fragment_has_one_at_a_time():
    hand = running("a", "b", interval_steps=2, overlap_steps=1)
    commands = hand.tick("a", "b", to=2)
    assert [o.fragment for o in only(commands, do.Opened)] == [1]
    assert only(hand.tick("a", "b", to=4), do.Opened) == []
    hand.log.clear()
    hand.merge_round(commands, "a", "b")
    assert [o.fragment for o in only(hand.log, do.Opened)] == [0]


def test_whoever_abstains_is_not_waited_for():
    hand = running("a", "b", "c")
    asks = open_round(hand, "a", "b", "c")
    hand.hear(hand.header(asks["a"], "a"))
    hand.hear(msg.Abstain("c", 1, 1, 1, 1, "nothing to offer"))
    closed = hand.hear(hand.header(asks["b"], "b"))
    assert notes(closed, "closed") == ["all offered"]


def test_when_too_many_abstain_the_round_is_cancelled_and_everybody_is_told():
    hand = running("a", "b")
    asks = open_round(hand, "a", "b")
    hand.hear(hand.header(asks["a"], "a"))
    commands = hand.hear(msg.Abstain("b", 1, 1, 1, 1, "nothing to offer"))
    reason = "quorum of 2 out of reach: 1 offered, nobody else is left"
    assert notes(commands, "cancelled") == [reason]
    assert [sent(commands, msg.Cancelled, n) for n in "ab"] == [[msg.Cancelled(1, 1, 1, 1, reason)]] * 2
    assert only(commands, do.Discard) == [do.Discard(1, 1)]


def test_the_silent_are_asked_again():
    hand = running("a", "b")
    asks = open_round(hand, "a", "b")
    hand.hear(hand.header(asks["a"], "a"))
    assert sent(hand.fire("beat", hand.params.retry_ns), msg.Ask) == []
    commands = hand.fire("beat", 2 * SECOND)
    assert sent(commands, msg.Ask) == sent(commands, msg.Ask, "b") == [asks["b"]]


def test_a_learner_that_leaves_is_not_waited_for_and_its_offer_counts():
    hand = running("a", "b", "c", min_quorum=1)
    asks = open_round(hand, "a", "b", "c")
    give_grace(hand)
    hand.hear(hand.header(asks["a"], "a"))
    hand.hear(hand.header(asks["b"], "b"))
    hand.body(asks["a"], "a")
    hand.body(asks["b"], "b")
    hand.hear(msg.Leave("a", 1, 1))
    commands = hand.hear(msg.Leave("c", 1, 1))
    assert notes(commands, "closed") == ["all offered"]
    assert [part.name for part in only(commands, do.Merge)[0].contributors] == ["a", "b"]
    assert sent(commands, msg.Publish, "a") == []


# Refusals


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
    hand = running("a", "b", num_fragments=1, interval_steps=2)
    hand.merge_round(hand.tick("a", "b", to=2), "a", "b")
    commands = []
    for clock in (3, 4):
        hand.report("a", clock, versions=[0])
        commands = hand.report("b", clock)
    (ask,) = sent(commands, msg.Ask, "a")
    assert (ask.fragment, ask.version, ask.contributed) == (0, 1, 1)
    again = hand.header(ask, "a", base_version=0, base_digest="d0.0", start=0, end=40, steps=4)
    assert notes(hand.hear(again), "dropped") == [
        "stale: base 0 is older than version 1, which contains this learner's progress already"
    ]


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


# Bodies


def test_a_late_body_drops_its_offer_and_below_quorum_the_round_keeps_everybodys_progress():
    hand = running("a", "b")
    asks = open_round(hand, "a", "b")
    hand.hear(hand.header(asks["a"], "a"))
    hand.hear(hand.header(asks["b"], "b"))
    hand.body(asks["a"], "a")
    before = hand.machine.desk.state.copy()
    deadline_ns = hand.machine.rounds.open[1].deadline_ns
    for name in "ab":
        hand.now_ns = deadline_ns - 1
        hand.report(name, 2)
    assert notes(hand.log, "cancelled") == []
    commands = hand.fire("round:1", 1)
    assert notes(commands, "dropped") == ["late: no body in time"]
    assert notes(commands, "cancelled") == ["1 of 2 offers left"]
    assert [len(sent(commands, msg.Cancelled, name)) for name in "ab"] == [1, 1]
    assert hand.machine.desk.state == before
    assert hand.body(asks["b"], "b") == []


def test_a_late_body_is_not_waited_for_when_the_others_are_a_quorum():
    hand = running("a", "b", "c", min_quorum=2)
    give_grace(hand)
    asks = open_round(hand, "a", "b", "c")
    for name, ask in asks.items():
        hand.hear(hand.header(ask, name))
    hand.body(asks["a"], "a")
    hand.body(asks["c"], "c")
    assert only(hand.log, do.Merge) == []
    hand.now_ns = hand.machine.rounds.open[1].deadline_ns
    hand.fire("round:1")
    (merge,) = only(hand.log, do.Merge)
    assert [part.name for part in merge.contributors] == ["a", "c"]
    (publish,) = sent(hand.log, msg.Publish, "b")
    assert (publish.verdict, publish.reason) == ("late", "the body did not arrive in time")


def test_a_measured_link_gets_a_deadline_of_its_own():
    hand = running("a", "b", fragment_bytes=(100, 100))
    session = hand.machine.desk.sessions["b"]
    session.ns_per_byte.add(SECOND / 100)
    asks = open_round(hand, "a", "b")
    hand.hear(hand.header(asks["a"], "a"))
    commands = hand.hear(hand.header(asks["b"], "b"))
    hand.body(asks["a"], "a", 100)
    patience_ns = 2 * SECOND + hand.params.retry_ns  # twice the usual second, and a retry
    assert only(commands, do.SetTimer)[-1] == do.SetTimer("round:1", patience_ns)
    before = session.ns_per_byte.value
    commands = hand.fire("round:1", patience_ns)
    assert notes(commands, "dropped") == ["late: no body in time"]
    assert session.ns_per_byte.value > before  # a missed deadline is a measurement too


def test_a_body_that_is_missing_is_asked_for_again():
    hand = running("a", "b")
    asks = open_round(hand, "a", "b")
    for name, ask in asks.items():
        hand.hear(hand.header(ask, name))
    hand.body(asks["a"], "a")
    (ask,) = sent(hand.fire("beat", 2 * hand.params.retry_ns), msg.Ask)
    assert ask == msg.Ask(1, 1, 1, 1, 2, 0, msg.NO_VERSION, True)


# The store


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


def test_a_publish_that_was_lost_is_sent_again_after_patience_and_whole():
    hand = running("a", "b")
    hand.merge_round(hand.tick("a", "b", to=2), "a", "b")
    assert sent(hand.report("a", 3, versions=[0, 0]), msg.Publish) == []
    hand.now_ns += hand.params.retry_ns + 2 * SECOND - 1
    assert sent(hand.report("a", 3, versions=[0, 0]), msg.Publish) == []
    hand.now_ns += 1
    (again,) = sent(hand.report("a", 3, versions=[0, 0]), msg.Publish, "a")
    assert (again.version, again.base_version, again.verdict, again.merged_upto) == (1, msg.FULL, "none", 10)
    hand.now_ns += hand.params.retry_ns + 2 * SECOND
    assert sent(hand.report("a", 3, versions=[0, 0]), msg.Publish) == []


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


# The end


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


# Quorum


def test_below_the_quorum_nothing_is_asked_and_a_note_says_so():
    hand = running("a", "b")
    assert notes(hand.log, "quorum") == ["2 of 2 healed learners connected"]
    hand.log.clear()
    hand.hear(msg.Leave("b", 1, 1))
    assert notes(hand.log, "quorum") == ["1 of 2 healed learners connected: nothing is asked"]
    commands = [c for clock in range(1, 9) for c in hand.report("a", clock)]
    assert not only(commands, do.Opened)
    assert not only(commands, do.Ticked)
    hand.hello("b", life=2)
    commands = hand.report("b", 8)
    assert notes(commands, "quorum") == ["2 of 2 healed learners connected"]
    assert only(commands, do.Ticked) == [do.Ticked(0, 8, True)]


# Waiting algorithms


def test_a_waiting_round_is_not_closed_before_everybody_has_offered():
    hand = running("a", "b", "c", min_quorum=1, algorithm="streaming")
    asks = open_round(hand, "a", "b", "c")
    hand.hear(hand.header(asks["a"], "a"))
    hand.hear(hand.header(asks["b"], "b"))
    assert notes(hand.log, "closed") == []
    assert notes(hand.hear(hand.header(asks["c"], "c")), "closed") == ["all offered"]


def test_when_everybody_waits_the_rounds_they_wait_for_are_opened():
    hand = running("a", "b", algorithm="diloco")
    hand.report("a", 1, steps=0, held_on=0)
    commands = hand.report("b", 1, steps=0, held_on=0)
    assert [(o.fragment, o.asked) for o in only(commands, do.Opened)] == [(0, ("a", "b"))]


# Mistakes of strangers, and the ends of things


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
        msg.Beat(1, 1, 0, 0, 0, False),
    ]


@pytest.mark.parametrize("message", malformed(), ids=lambda m: type(m).__name__)
def test_a_message_that_does_not_fit_the_run_is_noted_and_changes_nothing(message):
    hand = running("a", "b")
    (note,) = hand.hear(message)
    assert isinstance(note, do.Note)
    assert note.kind == "malformed"


def test_a_name_is_not_given_to_another_key_right_after_a_restart():
    before = running("a", "b")
    hand = SyncerByHand(before.params, stored=fold(before.records)).boot()
    assert sent(hand.hello("a", life=99, key="thief"), msg.Refused, "a")
    hand.now_ns += hand.params.alive_ns + 1
    assert sent(hand.hello("a", life=99, key="thief"), msg.Welcome, "a")


def test_the_current_life_with_a_wrong_key_is_refused():
    hand = running("a", "b")
    assert sent(hand.hello("a", life=1, key="thief"), msg.Refused, "a")


def test_a_run_that_was_never_seeded_can_be_finished():
    hand = syncer()
    hand.handle(ev.FinishRequested(hand.now_ns, "changed my mind"))
    assert hand.machine.desk.state.finished
