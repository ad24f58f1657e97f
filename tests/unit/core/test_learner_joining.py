"""Stories of one learner: it joins, it reports, it seeds."""

from __future__ import annotations

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from tests.unit.core.by_hand import KEY, LIFE, NAME, PARAMS, LearnerByHand, learner, notes, only, told

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
    hand.hear(msg.Beat(1, 1, 5, 40, 0, False, ()))
    hand.hear(msg.Beat(1, 1, 5, 30, 0, False, ()))
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
    commands = hand.handle(ev.SeedReady(0, 1, ("d0.0", "d1.0"), (5, 6), True))
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
    hand.handle(ev.SeedReady(0, 1, ("d0.0", "d1.0"), (5, 6), True))
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
    assert hand.handle(ev.SeedReady(0, 1, ("d0.0", "d1.0"), (5, 6), True)) == []
