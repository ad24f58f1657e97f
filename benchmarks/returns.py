"""Kills that are planned from a seed, and what a learner's tape says of its return."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.records import MemberRecord, RoundRecord
from atoll.runtime.store import read_run
from atoll.runtime.tape_file import TapeFile
from atoll.tape.entries import Entry

__all__ = ["Return", "came_back", "plan", "returns_of"]

FIRST, LAST = 5.0, 85.0
"""Percent of the budget: the first kill and the last one."""
KILLS_PER_SYNCER_KILL = 5


@dataclass(frozen=True, slots=True)
class Return:
    """One life of a learner after its first."""

    name: str
    incarnation: int
    steps: int | None
    """Its own, from its admission until it knew that an offer of it was merged; None: it never was."""
    ticks: int | None
    """Of the run, from its admission to the commit of that merge: healing counts here."""
    moments: str
    """Where its optimizer state came from: own, peer, fresh or none."""
    reason: str

    @property
    def is_own(self) -> bool:
        """Whether all of its optimizer state came from its own disk; what was not saved yet starts fresh."""
        return self.moments == "own" and "fresh" not in self.reason


def plan(num_kills: int, names: Sequence[str], seed: int) -> list[str]:
    """Who is killed when, as `atoll train --kill` has it: every fifth time the syncer, else a learner.

    Nobody is killed a second time before all others were killed once.
    """
    source = random.Random(seed)
    waiting: list[str] = []
    num_syncer = num_kills // KILLS_PER_SYNCER_KILL
    syncer_at = {(k + 1) * num_kills // (num_syncer + 1) for k in range(num_syncer)}
    kills = []
    for index in range(num_kills):
        share = FIRST + (LAST - FIRST) * index / max(1, num_kills - 1)
        if index in syncer_at:
            who = "syncer"
        else:
            waiting = waiting or source.sample(list(names), len(names))
            who = waiting.pop()
        kills.append(f"{who}@{share:.1f}%")
    return kills


def came_back(name: str, incarnation: int, entries: Iterable[Entry], rounds: Sequence[RoundRecord]) -> Return:
    """What the tape of one life says, and the records of the run's merges."""
    admitted_t, steps, moments, reason, is_merged = None, 0, "none", "", False
    for entry in entries:
        item = entry.item
        if isinstance(item, ev.MomentsRestored):
            moments, reason = item.source, item.reason
        elif isinstance(item, ev.Stepped) and not is_merged:
            steps += item.steps
        elif isinstance(item, ev.Received):
            message = item.message
            if isinstance(message, msg.Welcome) and admitted_t is None:
                admitted_t = message.t
            elif isinstance(message, msg.Publish):
                is_merged = is_merged or message.merged_upto > 0
    life = (name, incarnation)
    first = next((r for r in rounds if life in [(c.name, c.incarnation) for c in r.contributors]), None)
    ticks = None if first is None or admitted_t is None else first.t - admitted_t
    return Return(name, incarnation, steps if is_merged else None, ticks, moments, reason)


def returns_of(run_dir: Path) -> list[Return]:
    """Every life of every learner but the first ones, in the order of admission."""
    records = read_run(run_dir).records
    rounds = [record for record in records if isinstance(record, RoundRecord)]
    found = []
    for record in records:
        if isinstance(record, MemberRecord) and record.incarnation > 1:
            tape = TapeFile(run_dir / "learners" / record.name / f"tape-{record.life:012x}.db")
            found.append(came_back(record.name, record.incarnation, tape.read(), rounds))
            tape.close()
    return found
