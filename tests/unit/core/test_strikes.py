"""Stories of bad numbers: strikes, quarantine, clipping, shares."""

from __future__ import annotations

import pytest

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.gates import MIN_NORMS, NormGate
from atoll.core.params import SECOND
from atoll.core.weights import capped
from tests.unit.core.by_hand import SyncerByHand, learner, notes, only, running, sent, told


def nan_round(hand: SyncerByHand, bad: str, *good: str, to: int) -> list[do.Command]:
    """A round in which everybody offers, and one offer is not finite."""
    commands = hand.tick(bad, *good, to=to)
    assert only(commands, do.Opened), "no round was opened"
    hand.keep = (do.Inspect,)
    hand.merge_round(commands, bad, *good)
    hand.keep = ()
    inspect = hand.kept.pop()
    results = tuple(ev.Inspection(name, name != bad, 1.0) for name, _ in inspect.offers)
    return hand.handle(ev.Inspected(hand.now_ns, inspect.fragment, inspect.round, results))


def struck(hand: SyncerByHand, *good: str) -> list[do.Command]:
    """Rounds until the bad one is quarantined."""
    commands: list[do.Command] = []
    for number in range(1, hand.params.strikes + 1):
        commands = nan_round(hand, "bad", *good, to=2 * number)
    return commands


def test_repeated_strikes_put_a_learner_into_quarantine_and_it_is_told_to_heal_anew():
    hand = running("bad", "a", "b", strikes=3)
    commands = struck(hand, "a", "b")
    (told_,) = sent(commands, msg.Quarantined, "bad")
    reason = "too many offers were rejected, the last one because the delta is not finite"
    assert told_ == msg.Quarantined(1, 1, reason, True)
    assert notes(commands, "quarantined") == [f"{reason}; not asked for 100 steps"]
    assert not hand.machine.desk.sessions["bad"].has_offered
    opened = hand.tick("bad", "a", "b", to=8)
    assert sent(opened, msg.Ask, "a")
    assert sent(opened, msg.Ask, "bad") == []


def test_fewer_strikes_do_nothing_and_merged_offers_take_them_away():
    hand = running("bad", "a", "b", strikes=2)
    nan_round(hand, "bad", "a", "b", to=2)
    hand.merge_round(hand.tick("bad", "a", "b", to=4), "bad", "a", "b")
    assert notes(nan_round(hand, "bad", "a", "b", to=6), "quarantined") == []
    assert hand.machine.strikes.counts == {"bad": 1, "a": 0, "b": 0} or hand.machine.strikes.counts == {
        "bad": 1
    }


def test_zero_strikes_means_that_nobody_is_ever_quarantined():
    hand = running("bad", "a", "b", strikes=0)
    for number in range(1, 9):
        assert notes(nan_round(hand, "bad", "a", "b", to=2 * number), "quarantined") == []


def test_a_quarantine_ends_after_its_steps_and_the_next_one_is_twice_as_long():
    hand = running("bad", "a", "b", strikes=2, quarantine_steps=6, alive_ns=1000 * SECOND)
    struck(hand, "a", "b")
    hand.now_ns += 6 * SECOND
    commands = hand.tick("bad", "a", "b", to=6)
    assert notes(commands, "released") == ["its time is over; one more rejected offer ends that"]
    hand.merge_round(commands, "a", "b")
    commands = nan_round(hand, "bad", "a", "b", to=8)
    assert notes(commands, "quarantined")[0].endswith("not asked for 12 steps")


def test_a_quarantine_never_costs_the_quorum():
    hand = running("bad", "a", strikes=2)
    commands = struck(hand, "a")
    assert sent(commands, msg.Quarantined, "bad"), "it heals anew all the same"
    commands = hand.tick("bad", "a", to=6)
    assert notes(hand.log, "released") == ["the quorum needs it; one more rejected offer ends that"]
    assert sent(commands, msg.Ask, "bad")


def test_offers_that_are_too_large_for_everybody_are_no_strike():
    hand = running("a", "b", strikes=1, norm_gate=10.0)
    for number in range(1, 2 * MIN_NORMS + 1):
        hand.merge_round(hand.tick("a", "b", to=2 * number), "a", "b")
    hand.norms = {"a": 1e6, "b": 1e6}
    commands = hand.merge_round(hand.tick("a", "b", to=4 * MIN_NORMS + 2), "a", "b")
    assert notes(commands, "cancelled") == ["0 of 2 offers passed the gates"]
    reason = "0 of 2 offers passed the gates; this offer was rejected: norm 1e+06 is over 10 x median 1"
    assert [told_.reason for told_ in sent(commands, msg.Cancelled)] == [reason, reason]
    assert hand.machine.strikes.counts.get("a", 0) == 0


def test_one_too_large_among_others_is_a_strike_and_is_not_merged():
    hand = running("a", "b", "c", strikes=1)
    for number in range(1, MIN_NORMS + 1):
        hand.merge_round(hand.tick("a", "b", "c", to=2 * number), "a", "b", "c")
    hand.norms = {"a": 1e6}
    hand.merge_round(hand.tick("a", "b", "c", to=2 * MIN_NORMS + 2), "a", "b", "c")
    merge = only(hand.log, do.Merge)[-1]
    assert [part.name for part in merge.contributors] == ["b", "c"]
    assert "a" in hand.machine.strikes.until_ns
    (told_,) = sent(hand.log, msg.Quarantined, "a")
    assert not told_.heals, "what is too large spoils nothing"


def test_a_learner_whose_offers_were_too_large_is_let_out_without_probation_and_never_longer():
    hand = running("a", "b", "c", strikes=2, quarantine_steps=6, alive_ns=1000 * SECOND)
    strikes = hand.machine.strikes
    for _ in range(3):
        strikes.strike("a", "too large")
        strikes.strike("a", "too large")
        strikes.quarantine("a", hand.now_ns)
        assert strikes.until_ns["a"] - hand.now_ns == 6 * SECOND
        hand.now_ns += 6 * SECOND
        strikes.release(hand.now_ns, is_needed=False)
        assert strikes.counts["a"] == 0
    assert strikes.untold == {}


def test_a_learner_that_is_only_left_alone_keeps_what_it_holds():
    hand = learner()
    commands = hand.hear(msg.Quarantined(1, 1, "because", False))
    assert notes(commands, "quarantined") == ["because"]
    assert only(commands, do.ResetMoments) == []
    assert [slot.version for slot in hand.machine.slots] == [0, 0]


def test_before_there_is_a_history_the_offers_of_a_round_are_held_against_each_other():
    hand = running("a", "b", "c", min_quorum=3)
    hand.norms = {"a": 1e6}
    hand.merge_round(hand.tick("a", "b", "c", to=2), "a", "b", "c")
    assert "0 of 3" not in str(notes(hand.log, "cancelled"))
    assert notes(hand.log, "dropped") == ["norm 1e+06 is over 10 x median 1"]


def test_two_offers_without_a_history_cannot_be_told_apart():
    hand = running("a", "b")
    hand.norms = {"a": 1e6}
    hand.merge_round(hand.tick("a", "b", to=2), "a", "b")
    assert len(only(hand.log, do.Merge)[-1].contributors) == 2


def test_a_clipped_offer_is_merged_at_the_largest_norm_allowed_and_said_so():
    hand = running("a", "b", on_large="clip", norm_gate=10.0)
    for number in range(1, MIN_NORMS + 1):
        hand.merge_round(hand.tick("a", "b", to=2 * number), "a", "b")
    hand.norms = {"a": 1e6}
    commands = hand.merge_round(hand.tick("a", "b", to=2 * MIN_NORMS + 2), "a", "b")
    merge = only(commands, do.Merge)[-1]
    assert {part.name: part.scale for part in merge.contributors} == {"a": pytest.approx(1e-5), "b": 1.0}
    assert notes(commands, "clipped") == ["clipped: scaled by 1e-05 to 10 x the median norm"]


def test_a_gate_that_clips_learns_the_clipped_norm():
    gate = NormGate(10.0, clips=True)
    for _ in range(MIN_NORMS):
        gate.passed(ev.Inspection("a", True, 2.0), 4)
    large = ev.Inspection("a", True, 400.0)
    assert gate.judge(large, 4) is None
    assert gate.scale(large, 4) == pytest.approx(0.05)
    gate.passed(large, 4, gate.scale(large, 4))
    assert gate.norms[-1] == pytest.approx(10.0)
    assert gate.judge(ev.Inspection("a", False, 1.0), 4) is not None


# Shares


@pytest.mark.parametrize(
    ("weights", "share", "expected"),
    [
        ([8.0], 0.5, [8.0]),
        ([8.0, 1.0], 1.0, [8.0, 1.0]),
        ([8.0, 1.0], 0.5, [1.0, 1.0]),
        ([8.0, 1.0, 1.0], 0.5, [2.0, 1.0, 1.0]),
        ([90.0, 90.0, 1.0, 1.0], 0.3, [1.5, 1.5, 1.0, 1.0]),
        ([1.0, 1.0, 1.0, 1.0], 0.3, [1.0, 1.0, 1.0, 1.0]),
        ([0.0, 5.0, 5.0], 0.5, [0.0, 5.0, 5.0]),
        ([1.2e25, 1.8e22, 1e20, 23.0], 1 / 3, [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_nobody_has_more_than_its_share(weights, share, expected):
    found = capped(weights, share)
    assert found == pytest.approx(expected)
    if share * len(weights) > 1:
        assert max(found) <= share * sum(found) * (1 + 1e-12)


def test_a_share_reaches_the_commit():
    hand = running("a", "b", "c", max_share=0.4, min_quorum=3)
    commands = hand.tick("a", "b", "c", to=2)
    asks = {name: sent(commands, msg.Ask, name)[0] for name in "abc"}
    for name, ask in asks.items():
        hand.hear(hand.header(ask, name, end=1000 if name == "a" else 10))
    followed = [command for name, ask in asks.items() for command in hand.body(ask, name)]
    weights = [part.weight for part in only(followed, do.Merge)[0].contributors]
    assert weights == pytest.approx([400 / 3, 100, 100])


# The learner's side


def test_a_quarantined_learner_forgets_every_base_and_its_moments_and_heals_from_scratch():
    hand = learner(adopt="rebase")
    hand.step()
    commands = hand.hear(msg.Quarantined(1, 1, "because", True))
    assert only(commands, do.ResetMoments) == [do.ResetMoments("because")]
    (report,) = told(commands, msg.Report)
    assert [h.version for h in report.holdings] == [msg.NO_VERSION] * 2
    hand.ask()
    assert [a.reason for a in told(hand.step(), msg.Abstain)] == ["not healed: no base"]
    for p in range(2):
        hand.publish(3, p)
    adopted = only(hand.step(), do.Adopt)
    assert [(a.version, a.reset) for a in adopted] == [(3, True), (3, True)]


@pytest.mark.parametrize("adopt", ["overwrite", "rebase"])
def test_an_offer_that_was_pending_at_the_quarantine_keeps_its_fate(adopt):
    hand = learner(adopt=adopt)
    header = hand.offer()
    hand.hear(msg.Quarantined(1, 1, "because", True))
    hand.step()
    hand.publish(1, round=0)
    hand.step()
    hand.publish(2, round=1, verdict="merged", merged_upto=header.end)
    settled = only(hand.step(), do.Settle)
    assert do.Settle(0, header.start, header.end, "merged") in settled


def test_what_was_trained_before_every_fragment_was_sent_again_is_given_up():
    hand = learner()
    hand.hear(msg.Quarantined(1, 1, "because", True))
    hand.publish(3, 0)
    hand.step()
    hand.step()
    hand.publish(3, 1)
    settled = only(hand.step(), do.Settle)
    assert do.Settle(0, 10, 30, "overwritten") in settled
    assert hand.offer(0).start == 30, "an offer tells of what came after"


def test_a_base_of_another_history_is_replaced_after_a_quarantine_whatever_its_number():
    hand = learner()
    hand.publish(3, 0)
    hand.step()
    hand.hear(msg.Quarantined(1, 1, "because", True))
    hand.hear(msg.SeedAsk(1, 1, (0, 1)))
    hand.handle(ev.SeedReady(0, 1, ("mine", "mine"), (0, 0), True))
    assert only(hand.publish(0, 0), do.Stage)


def test_who_did_not_hear_of_its_quarantine_is_told_again_until_it_holds_nothing():
    hand = running("bad", "a", "b", strikes=1)
    nan_round(hand, "bad", "a", "b", to=2)
    assert sent(hand.report("bad", 3), msg.Quarantined) == []
    hand.now_ns += hand.params.retry_ns
    assert len(sent(hand.report("bad", 4), msg.Quarantined, "bad")) == 1
    hand.report("bad", 5, versions=[-1, -1])
    hand.now_ns += hand.params.retry_ns
    assert sent(hand.report("bad", 6), msg.Quarantined) == []


def test_one_in_quarantine_does_not_keep_the_gate_from_a_new_world():
    hand = running("a", "b", "q", norm_gate=10.0, strikes=3, alive_ns=10**6 * SECOND)
    for number in range(1, MIN_NORMS + 1):
        hand.merge_round(hand.tick("a", "b", "q", to=2 * number), "a", "b", "q")
        hand.report("q", 2 * number)
    for gate in hand.machine.rounds.gates:
        gate.norms.extend([1.0] * MIN_NORMS)
    hand.machine.strikes.until_ns["q"] = 10**18
    hand.norms = {"a": 1e6, "b": 1e6}
    for number in range(MIN_NORMS + 1, MIN_NORMS + 8):
        commands = hand.tick("a", "b", "q", to=2 * number)
        if sent(commands, msg.Ask):
            hand.merge_round(commands, "a", "b")
    assert notes(hand.log, "gate")


def test_a_quarantine_takes_offers_out_of_the_rounds_under_way():
    hand = running("bad", "a", "b", strikes=1, overlap_steps=2, min_quorum=3)
    first, second = hand.tick("bad", "a", "b", to=2), hand.tick("bad", "a", "b", to=4)
    for name in ("bad", "a"):
        hand.hear(hand.header(sent(second, msg.Ask, name)[0], name))
    hand.keep = (do.Inspect,)
    hand.merge_round(first, "bad", "a", "b")
    (inspect,) = hand.kept
    results = tuple(ev.Inspection(name, name != "bad", 1.0) for name, _ in inspect.offers)
    commands = hand.handle(ev.Inspected(hand.now_ns, inspect.fragment, inspect.round, results))
    dropped = [(note.fragment, note.who) for note in only(commands, do.Note) if note.kind == "dropped"]
    assert dropped == [(1, "bad"), (0, "bad")]
