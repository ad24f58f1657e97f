"""What a restart of the syncer finds, held against what was stored; and versions that are given up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from atoll.core import events as ev
from atoll.core import records as rec
from atoll.invariants.books import Commit, Intervals
from atoll.tape.entries import Stored

if TYPE_CHECKING:
    from atoll.invariants.checker import Checker

__all__ = ["booted", "loaded", "roll_back"]


def booted(checker: Checker, actor: str, event: ev.Booted) -> None:
    """A new life of the syncer: whatever was under way is not any more."""
    checker.calm_since_ns = checker.now_ns
    checker.gathering.clear()
    checker.truths.clear()
    checker.liveness.restart()


def loaded(checker: Checker, actor: str, event: ev.Loaded) -> None:
    """I9: what the store holds is the fold of what was stored."""
    state = event.state
    is_safe = checker.params.durability == "merge"
    for problem in state.problems:
        if is_safe or "the fold gives" in problem:
            checker.broken("I9", problem)
    if not checker.versions:
        return
    _take_in_flight(checker, actor, state)
    if not is_safe:
        for p, fragment in enumerate(state.fragments):
            _fall_back(checker, p, Commit(fragment.version, fragment.digest, ()), (), "nobody")
    _compare(checker, state)
    checker.t = state.t
    checker.skipped.clear()


def roll_back(checker: Checker, back: rec.Rollback, by: str) -> None:
    """Versions are given up by a taped record."""
    _fall_back(checker, back.fragment, Commit(back.to_version, back.digest, ()), back.voided, by)


def _take_in_flight(checker: Checker, actor: str, state: rec.StoredState) -> None:
    """A record that was on its way when the tape begins, and is in the store, was stored before."""
    for record in checker.in_flight.values():
        match record:
            case rec.RoundRecord():
                is_there = record.version <= state.fragments[record.fragment].version
            case rec.MemberRecord():
                member = state.members.get(record.name)
                is_there = member is not None and record.incarnation <= member.incarnation
            case _:
                is_there = state.finished
        if is_there:
            checker.stored(actor, Stored(record, True))
    checker.in_flight = {}


def _compare(checker: Checker, state: rec.StoredState) -> None:
    for p, fragment in enumerate(state.fragments):
        last = checker.versions[p].last
        checker.num_checks["I9"] += 1
        if (fragment.version, fragment.digest) != last[:2]:
            checker.broken("I9", f"fragment {p}: found {fragment}, stored {last[:2]}")
    tokens, merges = checker.num_tokens, checker.num_merges
    checker.expect(
        "I9", state.merged_tokens == tokens, lambda: f"{state.merged_tokens} tokens, {tokens} stored"
    )
    checker.expect("I9", state.merges == merges, lambda: f"{state.merges} merges found, {merges} stored")
    found = {member.name: member.incarnation for member in state.members.values()}
    stored = checker.incarnations
    checker.expect("I9", found == stored, lambda: f"members {found} found, {stored} stored")
    if checker.params.durability == "merge":
        t = checker.stored_t
        checker.expect("I9", state.t == t, lambda: f"tick {state.t} found, {t} stored")
    epoch = checker.epoch
    checker.expect("I9", state.epoch == epoch, lambda: f"epoch {state.epoch} found, {epoch} stored")
    for (name, p), held in state.contributions.items():
        mine = [
            part.end
            for commit in checker.versions[p].commits
            for part in commit.contributors
            if part.name == name and part.incarnation == stored.get(name)
        ]
        checker.num_checks["I9"] += 1
        if mine and held.upto < mine[-1]:
            checker.broken("I9", f"{name}, fragment {p}: {held.upto} found, {mine[-1]} merged")


def _fall_back(checker: Checker, p: int, to: Commit, voided: Iterable[rec.Contributor], by: str) -> None:
    """I1: versions after one are lost, which `merge` durability allows to nobody but an operator."""
    chain = checker.versions[p]
    newest = chain.last.version
    if to.version >= newest:
        return
    checker.expect(
        "I1",
        checker.params.durability != "merge" or by == "operator",
        lambda: f"fragment {p} fell from {newest} to {to.version}, announced by {by}",
    )
    known = [part for commit in chain.fall_back(to) for part in commit.contributors]
    lost = {(part.name, part.incarnation, part.start, part.end) for part in (*known, *voided)}
    for name, incarnation, start, end in sorted(lost):
        checker.merged.setdefault((name, incarnation, p), Intervals()).remove(start)
        checker.voided.add((name, incarnation, p, start, end))
        checker.num_tokens -= end - start
    checker.num_merges -= newest - to.version
