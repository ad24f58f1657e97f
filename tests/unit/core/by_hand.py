"""Machines driven by hand: the test says what happens, and when.

`LearnerByHand` plays the user's loop and the syncer against one learner machine. `SyncerByHand`
plays the store, the merge and the learners against a syncer machine: it answers the syncer's
store commands at once, unless told to keep them waiting. At the end are the situations in which
most stories begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.learner import LearnerMachine
from atoll.core.params import SECOND, RunParams
from atoll.core.records import Contributor, Record, StoredState
from atoll.core.syncer import SyncerMachine

T = TypeVar("T")

NAME, KEY, LIFE = "anna", "key-anna", 77

PARAMS = RunParams(num_fragments=2, interval_steps=4, overlap_steps=1)


def only(commands: Sequence[do.Command], kind: type[T]) -> list[T]:
    """The commands of one type."""
    return [command for command in commands if isinstance(command, kind)]


def told(commands: Sequence[do.Command], kind: type[T]) -> list[T]:
    """The messages of one type that a learner sends."""
    return [c.message for c in only(commands, do.Tell) if isinstance(c.message, kind)]


def sent(commands: Sequence[do.Command], kind: type[T], name: str = "") -> list[T]:
    """The messages of one type that the syncer sends, to one learner or to anybody."""
    return [
        c.message for c in only(commands, do.Send) if isinstance(c.message, kind) and name in ("", c.name)
    ]


def notes(commands: Sequence[do.Command], kind: str) -> list[str]:
    """The reasons of the notes of one kind."""
    return [note.reason for note in only(commands, do.Note) if note.kind == kind]


@dataclass
class LearnerByHand:
    """One learner machine, its clock in the test's hand."""

    params: RunParams
    machine: LearnerMachine = field(init=False)
    now_ns: int = 0
    epoch: int = 1
    incarnation: int = 1

    def __post_init__(self) -> None:
        self.machine = LearnerMachine(self.params)

    def handle(self, event: ev.Event) -> list[do.Command]:
        """One event; the account must hold after each."""
        commands = self.machine.handle(event)
        for p in range(len(self.machine.slots)):
            h = self.holding(p)
            assert h.origin == h.merged + h.discarded + h.pending, f"fragment {p}: {h}"
        return commands

    def start(self) -> list[do.Command]:
        return self.handle(ev.Started(self.now_ns, NAME, KEY, LIFE))

    def hear(self, message: msg.Message) -> list[do.Command]:
        return self.handle(ev.Received(self.now_ns, message))

    def welcome(self, *, epoch: int = 1, t: int = 0, finished: bool = False) -> list[do.Command]:
        self.epoch = epoch
        return self.hear(msg.Welcome(epoch, LIFE, self.incarnation, t, 0, finished))

    def step(self, tokens: int = 10) -> list[do.Command]:
        return self.handle(ev.Stepped(self.now_ns, tokens, SECOND, 0))

    def pulse(self, after_ns: int) -> list[do.Command]:
        self.now_ns += after_ns
        return self.handle(ev.TimerFired(self.now_ns, "pulse"))

    def ask(
        self, p: int = 0, *, round: int = 1, contributed: int = msg.NO_VERSION, want_body: bool = False
    ) -> list[do.Command]:
        """An ask for what the learner really holds."""
        version = self.machine.slots[p].version
        return self.hear(msg.Ask(self.epoch, self.incarnation, round, p, 0, version, contributed, want_body))

    def offer(self, p: int = 0, *, round: int = 1) -> msg.Header:
        """Ask, and step to the boundary at which it is answered."""
        self.ask(p, round=round)
        (header,) = told(self.step(), msg.Header)
        return header

    def publish(self, version: int, p: int = 0, **values: Any) -> list[do.Command]:
        """A whole version arrives and is decoded; it is adopted at the next boundary."""
        message = self.publication(version, p, **values)
        commands = self.hear(message)
        if only(commands, do.Stage):
            commands += self.stage(message)
        return commands

    def publication(self, version: int, p: int = 0, **values: Any) -> msg.Publish:
        fields: dict[str, Any] = {
            "epoch": self.epoch,
            "incarnation": self.incarnation,
            "fragment": p,
            "round": 0,
            "version": version,
            "digest": digest(version, p),
            "base_version": msg.FULL,
            "base_digest": "",
            "verdict": "none",
            "reason": "",
            "merged_upto": 0,
            "num_bytes": 0,
        }
        return msg.Publish(**(fields | values))

    def stage(self, publish: msg.Publish, *, ok: bool = True) -> list[do.Command]:
        return self.handle(ev.Staged(self.now_ns, publish.fragment, publish.version, publish.digest, ok))

    def holding(self, p: int = 0) -> msg.Holding:
        return holding_of(self.machine, p)


def holding_of(machine: LearnerMachine, p: int) -> msg.Holding:
    """What a learner holds of a fragment, from its books."""
    slot = machine.slots[p]
    offer = slot.offer
    pending = offer.end - offer.start if offer and offer.start < slot.origin else 0
    steps = machine.steps - slot.origin_steps
    return msg.Holding(slot.version, slot.digest, slot.origin, steps, slot.merged, slot.discarded, pending)


def digest(version: int, p: int = 0) -> str:
    """What a version is called in these tests."""
    return f"d{p}.{version}"


@dataclass
class SyncerByHand:
    """One syncer machine; store and merge answer at once, in the order of the commands.

    Commands whose type is in `keep` are not answered: they pile up in `kept`, to be answered (or
    refused) by the test. `log` holds every command since `clear`.
    """

    params: RunParams
    machine: SyncerMachine = field(init=False)
    now_ns: int = 0
    stored: StoredState = field(default_factory=StoredState)
    records: list[Record] = field(default_factory=list)
    log: list[do.Command] = field(default_factory=list)
    keep: tuple[type, ...] = ()
    kept: list[Any] = field(default_factory=list)
    norms: dict[str, float] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.machine = SyncerMachine(self.params)

    def boot(self, *, accepts_loss: bool = False, budget: tuple[int, int, int] | None = None) -> SyncerByHand:
        self.handle(ev.Booted(self.now_ns, accepts_loss, budget))
        return self

    def handle(self, event: ev.Event) -> list[do.Command]:
        """One event and everything that follows at once from it."""
        commands = self.machine.handle(event)
        self.log += commands
        for command in list(commands):
            if isinstance(command, self.keep):
                self.kept.append(command)
            else:
                commands = commands + self.answer(command)
        return commands

    def answer(self, command: do.Command, *, ok: bool = True) -> list[do.Command]:
        """Perform one store or merge command."""
        now, reason = self.now_ns, "" if ok else "no space left"
        match command:
            case do.Load():
                return self.handle(ev.Loaded(now, self.stored))
            case do.Commit():
                if ok:
                    self.records.append(command.record)
                return self.handle(ev.Committed(now, command.ticket, ok, reason))
            case do.Inspect():
                results = tuple(ev.Inspection(n, True, self.norms.get(n, 1.0)) for n, _ in command.offers)
                return self.handle(ev.Inspected(now, command.fragment, command.round, results))
            case do.Merge():
                p, version = command.fragment, command.version
                return self.handle(
                    ev.Merged(
                        now,
                        p,
                        command.round,
                        f"x{p}.{version}",
                        digest(version, p),
                        True,
                        command.contributors,
                    )
                )
            case do.PutDelta():
                return self.handle(ev.DeltaPut(now, command.fragment, command.round, ok, reason))
        return []

    def answer_kept(self, *, ok: bool = True) -> list[do.Command]:
        """Answer the oldest command that was kept waiting."""
        return self.answer(self.kept.pop(0), ok=ok)

    def hear(self, message: msg.Message) -> list[do.Command]:
        return self.handle(ev.Received(self.now_ns, message))

    def fire(self, key: str, after_ns: int = 0) -> list[do.Command]:
        self.now_ns += after_ns
        return self.handle(ev.TimerFired(self.now_ns, key))

    @property
    def epoch(self) -> int:
        return self.machine.desk.epoch

    def incarnation(self, name: str) -> int:
        return self.machine.desk.state.members[name].incarnation

    # What learners say

    def hello(self, name: str, *, life: int = 1, key: str = "", incarnation: int = 0) -> list[do.Command]:
        return self.hear(msg.Hello(name, key or f"key-{name}", life, incarnation, 0))

    def report(
        self,
        name: str,
        clock: int,
        *,
        versions: Sequence[int] | None = None,
        steps: int = 4,
        held_on: int = -1,
        tokens: int = 0,
        origin: int = 0,
    ) -> list[do.Command]:
        """A report of a learner that holds these versions; all current ones unless told otherwise."""
        fragments = self.machine.desk.state.fragments
        if versions is None:
            versions = [f.version for f in fragments] or [msg.NO_VERSION] * self.params.num_fragments
        holdings = tuple(
            msg.Holding(v, digest(v, p) if v >= 0 else "", origin, steps, 0, 0, 0)
            for p, v in enumerate(versions)
        )
        self.sequences[name] = self.sequences.get(name, 0) + 1
        return self.hear(
            msg.Report(
                name,
                self.incarnation(name),
                self.epoch,
                self.sequences[name],
                clock,
                tokens,
                SECOND,
                0,
                held_on,
                self.now_ns,
                holdings,
            )
        )

    def seed_bodies(self, name: str) -> list[do.Command]:
        commands = []
        for p in range(self.params.num_fragments):
            commands += self.hear(msg.SeedBody(name, self.incarnation(name), self.epoch, p, digest(0, p), 0))
        return commands

    def header(self, ask: msg.Ask, name: str, **values: Any) -> msg.Header:
        """The offer of a learner that was asked: one step of ten tokens."""
        start = self.tokens.get(name, 0)
        fields: dict[str, Any] = {
            "name": name,
            "incarnation": ask.incarnation,
            "epoch": ask.epoch,
            "round": ask.round,
            "fragment": ask.fragment,
            "base_version": ask.version,
            "base_digest": digest(ask.version, ask.fragment),
            "start": start,
            "end": start + 10,
            "steps": 1,
            "bases": tuple(f.version for f in self.machine.desk.state.fragments),
        }
        return msg.Header(**(fields | values))

    def body(self, ask: msg.Ask, name: str, num_bytes: int = 0) -> list[do.Command]:
        return self.hear(
            msg.Body(name, ask.incarnation, ask.epoch, ask.round, ask.fragment, f"body-{name}", num_bytes)
        )

    # Short cuts

    def join(self, *names: str) -> SyncerByHand:
        """Admit learners; the first one seeds; all of them are healed."""
        for name in names:
            self.hello(name)
        if not self.machine.desk.state.fragments:
            self.seed_bodies(names[0])
        for name in names:
            self.report(name, 0)
        return self

    def tick(self, *names: str, to: int) -> list[do.Command]:
        """All learners report one step after the other, up to a clock."""
        commands = []
        for clock in range(self.machine.desk.schedule.t + 1, to + 1):
            for name in names:
                commands += self.report(name, clock)
        return commands

    def merge_round(self, commands: Sequence[do.Command], *names: str) -> list[do.Command]:
        """Everybody who was asked in these commands offers; returns what followed."""
        followed = []
        asks = {name: sent(commands, msg.Ask, name)[-1] for name in names}
        for name, ask in asks.items():
            followed += self.hear(self.header(ask, name))
        for name, ask in asks.items():
            followed += self.body(ask, name)
            self.tokens[name] = self.tokens.get(name, 0) + 10
        return followed


def contributor(name: str, incarnation: int = 1, start: int = 0, end: int = 10, base: int = 0) -> Contributor:
    """One step of an offer as it stands in a commit."""
    return Contributor(name, incarnation, start, end, 1, base, float((end - start) ** 2))


# Where stories begin


def learner_params(**values: Any) -> RunParams:
    defaults: dict[str, Any] = {"num_fragments": 2, "interval_steps": 4, "overlap_steps": 1}
    return RunParams(**(defaults | values))


def learner(**values: Any) -> LearnerByHand:
    """Joined, and holding version 0 of both fragments (it was the seed), at step 0 and token 0."""
    hand = LearnerByHand(learner_params(**values))
    hand.start()
    hand.welcome()
    hand.hear(msg.SeedAsk(1, 1, (0, 1)))
    hand.handle(ev.SeedReady(0, 1, (digest(0, 0), digest(0, 1)), (0, 0), True))
    return hand


def held_learner(**values: Any) -> LearnerByHand:
    """A diloco learner at the end of its interval, where it waits for fragment 0."""
    hand = learner(algorithm="diloco", **values)
    for _ in range(hand.params.interval_steps - 1):
        assert only(hand.step(), do.Hold) == []
    assert only(hand.step(), do.Hold) == [do.Hold(0, "waiting for fragment 0")]
    return hand


def syncer(**values: Any) -> SyncerByHand:
    """Booted: two fragments due at ticks 0 and 2 of 4, a quorum of two, no grace window unless given."""
    defaults: dict[str, Any] = {
        "num_fragments": 2,
        "interval_steps": 4,
        "overlap_steps": 1,
        "min_quorum": 2,
        "grace_rule": "slack",
        "grace_max_steps": 1.0,
    }
    return SyncerByHand(RunParams(**(defaults | values))).boot()


def running(*names: str, **values: Any) -> SyncerByHand:
    """Seeded, with these learners healed at tick 0."""
    return syncer(**values).join(*names)


def open_round(hand: SyncerByHand, *names: str) -> dict[str, msg.Ask]:
    """Step to the first due fragment; returns the ask to each learner."""
    commands = hand.tick(*names, to=2)
    assert [o.fragment for o in only(commands, do.Opened)] == [1]
    return {name: sent(commands, msg.Ask, name)[0] for name in names}


def give_grace(hand: SyncerByHand) -> None:
    """As after three rounds that took no time: the grace window is open for a while."""
    for average in (hand.machine.rounds.quorum_ns, hand.machine.rounds.merge_ns):
        for _ in range(3):
            average.add(0)
