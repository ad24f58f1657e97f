"""Who may take part, as the tape tells it: quarantine, donors of optimizer state, shards.

Whether somebody is present is known here only within bounds, because a message may reach the syncer and not
count there. So a shard is held against the machine only if its holder was surely heard, and if another shard
was surely nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atoll.core import commands as do
from atoll.core import messages as msg
from atoll.core import records as rec
from atoll.core.round import FIXED
from atoll.core.syncer import SyncerMachine
from atoll.tape.entries import SYNCER

if TYPE_CHECKING:
    from atoll.invariants.checker import Checker

__all__ = ["Door", "committing", "contributed", "heard", "inspecting", "noted", "sent"]


@dataclass(slots=True)
class Door:
    """The checker's books about this life of the syncer, and the shards of all."""

    reports: dict[str, msg.Report] = field(default_factory=dict)
    """The newest one of each learner."""
    past_recall: dict[int, int] = field(default_factory=dict)
    """Fragment -> the last round whose contributors were final."""
    quarantined: dict[str, dict[int, int]] = field(default_factory=dict)
    """Name -> what was past recall when it was put in."""
    shards: dict[str, int] = field(default_factory=dict)
    joining: dict[str, rec.MemberRecord] = field(default_factory=dict)
    heard_ns: dict[str, int] = field(default_factory=dict)
    """When the current life of a name was heard last."""
    named_ns: dict[str, int] = field(default_factory=dict)
    """When anybody was heard last who bears the name."""
    is_active: bool = False
    active_ns: int = 0
    """When the syncer began to speak."""

    def take(self, machine: SyncerMachine, now_ns: int) -> None:
        """Begin with what a machine knows."""
        self.is_active, self.active_ns = True, now_ns
        self.shards = {member.name: member.shard for member in machine.desk.state.members.values()}
        self.past_recall = {p: r.number for p, r in machine.rounds.open.items() if r.phase in FIXED}
        self.quarantined = {name: dict(self.past_recall) for name in machine.strikes.until_ns}

    def admitted(self, record: rec.MemberRecord, now_ns: int) -> None:
        """An admission is durable."""
        self.joining.pop(record.name, None)
        self.shards[record.name] = record.shard
        self.heard_ns[record.name] = self.named_ns[record.name] = now_ns

    def was_heard(self, name: str, now_ns: int, hand_on_ns: int) -> bool:
        """True only if it surely was, not long ago."""
        return name in self.joining or (name in self.heard_ns and now_ns - self.heard_ns[name] <= hand_on_ns)

    def may_be_present(self, name: str, now_ns: int, hand_on_ns: int) -> bool:
        """False only if it was surely not heard for long."""
        last_ns = max(self.active_ns, self.named_ns.get(name, 0))
        return name in self.joining or now_ns - last_ns <= hand_on_ns


def heard(checker: Checker, message: msg.Message) -> None:
    """The syncer received a message."""
    door, name = checker.door, getattr(message, "name", "")
    door.named_ns[name] = checker.now_ns
    is_current = getattr(message, "incarnation", 0) == checker.incarnations.get(name)
    if not is_current or getattr(message, "epoch", 0) != checker.epoch or name in door.joining:
        return
    if not isinstance(message, msg.Hello):
        door.heard_ns[name] = checker.now_ns
    if isinstance(message, msg.Report):
        last = door.reports.get(name)
        if last is None or (last.incarnation, last.sequence) < (message.incarnation, message.sequence):
            door.reports[name] = message


def noted(checker: Checker, actor: str, note: do.Note) -> None:
    """Somebody is put into quarantine, or let out."""
    if actor == SYNCER and note.kind == "quarantined":
        checker.door.quarantined[note.who] = dict(checker.door.past_recall)
    elif actor == SYNCER and note.kind == "released":
        checker.door.quarantined.pop(note.who, None)


def inspecting(checker: Checker, actor: str, item: do.Inspect) -> None:
    """The contributors of a round are final."""
    checker.door.past_recall[item.fragment] = item.round


def contributed(checker: Checker, record: rec.RoundRecord, name: str) -> None:
    """I4: nobody in quarantine, unless it was too late for that."""
    past_recall = checker.door.quarantined.get(name)
    checker.expect(
        "I4",
        past_recall is None or past_recall.get(record.fragment) == record.round,
        lambda: f"{name} is in quarantine, and in version {record.version} of fragment {record.fragment}",
    )


def sent(checker: Checker, item: do.Send) -> None:
    """I8: who is asked to donate is healed and not in quarantine."""
    report = checker.door.reports.get(item.name)
    if isinstance(item.message, msg.Welcome):
        checker.door.named_ns[item.name] = checker.now_ns
    if not isinstance(item.message, msg.DonateAsk) or report is None:
        return
    unhealed = [
        p
        for p, (holding, chain) in enumerate(zip(report.holdings, checker.versions, strict=True))
        if not 0 <= checker.served[p] - holding.version <= 1
        or (base := chain.at(holding.version)) is None
        or base.digest != holding.digest
    ]
    checker.expect("I8", not unhealed, lambda: f"{item.name} is to donate, and lacks fragments {unhealed}")
    is_free = item.name not in checker.door.quarantined
    checker.expect("I8", is_free, lambda: f"{item.name} is to donate from quarantine")


def committing(checker: Checker, actor: str, item: do.Commit) -> None:
    """I4: a shard that somebody present has is given away only if every shard is somebody's."""
    door, record, now_ns = checker.door, item.record, checker.now_ns
    if not isinstance(record, rec.MemberRecord) or door.joining.get(record.name) == record:
        return
    num_shards, hand_on_ns = checker.params.num_shards, checker.params.hand_on_ns
    given = door.shards | {name: other.shard for name, other in door.joining.items()}
    given.pop(record.name, None)
    sharing = [
        name
        for name, shard in given.items()
        if shard == record.shard and door.was_heard(name, now_ns, hand_on_ns)
    ]
    taken = {shard for name, shard in given.items() if door.may_be_present(name, now_ns, hand_on_ns)}
    checker.expect(
        "I4",
        not sharing or len(taken) >= num_shards,
        lambda: f"{record.name} gets shard {record.shard} of {sharing}, and only {sorted(taken)} are taken",
    )
    door.joining[record.name] = record
