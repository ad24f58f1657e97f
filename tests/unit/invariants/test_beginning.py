"""A tape that was cut passes the same checks, and what is wrong after the cut is still found."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core.params import RunParams
from atoll.core.records import MemberRecord, RoundRecord
from atoll.core.syncer import SyncerMachine
from atoll.invariants import Checker, check
from atoll.tape.entries import SYNCER, Entry, Image, Stored
from atoll.tape.replay import expand
from tests.unit.invariants.cut_tapes import bare_tape, cut_at

CALM, STORMY = 10, 11


@pytest.fixture(scope="module")
def calm() -> tuple[list[Entry], RunParams]:
    return bare_tape(CALM, faults=False)


def violations(lines: list[Entry], params: RunParams) -> list[str]:
    return [str(violation) for violation in check(expand(lines, params), params).violations]


def in_the_middle(lines: list[Entry]):
    """Wanted by `cut_at`: half of the tape is over."""
    return lambda number, machine: number > len(lines) // 2


# Nothing misfires


@pytest.mark.parametrize("learners_too", [False, True])
@pytest.mark.parametrize("seed", [CALM, STORMY, 3, 5])
def test_a_tape_that_passes_whole_passes_wherever_it_is_cut(seed: int, learners_too: bool):
    lines, params = bare_tape(seed, faults=seed != CALM)
    assert violations(lines, params) == []
    draw = random.Random(seed)
    for _ in range(3):
        at = draw.randrange(len(lines) * 9 // 10)
        cut = cut_at(
            lines,
            params,
            lambda number, machine, at=at: number >= at and bool(machine.desk.state.fragments),
            learners_too=learners_too,
        )
        assert violations(cut, params) == []


def test_most_of_what_is_checked_on_a_whole_tape_is_checked_on_a_cut_one(calm):
    lines, params = calm
    cut = cut_at(lines, params, lambda number, machine: machine.desk.state.merges == 3)
    whole, rest = check(expand(lines, params), params), check(expand(cut, params), params)
    assert sum(rest.num_checks.values()) > sum(whole.num_checks.values()) * 3 // 4
    assert whole.num_checks.keys() - rest.num_checks.keys() == {"I8"}  # nobody's first offer came later


def test_a_cut_while_a_record_is_on_its_way_into_the_store_misses_nothing(calm):
    lines, params = calm
    stored_before = 0
    for at in [n for n, line in enumerate(lines) if rounds_of(line)][-4:]:
        cut = cut_at(lines, params, lambda number, machine, at=at: number == at)
        image = next(line.item for line in cut if isinstance(line.item, Image))
        assert violations(cut, params) == []
        stored_before += image.merges < last_state(cut, params).num_merges
    assert stored_before


def last_state(lines: list[Entry], params: RunParams) -> Checker:
    return check(expand(lines, params), params)


def test_at_the_end_the_checker_of_a_cut_tape_knows_what_that_of_the_whole_one_knows(calm):
    lines, params = calm
    cut = cut_at(lines, params, in_the_middle(lines))
    whole, rest = last_state(lines, params), last_state(cut, params)
    for name in (
        "epoch",
        "t",
        "served",
        "incarnations",
        "num_merges",
        "num_tokens",
        "has_finished",
        "owners",
    ):
        assert getattr(rest, name) == getattr(whole, name), name
    assert [chain.last for chain in rest.versions] == [chain.last for chain in whole.versions]


def test_an_image_behind_other_lines_is_not_listened_to(calm):
    lines, params = calm
    cut = cut_at(lines, params, in_the_middle(lines))
    image = next(line for line in cut if isinstance(line.item, Image))
    assert violations([*lines, image], params) == []
    assert last_state([*lines, image], params).num_merges == last_state(lines, params).num_merges


# What is wrong is found


def test_a_version_that_is_skipped_after_the_cut_is_found(calm):
    lines, params = calm
    cut = cut_at(lines, params, in_the_middle(lines))
    first = next(n for n, line in enumerate(cut) if rounds_of(line))
    del cut[first]
    assert any(text.startswith("I1 ") for text in violations(cut, params))


def rounds_of(line: Entry) -> RoundRecord | None:
    record = line.item.record if isinstance(line.item, Stored) else None
    return record if isinstance(record, RoundRecord) else None


def changed(lines: list[Entry], change) -> list[Entry]:
    """The same tape with the first contribution after the cut changed."""
    lines = list(lines)
    begins = next(n for n, line in enumerate(lines) if isinstance(line.item, Image))
    number = next(n for n in range(begins, len(lines)) if rounds_of(lines[n]))
    record = rounds_of(lines[number])
    assert record is not None
    part, *others = record.contributors
    item = Stored(replace(record, contributors=(change(part), *others)), True)
    lines[number] = lines[number]._replace(item=item)
    return lines


def test_tokens_that_were_merged_before_the_cut_and_are_merged_again_are_found(calm):
    lines, params = calm
    cut = cut_at(lines, params, in_the_middle(lines))
    twice = changed(cut, lambda part: part._replace(start=0))
    assert any(text.startswith("I2 ") for text in violations(twice, params))


def test_a_fenced_incarnation_after_the_cut_is_found(calm):
    lines, params = calm
    cut = cut_at(lines, params, in_the_middle(lines))
    fenced = changed(cut, lambda part: part._replace(incarnation=part.incarnation - 1))
    assert any("is fenced" in text for text in violations(fenced, params))


def test_a_base_from_before_the_cut_that_is_too_old_is_found(calm):
    lines, params = calm
    cut = cut_at(lines, params, in_the_middle(lines))
    stale = changed(cut, lambda part: part._replace(base_version=part.base_version - 2))
    assert any("base" in text for text in violations(stale, params))


def test_an_admission_that_skips_an_incarnation_after_the_cut_is_found(calm):
    lines, params = calm
    cut = cut_at(lines, params, in_the_middle(lines))
    name, known = next(iter(last_state(cut, params).incarnations.items()))
    record = MemberRecord(1, name, "key", 9, known + 2, 0)
    cut.append(Entry(lines[-1].at_ns, SYNCER, Stored(record, True)))
    assert any(f"incarnation {known + 2} admitted after {known}" in text for text in violations(cut, params))


def test_a_learner_that_claims_what_was_never_merged_is_found(calm):
    lines, params = calm
    cut = cut_at(lines, params, in_the_middle(lines))
    whole = list(expand(cut, params))
    actor = next(line.actor for line in whole if isinstance(line.item, do.Settle))
    claim = Entry(lines[-1].at_ns, actor, do.Settle(0, 1 << 40, 1 << 41, "merged"))
    found = check([*whole, claim], params).violations
    assert [violation.invariant for violation in found] == ["I5"]


def test_a_claim_before_the_seed_is_a_violation_once_the_tape_proves_to_be_whole(calm):
    lines, params = calm
    started = next(line for line in lines if isinstance(line.item, ev.Started))
    claim = Entry(started.at_ns, started.actor, do.Settle(0, 0, 8, "merged"))
    tape = list(expand(lines, params))
    at = tape.index(started) + 1
    assert "I5" in {v.invariant for v in check([*tape[:at], claim, *tape[at:]], params).violations}


def test_a_restart_that_finds_other_sums_than_the_image_tells_is_found():
    lines, params = bare_tape(STORMY, faults=True)
    boots = [n for n, line in enumerate(lines) if isinstance(line.item, ev.Booted)]

    def before_the_last_boot(number: int, machine: SyncerMachine) -> bool:
        return number > boots[-2] and bool(machine.desk.state.merges)

    assert len(boots) > 1
    cut = cut_at(lines, params, before_the_last_boot)
    at = next(n for n, line in enumerate(cut) if isinstance(line.item, ev.Loaded))
    event = cut[at].item
    assert isinstance(event, ev.Loaded)
    state = replace(event.state, merged_tokens=event.state.merged_tokens + 1)
    cut[at] = cut[at]._replace(item=replace(event, state=state))
    assert any("tokens" in text for text in violations(cut, params) if text.startswith("I9 "))
