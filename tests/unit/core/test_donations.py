"""Stories of optimizer state that travels from a healthy learner to one that has none."""

from __future__ import annotations

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.borrowing import MAX_ASKED
from atoll.core.donations import PATIENCE, REST
from atoll.core.params import SECOND
from tests.unit.core.by_hand import SyncerByHand, learner, notes, only, running, sent, told


def fleet() -> SyncerByHand:
    """Two that have had an offer accepted, and one that has not."""
    hand = running("a", "b", donates=True, alive_ns=1000 * SECOND)
    hand.merge_round(hand.tick("a", "b", to=2), "a", "b")
    hand.hello("new")
    hand.report("new", 2)
    return hand


def ask(hand: SyncerByHand, fragment: int = 0, name: str = "new") -> list[do.Command]:
    return hand.hear(msg.MomentsAsk(name, 1, 1, fragment))


def donate(hand: SyncerByHand, donor: str, fragment: int = 0, to: str = "new") -> list[do.Command]:
    return hand.hear(msg.Donation(donor, 1, 1, fragment, to, 1, "ff", 12))


def test_a_donation_is_asked_of_a_healthy_learner_and_passed_on():
    hand = fleet()
    (asked,) = only(ask(hand), do.Send)
    assert (asked.name, asked.message) == ("a", msg.DonateAsk(1, 1, 0, "new", 1))
    (passed,) = only(donate(hand, "a"), do.Send)
    assert (passed.name, passed.message) == ("new", msg.Moments(1, 1, 0, "a", "ff", 12))


def test_a_repeated_ask_is_patient_and_then_turns_to_another_donor():
    hand = fleet()
    ask(hand)
    hand.now_ns += SECOND
    assert only(ask(hand), do.Send) == []
    hand.now_ns += PATIENCE * hand.params.retry_ns
    (asked,) = only(ask(hand), do.Send)
    assert asked.name == "b"
    assert only(donate(hand, "a"), do.Send) == [], "it came too late, from one who is no longer asked"


def test_a_donor_rests_so_that_three_quarters_of_its_uplink_stay_its_own():
    hand = running("a", donates=True, min_quorum=1, alive_ns=1000 * SECOND)
    hand.merge_round(hand.tick("a", to=2), "a")
    hand.hello("new")
    ask(hand, 0)
    hand.now_ns += 2 * SECOND
    donate(hand, "a", 0)
    hand.now_ns += REST * 2 * SECOND - 1
    assert only(ask(hand, 1), do.Send) == []
    hand.now_ns += 1
    assert [asked.fragment for asked in sent(ask(hand, 1), msg.DonateAsk)] == [1]


def test_nobody_donates_who_is_unhealed_has_not_offered_or_is_in_need_itself():
    hand = running("a", "b", donates=True)
    (answer,) = sent(ask(hand, name="a"), msg.NoMoments)
    assert answer.reason == "no healthy learner is there that could donate"


def test_a_run_without_donations_says_so():
    hand = running("a", "b")
    hand.merge_round(hand.tick("a", "b", to=2), "a", "b")
    assert [answer.reason for answer in sent(ask(hand, name="a"), msg.NoMoments)] == ["off"]


def test_a_donation_that_nobody_asked_for_or_for_a_life_that_ended_goes_nowhere():
    hand = fleet()
    assert only(donate(hand, "a"), do.Send) == []
    ask(hand)
    hand.hello("new", life=2)
    assert sent(donate(hand, "a"), msg.Moments) == []


def test_where_a_life_found_its_state_is_noted_once():
    hand = fleet()
    message = msg.Restored("new", 1, 1, "peer", "from a")
    assert notes(hand.hear(message), "moments") == ["peer: from a"]
    assert notes(hand.hear(message), "moments") == []
    assert hand.machine.desk.sessions["new"].moments == "peer"


# The learner's side


def test_a_learner_asks_for_one_fragment_after_the_other_and_takes_what_comes():
    hand = learner()
    commands = hand.handle(ev.MomentsWanted(0, (0, 1)))
    assert told(commands, msg.MomentsAsk) == [msg.MomentsAsk("anna", 1, 1, 0)]
    first = msg.Moments(1, 1, 0, "bob", "ff", 12)
    commands = hand.hear(first)
    assert only(commands, do.TakeMoments) == [do.TakeMoments(first)]
    assert told(commands, msg.MomentsAsk) == [msg.MomentsAsk("anna", 1, 1, 1)]
    assert only(hand.hear(first), do.TakeMoments) == [], "a second copy changes nothing"
    commands = hand.hear(msg.Moments(1, 1, 1, "cid", "ff", 12))
    assert only(commands, do.EndMoments) == [do.EndMoments(True, "from bob, cid")]


def test_what_does_not_come_is_asked_for_again_and_given_up_in_the_end():
    hand = learner(alive_ns=10**6 * SECOND)
    hand.handle(ev.MomentsWanted(0, (0,)))
    assert told(hand.pulse(SECOND), msg.MomentsAsk) == []
    assert len(told(hand.pulse(SECOND), msg.MomentsAsk)) == 1
    ends = [end for _ in range(MAX_ASKED) for end in only(hand.pulse(2 * SECOND), do.EndMoments)]
    assert ends == [do.EndMoments(False, "no donation came")]


def test_nobody_to_donate_ends_it_at_once():
    hand = learner()
    hand.handle(ev.MomentsWanted(0, (0, 1)))
    assert only(hand.hear(msg.NoMoments(1, 1, "off")), do.EndMoments) == [do.EndMoments(False, "off")]
    assert only(hand.hear(msg.NoMoments(1, 1, "off")), do.EndMoments) == []


def test_a_donor_copies_at_a_boundary_and_sends_what_was_packed():
    hand = learner()
    assert hand.hear(msg.DonateAsk(1, 1, 1, "new", 4)) == []
    assert only(hand.step(), do.CopyMoments) == [do.CopyMoments(1)]
    commands = hand.handle(ev.MomentsCopied(0, 1, "ff", 12))
    assert told(commands, msg.Donation) == [msg.Donation("anna", 1, 1, 1, "new", 4, "ff", 12)]
    assert hand.handle(ev.MomentsCopied(0, 1, "ff", 12)) == []


def test_whoever_is_in_need_or_has_nothing_gives_nothing():
    hand = learner()
    hand.handle(ev.MomentsWanted(0, (0,)))
    hand.hear(msg.DonateAsk(1, 1, 1, "new", 4))
    assert only(hand.step(), do.CopyMoments) == []
    empty = learner()
    empty.hear(msg.DonateAsk(1, 1, 1, "new", 4))
    empty.step()
    assert empty.handle(ev.MomentsCopied(0, 1, "", 0)) == []


def test_where_the_state_came_from_is_told_now_and_to_every_later_life_of_the_syncer():
    hand = learner()
    restored = [msg.Restored("anna", 1, 1, "own", "3 steps old")]
    assert told(hand.handle(ev.MomentsRestored(0, "own", "3 steps old")), msg.Restored) == restored
    assert [m.epoch for m in told(hand.welcome(epoch=2), msg.Restored)] == [2]


def test_who_has_a_strike_against_it_or_is_in_quarantine_donates_nothing():
    hand = fleet()
    hand.machine.strikes.strike("a", "the delta is not finite")
    assert [asked.name for asked in only(ask(hand), do.Send)] == ["b"]
    hand.machine.strikes.until_ns["b"] = 10**18
    (answer,) = sent(ask(hand, 1), msg.NoMoments)
    assert answer.reason == "no healthy learner is there that could donate"


def test_a_donor_owes_one_fragment_at_a_time():
    hand = fleet()
    hand.hello("second")
    hand.report("second", 2)
    assert [asked.name for asked in only(ask(hand), do.Send)] == ["a"]
    assert [asked.name for asked in only(ask(hand, name="second"), do.Send)] == ["b"]


def test_a_promise_to_a_learner_that_asks_no_more_does_not_keep_it_from_donating():
    hand = running("a", "b", "c", donates=True, min_quorum=3, alive_ns=1000 * SECOND)
    hand.merge_round(hand.tick("a", "b", "c", to=2), "a", "b", "c")
    ask(hand, name="c")
    hand.now_ns += PATIENCE * hand.params.retry_ns
    hand.machine.donations.rested_ns = {"a": 10**18, "b": 10**18}
    hand.hello("new")
    assert [asked.name for asked in only(ask(hand), do.Send)] == ["c"]


def test_a_learner_that_is_quarantined_gives_nothing_of_what_it_promised_until_it_has_begun_anew():
    hand = learner()
    hand.hear(msg.DonateAsk(1, 1, 0, "new", 4))
    hand.step()
    hand.hear(msg.DonateAsk(1, 1, 1, "new", 4))
    hand.hear(msg.Quarantined(1, 1, "because", True))
    assert hand.handle(ev.MomentsCopied(0, 0, "ff", 12)) == []
    assert only(hand.step(), do.CopyMoments) == []
    for p in range(2):
        hand.publish(3, p)
    hand.step()
    hand.hear(msg.DonateAsk(1, 1, 1, "new", 4))
    assert only(hand.step(), do.CopyMoments) == [do.CopyMoments(1)]
