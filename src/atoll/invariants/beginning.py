"""A tape that was cut begins with an image: the checker takes from it what it would know by now.

It is the one place where the checker believes a machine. What came before the image is known as far as the
machine still needs it: current versions and the ones before, the sum of what each incarnation has merged, the
rounds under way. Checks that need more are skipped, until what they need has happened after the image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.core.learner import LearnerMachine
from atoll.core.round import Phase
from atoll.core.syncer import SyncerMachine
from atoll.invariants.books import Chain, Commit, Intervals
from atoll.invariants.learners import BEFORE
from atoll.tape.entries import SYNCER, Image
from atoll.tape.image import machine_from

if TYPE_CHECKING:
    from atoll.invariants.checker import Checker

__all__ = ["image"]


def image(checker: Checker, actor: str, item: Image) -> None:
    """Begin with this state, unless the lines above have told it already."""
    if checker.epoch if actor == SYNCER else actor in checker.owners:
        return
    machine = machine_from(item.content)
    if isinstance(machine, LearnerMachine):
        checker.owners[actor] = (machine.name, machine.incarnation)
    else:
        _take_state(checker, machine)
        _take_rounds(checker, machine)
        checker.door.take(machine, checker.now_ns)


def _take_state(checker: Checker, machine: SyncerMachine) -> None:
    """What is stored, as the machine knows it."""
    desk, state = machine.desk, machine.desk.state
    checker.epoch, checker.t, checker.stored_t = state.epoch, desk.schedule.t, state.t
    checker.is_open = not machine.drain_reason and not state.finished
    checker.has_finished = state.finished
    checker.calm_since_ns = checker.now_ns
    checker.num_merges, checker.num_tokens = state.merges, state.merged_tokens
    checker.unproven = []
    for fragment in state.fragments:
        current = Commit(fragment.version, fragment.digest, ())
        before = [Commit(fragment.version - 1, fragment.previous_digest, ())] if fragment.version else []
        checker.versions.append(Chain([*before, current]))
    checker.served = [fragment.version for fragment in state.fragments]
    checker.incarnations = {member.name: member.incarnation for member in state.members.values()}
    checker.known_from = dict(checker.incarnations)
    for (name, p), held in state.contributions.items():
        intervals = checker.merged.setdefault((name, checker.incarnations[name], p), Intervals())
        intervals.add(0, held.upto, BEFORE)
    checker.in_flight = {ticket: pending.record for ticket, pending in desk.pending.items()}


def _take_rounds(checker: Checker, machine: SyncerMachine) -> None:
    """What is under way: rounds that gather, and every offer that may still be merged."""
    for session in machine.desk.sessions.values():
        checker.liveness.step_ns[session.name] = session.step_ns
        if session.has_offered:
            # I8 is about the first offer, which came before: no key is this one.
            checker.first_header[session.name, session.incarnation] = ("", 0, 0, 0, 0)
    for p, rnd in machine.rounds.open.items():
        for header in rnd.headers.values():
            key = (header.name, header.incarnation, header.epoch, p, rnd.number)
            checker.headers[key] = (header, list(checker.served))
        if rnd.phase is Phase.GATHER:
            checker.gathering[p] = rnd.number
            checker.liveness.offered_at[p] = dict(rnd.offered_at_ns)
