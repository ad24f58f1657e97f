"""What must be true of every run, checked over its tape.

The checker is a second opinion: it shares no decision with the machines. It reads what was
stored, said and reported, keeps its own books, and compares.

I1  A fragment's version rises by one per commit and never falls, except at a taped rollback
    outside `merge` durability.
I2  Merged token intervals of one (learner, incarnation, fragment) are disjoint.
I3  No commit has fewer than K contributors.
I4  None is from a fenced incarnation, an earlier epoch, or on a base that is not current or previous.
I5  The account is exact: every token of an incarnation has one fate, and what a merge contains
    is what its offers said.
I6  What was published was stored first, in `merge` durability on disk.
I7  In `decoupled`, a learner is never held.
I8  At its first offer a learner holds every fragment at the current or previous version.
I9  The fold of the stored records is the state that a restart finds.
I10 While K healed learners step and hear, the store can be written and the budget is open, a
    merge commits within the live deadline; after healing, every fragment merges within 3 H steps,
    nobody on a slow link is starved, and the run finishes when asked to.
I11 Every committed value is finite.
I12 t never falls; a leap of more than half a cycle fires none of the rounds it passes over.
I13 A fragment has one round at a time, at most tau rounds gather, and in `decoupled` the grace
    window of none stays open for longer than one step.
I14 Weights are c_tokens^2 / c_steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core import records as rec
from atoll.core.params import RunParams
from atoll.tape.entries import SYNCER, Content, Entry, Milestone, Stored, Truth

__all__ = ["Checker", "Violation", "check"]

MAX_HELD_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant, when and how."""

    invariant: str
    at_ns: int
    text: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.at_ns / 1e9:.3f} s: {self.text}"


class Commit(NamedTuple):
    """The checker's memory of one version of a fragment."""

    version: int
    digest: str
    contributors: tuple[rec.Contributor, ...]


class Intervals:
    """Disjoint half-open intervals with a label each."""

    __slots__ = ("_starts", "rows")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self.rows: list[tuple[int, int, str]] = []

    def add(self, start: int, end: int, label: str) -> tuple[int, int, str] | None:
        """Insert; returns the row it overlaps with, if any (and does not insert then)."""
        at = bisect_left(self._starts, start)
        for row in self.rows[max(0, at - 1) : at + 1]:
            if row[0] < end and start < row[1]:
                return row
        self._starts.insert(at, start)
        self.rows.insert(at, (start, end, label))
        return None


    def remove(self, start: int) -> None:
        """Take the interval that begins there out again."""
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == start:
            del self._starts[at], self.rows[at]


@dataclass(slots=True)
class Seen:
    """What the checker knows of one learner from its reports."""

    incarnation: int = 0
    clock: int = -1
    good_since_ns: int = -1
    """Since when it is healed, stepping and hearing, without a gap; -1: it is not."""
    moved_ns: int = 0
    heard_ns: int = 0
    echo_ns: int = 0
    healed: bool = False


@dataclass(slots=True)
class Checker:
    """Reads a tape once, in order."""

    params: RunParams
    violations: list[Violation] = field(default_factory=list)
    num_checks: Counter[str] = field(default_factory=Counter)
    now_ns: int = 0
    versions: list[list[Commit]] = field(default_factory=list)
    """Fragment -> its versions, as far as they count now; index 0 is the seed."""
    served: list[int] = field(default_factory=list)
    """Fragment -> the version that the syncer knows to be stored."""
    epoch: int = 0
    incarnations: dict[str, int] = field(default_factory=dict)
    merged: dict[tuple[str, int, int], Intervals] = field(default_factory=dict)
    """(name, incarnation, fragment) -> merged intervals that count."""
    voided: set[tuple[str, int, int, int, int]] = field(default_factory=set)
    """(name, incarnation, fragment, start, end) that were merged and then lost by a rollback."""
    settled: dict[tuple[str, int, int], Intervals] = field(default_factory=dict)
    owners: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Actor -> (name, incarnation)."""
    headers: dict[tuple[str, int, int, int, int], tuple[msg.Header, list[int]]] = field(default_factory=dict)
    first_header: dict[tuple[str, int], tuple[str, int, int, int, int]] = field(default_factory=dict)
    truths: dict[tuple[int, int], tuple[Content, ...]] = field(default_factory=dict)
    seen: dict[str, Seen] = field(default_factory=dict)
    calm_since_ns: int = 0
    """Start of the time in which only I10's own reasons excuse a missing merge."""
    is_open: bool = True
    has_finished: bool = False
    gathering: dict[int, int] = field(default_factory=dict)
    """Fragment -> round that waits for headers."""
    offered_at: dict[int, dict[str, int]] = field(default_factory=dict)
    """Fragment -> learner -> time of its header, for the rounds that gather."""
    step_ns: dict[str, int] = field(default_factory=dict)
    turn_ns: int = 0
    """Time of the syncer's last event: a paused syncer is not to blame."""
    t: int = 0
    skipped: list[tuple[int, int]] = field(default_factory=list)
    healed_ns: int = -1
    merged_since_heal: set[int] = field(default_factory=set)
    late_bodies: Counter[str] = field(default_factory=Counter)
    parts_since_heal: Counter[str] = field(default_factory=Counter)

    def read(self, entry: Entry) -> None:
        """Take in one line."""
        self.now_ns = entry.at_ns
        handler = _HANDLERS.get(type(entry.item))
        if handler is not None:
            handler(self, entry.actor, entry.item)

    def expect(self, invariant: str, ok: bool, text: Callable[[], str]) -> None:
        """One check."""
        self.num_checks[invariant] += 1
        if not ok:
            self.violations.append(Violation(invariant, self.now_ns, text()))

    # The store

    def _stored(self, actor: str, item: Stored) -> None:
        record = item.record
        match record:
            case rec.RoundRecord():
                self._round(record)
            case rec.MemberRecord():
                known = self.incarnations.get(record.name, 0)
                self.expect(
                    "I4",
                    record.incarnation == known + 1,
                    lambda: f"{record.name}: incarnation {record.incarnation} admitted after {known}",
                )
                self.incarnations[record.name] = record.incarnation
            case rec.EpochRecord():
                self.expect(
                    "I4", record.epoch == self.epoch + 1, lambda: f"epoch {record.epoch} after {self.epoch}"
                )
                self.epoch = record.epoch
                for back in record.rollbacks:
                    self._fall_back(back.fragment, back.to_version, taped=True)
                self.served = [chain[-1].version for chain in self.versions]
            case rec.SeedRecord():
                self.expect("I1", not self.versions, lambda: "the run was seeded twice")
                self.versions = [[Commit(0, digest, ())] for digest in record.digests]
                self.served = [0] * len(record.digests)
            case rec.FinishRecord():
                self.is_open = False
                self.has_finished = True

    def _round(self, record: rec.RoundRecord) -> None:
        p, parts = record.fragment, record.contributors
        chain = self.versions[p]
        self.calm_since_ns = self.now_ns
        if self.healed_ns >= 0:
            self.merged_since_heal.add(p)
        self.expect(
            "I1",
            record.version == chain[-1].version + 1,
            lambda: f"fragment {p}: version {record.version} after {chain[-1].version}",
        )
        self.expect(
            "I3",
            len(parts) >= self.params.min_quorum,
            lambda: f"fragment {p} version {record.version}: {len(parts)} of {self.params.min_quorum} offers",
        )
        self.expect("I4", record.epoch == self.epoch, lambda: f"commit of epoch {record.epoch} in {self.epoch}")
        contents = self.truths.pop((p, record.version), ())
        truth = {content.name: content for content in contents}
        for part in parts:
            self._contributor(record, part, truth.get(part.name))
        chain.append(Commit(record.version, record.digest, parts))

    def _contributor(self, record: rec.RoundRecord, part: rec.Contributor, truth: Content | None) -> None:
        p, who = record.fragment, f"{part.name} (incarnation {part.incarnation})"
        chain = self.versions[p]
        if self.healed_ns >= 0:
            self.parts_since_heal[part.name] += 1
        self.expect(
            "I4",
            part.incarnation == self.incarnations.get(part.name),
            lambda: f"{who} is fenced, {self.incarnations.get(part.name)} holds the name",
        )
        lag = chain[-1].version - part.base_version
        self.expect("I4", 0 <= lag <= 1, lambda: f"{who}: base {part.base_version} on {chain[-1].version}")
        key = (part.name, part.incarnation, p)
        clash = self.merged.setdefault(key, Intervals()).add(part.start, part.end, "merged")
        self.expect(
            "I2", clash is None, lambda: f"{who}, fragment {p}: [{part.start}, {part.end}) overlaps {clash}"
        )
        for row in self.settled.get(key, _NO_INTERVALS).rows:
            wrong = row[2] != "merged" and row[0] < part.end and part.start < row[1]
            self.expect(
                "I5", not wrong, lambda row=row: f"{who}, fragment {p}: {row} was merged after all"
            )
        tokens = part.end - part.start
        self.expect(
            "I14",
            part.weight == tokens * tokens / max(1, part.steps),
            lambda: f"{who}: weight {part.weight} for {tokens} tokens in {part.steps} steps",
        )
        self._first_offer(record, part, who)
        if truth is not None:
            self._compare_truth(record, part, truth, who)

    def _compare_truth(
        self, record: rec.RoundRecord, part: rec.Contributor, truth: Content, who: str
    ) -> None:
        chain = self.versions[record.fragment]
        self.expect(
            "I5",
            (part.start, part.end) == (truth.start, truth.end),
            lambda: f"{who}: header says [{part.start}, {part.end}), body has [{truth.start}, {truth.end})",
        )
        self.expect(
            "I5",
            part.incarnation == truth.incarnation,
            lambda: f"{who}: the body is of incarnation {truth.incarnation}",
        )
        bases = [commit.digest for commit in chain if commit.version == part.base_version]
        self.expect(
            "I4", truth.base_digest in bases, lambda: f"{who}: the body is based on {truth.base_digest}"
        )
        self.expect("I11", truth.finite, lambda: f"{who}: a delta that is not finite was merged")

    def _first_offer(self, record: rec.RoundRecord, part: rec.Contributor, who: str) -> None:
        key = (part.name, part.incarnation, record.epoch, record.fragment, record.round)
        if self.first_header.get(key[:2]) != key:
            return
        header, current = self.headers[key]
        behind = [
            (p, version, now)
            for p, (version, now) in enumerate(zip(header.bases, current, strict=True))
            if not 0 <= now - version <= 1
        ]
        self.expect("I8", not behind, lambda: f"{who}: first offer with (fragment, base, current) {behind}")

    def _truth(self, actor: str, item: Truth) -> None:
        self.truths[item.fragment, item.version] = item.contents

    # Restarts

    def _booted(self, actor: str, event: ev.Booted) -> None:
        self.calm_since_ns = self.now_ns
        self.gathering.clear()
        self.offered_at.clear()
        self.truths.clear()
        self.seen.clear()

    def _loaded(self, actor: str, event: ev.Loaded) -> None:
        state = event.state
        is_safe = self.params.durability == "merge"
        for problem in state.problems:
            wrong = is_safe or "the fold gives" in problem
            self.expect("I9", not wrong, lambda problem=problem: problem)
        if not self.versions:
            return
        if not is_safe:
            for p, fragment in enumerate(state.fragments):
                self._fall_back(p, fragment.version, taped=False)
        self._compare_state(state)
        self.t = state.t
        self.skipped.clear()

    def _compare_state(self, state: rec.StoredState) -> None:
        for p, fragment in enumerate(state.fragments):
            last = self.versions[p][-1]
            self.expect(
                "I9",
                (fragment.version, fragment.digest) == last[:2],
                lambda p=p, fragment=fragment, last=last: f"fragment {p}: found {fragment}, stored {last[:2]}",
            )
        parts = [part for chain in self.versions for commit in chain for part in commit.contributors]
        tokens = sum(part.end - part.start for part in parts)
        self.expect(
            "I9", state.merged_tokens == tokens, lambda: f"{state.merged_tokens} tokens found, {tokens} stored"
        )
        merges = sum(len(chain) - 1 for chain in self.versions)
        self.expect("I9", state.merges == merges, lambda: f"{state.merges} merges found, {merges} stored")
        found = {member.name: member.incarnation for member in state.members.values()}
        self.expect(
            "I9", found == self.incarnations, lambda: f"members {found} found, {self.incarnations} stored"
        )
        self.expect("I9", state.epoch == self.epoch, lambda: f"epoch {state.epoch} found, {self.epoch} stored")
        for (name, p), held in state.contributions.items():
            mine = [
                part.end
                for commit in self.versions[p]
                for part in commit.contributors
                if part.name == name and part.incarnation == self.incarnations.get(name)
            ]
            if mine:
                self.expect(
                    "I9",
                    held.upto >= mine[-1],
                    lambda name=name, held=held, mine=mine: f"{name}: {held.upto} found, {mine[-1]} merged",
                )

    def _fall_back(self, p: int, version: int, *, taped: bool) -> None:
        chain = self.versions[p]
        if version < chain[-1].version:
            self.expect(
                "I1",
                self.params.durability != "merge",
                lambda: f"fragment {p} fell from {chain[-1].version} to {version} (taped: {taped})",
            )
            for commit in chain[version + 1 :]:
                for part in commit.contributors:
                    key = (part.name, part.incarnation, p)
                    self.merged[key].remove(part.start)
                    self.voided.add((*key, part.start, part.end))
            del chain[version + 1 :]

    # What the syncer says and hears

    def _send(self, actor: str, item: do.Send) -> None:
        message = item.message
        if isinstance(message, msg.Publish):
            p, version = message.fragment, message.version
            chain = self.versions[p] if self.versions else []
            self.expect(
                "I6",
                version < len(chain) and chain[version].digest == message.digest,
                lambda: f"fragment {p}: version {version} published, {chain[-1:]} stored",
            )

    def _received(self, actor: str, event: ev.Received) -> None:
        message = event.message
        if actor != SYNCER:
            return
        self._turn()
        if isinstance(message, msg.Report):
            self._report(message)
        elif isinstance(message, msg.Header) and message.epoch == self.epoch:
            is_current = message.incarnation == self.incarnations.get(message.name)
            if is_current and self.gathering.get(message.fragment) == message.round:
                self.offered_at[message.fragment].setdefault(message.name, self.now_ns)
            key = (message.name, message.incarnation, message.epoch, message.fragment, message.round)
            if key not in self.headers:
                self.headers[key] = (message, list(self.served))
                self.first_header.setdefault(key[:2], key)

    def _report(self, report: msg.Report) -> None:
        self.num_checks["I5"] += len(report.holdings)
        for p, holding in enumerate(report.holdings):
            if holding.origin != holding.merged + holding.discarded + holding.pending:
                self.expect("I5", False, lambda p=p, h=holding: f"{report.name}, fragment {p}: {h}")
        if self.params.algorithm == "decoupled":
            self.expect(
                "I7",
                report.held_ns <= MAX_HELD_NS and report.held_on < 0,
                lambda: f"{report.name} was held for {report.held_ns} ns",
            )
        if report.epoch == self.epoch and report.incarnation == self.incarnations.get(report.name):
            self.step_ns[report.name] = max(report.step_ns, self.step_ns.get(report.name, 0))
            self._watch(report)

    def _watch(self, report: msg.Report) -> None:
        """I10: since when is this learner healed, stepping and hearing?"""
        seen = self.seen.setdefault(report.name, Seen())
        if seen.incarnation != report.incarnation:
            self.seen[report.name] = seen = Seen(report.incarnation)
            seen.echo_ns = self.now_ns
        if report.clock > seen.clock or report.held_on >= 0:
            seen.clock, seen.moved_ns = report.clock, self.now_ns
        seen.heard_ns = self.now_ns
        seen.echo_ns = max(seen.echo_ns, report.echo_ns)
        seen.healed = bool(self.versions) and all(
            0 <= chain[-1].version - holding.version <= 1
            and holding.digest == chain[holding.version].digest
            for holding, chain in zip(report.holdings, self.versions, strict=True)
        )
        self._judge(seen)

    def _judge(self, seen: Seen) -> None:
        oldest = min(seen.heard_ns, seen.echo_ns, seen.moved_ns)
        if not seen.healed or self.now_ns - oldest > self.params.alive_ns:
            seen.good_since_ns = -1
        elif seen.good_since_ns < 0:
            seen.good_since_ns = self.now_ns

    def _timer(self, actor: str, event: ev.TimerFired) -> None:
        """At every beat of the syncer: is a merge overdue?"""
        if actor != SYNCER:
            return
        self._turn()
        if event.key != "beat" or not self.is_open:
            return
        for seen in self.seen.values():
            self._judge(seen)
        good = sorted(seen.good_since_ns for seen in self.seen.values() if seen.good_since_ns >= 0)
        if len(good) >= self.params.min_quorum:
            since = max(self.calm_since_ns, good[self.params.min_quorum - 1])
            self.expect(
                "I10",
                self.now_ns - since <= self.params.live_ns,
                lambda: f"no merge for {(self.now_ns - since) / 1e9:.1f} s with {len(good)} learners ready",
            )

    def _turn(self) -> None:
        """At every event of the syncer: was a grace window overdue at the one before already?"""
        if self.params.waits or self.now_ns == self.turn_ns:
            return
        before, self.turn_ns = self.turn_ns, self.now_ns
        for p, times in self.offered_at.items():
            if len(times) >= self.params.min_quorum:
                quorum_ns = sorted(times.values())[self.params.min_quorum - 1]
                limit_ns = quorum_ns + max(self.step_ns.values(), default=0)
                self.expect(
                    "I13",
                    before <= limit_ns,
                    lambda p=p, q=quorum_ns: f"fragment {p}: open {(self.now_ns - q) / 1e9:.1f} s after quorum",
                )

    def _store_answered(self, actor: str, event: ev.Committed | ev.DeltaPut) -> None:
        if not event.ok:
            self.calm_since_ns = self.now_ns

    # Rounds and ticks

    def _install(self, actor: str, item: do.Install) -> None:
        if item.fragment >= 0:
            self.served[item.fragment] = item.version

    def _ticked(self, actor: str, item: do.Ticked) -> None:
        leap = item.to_tick - item.from_tick
        self.expect("I12", item.from_tick >= self.t and leap > 0, lambda: f"t went {self.t} -> {item}")
        self.t = item.to_tick
        allowed = max(1, self.params.interval_steps // 2)
        self.expect(
            "I12", item.skipped or leap <= allowed, lambda: f"t leapt {leap} ticks and fired their rounds"
        )
        if item.skipped:
            self.skipped = [*self.skipped[-8:], (item.from_tick, item.to_tick)]

    def _opened(self, actor: str, item: do.Opened) -> None:
        p = item.fragment
        self.expect("I13", p not in self.gathering, lambda: f"fragment {p} has two rounds")
        self.gathering[p] = item.round
        self.offered_at[p] = {}
        self.expect(
            "I13",
            len(self.gathering) <= self.params.overlap_steps,
            lambda: f"{len(self.gathering)} rounds gather, tau is {self.params.overlap_steps}",
        )
        inside = [leap for leap in self.skipped if leap[0] < item.due < leap[1]]
        self.expect("I12", not inside, lambda: f"fragment {p} fired for tick {item.due} inside {inside}")

    def _note(self, actor: str, item: do.Note) -> None:
        if item.kind in ("closed", "cancelled"):
            self.gathering.pop(item.fragment, None)
            self.offered_at.pop(item.fragment, None)
        elif item.kind == "drain":
            self.is_open = False
        elif item.kind == "dropped":
            self.offered_at.get(item.fragment, {}).pop(item.who, None)
            if item.reason.startswith("late: no body") and self.healed_ns >= 0:
                self.late_bodies[item.who] += 1

    # The learners' side

    def _started(self, actor: str, event: ev.Started) -> None:
        self.owners[actor] = (event.name, 0)

    def _tell(self, actor: str, item: do.Tell) -> None:
        message = item.message
        if isinstance(message, msg.Report):
            self.owners[actor] = (message.name, message.incarnation)

    def _settle(self, actor: str, item: do.Settle) -> None:
        name, incarnation = self.owners[actor]
        key = (name, incarnation, item.fragment)
        clash = self.settled.setdefault(key, Intervals()).add(item.start, item.end, item.fate)
        who = f"{name} (incarnation {incarnation}), fragment {item.fragment}"
        self.expect("I5", clash is None, lambda: f"{who}: {item} overlaps {clash}")
        merged = self.merged.get(key, _NO_INTERVALS).rows
        if item.fate == "merged":
            known = any(row[:2] == (item.start, item.end) for row in merged)
            known = known or (*key, item.start, item.end) in self.voided
            self.expect("I5", known, lambda: f"{who}: [{item.start}, {item.end}) was never merged")
        else:
            over = [row for row in merged if row[0] < item.end and item.start < row[1]]
            self.expect("I5", not over, lambda: f"{who}: {item} contradicts the commit of {over}")

    # The parts of a simulated run

    def _milestone(self, actor: str, item: Milestone) -> None:
        if item.name == "healed":
            self.healed_ns = self.now_ns
            self.calm_since_ns = self.now_ns
        elif item.name == "live":
            missing = sorted(set(range(self.params.num_fragments)) - self.merged_since_heal)
            self.expect(
                "I10",
                not missing or self.has_finished,
                lambda: f"fragments {missing} have not merged within 3 H steps of healing",
            )
        elif item.name == "end":
            self.expect("I10", self.has_finished, lambda: "the run did not finish when asked to")
            starved = [
                name
                for name, count in sorted(self.late_bodies.items())
                if count >= 3 and not self.parts_since_heal[name]
            ]
            self.expect("I10", not starved, lambda: f"{starved}: every body was dropped as late")


_NO_INTERVALS = Intervals()

_HANDLERS: dict[type, Callable[[Checker, str, Any], None]] = {
    Stored: Checker._stored,
    Truth: Checker._truth,
    Milestone: Checker._milestone,
    ev.Booted: Checker._booted,
    ev.Loaded: Checker._loaded,
    ev.Received: Checker._received,
    ev.TimerFired: Checker._timer,
    ev.Committed: Checker._store_answered,
    ev.DeltaPut: Checker._store_answered,
    ev.Started: Checker._started,
    do.Send: Checker._send,
    do.Install: Checker._install,
    do.Ticked: Checker._ticked,
    do.Opened: Checker._opened,
    do.Note: Checker._note,
    do.Tell: Checker._tell,
    do.Settle: Checker._settle,
}


def check(entries: Iterable[Entry], params: RunParams) -> Checker:
    """Check a whole tape; the checker that comes back holds the violations and the counts."""
    checker = Checker(params)
    for entry in entries:
        checker.read(entry)
    return checker
