"""Who may take part: a tape that says otherwise is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.params import SECOND, RunParams
from atoll.core.records import Contributor, EpochRecord, MemberRecord, RoundRecord, SeedRecord
from atoll.invariants import Checker
from atoll.tape.entries import SYNCER, Entry, Item, Stored

PARAMS = RunParams(num_fragments=1, interval_steps=1, num_shards=2, hand_on_ns=10 * SECOND)


class Teller:
    """Tells a checker a tape, line by line."""

    def __init__(self) -> None:
        self.checker, self.now_ns = Checker(PARAMS), SECOND
        self.tell(Stored(EpochRecord(1, ()), True), ev.Committed(0, 1, True, ""))

    def tell(self, *items: Item, actor: str = SYNCER) -> list[str]:
        for item in items:
            self.checker.read(Entry(self.now_ns, actor, item))
        return [violation.text for violation in self.checker.violations]

    def join(self, name: str, shard: int, incarnation: int = 1) -> list[str]:
        record = MemberRecord(1, name, "key", incarnation, incarnation, shard)
        welcome = do.Send(name, incarnation, msg.Welcome(1, incarnation, incarnation, 0, shard, False))
        return self.tell(do.Commit(1, record, True), Stored(record, True), welcome)

    def report(self, name: str, version: int, digest: str, sequence: int = 1) -> list[str]:
        holdings = (msg.Holding(version, digest, 0, 1, 0, 0, 0),)
        report = msg.Report(name, 1, 1, sequence, 1, 0, SECOND, 0, -1, 0, holdings)
        return self.tell(ev.Received(self.now_ns, report))

    def merge(self, name: str, version: int) -> list[str]:
        """One round with one offer, from the header to the commit."""
        header = msg.Header(
            name,
            1,
            1,
            version,
            0,
            version - 1,
            f"d{version - 1}",
            10 * version,
            10 * version + 10,
            1,
            (version - 1,),
        )
        part = Contributor(name, 1, header.start, header.end, 1, version - 1, 100.0)
        record = RoundRecord(1, version, 0, version, f"d{version}", f"x{version}", version, (part,))
        return self.tell(
            ev.Received(0, header),
            do.Inspect(0, version, ((name, 1),)),
            Stored(record, True),
            do.Install(0, version, version),
        )


@pytest.fixture
def teller() -> Teller:
    """A seeded run with one learner that has shard 0."""
    teller = Teller()
    teller.join("a", 0)
    teller.tell(Stored(SeedRecord(1, "a", 1, ("d0",)), True))
    return teller


def note(kind: str, who: str = "a") -> do.Note:
    return do.Note(kind, -1, who, "because")


def donate(name: str = "a") -> do.Send:
    return do.Send(name, 1, msg.DonateAsk(1, 1, 0, "b", 1))


def test_nobody_is_merged_between_quarantine_and_release(teller):
    assert teller.merge("a", 1) == []
    teller.tell(note("quarantined"), note("released"))
    assert teller.merge("a", 2) == []
    teller.tell(note("quarantined"))
    assert teller.merge("a", 3) == ["a is in quarantine, and in version 3 of fragment 0"]


def test_an_offer_that_was_past_recall_is_excused_and_a_learners_own_note_is_no_quarantine(teller):
    teller.tell(note("quarantined"), actor="a#1")
    assert teller.merge("a", 1) == []
    teller.tell(do.Inspect(0, 2, (("a", 1),)), note("quarantined"))
    assert teller.merge("a", 2) == []


def test_who_is_asked_to_donate_is_healed(teller):
    teller.report("a", 0, "d0")
    assert teller.tell(donate()) == []
    teller.merge("a", 1)
    assert teller.tell(donate()) == [], "the version before will do"
    teller.merge("a", 2)
    assert teller.tell(donate()) == ["a is to donate, and lacks fragments [0]"]


def test_a_base_of_another_history_is_no_base_and_an_overtaken_report_does_not_count(teller):
    teller.report("a", 0, "d0", sequence=5)
    teller.report("a", 0, "other", sequence=4)
    assert teller.tell(donate()) == []
    teller.report("a", 0, "other", sequence=6)
    assert teller.tell(donate()) == ["a is to donate, and lacks fragments [0]"]


def test_nobody_donates_from_quarantine(teller):
    teller.report("a", 0, "d0")
    assert teller.tell(note("quarantined"), donate()) == ["a is to donate from quarantine"]


def test_a_shard_is_shared_only_if_all_are_taken(teller):
    assert teller.join("b", 0) == ["b gets shard 0 of ['a'], and only [0] are taken"]
    teller.checker.violations.clear()
    teller.join("c", 1)
    assert teller.join("d", 0) == []


def test_the_shard_of_one_that_was_long_gone_is_handed_on(teller):
    teller.now_ns += 10 * SECOND + 1
    assert teller.join("b", 0) == []
    assert teller.join("a", 0, incarnation=2) == ["a gets shard 0 of ['b'], and only [0] are taken"]


def test_a_commit_that_is_repeated_is_judged_once(teller):
    record = MemberRecord(1, "b", "key", 1, 1, 1)
    teller.tell(do.Commit(5, record, True))
    teller.join("c", 0)
    teller.checker.violations.clear()
    assert teller.tell(do.Commit(5, record, True)) == []


def test_after_a_way_back_a_learner_reports_the_tick_that_it_was_told(teller):
    def says(clock: int, epoch: int) -> do.Tell:
        holdings = (msg.Holding(0, "d0", 0, 1, 0, 0, 0),)
        return do.Tell(msg.Report("a", 1, epoch, 1, clock, 0, SECOND, 0, -1, 0, holdings))

    welcome = ev.Received(0, msg.Welcome(3, 1, 1, 4, 0, False, 2))
    assert teller.tell(says(9, 1), welcome, says(4, 3), says(5, 3), actor="a#1") == []
    again = replace(welcome, message=msg.Welcome(5, 1, 1, 2, 0, False, 4))
    assert teller.tell(again, says(6, 5), actor="a#1") == ["a#1: clock 6 after a way back to 2"]


def test_what_an_earlier_epoch_published_is_not_taken_in(teller):
    report = msg.Report("a", 1, 2, 1, 1, 0, SECOND, 0, -1, 0, (msg.Holding(0, "d0", 0, 1, 0, 0, 0),))
    publish = msg.Publish(2, 1, 0, 1, 1, "d1", msg.FULL, "", "none", "", 0, 0)
    assert teller.tell(do.Tell(report), do.Stage(publish), actor="a#1") == []
    old = do.Stage(replace(publish, epoch=1))
    assert teller.tell(old, actor="a#1") == ["a#1 of epoch 2 takes a publish of 1"]
