"""The syncer machine in a real process: one loop, and workers for what is slow.

    loop       sockets, timers, the machine, the books; waits for nothing else
    compute    inspects and merges
    archive    threads for run.db, deltas and snapshots

An event goes onto the tape before the machine sees it; the tape goes to disk with the next commit, in the
same transaction, or after a second. Commands follow from events, so they are not written. The machine begins
once the model is known: at a restart from the store, in a new run when the first learner shows its own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from atoll.config import RunConfig
from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.params import RunParams
from atoll.core.records import EpochRecord, MemberRecord, Record, RoundRecord, SeedRecord
from atoll.core.syncer import SyncerMachine
from atoll.errors import StoreError
from atoll.numerics.manifest import Manifest
from atoll.runtime.archive import MAX_CARRIED, Archive
from atoll.runtime.books import Books
from atoll.runtime.buffers import BUFFER_LIMIT, LearnerBuffers
from atoll.runtime.clock import this_clock
from atoll.runtime.failpoints import reach
from atoll.runtime.joining import moments_limit, sizes_of
from atoll.runtime.links import Link
from atoll.runtime.loop import Loop, Timer
from atoll.runtime.spool import Spool
from atoll.runtime.store import Found
from atoll.runtime.worker import Worker
from atoll.runtime.workshop import Workshop, global_model
from atoll.tape.entries import SYNCER, Entry, Image
from atoll.tape.image import image_of
from atoll.wire import messages as wire

__all__ = ["SyncerShell"]

log = logging.getLogger("atoll")

FLUSH_NS = 1_000_000_000
SILENT_TIMES = 8.0
"""A link is closed after this many times `sync.alive_s` of silence."""
DURABLE: dict[type, str] = {EpochRecord: "S2", MemberRecord: "S3", RoundRecord: "S9"}
"""Failpoints: a record is on disk, and nobody has heard of it."""
LEVELS = {
    "damage": logging.WARNING,
    "store": logging.DEBUG,  # noted at every attempt; the books tell when it begins and ends
    "refused": logging.WARNING,
    "closed": logging.DEBUG,
    "dropped": logging.DEBUG,
    "cancelled": logging.DEBUG,
}


@dataclass(eq=False)
class SyncerShell:
    """Performs the machine's commands. Loop's thread, unless a method says otherwise."""

    config: RunConfig
    run: str
    archive: Archive
    spool: Spool[tuple[int, int, str]]
    loop: Loop
    compute: Worker
    accepts_loss: bool
    on_active: Callable[[], None]
    on_waiting: Callable[[], None]
    on_failed: Callable[[BaseException], None]
    machine: SyncerMachine | None = None
    workshop: Workshop | None = None
    manifest: Manifest | None = None
    found: Found | None = None
    books: Books = field(init=False)
    links: dict[str, list[Link]] = field(default_factory=dict)
    at_the_door: list[tuple[Manifest, Callable[[str], None]]] = field(default_factory=list)
    timers: dict[str, Timer] = field(default_factory=dict)
    lines: list[Entry] = field(default_factory=list)
    buffers: dict[str, LearnerBuffers] = field(default_factory=dict)
    relayed: memoryview | None = None
    """The content of the donation being handled."""
    past_up: int = 0
    past_down: int = 0
    performers: dict[type, Callable[[Any], None]] = field(init=False)

    def __post_init__(self) -> None:
        self.books = Books(self.config, self.run, self.loop.now_ns())
        self.performers = {
            do.SetTimer: self._set_timer,
            do.Send: self._send,
            do.Load: self._answer_load,
            do.Inspect: lambda c: self.work.inspect(c),
            do.Merge: lambda c: self.work.merge(c),
            do.PutDelta: self._put_delta,
            do.Commit: self._commit,
            do.Install: self._install,
            do.Discard: lambda c: self.work.discard(c),
            do.TakeSnapshot: self._take_snapshot,
            do.Note: self._noted,
        }

    # Beginning

    def start(self) -> None:
        """Read the store; from any thread."""
        self.loop.call(self.archive.load, self._loaded, self.on_failed)

    def _loaded(self, found: Found) -> None:
        self.found = found
        self.loop.after(FLUSH_NS, self._flush)
        self._sweep()
        if found.manifest is None:
            self.on_waiting()
        else:
            self._boot(found.manifest)

    def _boot(self, manifest: Manifest) -> None:
        self.manifest = manifest
        model = global_model(manifest, self.config)
        self.workshop = Workshop(model, self.spool, self.loop, self.compute, self.handle)
        self.machine = SyncerMachine(sizes_of(manifest, self.config))
        self.books.num_params = manifest.numel
        params = self.machine.params
        budget = (params.budget_ticks, params.budget_tokens, params.drain_ns)
        self.lines.append(Entry(self.loop.now_ns(), SYNCER, this_clock()))
        self.handle(ev.Booted(self.loop.now_ns(), self.accepts_loss, budget))

    def _answer_load(self, command: do.Load) -> None:
        assert self.found is not None
        if self.found.fragments is not None:
            self.work.model.restore(self.found.fragments)
        state = self.found.state
        self.loop.call(lambda: self.handle(ev.Loaded(self.loop.now_ns(), state)))

    @property
    def work(self) -> Workshop:
        """Of the run, whose model must be known."""
        assert self.workshop is not None
        return self.workshop

    @property
    def params(self) -> RunParams:
        """Of the machine, which must have begun."""
        assert self.machine is not None
        return self.machine.params

    # The machine

    def handle(self, event: ev.Event) -> None:
        """One event through the machine; its commands are performed in order."""
        assert self.machine is not None
        self.lines.append(Entry(event.at_ns, SYNCER, event))
        for command in self.machine.handle(event):
            self.books.commanded(command, event.at_ns)
            performer = self.performers.get(type(command))
            if performer is not None:
                performer(command)

    def _set_timer(self, command: do.SetTimer) -> None:
        old = self.timers.pop(command.key, None)
        if old is not None:
            old.cancel()
        self.timers[command.key] = self.loop.at(command.at_ns, self._fire, command.key)

    def _fire(self, key: str) -> None:
        self.timers.pop(key, None)
        self.handle(ev.TimerFired(self.loop.now_ns(), key))

    def _noted(self, note: do.Note) -> None:
        level = LEVELS.get(note.kind, logging.INFO)
        where = f" fragment {note.fragment}" if note.fragment >= 0 else ""
        log.log(level, "%s %s%s: %s", note.kind, note.who, where, note.reason)
        if note.kind == "damage" and self.machine is not None and not self.machine.desk.pending:
            self.loop.call(self._refuse_damage)

    def _refuse_damage(self) -> None:
        """After all notes: if no epoch is being committed, the machine has refused to start."""
        machine = self.machine
        if machine is not None and not machine.is_active and not machine.desk.pending:
            self.on_failed(
                StoreError(
                    "The run directory has lost versions: " + "; ".join(self.books.problems),
                    "Its durability is `merge`, which promises that nothing is lost, so nothing was started.",
                    "Restore it from a copy, or accept the loss with --accept-loss.",
                )
            )

    # At the door (House)

    def admit_model(self, manifest: Manifest, then: Callable[[str], None]) -> None:
        """Compare a model with the run's; the first one becomes the run's."""
        if len(manifest.fragments) != self.config.sync.num_fragments:
            wanted = self.config.sync.num_fragments
            then(f"The model is cut into {len(manifest.fragments)} fragments, the run has {wanted}.")
        elif self.machine is not None and self.machine.is_active:
            then(self._why_not_this(manifest))
        else:
            self.at_the_door.append((manifest, then))
            if self.manifest is None and len(self.at_the_door) == 1:
                self.archive.put_manifest(manifest, lambda reason: self._kept_manifest(manifest, reason))

    def _why_not_this(self, manifest: Manifest) -> str:
        assert self.manifest is not None
        difference = manifest.first_difference(self.manifest)
        return (
            f"This is not the model of the run: {difference} (the other side is the run)."
            if difference
            else ""
        )

    def _kept_manifest(self, manifest: Manifest, reason: str) -> None:
        if not reason:
            self._boot(manifest)
            return
        waiting, self.at_the_door = self.at_the_door, []
        for _, then in waiting:
            then(f"The syncer cannot write its run directory: {reason}.")

    def _open_door(self) -> None:
        waiting, self.at_the_door = self.at_the_door, []
        for manifest, then in waiting:
            then(self._why_not_this(manifest))
        self.on_active()

    def num_links(self) -> int:
        """Learners connected now."""
        return sum(len(links) for links in self.links.values())

    def welcome(self, link: Link) -> None:
        """A learner is in."""
        link.expect(2 * sum(self.params.full_bytes) + BUFFER_LIMIT, self._size_of)
        link.on_message = self._message
        self.links.setdefault(link.name, []).append(link)
        link.on_gone.append(lambda: self._gone(link))

    def _sweep(self) -> None:
        """Close links whose other end has vanished without a word: learners are never silent for long."""
        limit_ns = int(SILENT_TIMES * self.config.sync.alive_s * 1e9)
        for link in [link for links in self.links.values() for link in links]:
            if self.loop.now_ns() - link.control.heard_ns > limit_ns:
                link.close(f"nothing heard for {limit_ns / 1e9:g} s")
        self.loop.after(limit_ns // 4, self._sweep)

    def _gone(self, link: Link) -> None:
        up, down = link.traffic()
        self.past_up += up
        self.past_down += down
        held = self.links.get(link.name, [])
        if link in held:
            held.remove(link)
        if not held:
            self.links.pop(link.name, None)

    def status(self) -> bytes:
        """The status as JSON."""
        return json.dumps(self.status_now()).encode()

    def status_now(self) -> dict[str, Any]:
        """The status as it is."""
        return self.books.status(self.machine, self.loop.now_ns(), self.traffic())

    def traffic(self) -> tuple[int, int]:
        """Bytes from and to all learners of this life of the syncer."""
        pairs = [link.traffic() for links in self.links.values() for link in links]
        return self.past_up + sum(up for up, _ in pairs), self.past_down + sum(down for _, down in pairs)

    def finish(self, reason: str) -> str:
        """An operator ends the run; returns why not, if it cannot be ended."""
        if self.machine is None or not self.machine.desk.state.fragments:
            return "the run has no weights yet, so there is nothing to finish"
        self.handle(ev.FinishRequested(self.loop.now_ns(), reason))
        return ""

    # In

    def _size_of(self, message: wire.Bulk) -> int | None:
        if isinstance(message, wire.BufferValues):
            return message.num_bytes if message.num_bytes <= BUFFER_LIMIT else None
        if isinstance(message, (msg.Publish, msg.Moments)):
            return None
        if not 0 <= message.fragment < self.params.num_fragments:
            return None
        if isinstance(message, msg.Donation):
            limit = moments_limit(self.params.full_bytes[message.fragment])
            return message.num_bytes if message.num_bytes <= limit else None
        sizes = self.params.fragment_bytes if isinstance(message, msg.Body) else self.params.full_bytes
        return sizes[message.fragment]

    def _message(self, link: Link, message: wire.Message, content: memoryview | None) -> None:
        machine = self.machine
        assert machine is not None
        match message:
            case wire.Telemetry():
                self.books.heard(message, machine.desk.schedule.t)
                return
            case wire.BufferValues():
                assert content is not None
                assert self.manifest is not None
                held = self.buffers.setdefault(link.name, LearnerBuffers())
                held.take(message, content, self.manifest.buffers)
                return
            case msg.Body():
                assert content is not None
                if not self._hold_body(message, content):
                    return
            case msg.SeedBody():
                assert content is not None
                if not self.work.hold_seed(machine, message, content):
                    return
            case msg.Donation():
                self.relayed = content  # passed on while the message is handled, or never
            case msg.Hello():
                self._supersede(link)
            case msg.Report() if link.life is None:
                link.ask_who(machine.desk.epoch)
        assert isinstance(message, msg.FromLearner)
        now_ns = self.loop.now_ns()
        self.handle(ev.Received(now_ns, message))
        self.relayed = None
        session = machine.desk.sessions.get(link.name)
        if session is not None and session.heard_ns == now_ns:  # the machine has taken it in
            self.books.heard(message, machine.desk.schedule.t)

    def _supersede(self, link: Link) -> None:
        """A life that says hello on a new link has given up its old one; we may not have heard of that."""
        for older in list(self.links.get(link.name, ())):
            if older is not link and older.life == link.life:
                older.close("dialled anew")

    def _hold_body(self, message: msg.Body, content: memoryview) -> bool:
        assert self.machine is not None
        if not self.work.hold_body(self.machine, message, content):
            return False
        self.books.body_bits += 8 * message.num_bytes
        self.books.body_values += self.work.numel(message.fragment)
        return True

    # Out

    def _send(self, command: do.Send) -> None:
        message = command.message
        if isinstance(message, msg.Welcome):
            assert self.machine is not None
            address = self._address(command.name, message.life)
            self.books.admitted(command.name, message.incarnation, message.shard, address, self.loop.now_ns())
        elif isinstance(message, msg.Ask):
            reach("S5")
        content = self.relayed if isinstance(message, msg.Moments) else None
        if isinstance(message, msg.Publish):
            content = self._content(message)
        for link in list(self.links.get(command.name, ())):
            life = getattr(message, "life", None)
            if link.life == life if life is not None else link.incarnation == command.incarnation:
                link.send(message, content)

    def _address(self, name: str, life: int) -> str:
        return next((link.control.peer for link in self.links.get(name, ()) if link.life == life), "")

    def _content(self, message: msg.Publish) -> memoryview:
        if message.base_version == msg.FULL:
            return self.work.model.full_bytes(message.fragment)
        self.books.publish_bits += 8 * message.num_bytes
        self.books.publish_values += self.work.numel(message.fragment)
        return self.work.model.update_bytes(message.fragment)

    def _install(self, command: do.Install) -> None:
        assert self.machine is not None
        self.work.install(command, self.machine.desk.state.fragments)

    # Storing

    def _put_delta(self, command: do.PutDelta) -> None:
        p, number = command.fragment, command.round

        def then(reason: str) -> None:
            reach("S8")
            if reason:
                self.books.tried("commit", reason, self.loop.now_ns())
            self.handle(ev.DeltaPut(self.loop.now_ns(), p, number, not reason, reason))

        delta = self.work.results[p, number].delta
        self.archive.put_delta(command.delta_digest, delta, sync=command.sync, then=then)

    def _commit(self, command: do.Commit) -> None:
        record = command.record
        seed = self.work.seed_of(record) if isinstance(record, SeedRecord) else None
        if isinstance(record, RoundRecord) and self.archive.offers is not None:
            self.archive.keep_offers(record, self.work.bodies_of(record), sync=command.sync)

        def then(reason: str) -> None:
            self._committed(command.ticket, record, reason)

        self.archive.commit(record, seed, self.take_lines(), sync=command.sync, then=then)

    def _committed(self, ticket: int, record: Record, reason: str) -> None:
        assert self.machine is not None
        self.books.tried("commit", reason, self.loop.now_ns())
        if not reason:
            reach(DURABLE.get(type(record), ""))
        if not reason and isinstance(record, RoundRecord):
            self.books.committed(record)
        was_active = self.machine.is_active
        self.handle(ev.Committed(self.loop.now_ns(), ticket, not reason, reason))
        if self.machine.is_active and not was_active:
            self._open_door()

    def take_lines(self) -> list[Entry]:
        """Tape lines that have not been handed to the archive."""
        lines, self.lines = self.lines, []
        return lines

    def _flush(self) -> None:
        if self.archive.is_flushing:
            self.archive.num_lost += max(0, len(self.lines) - MAX_CARRIED)
            del self.lines[:-MAX_CARRIED]
        else:
            self.archive.flush(self.take_lines(), self._flushed)
        self.loop.after(FLUSH_NS, self._flush)

    def _flushed(self, reason: str) -> None:
        self.books.tried("tape", reason, self.loop.now_ns())
        self.books.disk.lost_lines = self.archive.num_lost

    def _take_snapshot(self, command: do.TakeSnapshot) -> None:
        assert self.machine is not None

        def then(reason: str) -> None:
            self.books.tried("snapshot", reason, self.loop.now_ns())
            self.handle(ev.SnapshotTaken(self.loop.now_ns(), command.merges, not reason, reason))

        image = Image(command.merges, image_of(self.machine))  # a tape that is cut begins there
        now_ns = self.loop.now_ns()
        self.lines += [Entry(now_ns, SYNCER, image), Entry(now_ns, SYNCER, this_clock())]
        versions = tuple(fragment.version for fragment in self.machine.desk.state.fragments)
        self.archive.snapshot(command.merges, versions, list(self.work.model.states), then)
