"""What is kept of a run instead of its tape: counts, sums, and a digest of everything that was stored.

A ledger stands where the processes expect a tape and reads the same lines, so what it counts is what the core
saw and did. It keeps no line. Asked to, it hands them on to the checker of the invariants as they come,
up to a number of merges, or to a tape.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.records import MemberRecord, RoundRecord
from atoll.invariants import Checker
from atoll.tape.entries import Entry, Stored
from atoll.tape.tape import Tape, pack

__all__ = ["Ledger", "Life"]

LONG_STEP = 1.5
"""A step that took more than this many times the usual contains a pause."""


@dataclass(slots=True)
class Life:
    """One incarnation's steps."""

    name: str
    step_ns: int
    """The usual time for one."""
    steps: int = 0
    tokens: int = 0
    offered: int = 0
    """Tokens up to the end of its last offer."""
    shots: dict[int, int] = field(default_factory=dict)
    """Fragment -> steps at the last snapshot."""
    has_ended: bool = False

    @property
    def kept(self) -> int:
        """Tokens that count: a step does unless its incarnation died before offering it."""
        return min(self.tokens, self.offered) if self.has_ended else self.tokens


@dataclass(slots=True)
class Ledger(Tape):
    """Counts what happens; `entries` stays empty unless `keeps` is set."""

    keeps: bool = False
    checker: Checker | None = None
    check_merges: int = 0
    """The checker reads until so many merges are stored."""
    is_watched: bool = True
    """Whether anybody still wants the lines."""
    lives: dict[str, Life] = field(default_factory=dict)
    """Actor -> its life."""
    began: Counter[str] = field(default_factory=Counter)
    """Learner -> processes started."""
    admitted_ns: dict[str, int] = field(default_factory=dict)
    """Learner -> its first admission."""
    incarnations: dict[str, int] = field(default_factory=dict)
    merges: int = 0
    offers: int = 0
    merged_tokens: Counter[str] = field(default_factory=Counter)
    """Learner -> tokens merged, summed over fragments."""
    rounds: int = 0
    live: int = 0
    """Learners live when the rounds opened."""
    cancelled: int = 0
    held_ns: int = 0
    steps: int = 0
    starts_ns: array[int] = field(default_factory=lambda: array("q"))
    ends_ns: array[int] = field(default_factory=lambda: array("q"))
    stale_steps: int = 0
    stale_adoptions: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    """Fate -> tokens, summed over fragments."""
    hash: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))

    def add(self, at_ns: int, actor: str, item: Any) -> None:
        """Read one line."""
        reader = _READERS.get(type(item))
        if reader is not None:
            reader(self, at_ns, actor, item)
        if self.is_watched:
            self._hand_on(Entry(at_ns, actor, item))

    def _hand_on(self, entry: Entry) -> None:
        if self.checker is not None and self.merges <= self.check_merges:
            self.checker.read(entry)
        if self.keeps:
            self.entries.append(entry)
        self.is_watched = self.keeps or (self.checker is not None and self.merges <= self.check_merges)

    def digest(self) -> str:
        """One digest over every stored record and its time."""
        return str(self.hash.hexdigest())

    def begin_life(self, actor: str, name: str, step_ns: int) -> None:
        """A learner's process starts."""
        self.began[name] += 1
        self.lives[actor] = Life(name, step_ns)

    def end_life(self, actor: str) -> None:
        """It died: what it had not offered is lost."""
        self.lives[actor].has_ended = True

    def _stored(self, at_ns: int, actor: str, item: Stored) -> None:
        record = item.record
        self.hash.update(pack(Entry(at_ns, actor, item)))
        if type(record) is RoundRecord:
            self.merges += 1
            self.offers += len(record.contributors)
            for part in record.contributors:
                self.merged_tokens[part.name] += part.end - part.start
        elif type(record) is MemberRecord:
            self.admitted_ns.setdefault(record.name, at_ns)
            self.incarnations[record.name] = record.incarnation

    def _stepped(self, at_ns: int, actor: str, item: ev.Stepped) -> None:
        life = self.lives[actor]
        life.steps += item.steps
        life.tokens += item.tokens
        self.steps += item.steps
        self.held_ns += item.held_ns
        usual_ns = life.step_ns
        self.starts_ns.append(at_ns - (item.step_ns if item.step_ns < LONG_STEP * usual_ns else usual_ns))
        self.ends_ns.append(at_ns)

    def _told(self, at_ns: int, actor: str, item: do.Tell) -> None:
        message = item.message
        if type(message) is msg.Header:
            self.lives[actor].offered = message.end

    def _snapshot(self, at_ns: int, actor: str, item: do.Snapshot) -> None:
        life = self.lives[actor]
        life.shots[item.fragment] = life.steps

    def _adopted(self, at_ns: int, actor: str, item: do.Adopt) -> None:
        if item.merged:
            life = self.lives[actor]
            self.stale_steps += life.steps - life.shots[item.fragment]
            self.stale_adoptions += 1

    def _settled(self, at_ns: int, actor: str, item: do.Settle) -> None:
        self.fates[item.fate] += item.end - item.start

    def _opened(self, at_ns: int, actor: str, item: do.Opened) -> None:
        self.rounds += 1
        self.live += item.num_live

    def _noted(self, at_ns: int, actor: str, item: do.Note) -> None:
        if item.kind == "cancelled":
            self.cancelled += 1


_READERS: dict[type, Callable[[Ledger, int, str, Any], None]] = {
    Stored: Ledger._stored,
    ev.Stepped: Ledger._stepped,
    do.Tell: Ledger._told,
    do.Snapshot: Ledger._snapshot,
    do.Adopt: Ledger._adopted,
    do.Settle: Ledger._settled,
    do.Opened: Ledger._opened,
    do.Note: Ledger._noted,
}
