"""Simulated processes: the shells that drive the machines in virtual time.

A process may crash between any two commands, pause, and slow down. A crash loses everything but
the disk; a pause lets what happens meanwhile pile up. What a shell does slowly (encode, decode,
merge, write) takes virtual time and comes back as an event, unless the process died meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.account import Slot
from atoll.core.learner import LearnerMachine
from atoll.core.params import MS, RunParams
from atoll.core.records import SeedRecord, history
from atoll.core.syncer import SyncerMachine
from atoll.sim.disk import Damage, Disk
from atoll.sim.engine import Engine
from atoll.sim.ghost import LearnerModel, SyncerModel
from atoll.sim.moments import SimulatedMoments
from atoll.sim.network import UP, Network
from atoll.tape.entries import SYNCER, Stored, Truth
from atoll.tape.tape import Tape

__all__ = ["LearnerProcess", "Process", "SyncerProcess"]


class Process:
    """What both kinds of process share: life, pauses, timers, and the loop around a machine."""

    def __init__(self, engine: Engine, tape: Tape, actor: str, machine: Any) -> None:
        self.engine = engine
        self.tape = tape
        self.actor = actor
        self.machine = machine
        self.is_alive = True
        self.paused_until_ns = 0
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.on_deferred: Callable[[], None] | None = None
        self.timers: dict[str, int] = {}
        self.fuse = -1
        """Commands still to be performed before it dies; -1: not lit."""
        self.on_fuse: Callable[[], None] | None = None
        self.on_handled: Callable[[], None] | None = None
        self.performers: dict[type, Callable[[Any], None]] = {do.SetTimer: self._set_timer}

    def handle(self, event: ev.Event) -> None:
        """One event through the machine; its commands are performed in order."""
        add, now = self.tape.add, self.engine.now_ns
        add(now, self.actor, event)
        for command in self.machine.handle(event):
            if self.fuse >= 0:
                if self.fuse == 0:
                    self.fuse = -1
                    assert self.on_fuse is not None
                    self.on_fuse()
                    return
                self.fuse -= 1
            if type(command) is not do.SetTimer:
                add(now, self.actor, command)
            performer = self.performers.get(type(command))
            if performer is not None:
                performer(command)
        if self.on_handled is not None:
            self.on_handled()

    def call(self, delay_ns: float, what: Callable[..., None], *args: Any) -> None:
        """Do something later, if the process still lives then; pauses put it off."""
        self.engine.after(delay_ns, self._arrive, what, args)

    def _arrive(self, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self.is_alive:
            return
        if self.engine.now_ns < self.paused_until_ns:
            if self.on_deferred is not None:
                self.on_deferred()
            self.backlog.append((what, args))
        else:
            what(*args)

    def pause(self, duration_ns: int) -> None:
        """Stand still; what comes meanwhile waits."""
        self.paused_until_ns = max(self.paused_until_ns, self.engine.now_ns + duration_ns)
        self.engine.at(self.paused_until_ns, self._resume)

    def wake(self) -> None:
        """End a pause before its time."""
        self.paused_until_ns = self.engine.now_ns
        self._resume()

    def _resume(self) -> None:
        if self.engine.now_ns >= self.paused_until_ns:
            backlog, self.backlog = self.backlog, []
            for what, args in backlog:
                if self.is_alive:
                    what(*args)

    def _set_timer(self, command: do.SetTimer) -> None:
        key, at_ns = command.key, command.at_ns
        if self.timers.get(key) != at_ns:  # else it is on the calendar already
            self.timers[key] = at_ns
            self.call(at_ns - self.engine.now_ns, self._fire, key, at_ns)

    def _fire(self, key: str, at_ns: int) -> None:
        if self.timers.get(key) == at_ns:
            del self.timers[key]
            self.handle(ev.TimerFired(self.engine.now_ns, key))

    def _read(self, message: Any) -> None:
        self.handle(ev.Received(self.engine.now_ns, message))

    def die(self) -> None:
        """Everything in memory is gone."""
        self.is_alive = False
        self.backlog.clear()


class LearnerProcess(Process):
    """One life of a learner: the user's loop, the machine, a model."""

    machine: LearnerMachine

    def __init__(
        self,
        engine: Engine,
        tape: Tape,
        network: Network,
        params: RunParams,
        name: str,
        key: str,
        rng: random.Random,
        model: LearnerModel,
    ) -> None:
        self.life = rng.getrandbits(48)
        super().__init__(engine, tape, f"{name}#{self.life:012x}", LearnerMachine(params))
        self.network = network
        self.params = params
        self.name = name
        self.key = key
        self.rng = rng
        self.model = model
        self.step_ns = 1000 * MS
        self.jitter = 0.1
        self.slowdown = 1.0
        self.on_slowed: Callable[[], None] | None = None
        self.batch = 100
        self.poison = ""
        self.on_poisoned: Callable[[], None] | None = None
        self.to_syncer: Callable[[Any, bool, Any], None] = lambda message, intact, payload: None
        self.syncer_listens: Callable[[], bool] = lambda: False
        self.on_verdict: Callable[[LearnerProcess], None] = lambda process: None
        self.bodies: dict[int, Any] = {}
        self.is_held = False
        self.held_since_ns = 0
        self.held_ns = 0
        self.performers |= {
            do.Tell: lambda c: self._tell(c.message),
            do.Resend: lambda c: self._resend(c.message),
            do.Snapshot: lambda c: self.model.snapshot(c.fragment),
            do.Encode: lambda c: self.call(5 * MS, self._encode, c),
            do.Stage: lambda c: self.call(5 * MS, self._stage, c.publish, self.payload),
            do.Adopt: self._adopt,
            do.Unstage: lambda c: self.model.unstage(c.fragment),
            do.Drop: lambda c: self.model.drop(c.fragment, merged=c.merged),
            do.SeedSnapshot: lambda c: self.call(5 * MS, self._seed, c.epoch),
            do.Note: self._note,
            do.Hold: self._hold,
            do.Release: self._release,
        }
        self.moments = SimulatedMoments(self)
        self.payload: Any = None

    def start(self, *, is_back: bool = False) -> None:
        """Begin to live and to step."""
        self.handle(ev.Started(self.engine.now_ns, self.name, self.key, self.life))
        if is_back:
            self.moments.come_back(wants=self.params.donates and self.rng.random() < 0.75)
        self._schedule_step()

    def _schedule_step(self) -> None:
        duration = self.step_ns * (1 + self.jitter * (2 * self.rng.random() - 1))
        if self.slowdown != 1.0:
            duration *= self.slowdown
            if self.on_slowed is not None:
                self.on_slowed()
        self.call(duration, self._step, int(duration))

    def _step(self, duration_ns: int) -> None:
        self.model.step(self.batch)
        self.handle(ev.Stepped(self.engine.now_ns, self.batch, duration_ns, self.held_ns))
        self.held_ns = 0
        if self.is_alive:
            self.moments.boundary()
        if self.is_alive and not self.is_held:
            self._schedule_step()

    def _adopt(self, command: do.Adopt) -> None:
        self.model.adopt(
            command.fragment, merged=command.merged, unresolved=command.unresolved, reset=command.reset
        )

    def _note(self, command: do.Note) -> None:
        if command.kind in ("fenced", "refused"):
            self.on_verdict(self)

    def _hold(self, command: do.Hold) -> None:
        self.is_held, self.held_since_ns = True, self.engine.now_ns

    def _release(self, command: do.Release) -> None:
        if self.is_held:
            self.is_held = False
            self.held_ns = self.engine.now_ns - self.held_since_ns
            self._schedule_step()

    def read_bulk(self, message: Any, payload: Any) -> None:
        """A message with content arrives."""
        self._arrive(self._read_bulk, (message, payload))

    def _read_bulk(self, message: Any, payload: Any) -> None:
        if isinstance(message, msg.Moments) and payload is None:
            return
        self.payload = payload
        self._read(message)

    def _encode(self, command: do.Encode) -> None:
        p = command.fragment
        offer = self.machine.slots[p].offer
        if offer is None or (offer.epoch, offer.round) != (command.epoch, command.round):
            return
        if self.poison and self.on_poisoned is not None:
            self.on_poisoned()
        digest, payload = self.model.encode(p, self.name, self.machine.incarnation, self.poison)
        self.bodies[p] = payload
        size = self.params.fragment_bytes[p]
        self.handle(ev.Encoded(self.engine.now_ns, p, command.epoch, command.round, digest, size))

    def _stage(self, publish: msg.Publish, payload: Any) -> None:
        p, full = publish.fragment, publish.base_version == msg.FULL
        slot = self.machine.slots[p]
        if slot.staging is not publish or not (full or self._holds_base(slot, publish)):
            return
        ok = payload is not None and self.model.stage(p, payload, full=full) == publish.digest
        self.handle(ev.Staged(self.engine.now_ns, p, publish.version, publish.digest, ok))

    def _holds_base(self, slot: Slot, publish: msg.Publish) -> bool:
        newest = slot.staged or slot
        return (newest.version, newest.digest) == (publish.base_version, publish.base_digest)

    def _seed(self, epoch: int) -> None:
        if any(slot.version >= 0 for slot in self.machine.slots):
            return
        digests = tuple(digest for digest, _ in self.model.seed())
        self.handle(ev.SeedReady(self.engine.now_ns, epoch, digests, self.params.full_bytes, True))

    def _tell(self, message: Any) -> None:
        payload = None
        if isinstance(message, msg.Body):
            payload = self.bodies[message.fragment]
        elif isinstance(message, msg.SeedBody):
            payload = self.model.seed_payload(message.fragment)
        elif isinstance(message, msg.Donation):
            payload = self.moments.packed[message.fragment]
        num_bytes = getattr(message, "num_bytes", 0)

        def deliver(message: Any, intact: bool) -> None:
            self.to_syncer(message, intact, payload)

        self.network.send(self.name, UP, message, num_bytes, deliver, self.syncer_listens)

    def _resend(self, message: Any) -> None:
        """Only if the first copy has left: a thin link is not helped by a second one."""
        if not self.network.links[self.name].up.holds(message):
            self._tell(message)


class SyncerProcess(Process):
    """One life of the syncer on its disk."""

    machine: SyncerMachine

    def __init__(
        self,
        engine: Engine,
        tape: Tape,
        network: Network,
        params: RunParams,
        disk: Disk,
        rng: random.Random,
        model: SyncerModel,
    ) -> None:
        super().__init__(engine, tape, SYNCER, SyncerMachine(params))
        self.network = network
        self.params = params
        self.disk = disk
        self.rng = rng
        self.model = model
        self.write_ns = 20 * MS
        self.disk_slowdown = 1.0
        self.on_disk_slow: Callable[[], None] | None = None
        self.on_disk_full: Callable[[], None] | None = None
        self.route: Callable[[do.Send, Any], None] = lambda send, payload: None
        self.bodies: dict[tuple[int, int, int, str, int], Any] = {}
        """By fragment, epoch, round, name, incarnation."""
        self.seeds: dict[tuple[str, int], dict[int, Any]] = {}
        self.deltas: dict[tuple[int, int], Any] = {}
        self.passing: Any = None
        """The content of the donation being handled."""
        self.performers |= {
            do.Send: self._send,
            do.Load: lambda c: self.call(100 * MS, self._load),
            do.Inspect: lambda c: self.call(20 * MS, self._inspect, c),
            do.Merge: lambda c: self.call(20 * MS, self._merge, c),
            do.PutDelta: self._put,
            do.Commit: self._commit,
            do.Install: self._install,
            do.Discard: self._discard,
            do.TakeSnapshot: self._snapshot,
        }

    def start(self) -> None:
        """Boot."""
        self.handle(ev.Booted(self.engine.now_ns))

    def _disk_ns(self) -> float:
        if self.disk_slowdown != 1.0 and self.on_disk_slow is not None:
            self.on_disk_slow()
        return self.write_ns * self.disk_slowdown * (0.5 + self.rng.random())

    def _load(self) -> None:
        state = self.disk.load()
        if state.fragments:
            seeds, deltas, goal = self._replay_files(state.rollbacks)
            digests = self.model.restore(seeds, deltas)
            for p, digest in goal.items():
                if digests[p] != digest:
                    problem = f"fragment {p}: the fold gives {digests[p]}, not {digest}"
                    state.problems = (*state.problems, problem)
        self.handle(ev.Loaded(self.engine.now_ns, state))

    def _replay_files(self, rollbacks: Any) -> tuple[Any, list[tuple[int, Any, float]], dict[int, str]]:
        """Snapshot content, the deltas after it in order, and the digests they must give."""
        disk = self.disk
        versions: dict[int, int] = {}
        content: Any = None
        if disk.snapshot is not None:
            versions = dict(enumerate(disk.snapshot[1]))
            content = disk.snapshot[2]
        stop = {r.fragment: r.to_version for r in rollbacks}
        seed = next(record for record in disk.records if isinstance(record, SeedRecord))
        if content is None:
            content = disk.files[hash_name(seed)].content
        deltas, goal = [], dict(enumerate(seed.digests))
        for p, chain in sorted(history(disk.records).items()):
            for record in chain[: stop.get(p, len(chain))]:
                if record.version > versions.get(p, 0):
                    deltas.append((p, disk.files[record.delta_digest].content, record.momentum_factor))
                goal[p] = record.digest
        return content, deltas, goal

    def _inspect(self, command: do.Inspect) -> None:
        p, number, epoch = command.fragment, command.round, self.machine.desk.epoch
        bodies = [(name, self.bodies[p, epoch, number, name, life]) for name, life in command.offers]
        results = tuple(self.model.inspect(p, bodies))
        self.handle(ev.Inspected(self.engine.now_ns, p, number, results))

    def _merge(self, command: do.Merge) -> None:
        p, number, epoch = command.fragment, command.round, self.machine.desk.epoch
        parts = command.contributors
        bodies = [self.bodies[p, epoch, number, part.name, part.incarnation] for part in parts]
        result = self.model.merge(p, parts, bodies, command.momentum_factor)
        self.deltas[p, number] = result.delta
        self.tape.add(self.engine.now_ns, SYNCER, Truth(p, command.version, result.contents))
        self.handle(
            ev.Merged(
                self.engine.now_ns,
                p,
                number,
                result.delta_digest,
                result.digest,
                result.finite,
                command.contributors,
            )
        )

    def _put(self, command: do.PutDelta) -> None:
        content = self.deltas[command.fragment, command.round]
        self.disk.begin_file(command.delta_digest, content)
        self.call(self._disk_ns(), self._put_done, command)

    def _put_done(self, command: do.PutDelta) -> None:
        ok = self.disk.end_file(command.delta_digest, sync=command.sync)
        if not ok and self.on_disk_full is not None:
            self.on_disk_full()
        reason = "" if ok else "no space left on the disk"
        self.handle(ev.DeltaPut(self.engine.now_ns, command.fragment, command.round, ok, reason))

    def _commit(self, command: do.Commit) -> None:
        self.disk.begin_commit(command.record)
        self.call(self._disk_ns() / 2, self._commit_point, command)

    def _commit_point(self, command: do.Commit) -> None:
        record = command.record
        if isinstance(record, SeedRecord):
            parts = self.seeds[record.source, record.incarnation]
            content = [parts[p] for p in range(len(record.digests))]
            self.disk.begin_file(hash_name(record), content)
            self.disk.end_file(hash_name(record), sync=True)
        ok = self.disk.commit(record, sync=command.sync)
        if ok:
            self.tape.add(self.engine.now_ns, SYNCER, Stored(record, command.sync))
        elif self.on_disk_full is not None:
            self.on_disk_full()
        self.call(self._disk_ns() / 2, self._commit_done, command.ticket, ok)

    def _commit_done(self, ticket: int, ok: bool) -> None:
        reason = "" if ok else "no space left on the disk"
        self.handle(ev.Committed(self.engine.now_ns, ticket, ok, reason))

    def _install(self, command: do.Install) -> None:
        if command.fragment >= 0:
            self.model.install(command.fragment)
            return
        record = next(r for r in self.disk.records if isinstance(r, SeedRecord))
        self.model.seed(self.disk.files[hash_name(record)].content)
        self.seeds.clear()

    def _discard(self, command: do.Discard) -> None:
        p, number = command.fragment, command.round
        for key in [key for key in self.bodies if key[0] == p and key[2] <= number]:
            del self.bodies[key]
        self.deltas.pop((p, number), None)

    def _snapshot(self, command: do.TakeSnapshot) -> None:
        versions = tuple(f.version for f in self.machine.desk.state.fragments)
        self.call(self._disk_ns() * 2, self._snapshot_done, command, versions, self.model.snapshot())

    def _snapshot_done(self, command: do.TakeSnapshot, versions: tuple[int, ...], content: Any) -> None:
        ok = self.disk.take_snapshot(versions, content)
        if not ok and self.on_disk_full is not None:
            self.on_disk_full()
        reason = "" if ok else "no space left on the disk"
        self.handle(ev.SnapshotTaken(self.engine.now_ns, command.merges, ok, reason))

    def read_bulk(self, message: Any, intact: bool, payload: Any) -> None:
        """A message from a learner arrives; spoiled content is not believed."""
        self._arrive(self._read_bulk, (message, intact, payload))

    def _read_bulk(self, message: Any, intact: bool, payload: Any) -> None:
        if isinstance(message, msg.Body | msg.SeedBody | msg.Donation):
            if not intact:
                return
            if isinstance(message, msg.Donation):
                self.passing = payload
            elif isinstance(message, msg.Body):
                key = (message.fragment, message.epoch, message.round, message.name, message.incarnation)
                self.bodies.setdefault(key, payload)
            else:
                sender = (message.name, message.incarnation)
                self.seeds.setdefault(sender, {})[message.fragment] = payload
        self._read(message)

    def _send(self, command: do.Send) -> None:
        payload = None
        message = command.message
        if isinstance(message, msg.Publish):
            p = message.fragment
            payload = self.model.full(p) if message.base_version == msg.FULL else self.model.update(p)
        elif isinstance(message, msg.Moments):
            payload = self.passing
        self.route(command, payload)

    def power_loss(self, *, lose: bool, tear: bool) -> Damage:
        """Die, and take with it what the disk had not synced."""
        self.die()
        damage = self.disk.crash(self.rng, lose=lose, tear=tear)
        for record in damage.landed:
            self.tape.add(self.engine.now_ns, SYNCER, Stored(record, self.params.durability == "merge"))
        return damage


def hash_name(record: SeedRecord) -> str:
    """The file name of the initial weights."""
    return "seed-" + record.digests[0]
