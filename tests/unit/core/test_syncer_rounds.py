"""Stories of the syncer: rounds, from the ask to the publish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from atoll.core import commands as do
from atoll.core import messages as msg
from atoll.core.grace import MovingAverage
from atoll.core.params import SECOND
from atoll.core.records import Contribution, RoundRecord
from tests.unit.core.by_hand import (
    SyncerByHand,
    contributor,
    give_grace,
    notes,
    only,
    open_round,
    running,
    sent,
)

# A round


def test_a_round_of_two_goes_from_the_ask_to_the_publish_with_verdicts():
    hand = running("a", "b", "c")
    commands = hand.tick("a", "b", "c", to=2)
    assert only(commands, do.Opened) == [do.Opened(1, 1, 2, 2, ("a", "b", "c"), 3)]
    ask = msg.Ask(1, 1, 1, 1, 2, 0, msg.NO_VERSION, False)
    assert [sent(commands, msg.Ask, name) for name in "abc"] == [[ask]] * 3

    assert hand.hear(hand.header(ask, "b")) == [
        do.SetTimer("round:1", hand.now_ns + 2 * SECOND + 4 * hand.params.retry_ns)
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
        do.Merge(1, 1, 1, parts, 1.0),
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


# Waiting for the late, by worth

ORIGIN = 5000
"""Tokens that everybody had trained before its base, and which no offer would bring."""


def waiting(step_tokens: int, **values: Any) -> tuple[SyncerByHand, dict[str, msg.Ask]]:
    """A round of a, b and c, each in a step that began now and takes a second; a trains ten tokens a step."""
    usual = {"min_quorum": 1, "grace_rule": "worth", "grace_max_steps": 4.0, "overlap_steps": 5}
    hand = running("a", "b", "c", **(usual | values))
    asks: dict[str, msg.Ask] = {}
    for clock in (1, 2):
        hand.now_ns += SECOND
        for name in "abc":
            commands = hand.report(name, clock, tokens=ORIGIN + clock * step_tokens, origin=ORIGIN)
            asks |= {to: asked[-1] for to in "abc" if (asked := sent(commands, msg.Ask, to))}
    for session in hand.machine.desk.sessions.values():
        session.round_trip.value = SECOND / 2  # nobody is far away
    return hand, asks


def closed_without(commands: Sequence[do.Command], *names: str) -> bool:
    return notes(commands, "closed") == [f"grace window over, closed without {list(names)}"]


def wakes_after_ns(hand: SyncerByHand, commands: Sequence[do.Command]) -> int:
    """How long from now the round will wait."""
    assert notes(commands, "closed") == []
    return only(commands, do.SetTimer)[-1].at_ns - hand.now_ns


def test_a_round_waits_for_those_who_bring_more_than_waiting_costs():
    hand, asks = waiting(step_tokens=10)  # each of them holds 20; a second of a's costs 10
    hand.now_ns += SECOND // 2
    commands = hand.hear(hand.header(asks["a"], "a"))
    # Due in half a second; if they do not come, until being late has cost 20 or lasted a step.
    assert wakes_after_ns(hand, commands) == 3 * SECOND // 2
    assert closed_without(hand.fire("round:1", 3 * SECOND // 2), "b", "c")


@pytest.mark.parametrize(("most_steps", "wait_ns"), [(1.25, 5 * SECOND // 4), (4.0, 3 * SECOND // 2)])
def test_the_window_begins_with_the_kth_header_and_ends_when_the_late_are_given_up(most_steps, wait_ns):
    hand, asks = waiting(step_tokens=1000, min_quorum=2, grace_max_steps=most_steps)
    hand.hear(hand.header(asks["a"], "a"))
    hand.now_ns += SECOND // 2  # c is due in half a second, and given up a second later
    assert wakes_after_ns(hand, hand.hear(hand.header(asks["b"], "b"))) == wait_ns


def test_after_the_last_offer_of_a_run_waiting_costs_nothing():
    hand, asks = waiting(step_tokens=2)
    hand.machine.rounds.open[1].is_drain = True
    assert wakes_after_ns(hand, hand.hear(hand.header(asks["a"], "a"))) == 2 * SECOND


def test_a_round_does_not_wait_for_those_who_bring_too_little():
    hand, asks = waiting(step_tokens=2)  # each holds 4, both 8; until they are due a trains 10
    assert closed_without(hand.hear(hand.header(asks["a"], "a")), "b", "c")


def test_tokens_of_an_offer_are_spread_over_its_steps():
    hand, asks = waiting(step_tokens=2)
    header = hand.header(asks["a"], "a", steps=2)  # ten tokens in two steps: a trains 5 until they are due
    assert wakes_after_ns(hand, hand.hear(header)) > 0


def test_a_heartbeat_in_the_middle_of_a_step_does_not_begin_another():
    hand, _ = waiting(step_tokens=10)
    session = hand.machine.desk.sessions["b"]
    began_ns, samples = session.moved_ns, session.pace.num_samples
    hand.now_ns += SECOND // 2
    hand.report("b", 2, tokens=ORIGIN + 20, origin=ORIGIN)
    assert (session.moved_ns, session.pace.num_samples) == (began_ns, samples)
    hand.report("b", 3, tokens=ORIGIN + 30, origin=ORIGIN)
    assert (session.moved_ns, session.pace.num_samples) == (hand.now_ns, samples + 1)


def test_how_far_away_a_learner_is_follows_from_the_beats_that_it_echoes():
    hand, _ = waiting(step_tokens=10)
    session = hand.machine.desk.sessions["b"]
    session.round_trip = MovingAverage(0.2)
    late = msg.Report("b", 1, 1, 99, 3, 30, SECOND, 0, -1, hand.now_ns + SECOND, session.holdings)
    hand.now_ns += 4 * SECOND
    hand.hear(late)
    assert (session.round_trip.value, session.round_trip.num_samples) == (3 * SECOND, 1)
    hand.hear(replace(late, sequence=100))  # the same beat once more tells nothing
    assert session.round_trip.num_samples == 1


def test_a_single_long_step_moves_the_pace_by_its_share():
    hand, asks = waiting(step_tokens=1000)
    for name in "bc":
        hand.machine.desk.sessions[name].pace.add(2 * SECOND)  # 1.2 s at an averaging of 0.2
    assert wakes_after_ns(hand, hand.hear(hand.header(asks["a"], "a"))) == 12 * SECOND // 10 * 2


def test_a_round_does_not_wait_for_those_who_stand_still():
    hand, asks = waiting(step_tokens=1000)
    for name in "bc":  # their steps take a second, and have lasted two when the round opens
        hand.machine.desk.sessions[name].moved_ns -= 2 * SECOND
    assert closed_without(hand.hear(hand.header(asks["a"], "a")), "b", "c")


def test_a_round_waits_no_longer_than_the_longest_window_and_not_in_vain():
    hand, asks = waiting(step_tokens=1000, grace_max_steps=1.25)
    assert wakes_after_ns(hand, hand.hear(hand.header(asks["a"], "a"))) == 5 * SECOND // 4
    hand, asks = waiting(step_tokens=1000, grace_max_steps=0.25)  # they are due in a second
    assert closed_without(hand.hear(hand.header(asks["a"], "a")), "b", "c")


def test_rounds_that_wait_leave_room_for_those_that_fall_due_meanwhile():
    hand, asks = waiting(step_tokens=1000, overlap_steps=2)
    hand.now_ns += SECOND // 2
    assert wakes_after_ns(hand, hand.hear(hand.header(asks["a"], "a"))) == SECOND


def test_a_round_does_not_wait_for_those_who_are_too_far_away():
    hand, asks = waiting(step_tokens=1000)
    for name in "bc":
        hand.machine.desk.sessions[name].round_trip.value = 9 * SECOND
    assert closed_without(hand.hear(hand.header(asks["a"], "a")), "b", "c")


def test_a_round_does_not_wait_for_ever_for_one_that_steps_on_and_does_not_answer():
    hand, asks = waiting(step_tokens=1000)
    for clock in (3, 4):
        hand.now_ns += SECOND
        for name in "bc":
            hand.report(name, clock, tokens=ORIGIN + clock * 1000, origin=ORIGIN)
    assert closed_without(hand.hear(hand.header(asks["a"], "a")), "b", "c")


def test_a_round_does_not_wait_for_one_that_will_abstain():
    hand, asks = waiting(step_tokens=1000)
    contributions = hand.machine.desk.state.contributions
    for name in "bc":  # the version with their last offer has not reached them yet
        contributions[name, 1] = Contribution(1, ORIGIN, 0)
    assert closed_without(hand.hear(hand.header(asks["a"], "a")), "b", "c")


def test_one_wrong_pace_does_not_make_waiting_dear_for_all():
    hand, asks = waiting(step_tokens=100)
    hand.machine.desk.sessions["a"].pace.value = 1.0
    assert wakes_after_ns(hand, hand.hear(hand.header(asks["a"], "a"))) > 0


def test_waiting_ends_when_all_have_come_or_the_rest_is_no_longer_worth_it():
    hand, asks = waiting(step_tokens=10)
    hand.hear(hand.header(asks["a"], "a"))
    commands = hand.hear(hand.header(asks["b"], "b"))  # c brings 20 in a second that costs a and b 20
    assert closed_without(commands, "c")

    hand, asks = waiting(step_tokens=11)
    hand.hear(hand.header(asks["a"], "a"))
    assert notes(hand.hear(hand.header(asks["b"], "b")), "closed") == []
    assert notes(hand.hear(hand.header(asks["c"], "c")), "closed") == ["all offered"]


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
