"""Whatever the network does to the messages of a syncer and two learners, nothing breaks.

The messages lie in a pool: hypothesis delivers, repeats, loses and reorders them, lets learners
step and processes die, and puts off or refuses what the store is asked to do. After every event
each learner's account must hold; at the end the whole tape must satisfy the invariants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core.learner import LearnerMachine
from atoll.core.params import SECOND, RunParams
from atoll.core.records import Record, RoundRecord, fold
from atoll.core.syncer import SyncerMachine
from atoll.invariants import check
from atoll.tape.entries import SYNCER, Stored
from atoll.tape.replay import replay
from atoll.tape.tape import Tape
from tests.unit.core.by_hand import holding_of

NAMES = ("a", "b")
NEVER = 10**18
CALM = 60
"""Messages and pieces of work that one calm stretch gets done at most."""

Job = Callable[[bool], None]


class Process:
    """A machine, what it was asked to do and has not done yet, and its timers."""

    def __init__(self, fleet: Fleet, actor: str, machine: Any) -> None:
        self.fleet = fleet
        self.actor = actor
        self.machine = machine
        self.jobs: list[tuple[do.Command, Job]] = []
        self.timers: dict[str, int] = {}
        self.is_held = False

    def handle(self, event: ev.Event) -> None:
        fleet = self.fleet
        fleet.tape.add(fleet.now_ns, self.actor, event)
        for command in self.machine.handle(event):
            if isinstance(command, do.SetTimer):
                self.timers[command.key] = command.at_ns
                continue
            fleet.tape.add(fleet.now_ns, self.actor, command)
            self.perform(command)
        if isinstance(self.machine, LearnerMachine):
            for p in range(len(self.machine.slots)):
                h = holding_of(self.machine, p)
                assert h.origin == h.merged + h.discarded + h.pending, (self.actor, h)

    def perform(self, command: do.Command) -> None:
        match command:
            case do.Tell() | do.Resend():
                self.fleet.pool.append((SYNCER, 0, command.message))
            case do.Send():
                self.fleet.pool.append((command.name, command.incarnation, command.message))
            case do.Hold() | do.Release():
                self.is_held = isinstance(command, do.Hold)
            case _:
                job = self.job_of(command)
                if job is not None:
                    self.jobs.append((command, job))

    def job_of(self, command: do.Command) -> Job | None:
        """What answers a command later; its argument says whether it goes well."""
        fleet, now = self.fleet, lambda: self.fleet.now_ns
        match command:
            case do.Encode(p, epoch, number):
                return lambda ok: self.handle(ev.Encoded(now(), p, epoch, number, "body", 1))
            case do.Stage(publish):
                p, version, name = publish.fragment, publish.version, publish.digest
                return lambda ok: self.handle(ev.Staged(now(), p, version, name, ok))
            case do.SeedSnapshot(epoch):
                num = self.machine.params.num_fragments
                names = tuple(f"{self.actor}.{p}" for p in range(num))
                return lambda ok: self.handle(ev.SeedReady(now(), epoch, names, (1,) * num, True))
            case do.Load():
                return lambda ok: self.handle(ev.Loaded(now(), fold(fleet.records)))
            case do.Commit(ticket, record, sync):
                return lambda ok: self.commit(ticket, record, sync, ok)
            case do.Inspect(p, number, offers):
                found = tuple(ev.Inspection(name, True, 1.0) for name, _ in offers)
                return lambda ok: self.handle(ev.Inspected(now(), p, number, found))
            case do.Merge(p, number, version, parts):
                name = f"{p}.{version}.{self.machine.desk.epoch}.{number}"
                merged = (f"x{name}", f"d{name}", True, parts)
                return lambda ok: self.handle(ev.Merged(now(), p, number, *merged))
            case do.PutDelta(p, number):
                return lambda ok: self.handle(ev.DeltaPut(now(), p, number, ok, "" if ok else "full"))
        return None

    def commit(self, ticket: int, record: Record, sync: bool, ok: bool) -> None:
        if ok:
            self.fleet.store(record, sync)
        self.handle(ev.Committed(self.fleet.now_ns, ticket, ok, "" if ok else "full"))

    def fire(self) -> None:
        """All timers that are due."""
        due = [(at_ns, key) for key, at_ns in self.timers.items() if at_ns <= self.fleet.now_ns]
        for at_ns, key in sorted(due):
            if self.timers.get(key) == at_ns:
                del self.timers[key]
                self.handle(ev.TimerFired(self.fleet.now_ns, key))


class Fleet:
    """One syncer, two learners, and everything that is on its way between them."""

    def __init__(self, params: RunParams) -> None:
        self.params = params
        self.tape = Tape()
        self.now_ns = 0
        self.num_lives = 0
        self.pool: list[tuple[str, int, Any]] = []
        self.records: list[Record] = []
        self.syncer = self.boot()
        self.learners = [self.start(name) for name in NAMES]

    def boot(self) -> Process:
        syncer = Process(self, SYNCER, SyncerMachine(self.params))
        syncer.handle(ev.Booted(self.now_ns))
        return syncer

    def start(self, name: str) -> Process:
        self.num_lives += 1
        learner = Process(self, f"{name}#{self.num_lives}", LearnerMachine(self.params))
        learner.handle(ev.Started(self.now_ns, name, "key", self.num_lives))
        return learner

    def store(self, record: Record, sync: bool) -> None:
        self.records.append(record)
        self.tape.add(self.now_ns, SYNCER, Stored(record, sync))

    def deliver(self, parcel: tuple[str, int, Any]) -> None:
        name, incarnation, message = parcel
        event = ev.Received(self.now_ns, message)
        if name == SYNCER:
            self.syncer.handle(event)
            return
        for learner in self.learners:
            machine = learner.machine
            is_meant = getattr(message, "life", machine.life) == machine.life
            if machine.name == name and is_meant and machine.incarnation in (0, incarnation):
                learner.handle(event)

    def processes(self) -> list[Process]:
        return [self.syncer, *self.learners]

    def act(self, action: str, number: int) -> None:
        """One thing that happens; `number` says to which of the candidates."""
        jobs = [(process, k) for process in self.processes() for k in range(len(process.jobs))]
        match action:
            case "step":
                self.step(self.learners[number % len(NAMES)])
            case "deliver" | "lose" | "repeat" if self.pool:
                at = number % len(self.pool)
                parcel = self.pool[at] if action == "repeat" else self.pool.pop(at)
                if action != "lose":
                    self.deliver(parcel)
            case "work" | "fail" if jobs:
                process, k = jobs[number % len(jobs)]
                process.jobs.pop(k)[1](action == "work")
            case "wait":
                self.now_ns += (1 + number % 12) * SECOND // 2
                for process in self.processes():
                    process.fire()
            case "calm":
                self.calm()
            case "reboot":
                self.reboot(commits=bool(number % 2))
            case "restart":
                m = number % len(NAMES)
                self.learners[m] = self.start(NAMES[m])

    def step(self, learner: Process) -> None:
        if not learner.is_held:
            learner.handle(ev.Stepped(self.now_ns, 10, SECOND, 0))

    def calm(self) -> None:
        """Everything arrives in order and all work is done; then everybody steps.

        A late hello of a life that died before it was admitted fences the one after it; a
        supervisor starts that one again."""
        self.now_ns += SECOND
        for m, learner in enumerate(self.learners):
            if learner.machine.state == "fenced":
                self.learners[m] = self.start(NAMES[m])
        for process in self.processes():
            process.fire()
        for _ in range(CALM):
            busy = [process for process in self.processes() if process.jobs]
            if busy:
                busy[0].jobs.pop(0)[1](True)
            elif self.pool:
                self.deliver(self.pool.pop(0))
        for learner in self.learners:
            self.step(learner)

    def reboot(self, *, commits: bool) -> None:
        """The syncer dies, perhaps right after its commit points."""
        for command, _ in self.syncer.jobs:
            if commits and isinstance(command, do.Commit):
                self.store(command.record, command.sync)
        self.syncer = self.boot()

    def num_merges(self) -> int:
        return sum(isinstance(record, RoundRecord) for record in self.records)


params_of = st.builds(
    RunParams,
    algorithm=st.sampled_from(["decoupled", "decoupled", "streaming"]),
    num_fragments=st.integers(1, 2),
    interval_steps=st.just(2),
    overlap_steps=st.integers(1, 2),
    min_quorum=st.integers(1, 2),
    adopt=st.sampled_from(["overwrite", "blend", "rebase"]),
    snapshot_every=st.just(1000),
    live_ns=st.just(NEVER),
)

ACTIONS = (
    *("deliver",) * 6,
    *("work",) * 6,
    *("step",) * 3,
    *("repeat",) * 2,
    *("calm",) * 2,
    *("lose", "wait", "fail", "reboot", "restart"),
)
scripts = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 63)), min_size=20, max_size=200)


def run(params: RunParams, script: list[tuple[str, int]], *, num_calm: int = 6) -> Fleet:
    """A calm beginning, then whatever the script says."""
    fleet = Fleet(params)
    for _ in range(num_calm):
        fleet.calm()
    for action, number in script:
        fleet.act(action, number)
    return fleet


def violations(fleet: Fleet) -> list[str]:
    """What the tape breaks."""
    return [str(violation) for violation in check(fleet.tape, fleet.params).violations]


@given(params_of)
@settings(deadline=None, max_examples=20)
def test_a_calm_fleet_merges(params):
    fleet = run(params, [("calm", 0)] * 12)
    assert fleet.num_merges() >= 4
    assert violations(fleet) == []


@given(params_of, scripts)
@settings(deadline=None, max_examples=100)
def test_no_order_loss_or_repetition_of_messages_breaks_a_machine_or_an_account(params, script):
    fleet = run(params, script)
    assert violations(fleet) == []


@given(params_of, scripts)
@settings(deadline=None, max_examples=20)
def test_a_fleet_that_was_shaken_merges_again_when_it_is_left_alone(params, script):
    fleet = run(params, script)
    before = fleet.num_merges()
    for _ in range(40):
        fleet.calm()
    assert fleet.num_merges() > before
    assert violations(fleet) == []


@given(params_of, scripts)
@settings(deadline=None, max_examples=20)
def test_what_was_shaken_replays(params, script):
    fleet = run(params, script)
    assert replay(fleet.tape, params).problems == []
