"""Reads a tape once, in order, keeps its own books and compares: see the package for the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core import records as rec
from atoll.core.params import RunParams
from atoll.invariants import beginning, door, learners, restarts
from atoll.invariants.books import NO_INTERVALS, Chain, Commit, Intervals, Violation
from atoll.invariants.door import Door
from atoll.invariants.liveness import NEVER, Liveness
from atoll.tape.entries import SYNCER, Content, Entry, Image, Milestone, Stored, Truth

__all__ = ["Checker", "check"]

MAX_HELD_NS = 1_000_000


@dataclass(slots=True)
class Checker:
    """Reads a tape once, in order."""

    params: RunParams
    violations: list[Violation] = field(default_factory=list)
    slack_ns: int = 0
    """How late timers may fire: 0 in virtual time."""
    num_checks: Counter[str] = field(default_factory=Counter)
    now_ns: int = 0
    versions: list[Chain] = field(default_factory=list)
    """Fragment -> its versions, as far as they count now."""
    num_merges: int = 0
    num_tokens: int = 0
    """In the versions that count."""
    served: list[int] = field(default_factory=list)
    """Fragment -> the version that the syncer knows to be stored."""
    epoch: int = 0
    incarnations: dict[str, int] = field(default_factory=dict)
    merged: dict[tuple[str, int, int], Intervals] = field(default_factory=dict)
    """(name, incarnation, fragment) -> merged intervals that count."""
    voided: set[tuple[str, int, int, int, int]] = field(default_factory=set)
    """(name, incarnation, fragment, start, end) that were merged and then lost by a rollback."""
    settled: dict[tuple[str, int, int], Intervals] = field(default_factory=dict)
    unproven: list[Violation] = field(default_factory=list)
    """What would be violations if the tape began at the beginning, which is not known before it is seeded."""
    known_from: dict[str, int] = field(default_factory=dict)
    """Name -> the first incarnation whose merges are known; all, unless the tape was cut."""
    in_flight: dict[int, rec.Record] = field(default_factory=dict)
    """Ticket -> a record that may have been stored before the tape begins."""
    owners: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Actor -> (name, incarnation)."""
    headers: dict[tuple[str, int, int, int, int], tuple[msg.Header, list[int]]] = field(default_factory=dict)
    first_header: dict[tuple[str, int], tuple[str, int, int, int, int]] = field(default_factory=dict)
    finite: dict[int, bool] = field(default_factory=dict)
    """Fragment -> whether the values of its last merge are finite."""
    truths: dict[tuple[int, int], tuple[Content, ...]] = field(default_factory=dict)
    liveness: Liveness = field(init=False)
    door: Door = field(default_factory=Door)
    known_epochs: dict[str, int] = field(default_factory=dict)
    """Actor -> the epoch of its newest report."""
    rewound: dict[str, int] = field(default_factory=dict)
    """Actor -> the tick at which its clock must stand in its next report."""
    stored_t: int = 0
    """The tick of the newest record."""
    calm_since_ns: int = 0
    """Start of the time in which only I10's own reasons excuse a missing merge."""
    is_open: bool = True
    has_finished: bool = False
    gathering: dict[int, int] = field(default_factory=dict)
    """Fragment -> round that waits for headers."""
    t: int = 0
    skipped: list[tuple[int, int]] = field(default_factory=list)
    healed_ns: int = -1
    merged_since_heal: set[int] = field(default_factory=set)
    late_bodies: Counter[str] = field(default_factory=Counter)
    parts_since_heal: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.liveness = Liveness(self.params, slack_ns=self.slack_ns)

    def read(self, entry: Entry) -> None:
        """Take in one line."""
        self.now_ns = entry.at_ns
        handler = _HANDLERS.get(type(entry.item))
        if handler is not None:
            handler(self, entry.actor, entry.item)

    def expect(self, invariant: str, ok: bool, text: Callable[[], str]) -> None:
        """One check; the text is only made if it fails."""
        self.num_checks[invariant] += 1
        if not ok:
            self.broken(invariant, text())

    def broken(self, invariant: str, text: str) -> None:
        """One check that failed."""
        self.violations.append(Violation(invariant, self.now_ns, text))

    # The store

    def stored(self, actor: str, item: Stored) -> None:
        """A record counts from here on."""
        record = item.record
        self.in_flight = {ticket: other for ticket, other in self.in_flight.items() if other != record}
        match record:
            case rec.RoundRecord():
                self._round(record)
                self.expect(
                    "I6",
                    item.synced or self.params.durability != "merge",
                    lambda: f"fragment {record.fragment} version {record.version} is not on disk",
                )
            case rec.MemberRecord():
                known = self.incarnations.get(record.name, 0)
                self.expect(
                    "I4",
                    record.incarnation == known + 1,
                    lambda: f"{record.name}: incarnation {record.incarnation} admitted after {known}",
                )
                self.incarnations[record.name] = record.incarnation
                self.door.admitted(record, self.now_ns)
            case rec.EpochRecord():
                self.expect(
                    "I4", record.epoch == self.epoch + 1, lambda: f"epoch {record.epoch} after {self.epoch}"
                )
                self.epoch = record.epoch
                self.liveness.restart()
                self.door = Door(shards=self.door.shards, active_ns=self.now_ns)
                for back in record.rollbacks:
                    restarts.roll_back(self, back, "operator" if record.t >= 0 else "tape")
                if record.t >= 0:
                    self.t, self.is_open, self.has_finished = record.t, True, False
                    self.stored_t = record.t
                self.served = [chain.last.version for chain in self.versions]
            case rec.SeedRecord():
                self.expect("I1", not self.versions, lambda: "the run was seeded twice")
                self.versions = [Chain([Commit(0, digest, ())]) for digest in record.digests]
                self.served = [0] * len(record.digests)
                self.violations += self.unproven
                self.unproven = []
            case rec.FinishRecord():
                self.is_open = False
                self.has_finished = True
                self.stored_t = max(self.stored_t, record.t)

    def _round(self, record: rec.RoundRecord) -> None:
        p, parts = record.fragment, record.contributors
        chain = self.versions[p]
        self.calm_since_ns = self.now_ns
        self.stored_t = max(self.stored_t, record.t)
        if self.healed_ns >= 0:
            self.merged_since_heal.add(p)
        self.expect(
            "I1",
            record.version == chain.last.version + 1,
            lambda: f"fragment {p}: version {record.version} after {chain.last.version}",
        )
        self.expect(
            "I3",
            len(parts) >= self.params.min_quorum,
            lambda: f"fragment {p} version {record.version}: {len(parts)} of {self.params.min_quorum} offers",
        )
        self.expect(
            "I4", record.epoch == self.epoch, lambda: f"commit of epoch {record.epoch} in {self.epoch}"
        )
        self.expect(
            "I11", self.finite.get(p, True), lambda: f"fragment {p}: the merged values are not finite"
        )
        self.expect("I14", self._is_shared(parts), lambda: f"fragment {p}: {parts} exceed their share")
        contents = self.truths.pop((p, record.version), ())
        truth = {content.name: content for content in contents}
        for part in parts:
            self._contributor(record, part, truth.get(part.name))
        chain.commits.append(Commit(record.version, record.digest, parts))
        self.num_merges += 1
        self.num_tokens += sum(part.end - part.start for part in parts)

    def _is_shared(self, parts: tuple[rec.Contributor, ...]) -> bool:
        """Nobody has more than its share of the weight; all are equal if they are too few for that."""
        weights, share = [part.weight for part in parts], self.params.max_share
        if share * len(parts) <= 1.0:
            return len(parts) == 1 or share >= 1.0 or len(set(weights)) == 1
        return max(weights) <= share * sum(weights) * (1 + 1e-9)

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
        lag = chain.last.version - part.base_version
        self.expect("I4", 0 <= lag <= 1, lambda: f"{who}: base {part.base_version} on {chain.last.version}")
        key = (part.name, part.incarnation, p)
        clash = self.merged.setdefault(key, Intervals()).add(part.start, part.end, "merged")
        self.expect(
            "I2", clash is None, lambda: f"{who}, fragment {p}: [{part.start}, {part.end}) overlaps {clash}"
        )
        for row in self.settled.get(key, NO_INTERVALS).rows:
            self.num_checks["I5"] += 1
            if row[2] != "merged" and row[0] < part.end and part.start < row[1]:
                self.broken("I5", f"{who}, fragment {p}: {row} was merged after all")
        tokens = part.end - part.start
        self.expect(
            "I14",
            part.weight == tokens * tokens / max(1, part.steps) or self.params.max_share < 1.0,
            lambda: f"{who}: weight {part.weight} for {tokens} tokens in {part.steps} steps",
        )
        self._heard(record, part, who)
        door.contributed(self, record, part.name)
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
        base = chain.at(part.base_version)
        self.expect(
            "I4",
            base is not None and truth.base_digest == base.digest,
            lambda: f"{who}: the body is based on {truth.base_digest}",
        )
        self.expect("I11", truth.finite, lambda: f"{who}: a delta that is not finite was merged")

    def _heard(self, record: rec.RoundRecord, part: rec.Contributor, who: str) -> None:
        """A contribution was offered in this round of this epoch, in these words; the first one healed."""
        key = (part.name, part.incarnation, record.epoch, record.fragment, record.round)
        found = self.headers.get(key)
        self.expect(
            "I4",
            found is not None and (found[0].start, found[0].end) == (part.start, part.end),
            lambda: f"{who}: merged, but never offered in round {record.round} of epoch {record.epoch}",
        )
        if self.first_header.get(key[:2]) != key:
            return
        header, current = self.headers[key]
        behind = [
            (p, version, now)
            for p, (version, now) in enumerate(zip(header.bases, current, strict=True))
            if not 0 <= now - version <= 1
        ]
        self.expect("I8", not behind, lambda: f"{who}: first offer with (fragment, base, current) {behind}")

    def _merged(self, actor: str, event: ev.Merged) -> None:
        self.finite[event.fragment] = event.finite

    def _truth(self, actor: str, item: Truth) -> None:
        self.truths[item.fragment, item.version] = item.contents

    # What the syncer says and hears

    def _send(self, actor: str, item: do.Send) -> None:
        message = item.message
        door.sent(self, item)
        if isinstance(message, msg.Publish):
            p, version = message.fragment, message.version
            commit = self.versions[p].at(version) if self.versions else None
            self.expect(
                "I6",
                commit is not None and commit.digest == message.digest,
                lambda: f"fragment {p}: version {version} published, {commit} stored",
            )

    def _received(self, actor: str, event: ev.Received) -> None:
        message = event.message
        if actor != SYNCER:
            if isinstance(message, msg.Welcome):
                learners.welcomed(self, actor, message)
            return
        self._turn()
        self.liveness.hear(message, self.now_ns)
        door.heard(self, message)
        if isinstance(message, msg.Report):
            self._report(message)
        elif isinstance(message, msg.Header) and message.epoch == self.epoch:
            is_current = message.incarnation == self.incarnations.get(message.name)
            if is_current and self.gathering.get(message.fragment) == message.round:
                self.liveness.offered_at[message.fragment].setdefault(message.name, self.now_ns)
            key = (message.name, message.incarnation, message.epoch, message.fragment, message.round)
            if key not in self.headers:
                self.headers[key] = (message, list(self.served))
                self.first_header.setdefault(key[:2], key)

    def _report(self, report: msg.Report) -> None:
        self.num_checks["I5"] += len(report.holdings)
        for p, holding in enumerate(report.holdings):
            if holding.origin != holding.merged + holding.discarded + holding.pending:
                self.broken("I5", f"{report.name}, fragment {p}: {holding} does not add up")
        if self.params.algorithm == "decoupled":
            self.expect(
                "I7",
                report.held_ns <= MAX_HELD_NS and report.held_on < 0,
                lambda: f"{report.name} was held for {report.held_ns} ns",
            )
        if report.epoch == self.epoch and report.incarnation == self.incarnations.get(report.name):
            self.liveness.report(report, self.versions, self.now_ns)

    def _timer(self, actor: str, event: ev.TimerFired) -> None:
        if actor == SYNCER:
            self._turn()
            if event.key == "beat" and self.is_open:
                self._overdue()

    def _overdue(self) -> None:
        """At every beat of the syncer: is a merge overdue?"""
        since_ns = self.liveness.ready_since(self.now_ns)
        if since_ns is not None:
            quiet_ns = self.now_ns - max(self.calm_since_ns, since_ns)
            self.expect(
                "I10",
                quiet_ns <= self.params.live_ns,
                lambda: f"no merge for {quiet_ns / 1e9:.1f} s with a quorum ready",
            )

    def _turn(self) -> None:
        """At every event of the syncer: was a grace window overdue at the one before already?"""
        if self.params.waits:
            return
        for p, late_ns in self.liveness.overdue_grace(self.now_ns):
            self.broken("I13", f"fragment {p}: open {late_ns / 1e9:.1f} s after quorum")
        self.num_checks["I13"] += 1

    def _store_answered(self, actor: str, event: ev.Committed | ev.DeltaPut) -> None:
        if not event.ok:
            self.calm_since_ns = self.now_ns
        elif isinstance(event, ev.Committed) and not self.door.is_active:
            self.door.is_active, self.door.active_ns = True, self.now_ns
        elif isinstance(event, ev.Committed) and event.ticket in self.in_flight:
            self.stored(actor, Stored(self.in_flight[event.ticket], True))

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
        self.liveness.offered_at[p] = {}
        self.expect(
            "I13",
            len(self.gathering) <= self.params.overlap_steps,
            lambda: f"{len(self.gathering)} rounds gather, tau is {self.params.overlap_steps}",
        )
        cut_off = self.liveness.cut_off(item.asked, self.now_ns)
        self.expect("I13", not cut_off, lambda: f"fragment {p}: {cut_off} asked while silent or deaf")
        inside = [leap for leap in self.skipped if leap[0] < item.due < leap[1]]
        self.expect("I12", not inside, lambda: f"fragment {p} fired for tick {item.due} inside {inside}")

    def _note(self, actor: str, item: do.Note) -> None:
        door.noted(self, actor, item)
        if item.kind in ("closed", "cancelled"):
            if "passed the gates" in item.reason:  # a quorum of offers that are rejected is none
                self.calm_since_ns = self.now_ns
            self.gathering.pop(item.fragment, None)
            self.liveness.offered_at.pop(item.fragment, None)
        elif item.kind == "drain":
            self.is_open = False
        elif item.kind == "dropped":
            if item.fragment in self.liveness.offered_at:
                self.liveness.offered_at[item.fragment][item.who] = NEVER
            if item.reason.startswith("late: no body") and self.healed_ns >= 0:
                self.late_bodies[item.who] += 1

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


_HANDLERS: dict[type, Callable[[Checker, str, Any], None]] = {
    Stored: Checker.stored,
    Image: beginning.image,
    Truth: Checker._truth,
    Milestone: Checker._milestone,
    ev.Booted: restarts.booted,
    ev.Loaded: restarts.loaded,
    ev.Received: Checker._received,
    ev.TimerFired: Checker._timer,
    ev.Merged: Checker._merged,
    ev.Committed: Checker._store_answered,
    ev.DeltaPut: Checker._store_answered,
    ev.Started: learners.started,
    do.Send: Checker._send,
    do.Install: Checker._install,
    do.Ticked: Checker._ticked,
    do.Opened: Checker._opened,
    do.Inspect: door.inspecting,
    do.Commit: door.committing,
    do.Note: Checker._note,
    do.Tell: learners.told,
    do.Settle: learners.settled,
    do.Stage: learners.staged,
}


def check(entries: Iterable[Entry], params: RunParams) -> Checker:
    """Check a whole tape; the checker that comes back holds the violations and the counts."""
    checker = Checker(params)
    for entry in entries:
        checker.read(entry)
    return checker
