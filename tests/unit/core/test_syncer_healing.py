"""Stories of the syncer: the seed of a run, and how learners get the versions that they lack."""

from __future__ import annotations

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.params import SECOND
from atoll.core.records import SeedRecord
from atoll.core.syncer import HEAL_WINDOW
from tests.unit.core.by_hand import digest, only, running, sent, syncer

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
    hand = running("a", "b", num_fragments=6, interval_steps=12)
    hand.hello("c")
    hand.tick("a", "b", to=2)  # next due: fragment 2 at 4, 3 at 6, 4 at 8, 5 at 10, then 0 and 1
    commands = hand.report("c", 0, versions=[-1] * 6)
    publishes = sent(commands, msg.Publish, "c")
    assert {(p.version, p.base_version) for p in publishes} == {(0, msg.FULL)}
    assert [p.fragment for p in publishes] == [2, 3, 4, 5]
    assert len(publishes) == HEAL_WINDOW
    commands = hand.report("c", 0, versions=[-1, -1, 0, -1, -1, -1])
    assert [p.fragment for p in sent(commands, msg.Publish, "c")] == [0]


def test_a_learner_that_hears_nothing_is_lost_however_often_it_says_hello():
    hand = running("a", "b")
    for _ in range(8):
        hand.now_ns += hand.params.retry_ns
        hand.hello("b")
        hand.handle(ev.TimerFired(hand.now_ns, "beat"))
    lost = [command.who for command in only(hand.log, do.Note) if command.kind == "lost"]
    assert "b" in lost
    assert not hand.machine.has_quorum


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
