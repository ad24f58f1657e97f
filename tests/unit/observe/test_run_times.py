"""Times of a run, from tapes built by hand: known moments in, known times out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.records import Contributor, EpochRecord, FinishRecord, MemberRecord, Record, RoundRecord
from atoll.errors import StoreError
from atoll.observe.run_times import Measured, RunTimes, measure, read_run_times
from atoll.tape.entries import SYNCER, Clock, Entry, Image, Item, Stored

NOON_NS = 1_700_000_000_000_000_000
HERE = Clock("this machine", NOON_NS)
LIVES = {1: 0xA1, 2: 0xA2, 3: 0xA3}
"""By incarnation."""


def ns(at_s: float) -> int:
    return round(at_s * 1e9)


class Tape:
    """A syncer's tape; moments are in seconds."""

    def __init__(self, clock: Clock = HERE) -> None:
        self.lines: list[Entry] = []
        self.add(0, clock)

    def add(self, at_s: float, *items: Item) -> None:
        self.lines += [Entry(ns(at_s), SYNCER, item) for item in items]

    def boot(self, at_s: float, epoch: int, active_s: float) -> None:
        self.add(at_s, ev.Booted(ns(at_s)))
        self.commit(active_s, EpochRecord(epoch, ()))

    def commit(self, at_s: float, record: Record) -> None:
        """Asked for and acknowledged at the same moment."""
        self.add(at_s, do.Commit(len(self.lines), record, True), Stored(record, True))
        self.add(at_s, ev.Committed(ns(at_s), len(self.lines) - 2, True, ""))

    def admit(self, at_s: float, name: str, incarnation: int) -> None:
        """A life is let in and reports, as learners do before their first step."""
        self.commit(at_s, MemberRecord(1, name, "key", LIVES[incarnation], incarnation, 0))
        self.report(at_s, name, incarnation, 0)

    def report(self, at_s: float, name: str, incarnation: int, clock: int, step_s: float = 0) -> None:
        counts = (1, clock, clock, ns(step_s), 0, -1, 0, ())
        self.hear(at_s, msg.Report(name, incarnation, 1, *counts))

    def hear(self, at_s: float, message: msg.Message) -> None:
        self.add(at_s, ev.Received(ns(at_s), message))

    def open(self, at_s: float, number: int) -> None:
        self.add(at_s, do.Opened(0, number, 1, 1, ("ada",), 1))

    def merge(self, at_s: float, number: int, *who: tuple[str, int]) -> None:
        parts = tuple(Contributor(name, incarnation, 0, 8, 1, 0, 1.0) for name, incarnation in who)
        self.commit(at_s, RoundRecord(1, number, 0, number, "", "", 1, parts))

    def measure(self, *learner_tapes: list[Entry]) -> RunTimes:
        return measure(self.lines, learner_tapes, run="reef")


def life_tape(actor: str, *moments_s: float, epoch: int = 1, clock: Clock = HERE) -> list[Entry]:
    """A learner's tape: it hears from the syncer at these moments."""
    heard = [ev.Received(ns(at_s), msg.WhoIs(epoch)) for at_s in moments_s]
    return [Entry(0, actor, clock), *(Entry(event.at_ns, actor, event) for event in heard)]


def only(time_s: float) -> Measured:
    """Measured once."""
    return Measured(time_s, time_s, time_s, time_s, 1)


ADA_1 = "ada#0000000000a1"


@pytest.fixture
def tape() -> Tape:
    """A syncer that serves ada, who has made a step."""
    tape = Tape()
    tape.boot(10, 1, 11)
    tape.admit(12, "ada", 1)
    tape.report(13, "ada", 1, 1)
    return tape


def test_a_quiet_run_has_no_deaths_and_says_so(tape):
    times = tape.measure()
    assert (times.run, times.learners, times.wall_s) == ("reef", 1, 3.0)
    assert [times.step_s, times.restart_s, times.rejoin_s, times.merge_s, times.syncer_restart_s] == [
        None
    ] * 5
    assert (times.goodput, times.participation) == (None, None)


def test_an_empty_tape_has_no_times():
    times = measure([])
    assert (times.learners, times.wall_s, times.merge_s) == (0, 0.0, None)


def test_step_time_is_the_learners_own_median_and_each_learner_counts_once(tape):
    for clock, step_s in ((2, 0.25), (3, 0.5), (4, 9.0)):
        tape.report(14 + clock, "ada", 1, clock, step_s)
    tape.report(19, "ada", 1, 4, 9.0)  # a heartbeat: no new step
    tape.admit(20, "bob", 1)
    tape.report(21, "bob", 1, 1, 1.5)
    assert tape.measure().step_s == Measured(1.0, 1.0, 0.5, 1.5, 2)


def test_a_merge_lasts_from_opening_its_round_to_its_commit(tape):
    tape.open(14, 1)
    tape.open(14.5, 2)  # is never merged
    tape.merge(16, 1, ("ada", 1))
    tape.open(20, 3)
    tape.merge(24, 3, ("ada", 1))
    assert tape.measure().merge_s == Measured(3.0, 3.0, 2.0, 4.0, 2)


def test_a_merge_that_was_commanded_and_not_acknowledged_does_not_count(tape):
    tape.open(14, 1)
    record = RoundRecord(1, 1, 0, 1, "", "", 1, ())
    tape.add(15, do.Commit(7, record, True), ev.Committed(ns(15), 7, False, "the disk is full"))
    assert tape.measure().merge_s is None
    tape.add(18, do.Commit(7, record, True), ev.Committed(ns(18), 7, True, ""))
    assert tape.measure().merge_s == only(4)


def test_a_restart_lasts_from_the_last_sign_of_life_to_the_first_step(tape):
    tape.report(20, "ada", 1, 2, 0.5)
    tape.hear(29, msg.Hello("ada", "key", LIVES[2], 0, 1))  # no word of the dead one
    tape.admit(30, "ada", 2)
    tape.hear(30.5, msg.Hello("ada", "key", LIVES[2], 0, 1))  # the same one, sent twice
    tape.report(31, "ada", 2, 0)  # a heartbeat: not stepping yet
    tape.report(32.5, "ada", 2, 1)
    tape.report(33, "ada", 2, 2, 0.5)
    times = tape.measure()
    assert times.restart_s == only(12.5)
    assert (times.learners, times.rejoin_s) == (1, None)


def test_every_death_counts(tape):
    for incarnation, admitted_s in ((2, 20), (3, 40)):
        tape.admit(admitted_s, "ada", incarnation)
        tape.report(admitted_s + 1, "ada", incarnation, 1)
    assert tape.measure().restart_s == Measured(14.0, 14.0, 8.0, 20.0, 2)


def test_the_own_tape_of_the_dead_tells_when_it_died(tape):
    tape.admit(30, "ada", 2)
    tape.report(33, "ada", 2, 1)
    assert tape.measure().restart_s == only(20)
    assert tape.measure(life_tape(ADA_1, 12, 15), life_tape("bob#0000000000a1", 29)).restart_s == only(18)


def test_a_tape_from_another_machine_has_another_clock_and_is_not_believed(tape):
    tape.admit(30, "ada", 2)
    tape.report(33, "ada", 2, 1)
    strange = life_tape(ADA_1, 15, clock=Clock("another machine", NOON_NS))
    assert tape.measure(strange).restart_s == only(20)


def test_who_said_goodbye_did_not_die_but_rejoins(tape):
    tape.hear(15, msg.Leave("ada", 1, 1))
    tape.admit(30, "ada", 2)
    tape.report(33, "ada", 2, 1)
    tape.merge(34, 1, ("ada", 2))
    assert tape.measure().restart_s is None
    assert tape.measure().rejoin_s == only(4)


def test_who_still_speaks_after_its_successor_was_admitted_did_not_die(tape):
    tape.admit(30, "ada", 2)
    tape.report(33, "ada", 2, 1)
    assert tape.measure(life_tape(ADA_1, 31)).restart_s is None
    tape.admit(40, "ada", 3)
    tape.report(41, "ada", 2, 2)
    tape.report(42, "ada", 3, 1)
    assert tape.measure(life_tape(ADA_1, 31)).restart_s is None


def test_a_rejoin_lasts_from_the_admission_to_the_first_merged_offer(tape):
    tape.merge(14, 1, ("ada", 1))  # a first incarnation joins, and does not rejoin
    tape.admit(30, "ada", 2)
    tape.merge(31, 2, ("ada", 1))  # an offer that the dead one left behind
    tape.merge(36, 3, ("ada", 2))
    tape.merge(39, 4, ("ada", 2))
    assert tape.measure().rejoin_s == only(6)


def test_the_syncer_is_away_from_its_last_line_until_its_new_epoch_is_committed(tape):
    tape.boot(20, 2, 20.5)
    assert tape.measure().syncer_restart_s == only(7.5)
    heard_last = [life_tape(ADA_1, 14, 15), life_tape(ADA_1, 21, epoch=2)]
    assert tape.measure(*heard_last).syncer_restart_s == only(5.5)


def test_a_word_of_the_old_syncer_that_was_taken_in_late_proves_nothing(tape):
    tape.boot(20, 2, 20.5)
    assert tape.measure(life_tape(ADA_1, 14, 21)).syncer_restart_s == only(7.5)


def test_a_start_that_fails_prolongs_the_outage(tape):
    tape.add(20, ev.Booted(ns(20)))
    tape.boot(30, 2, 31)
    assert tape.measure().syncer_restart_s == only(18)


def test_a_run_that_was_ended_and_continued_had_no_outage(tape):
    tape.commit(14, FinishRecord(1, 1, "budget"))
    tape.boot(1000, 2, 1001)
    assert tape.measure().syncer_restart_s is None


def test_an_operators_way_back_is_no_outage(tape):
    tape.add(500, Stored(EpochRecord(2, (), t=0), True))
    tape.boot(1000, 3, 1001)
    tape.boot(1010, 4, 1012)
    assert tape.measure().syncer_restart_s == only(11)


def test_what_an_outage_fell_into_counts_only_if_the_dead_ones_own_tape_tells(tape):
    tape.open(14, 1)
    tape.boot(20, 2, 21)
    tape.admit(22, "ada", 2)
    tape.report(23, "ada", 2, 1)
    tape.boot(30, 3, 31)
    tape.report(32, "ada", 2, 2)
    tape.merge(33, 1, ("ada", 2))
    times = tape.measure()
    assert (times.restart_s, times.rejoin_s, times.merge_s) == (None, None, None)
    assert tape.measure(life_tape(ADA_1, 18)).restart_s == only(5)


def test_after_a_start_of_the_machine_the_time_of_day_goes_on(tape):
    tape.add(0, Clock("this machine", NOON_NS + ns(3600)))  # of a snapshot: the time of day was set meanwhile
    tape.add(0, Clock("started again", NOON_NS + ns(60)))
    tape.boot(1, 2, 2)
    times = tape.measure()
    assert times.syncer_restart_s == only(62 - 13)
    assert times.wall_s == pytest.approx(52)


def test_clocks_that_cannot_be_compared_give_no_time(tape):
    tape.boot(1, 2, 2)  # a machine that does not name its starts was started again
    assert tape.measure().syncer_restart_s is None


def test_a_tape_that_was_cut_is_measured_from_there_on():
    tape = Tape()
    tape.lines.clear()
    tape.add(100, Image(4, b""), HERE)
    tape.report(101, "ada", 1, 70, 0.5)
    tape.report(102, "ada", 1, 71, 0.5)
    tape.admit(110, "ada", 2)
    tape.report(112, "ada", 2, 72)
    tape.boot(120, 2, 121)
    times = tape.measure()
    assert (times.learners, times.wall_s) == (1, 20.0)
    assert (times.step_s, times.restart_s, times.syncer_restart_s) == (only(0.5), only(10), only(9))


def test_learners_tapes_are_read_only_if_somebody_died(tape):
    def unreadable():
        raise AssertionError("nobody asked for it")
        yield

    assert measure(tape.lines, unreadable()).restart_s is None


def test_a_folder_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(StoreError, match="There is no run in"):
        read_run_times(tmp_path)


def test_times_are_plain_values_for_json(tape):
    tape.open(14, 1)
    tape.merge(16, 1, ("ada", 1))
    assert dataclasses.asdict(tape.measure())["merge_s"] == {
        "mean_s": 2.0, "median_s": 2.0, "min_s": 2.0, "max_s": 2.0, "count": 1,
    }  # fmt: skip
