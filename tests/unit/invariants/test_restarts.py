"""Versions that are given up after a cut, also beyond it; and what a restart finds then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atoll.core import events as ev
from atoll.core.params import RunParams
from atoll.core.records import (
    Contribution,
    Contributor,
    EpochRecord,
    MemberRecord,
    Rollback,
    RoundRecord,
    StoredFragment,
    StoredMember,
    StoredState,
)
from atoll.core.syncer import SyncerMachine
from atoll.invariants import Checker
from atoll.tape.entries import SYNCER, Entry, Image, Stored
from atoll.tape.image import image_of

PARAMS = RunParams(num_fragments=1, interval_steps=1)
STATE = StoredState(
    epoch=3,
    t=70,
    merges=7,
    merged_tokens=70,
    fragments=[StoredFragment(7, "d7", "d6")],
    members={"anna": StoredMember("anna", "key", 2, 0, (1, 2))},
    contributions={("anna", 0): Contribution(7, 70, 70)},
)


def part(start: int, end: int) -> Contributor:
    return Contributor("anna", 2, start, end, 1, 7, float((end - start) ** 2))


def begun(machine: SyncerMachine | None = None) -> Checker:
    """A checker that begins with an image of the state above."""
    machine = machine or SyncerMachine(PARAMS)
    machine.desk.state = STATE.copy()
    checker = Checker(PARAMS)
    checker.read(Entry(1, SYNCER, Image(7, image_of(machine))))
    return checker


def stored(checker: Checker, record: EpochRecord | RoundRecord) -> list[str]:
    checker.read(Entry(2, SYNCER, Stored(record, True)))
    return [violation.invariant for violation in checker.violations]


def back_to_5(t: int) -> EpochRecord:
    return EpochRecord(4, (Rollback(0, 7, 5, "d5", "d4", (part(50, 60), part(60, 70))),), t)


def test_an_operator_may_go_back_beyond_the_beginning_of_the_tape():
    checker = begun()
    assert stored(checker, back_to_5(t=50)) == []
    assert (checker.num_merges, checker.num_tokens, checker.t, checker.served) == (5, 50, 50, [5])
    assert checker.versions[0].last[:2] == (5, "d5")
    assert checker.merged["anna", 2, 0].rows == [(0, 50, "before")]


def test_nobody_else_may_where_every_merge_is_durable():
    assert stored(begun(), back_to_5(t=-1)) == ["I1"]


def test_tokens_that_were_given_up_may_be_merged_again_and_others_may_not():
    record = RoundRecord(4, 1, 0, 6, "d6'", "delta", 55, (part(50, 55)._replace(base_version=5),))
    checker = begun()
    stored(checker, back_to_5(t=50))
    assert "I2" not in stored(checker, record)
    again = part(40, 55)._replace(base_version=5)
    assert "I2" in stored(checker, replace(record, version=7, contributors=(again,)))


def loaded(checker: Checker, state: StoredState) -> list[str]:
    checker.read(Entry(3, SYNCER, ev.Booted(3)))
    checker.read(Entry(3, SYNCER, ev.Loaded(3, state)))
    return [str(violation) for violation in checker.violations]


def test_a_restart_after_the_cut_finds_what_the_image_told():
    assert loaded(begun(), STATE) == []


@pytest.mark.parametrize(
    "change",
    [
        {"merges": 8},
        {"merged_tokens": 71},
        {"epoch": 4},
        {"fragments": [StoredFragment(7, "other", "d6")]},
        {"members": {}},
    ],
)
def test_a_restart_that_finds_something_else_is_a_violation(change: dict[str, Any]):
    assert [text[:3] for text in loaded(begun(), replace(STATE, **change))] == ["I9 "]


def in_flight() -> SyncerMachine:
    machine = SyncerMachine(PARAMS)
    machine.desk.commit(MemberRecord(3, "bela", "key", 8, 1, 1))
    return machine


def test_a_record_on_its_way_when_the_tape_begins_counts_when_the_machine_hears_of_it():
    checker = begun(in_flight())
    assert checker.incarnations == {"anna": 2}
    checker.read(Entry(2, SYNCER, ev.Committed(2, 1, True, "")))
    assert checker.incarnations == {"anna": 2, "bela": 1}
    assert checker.in_flight == {}


def test_a_record_on_its_way_when_the_tape_begins_counts_if_a_restart_finds_it():
    members = STATE.members | {"bela": StoredMember("bela", "key", 1, 1, (8,))}
    assert loaded(begun(in_flight()), replace(STATE, members=members)) == []


def test_a_record_on_its_way_when_the_tape_begins_does_not_count_if_a_restart_does_not_find_it():
    checker = begun(in_flight())
    assert loaded(checker, STATE) == []
    assert checker.in_flight == {}


def test_a_record_on_its_way_counts_once_if_it_is_stored_after_the_beginning():
    checker = begun(in_flight())
    checker.read(Entry(2, SYNCER, Stored(MemberRecord(3, "bela", "key", 8, 1, 1), True)))
    checker.read(Entry(2, SYNCER, ev.Committed(2, 1, True, "")))
    assert checker.violations == []
