"""Stories of one learner: what it says, what it adopts, and where its tokens go."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.params import RunParams
from tests.unit.core.by_hand import KEY, LIFE, NAME, LearnerByHand, digest, notes, only, told

PARAMS = RunParams(num_fragments=2, interval_steps=4, overlap_steps=1)


def learner(**values: Any) -> LearnerByHand:
    """Joined, and holding version 0 of both fragments (it was the seed), at step 0 and token 0."""
    hand = LearnerByHand(_params(**values))
    hand.start()
    hand.welcome()
    hand.hear(msg.SeedAsk(1, 1, (0, 1)))
    hand.handle(ev.SeedReady(0, 1, (digest(0, 0), digest(0, 1)), (0, 0)))
    return hand


def _params(**values: Any) -> RunParams:
    defaults: dict[str, Any] = {"num_fragments": 2, "interval_steps": 4, "overlap_steps": 1}
    return RunParams(**(defaults | values))


# Joining


def test_hello_is_repeated_until_it_is_welcomed():
    hand = LearnerByHand(PARAMS)
    hello = msg.Hello(NAME, KEY, LIFE, 0, 0)
    assert told(hand.start(), msg.Hello) == [hello]
    for _ in range(3):
        commands = hand.pulse(PARAMS.retry_ns)
        assert told(commands, msg.Hello) == [hello]
        assert do.SetTimer("pulse", hand.now_ns + PARAMS.retry_ns) in commands
    hand.welcome(t=30)
    assert told(hand.pulse(PARAMS.heartbeat_ns), msg.Hello) == []
    assert (hand.machine.incarnation, hand.machine.clock) == (1, 30)


def test_a_welcome_of_another_life_is_not_ours():
    hand = LearnerByHand(PARAMS)
    hand.start()
    assert hand.hear(msg.Welcome(1, LIFE + 1, 4, 0, 0, False)) == []
    assert hand.machine.state == "joining"


def test_a_learner_that_does_not_step_reports_at_every_heartbeat():
    hand = learner()
    assert told(hand.pulse(PARAMS.heartbeat_ns // 2), msg.Report) == []
    assert len(told(hand.pulse(PARAMS.heartbeat_ns), msg.Report)) == 1


def test_reports_count_up_and_echo_the_newest_beat():
    hand = learner()
    hand.hear(msg.Beat(1, 1, 5, 40, 0, False))
    hand.hear(msg.Beat(1, 1, 5, 30, 0, False))
    (first,) = told(hand.step(), msg.Report)
    (second,) = told(hand.step(), msg.Report)
    assert (first.echo_ns, second.sequence - first.sequence) == (40, 1)


def test_cut_off_it_trains_on_and_says_hello_with_its_incarnation():
    hand = learner()
    assert told(hand.pulse(PARAMS.alive_ns + 1), msg.Hello) == [msg.Hello(NAME, KEY, LIFE, 1, 1)]
    hand.step()
    assert hand.holding().steps == 1


def test_asked_who_it_is_a_joined_learner_says_hello():
    assert told(learner().hear(msg.WhoIs(2)), msg.Hello) == [msg.Hello(NAME, KEY, LIFE, 1, 1)]


def test_a_refusal_ends_a_life_that_was_never_admitted_and_no_other():
    hand = LearnerByHand(PARAMS)
    hand.start()
    assert hand.hear(msg.Refused(1, LIFE + 1, "not you")) == []
    assert notes(hand.hear(msg.Refused(1, LIFE, "the name is taken")), "refused") == ["the name is taken"]
    assert hand.welcome() == []
    admitted = learner()
    assert admitted.hear(msg.Refused(1, LIFE, "late")) == []
    assert admitted.machine.state == "joined"


# Seeding


def test_a_learner_without_a_base_seeds_when_asked_and_only_then():
    hand = LearnerByHand(PARAMS)
    hand.start()
    hand.welcome()
    hand.step(7)
    assert only(hand.hear(msg.SeedAsk(1, 1, (0, 1))), do.SeedSnapshot) == [do.SeedSnapshot(1)]
    commands = hand.handle(ev.SeedReady(0, 1, ("d0.0", "d1.0"), (5, 6)))
    assert told(commands, msg.SeedBody) == [
        msg.SeedBody(NAME, 1, 1, 0, "d0.0", 5),
        msg.SeedBody(NAME, 1, 1, 1, "d1.0", 6),
    ]
    assert only(commands, do.Settle) == [do.Settle(p, 0, 7, "overwritten") for p in (0, 1)]
    assert hand.hear(msg.Ask(1, 1, 1, 0, 0, 0, msg.NO_VERSION, False)) == []


def test_asked_again_it_sends_the_missing_fragments_of_the_same_seed_and_no_others():
    hand = LearnerByHand(PARAMS)
    hand.start()
    hand.welcome()
    hand.hear(msg.SeedAsk(1, 1, (0, 1)))
    hand.handle(ev.SeedReady(0, 1, ("d0.0", "d1.0"), (5, 6)))
    hand.step()
    again = hand.hear(msg.SeedAsk(1, 1, (1,)))
    assert again == [do.Resend(msg.SeedBody(NAME, 1, 1, 1, "d1.0", 6))]
    hand.welcome(epoch=2)
    again = hand.hear(msg.SeedAsk(2, 1, (0,)))
    assert again == [do.Resend(msg.SeedBody(NAME, 1, 2, 0, "d0.0", 5))]


def test_a_learner_that_holds_published_versions_does_not_seed():
    hand = learner()
    hand.publish(1)
    hand.step()
    assert hand.hear(msg.SeedAsk(1, 1, (0, 1))) == []


def test_a_seed_copied_for_an_earlier_syncer_is_not_sent():
    hand = LearnerByHand(PARAMS)
    hand.start()
    hand.welcome()
    hand.hear(msg.SeedAsk(1, 1, (0, 1)))
    hand.welcome(epoch=2)
    assert hand.handle(ev.SeedReady(0, 1, ("d0.0", "d1.0"), (5, 6))) == []


# Offers


def test_an_ask_is_answered_at_the_next_boundary_and_not_before():
    hand = learner()
    assert hand.ask() == []
    assert len(told(hand.step(), msg.Header)) == 1


def test_an_offer_is_the_whole_open_interval_and_its_header_goes_before_the_body():
    hand = learner()
    hand.step(10)
    hand.step(20)
    hand.ask(round=3)
    commands = hand.step(30)
    header = msg.Header(NAME, 1, 1, 3, 0, 0, "d0.0", 0, 60, 3, (0, 0))
    assert commands[:3] == [do.Snapshot(0, 1, 3), do.Tell(header), do.Encode(0, 1, 3)]
    body = msg.Body(NAME, 1, 1, 3, 0, "b", 99)
    assert hand.handle(ev.Encoded(0, 0, 1, 3, "b", 99)) == [do.Tell(body)]


def test_tokens_after_the_snapshot_are_not_in_the_offer():
    hand = learner()
    hand.offer()
    hand.step(500)
    (header,) = told(hand.ask(), msg.Header)
    assert (header.start, header.end, header.steps) == (0, 10, 1)


def test_asked_again_it_answers_in_the_same_words():
    hand = learner()
    header = hand.offer()
    body = msg.Body(NAME, 1, 1, 1, 0, "b", 99)
    assert hand.ask() == [do.Tell(header)]
    hand.handle(ev.Encoded(0, 0, 1, 1, "b", 99))
    assert hand.ask() == [do.Tell(header), do.Resend(body)]
    assert hand.ask(want_body=True) == [do.Resend(body)]


def test_a_repeated_ask_of_a_round_that_ended_is_not_answered_again():
    hand = learner()
    hand.offer(round=2)
    hand.hear(msg.Cancelled(1, 1, 2, 0, "below quorum"))
    hand.ask(round=2)
    assert told(hand.step(), msg.Header) == []


def test_without_a_step_since_the_adoption_it_abstains():
    hand = held_learner()
    hand.publish(1, 0)
    (abstain,) = told(hand.ask(0), msg.Abstain)
    assert abstain == msg.Abstain(NAME, 1, 1, 1, 0, "no step on this fragment since it was adopted")


def test_it_abstains_while_its_last_offer_is_in_a_version_that_it_does_not_hold():
    hand = learner()
    hand.offer(round=1)
    hand.hear(msg.Ask(1, 1, 2, 0, 0, 1, 1, False))
    commands = hand.step()
    reason = "my last offer is in version 1, I hold 0"
    assert told(commands, msg.Abstain) == [msg.Abstain(NAME, 1, 1, 2, 0, reason)]
    assert only(commands, do.Drop) == []
    assert hand.machine.slots[0].offer is not None


@pytest.mark.parametrize("current", [2, 3])
def test_it_abstains_on_a_base_that_is_too_old(current):
    hand = learner()
    hand.hear(msg.Ask(1, 1, 1, 0, 0, current, msg.NO_VERSION, False))
    (abstain,) = told(hand.step(), msg.Abstain)
    assert abstain.reason == f"my base 0 is not the current {current} or the one before"


def test_it_abstains_without_a_base():
    hand = LearnerByHand(PARAMS)
    hand.start()
    hand.welcome()
    hand.ask()
    (abstain,) = told(hand.step(), msg.Abstain)
    assert abstain.reason == "not healed: no base"


def test_a_body_encoded_after_its_round_ended_is_not_sent():
    hand = learner()
    hand.offer()
    hand.hear(msg.Cancelled(1, 1, 1, 0, "below quorum"))
    assert hand.handle(ev.Encoded(0, 0, 1, 1, "b", 99)) == []


# Cancelled


def test_a_cancelled_round_keeps_the_progress_for_the_next_offer():
    hand = learner()
    hand.offer(round=1)
    commands = hand.hear(msg.Cancelled(1, 1, 1, 0, "below quorum"))
    assert commands == [do.Drop(0, False)]
    assert hand.holding() == msg.Holding(0, "d0.0", 0, 1, 0, 0, 0)
    header = hand.offer(round=2)
    assert (header.start, header.end, header.steps) == (0, 20, 2)


def test_an_offer_over_which_a_version_was_adopted_is_lost_when_its_round_is_cancelled():
    hand = learner()
    hand.offer(round=2)
    hand.publish(1, round=1)
    commands = hand.step()
    assert only(commands, do.Adopt) == [do.Adopt(0, 1, "d0.1", False, True)]
    assert only(commands, do.Settle) == [do.Settle(0, 10, 20, "overwritten")]
    assert hand.holding().pending == 10
    commands = hand.hear(msg.Cancelled(1, 1, 2, 0, "below quorum"))
    assert only(commands, do.Settle) == [do.Settle(0, 0, 10, "cancelled")]
    assert hand.holding() == msg.Holding(1, "d0.1", 20, 0, 0, 20, 0)


def test_a_newer_ask_proves_that_the_round_of_the_pending_offer_ended():
    hand = learner()
    hand.offer(round=1)
    hand.ask(round=2)
    commands = hand.step()
    assert commands[0] == do.Drop(0, False)
    (header,) = told(commands, msg.Header)
    assert (header.round, header.start, header.end) == (2, 0, 20)


def test_the_cancellation_of_another_round_leaves_the_offer_pending():
    hand = learner()
    hand.offer(round=2)
    assert hand.hear(msg.Cancelled(1, 1, 1, 0, "below quorum")) == []
    assert hand.machine.slots[0].offer is not None


def test_a_cancelled_ask_is_not_answered():
    hand = learner()
    hand.ask(round=1)
    hand.hear(msg.Cancelled(1, 1, 1, 0, "below quorum"))
    assert told(hand.step(), msg.Header) == []


# Adoption and the account


def test_a_version_is_adopted_at_a_boundary_only():
    hand = learner()
    assert only(hand.publish(1), do.Adopt) == []
    assert hand.holding().version == 0
    assert only(hand.step(), do.Adopt) == [do.Adopt(0, 1, "d0.1", False, False)]
    assert hand.holding().version == 1


def test_at_one_boundary_the_ask_is_answered_before_the_adoption_overwrites_the_progress():
    hand = learner()
    hand.ask(round=2)
    hand.publish(1, round=1)
    commands = hand.step()
    kinds = [type(c) for c in commands if isinstance(c, do.Snapshot | do.Adopt)]
    assert kinds == [do.Snapshot, do.Adopt]
    assert only(commands, do.Settle) == []
    assert hand.holding() == msg.Holding(1, "d0.1", 10, 0, 0, 0, 10)


@pytest.mark.parametrize("adopt", ["overwrite", "blend"])
def test_overwrite_and_blend_settle_the_offer_as_merged_and_the_rest_as_overwritten(adopt):
    hand = learner(adopt=adopt)
    hand.offer()
    hand.step(5)
    hand.publish(1, round=1, verdict="merged", merged_upto=10)
    commands = hand.step(3)
    assert only(commands, do.Adopt) == [do.Adopt(0, 1, "d0.1", True, False)]
    assert only(commands, do.Settle) == [do.Settle(0, 0, 10, "merged"), do.Settle(0, 10, 18, "overwritten")]
    assert only(commands, do.Drop) == [do.Drop(0, True)]
    assert hand.holding() == msg.Holding(1, "d0.1", 18, 0, 10, 8, 0)


def test_rebase_keeps_what_came_after_the_snapshot_of_a_merged_offer():
    hand = learner(adopt="rebase")
    hand.offer()
    hand.step(5)
    hand.publish(1, round=1, verdict="merged", merged_upto=10)
    commands = hand.step(3)
    assert only(commands, do.Settle) == [do.Settle(0, 0, 10, "merged")]
    assert hand.holding() == msg.Holding(1, "d0.1", 10, 2, 10, 0, 0)
    header = hand.offer(round=2)
    assert (header.start, header.end, header.steps, header.base_version) == (10, 28, 3, 1)


def test_rebase_keeps_everything_of_an_offer_that_was_not_merged():
    hand = learner(adopt="rebase")
    hand.offer()
    hand.publish(1, round=1, verdict="late")
    commands = hand.step(3)
    assert only(commands, do.Settle) == []
    assert only(commands, do.Drop) == [do.Drop(0, False)]
    assert hand.holding() == msg.Holding(1, "d0.1", 0, 2, 0, 0, 0)


def test_rebase_overwrites_what_was_trained_before_the_first_version():
    hand = LearnerByHand(_params(adopt="rebase"))
    hand.start()
    hand.welcome()
    hand.step(6)
    hand.publish(4)
    assert only(hand.step(2), do.Settle) == [do.Settle(0, 0, 8, "overwritten")]


@pytest.mark.parametrize(
    ("verdict", "fate"),
    [
        ("late", "late"),
        ("none", "late"),
        ("stale", "stale"),
        ("rejected", "rejected"),
        ("cancelled", "cancelled"),
    ],
)
def test_an_offer_that_was_not_merged_meets_the_fate_that_the_verdict_names(verdict, fate):
    hand = learner()
    hand.offer()
    hand.publish(1, round=1, verdict=verdict)
    commands = hand.step()
    assert only(commands, do.Settle) == [do.Settle(0, 0, 10, fate), do.Settle(0, 10, 20, "overwritten")]
    assert only(commands, do.Drop) == [do.Drop(0, False)]


def test_a_publish_of_a_later_round_proves_a_pending_offer_late():
    hand = learner()
    hand.offer(round=1)
    hand.publish(1, round=2, verdict="rejected")
    assert only(hand.step(), do.Settle)[0] == do.Settle(0, 0, 10, "late")


def test_a_late_verdict_settles_an_offer_over_which_a_version_was_adopted_before():
    hand = learner()
    hand.offer(round=2)
    hand.publish(1, round=1)
    hand.step()
    hand.publish(2, round=2, verdict="merged", merged_upto=10)
    commands = hand.step()
    assert only(commands, do.Settle) == [do.Settle(0, 0, 10, "merged"), do.Settle(0, 20, 30, "overwritten")]
    assert hand.holding() == msg.Holding(2, "d0.2", 30, 0, 10, 20, 0)


def test_a_merge_that_is_learned_of_through_a_later_version_still_counts():
    hand = learner()
    hand.offer(round=1)
    hand.publish(7, round=6, merged_upto=10)
    assert only(hand.step(), do.Settle)[0] == do.Settle(0, 0, 10, "merged")


def test_the_fragments_have_accounts_of_their_own():
    hand = learner()
    hand.step()
    hand.publish(1, p=1)
    hand.step()
    assert (hand.holding(0).origin, hand.holding(1).origin) == (0, 20)


# What is not adopted


def test_an_update_on_an_unknown_base_makes_it_want_the_whole_fragment():
    hand = learner()
    update = hand.publication(2, base_version=1, base_digest="d0.1")
    assert hand.hear(update) == [do.Tell(msg.Want(NAME, 1, 1, 0))]


def test_an_update_on_another_history_makes_it_want_the_whole_fragment():
    hand = learner()
    update = hand.publication(1, base_version=0, base_digest="other")
    assert hand.hear(update) == [do.Tell(msg.Want(NAME, 1, 1, 0))]


def test_an_update_on_the_base_that_it_holds_is_staged():
    hand = learner()
    update = hand.publication(1, base_version=0, base_digest="d0.0")
    assert hand.hear(update) == [do.Stage(update)]


def test_a_version_that_does_not_decode_to_its_digest_is_wanted_whole():
    hand = learner()
    publish = hand.publication(1)
    hand.hear(publish)
    assert hand.stage(publish, ok=False) == [do.Tell(msg.Want(NAME, 1, 1, 0))]
    assert only(hand.step(), do.Adopt) == []


def test_the_same_version_twice_is_staged_once():
    hand = learner()
    publish = hand.publication(1)
    assert only(hand.hear(publish), do.Stage) == [do.Stage(publish)]
    assert hand.hear(publish) == []
    hand.stage(publish)
    assert hand.hear(publish) == []
    hand.step()
    assert hand.hear(publish) == []


def test_an_overtaken_version_is_not_adopted():
    hand = learner()
    hand.publish(3)
    hand.step()
    assert hand.publish(2) == []


# Epochs and incarnations


def test_what_a_lower_epoch_says_is_refused():
    hand = learner()
    hand.welcome(epoch=3)
    assert hand.hear(msg.Welcome(2, LIFE, 1, 0, 0, False)) == []
    assert hand.hear(hand.publication(9, epoch=2)) == []
    assert hand.hear(msg.Ask(2, 1, 9, 0, 0, 0, msg.NO_VERSION, False)) == []
    assert hand.hear(msg.Fenced(2, 1, "")) == []
    assert hand.hear(msg.WhoIs(2)) == []
    commands = hand.step()
    assert only(commands, do.Adopt) == []
    assert told(commands, msg.Header) == []
    assert hand.machine.epoch == 3


def test_what_is_meant_for_another_incarnation_is_refused():
    hand = learner()
    assert hand.hear(hand.publication(9, incarnation=2)) == []
    assert hand.hear(msg.Welcome(1, LIFE, 2, 0, 0, False)) == []
    assert hand.hear(msg.Fenced(1, 2, "")) == []
    assert hand.machine.incarnation == 1


def test_after_a_restart_of_the_syncer_even_a_lower_version_is_adopted():
    hand = learner()
    hand.publish(5)
    hand.step()
    hand.welcome(epoch=2)
    commands = hand.publish(3)
    assert len(only(commands, do.Stage)) == 1
    assert only(hand.step(), do.Adopt) == [do.Adopt(0, 3, "d0.3", False, False)]
    assert hand.holding().version == 3


def test_after_a_restart_another_history_of_the_same_version_is_adopted_and_the_same_one_is_not():
    hand = learner()
    hand.publish(5)
    hand.step()
    hand.welcome(epoch=2)
    assert hand.publish(5) == []
    hand.publish(5, digest="other")
    assert only(hand.step(), do.Adopt) == [do.Adopt(0, 5, "other", False, False)]


def test_a_version_staged_from_an_earlier_syncer_is_not_adopted():
    hand = learner()
    hand.publish(5)
    hand.welcome(epoch=2)
    assert only(hand.step(), do.Adopt) == []
    assert hand.holding().version == 0


def test_a_publish_of_a_later_syncer_ends_the_offers_made_to_an_earlier_one():
    hand = learner()
    hand.offer(round=8)
    hand.welcome(epoch=2)
    hand.publish(1, round=1)
    assert only(hand.step(), do.Settle)[0] == do.Settle(0, 0, 10, "cancelled")


def test_an_offer_that_the_earlier_syncer_merged_counts_after_its_restart():
    hand = learner()
    hand.offer(round=8)
    hand.welcome(epoch=2)
    hand.publish(1, round=0, merged_upto=10)
    assert only(hand.step(), do.Settle)[0] == do.Settle(0, 0, 10, "merged")


def test_a_body_of_an_earlier_epoch_is_not_sent_to_the_new_one():
    hand = learner()
    hand.offer(round=1)
    hand.welcome(epoch=2)
    assert hand.handle(ev.Encoded(0, 0, 1, 1, "b", 9)) == []


def test_an_ask_of_an_earlier_epoch_is_not_answered_in_the_new_one():
    hand = learner()
    hand.ask(round=1)
    hand.welcome(epoch=2)
    commands = hand.step()
    assert not told(commands, msg.Header)
    assert not told(commands, msg.Abstain)


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


# The end


def test_a_finished_run_is_noted_once_and_no_offer_is_made_after_it():
    hand = learner()
    beat = msg.Beat(1, 1, 90, 0, 0, True)
    assert notes(hand.hear(beat), "finished") == ["budget spent at tick 90"]
    assert hand.hear(beat) == []
    hand.ask()
    commands = hand.step()
    assert told(commands, msg.Header) == []
    assert [a.reason for a in told(commands, msg.Abstain)] == ["the run has finished"]


def test_a_learner_of_a_finished_run_still_adopts_the_last_version():
    hand = learner()
    hand.hear(msg.Beat(1, 1, 90, 0, 0, True))
    hand.publish(1)
    assert len(only(hand.step(), do.Adopt)) == 1


# Waiting algorithms


def held_learner(**values: Any) -> LearnerByHand:
    """A diloco learner at the boundary where it waits for fragment 1."""
    hand = learner(algorithm="diloco", **values)
    hand.step()
    assert only(hand.step(), do.Hold) == [do.Hold(1, "waiting for fragment 1")]
    return hand


def test_decoupled_never_holds_a_learner():
    hand = learner()
    for _ in range(20):
        commands = hand.step()
        assert only(commands, do.Hold) == []
        assert [r.held_on for r in told(commands, msg.Report)] == [-1]


def test_a_waiting_learner_is_held_when_a_fragment_is_due_and_says_so():
    hand = learner(algorithm="diloco")
    assert only(hand.step(), do.Hold) == []
    commands = hand.step()
    assert only(commands, do.Hold) == [do.Hold(1, "waiting for fragment 1")]
    assert [r.held_on for r in told(commands, msg.Report)] == [1]


def test_streaming_holds_overlap_steps_after_a_fragment_was_due():
    hand = learner(algorithm="streaming")
    assert only(hand.step() + hand.step(), do.Hold) == []
    assert only(hand.step(), do.Hold) == [do.Hold(1, "waiting for fragment 1")]


def test_a_held_learner_answers_asks_and_is_released_by_the_adoption():
    hand = held_learner()
    commands = hand.ask(1)
    assert len(told(commands, msg.Header)) == 1
    commands = hand.publish(1, 1, round=1, verdict="merged", merged_upto=20)
    assert only(commands, do.Adopt) == [do.Adopt(1, 1, "d1.1", True, False)]
    assert only(commands, do.Release) == [do.Release("adopted version 1")]
    assert only(commands, do.Settle) == [do.Settle(1, 0, 20, "merged")]


def test_a_held_learner_adopts_another_fragment_and_stays_held():
    commands = held_learner().publish(1, 0)
    assert len(only(commands, do.Adopt)) == 1
    assert only(commands, do.Release) == []


def test_a_held_learner_is_released_when_its_round_is_cancelled_and_by_no_other():
    hand = held_learner()
    assert only(hand.hear(msg.Cancelled(1, 1, 1, 0, "below quorum")), do.Release) == []
    commands = hand.hear(msg.Cancelled(1, 1, 2, 1, "below quorum"))
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
        (ev.Received(0, msg.Beat(1, 1, 9, 0, 0, True)), "the run has finished"),
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


def test_an_abstention_that_was_lost_is_said_again_in_the_same_words():
    hand = held_learner()
    hand.publish(1, 0)
    first = [c for c in hand.ask(0) if isinstance(c, do.Tell) and isinstance(c.message, msg.Abstain)]
    again = [c for c in hand.ask(0) if isinstance(c, do.Tell) and isinstance(c.message, msg.Abstain)]
    assert first
    assert first == again


def test_a_welcome_that_says_finished_releases_a_held_learner():
    hand = held_learner()
    commands = hand.welcome(epoch=2, finished=True)
    assert any(isinstance(command, do.Release) for command in commands)


def test_a_repeated_old_welcome_does_not_reopen_a_finished_run():
    hand = learner()
    hand.hear(msg.Beat(1, 1, 90, 0, 0, True))
    hand.welcome()
    hand.ask()
    told = [c.message for c in hand.step() if isinstance(c, do.Tell)]
    assert not any(isinstance(message, msg.Header) for message in told)
