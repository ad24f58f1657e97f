"""An operator goes back to an earlier tick; and what a restart takes along."""

from __future__ import annotations

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.params import SECOND
from atoll.core.records import EpochRecord, FinishRecord, Rollback, fold
from tests.unit.core.by_hand import SyncerByHand, contributor, learner, notes, running, sent, told


def test_going_back_takes_t_and_the_end_back_with_it():
    hand = running("a", "b")
    hand.merge_round(hand.tick("a", "b", to=2), "a", "b")
    records = [*hand.records, FinishRecord(1, 9, "budget")]
    back = Rollback(1, 1, 0, "d1.0", "", (contributor("a"), contributor("b")))
    state = fold([*records, EpochRecord(2, (back,), 1)])
    assert (state.t, state.finished, state.rewound, state.merges, state.merged_tokens) == (1, False, 2, 0, 0)
    assert state.fragments[1].version == 0


def test_a_learner_that_trained_on_takes_its_clock_from_t_again():
    hand = learner()
    for _ in range(9):
        hand.step()
    commands = hand.hear(msg.Welcome(3, 77, 1, 4, 0, False, 2))
    (report,) = told(commands, msg.Report)
    assert report.clock == hand.machine.global_t == 4
    hand.step()
    commands = hand.hear(msg.Welcome(4, 77, 1, 4, 0, False, 2))
    assert told(commands, msg.Report)[0].clock == 5, "that was before the epoch it knows: nothing new"


def restarted(**values: int) -> SyncerByHand:
    """A second life of a syncer whose run stands at its budget."""
    before = running("a", "b", budget_ticks=4, **values)
    before.merge_round(before.tick("a", "b", to=2), "a", "b")
    hand = SyncerByHand(before.params, stored=fold(before.records), now_ns=1000 * SECOND)
    hand.boot()
    return hand


def test_after_a_boot_the_drain_waits_for_learners_that_are_on_their_way():
    hand = restarted(min_quorum=1)
    hand.hello("a", life=1, incarnation=1)
    assert notes(hand.report("a", 9), "drain") == []
    hand.hello("b", life=1, incarnation=1)
    assert notes(hand.report("b", 9), "drain") == ["budget of 4 ticks spent"]


def test_it_does_not_wait_for_ever():
    hand = restarted(min_quorum=1)
    hand.hello("a", life=1, incarnation=1)
    hand.report("a", 9)
    hand.now_ns += hand.params.alive_ns + 1
    assert notes(hand.report("a", 10), "drain") == ["budget of 4 ticks spent"]


def test_the_budget_of_a_start_is_the_one_on_its_tape():
    hand = SyncerByHand(running("a").params)
    hand.handle(ev.Booted(0, False, (7, 8, 9)))
    params = hand.machine.desk.params
    assert (params.budget_ticks, params.budget_tokens, params.drain_ns) == (7, 8, 9)
    assert hand.machine.params is hand.machine.desk.schedule.params is params


def test_welcome_names_the_epoch_of_the_way_back():
    before = running("a", "b")
    hand = SyncerByHand(before.params, stored=fold([*before.records, EpochRecord(2, (), 0)]))
    hand.boot()
    (welcome,) = sent(hand.hello("a", life=1, incarnation=1), msg.Welcome)
    assert (welcome.epoch, welcome.rewound) == (3, 2)
    assert isinstance(hand.log[0], do.Load)


def test_a_learner_that_had_heard_the_end_goes_on_when_an_operator_went_back():
    hand = learner()
    hand.hear(msg.Beat(1, 1, 9, 0, 0, True, (0, 0)))
    assert hand.machine.finished
    assert [a.reason for a in told([*hand.ask(), *hand.step()], msg.Abstain)] == ["the run has finished"]
    hand.epoch = 3
    hand.hear(msg.Welcome(3, 77, 1, 4, 0, False, 2))
    assert not hand.machine.finished
    assert hand.offer(round=2).steps == 2


def test_a_drain_does_not_wait_for_one_that_came_back_and_left():
    hand = restarted(min_quorum=1)
    hand.hello("b", life=1, incarnation=1)
    hand.hear(msg.Leave("b", 1, 2))
    hand.hello("a", life=1, incarnation=1)
    assert notes(hand.report("a", 9), "drain") == ["budget of 4 ticks spent"]
