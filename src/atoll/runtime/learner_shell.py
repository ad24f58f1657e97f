"""The learner machine in a real process: three threads around one lock.

    training thread   the user's loop: at a boundary it copies what is due and takes in what has arrived
    loop              sockets and timers
    worker            encodes offers, decodes publishes, writes the tape

The lock guards the machine and its bookkeeping, and is held for moments: commands only copy a fragment or put
something on a queue. The training thread never waits even for that. If the lock is taken, the boundary is
missed and made up for at the next one (`Stepped.steps`). Only the waiting algorithms hold it, and say so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash
from torch import Tensor

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.learner import LearnerMachine
from atoll.core.params import RunParams
from atoll.numerics.outer import digest
from atoll.numerics.replica import Pending, Replica
from atoll.runtime.clock import this_clock
from atoll.runtime.failpoints import reach
from atoll.runtime.loop import Loop, Timer
from atoll.runtime.worker import Worker
from atoll.tape.entries import Entry, Image
from atoll.tape.image import image_of

__all__ = ["LearnerShell", "bytes_of"]

log = logging.getLogger("atoll")

MAX_UNWRITTEN = 200_000
"""Lines of tape kept in memory when the worker cannot keep up; beyond that the tape has a gap, and says so.
"""
HOLD_POLL_S = 1.0


@dataclass(eq=False)
class LearnerShell:
    """Performs the machine's commands. Public methods say from which thread they may be called."""

    params: RunParams
    replica: Replica
    loop: Loop
    worker: Worker
    tell: Callable[[Any], None]
    bulk: Callable[[Any, memoryview], None]
    on_note: Callable[[do.Note], None] = lambda note: None
    keep_tape: bool = False
    machine: LearnerMachine = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock)
    changed: threading.Condition = field(init=False)
    is_held: bool = False
    is_dead: bool = False
    """A thread has crashed: nobody would let go of a learner that is held."""
    waited_ns: int = 0
    """At the last boundary; what `Stepped` tells as held. Copying is not waiting: the stopwatch has both."""
    missed_steps: int = 0
    missed_tokens: int = 0
    num_missed: int = 0
    num_offers: int = 0
    num_rejected: int = 0
    rejection: str = ""
    """Why the last of these was rejected."""
    num_adopted: int = 0
    overwritten: int = 0
    merged_tokens: int = 0
    unwritten: list[Entry] = field(default_factory=list)
    pending: dict[int, Pending] = field(default_factory=dict)
    bodies: dict[int, tuple[msg.Body, memoryview]] = field(default_factory=dict)
    seeds: dict[int, memoryview] = field(default_factory=dict)
    donations: dict[int, memoryview] = field(default_factory=dict)
    """Optimizer state packed for a peer, by fragment."""
    content: memoryview | None = None
    """Of the bulk message being handled."""
    timers: dict[str, Timer] = field(default_factory=dict)
    performers: dict[type, Callable[[Any], None]] = field(init=False)
    """By command; the keeper of the optimizer state adds its own."""
    actor: str = ""

    def __post_init__(self) -> None:
        self.machine = LearnerMachine(self.params)
        self.changed = threading.Condition(self.lock)
        self.performers = {
            do.SetTimer: lambda c: self.loop.call(self._set_timer, c.key, c.at_ns),
            do.Tell: lambda c: self._send(c.message),
            do.Resend: lambda c: self._send(c.message),
            do.Snapshot: self._snapshot,
            do.Encode: self._queue_encode,
            do.Stage: self._queue_stage,
            do.Adopt: self._adopt,
            do.Unstage: lambda c: self.replica.unstage(c.fragment),
            do.Drop: self._drop,
            do.SeedSnapshot: self._seed,
            do.Settle: self._settle,
            do.Note: self.on_note,
            do.Hold: self._hold,
            do.Release: self._release,
        }

    # From the training thread

    def boundary(self, tokens: int, step_ns: int, steps: int = 1) -> None:
        """A step is done. Never waits, unless the algorithm does; the next boundary says for how long."""
        self.missed_steps += steps
        self.missed_tokens += tokens
        came_ns = self.loop.now_ns() if self.params.waits else 0
        if not self.lock.acquire(blocking=self.params.waits):
            self.num_missed += 1
            return
        try:
            steps, self.missed_steps = self.missed_steps, 0
            tokens, self.missed_tokens = self.missed_tokens, 0
            self._handle(ev.Stepped(self.loop.now_ns(), tokens, step_ns, self.waited_ns, steps))
            while self.is_held and not self.is_dead:
                self.changed.wait(HOLD_POLL_S)
        finally:
            self.lock.release()
        if self.params.waits:
            self.waited_ns = self.loop.now_ns() - came_ns

    def leave(self) -> None:
        """With the lock held, from any thread: say goodbye."""
        self._handle(ev.LeaveRequested(self.loop.now_ns()))

    # From the loop

    def start(self, name: str, key: str, life: int) -> None:
        """Begin the machine's life."""
        self.actor = f"{name}#{life:012x}"
        if self.keep_tape:
            self.unwritten.append(Entry(self.loop.now_ns(), self.actor, this_clock()))
        self.handle(ev.Started, name, key, life)
        self.loop.call(reach, "L1")  # after the hello

    def deliver(self, message: msg.FromSyncer, content: memoryview | None) -> None:
        """A message from the syncer, whole."""
        with self.lock:
            self.content = content
            self._handle(ev.Received(self.loop.now_ns(), message))
            self.content = None
        if isinstance(message, msg.Welcome):
            reach("L2")
        elif isinstance(message, msg.Publish) and message.base_version == msg.FULL:
            reach("L3")
        match message:
            case msg.Publish(verdict="rejected", fragment=p, reason=reason):
                self._rejected(p, reason)
            case msg.Cancelled(fragment=p, reason=reason) if "was rejected" in reason:
                self._rejected(p, reason)

    def _rejected(self, fragment: int, reason: str) -> None:
        self.num_rejected += 1
        self.rejection = f"an offer on fragment {fragment} was rejected: {reason}"

    def handle(self, event: Callable[..., ev.Event], *values: Any) -> None:
        """Give the machine an event that happens now."""
        with self.lock:
            self._handle(event(self.loop.now_ns(), *values))

    def _handle(self, event: ev.Event) -> None:
        """With the lock held: one event through the machine; its commands are performed in order."""
        if self.keep_tape and len(self.unwritten) < MAX_UNWRITTEN:
            self.unwritten.append(Entry(event.at_ns, self.actor, event))
        for command in self.machine.handle(event):
            self.performers[type(command)](command)
        self.changed.notify_all()

    def take_tape(self, *, with_image: bool = False) -> list[Entry]:
        """The lines that have not been taken yet, and, if asked for, what the machine is now; any thread."""
        with self.lock:
            lines, self.unwritten = self.unwritten, []
            if with_image:
                image, now_ns = Image(0, image_of(self.machine)), self.loop.now_ns()
                lines += [Entry(now_ns, self.actor, image), Entry(now_ns, self.actor, this_clock())]
        return lines

    # Commands

    def _set_timer(self, key: str, at_ns: int) -> None:
        old = self.timers.pop(key, None)
        if old is not None:
            old.cancel()
        self.timers[key] = self.loop.at(at_ns, self._fire, key)

    def _fire(self, key: str) -> None:
        self.timers.pop(key, None)
        self.handle(ev.TimerFired, key)

    def _send(self, message: msg.FromLearner) -> None:
        if isinstance(message, msg.Body):
            held = self.bodies.get(message.fragment)
            if held is not None and held[0] == message:
                self.bulk(message, held[1])
        elif isinstance(message, msg.SeedBody):
            if message.fragment in self.seeds:
                self.bulk(message, self.seeds[message.fragment])
        elif isinstance(message, msg.Donation):
            self.bulk(message, self.donations[message.fragment])
        else:
            self.tell(message)

    def _snapshot(self, command: do.Snapshot) -> None:
        reach("L5")
        self.pending[command.fragment] = self.replica.snapshot(command.fragment)
        self.num_offers += 1

    def _queue_encode(self, command: do.Encode) -> None:
        self.loop.call(reach, "L6")  # after the header, before the body
        self.worker.do(self._encode, command, self.pending[command.fragment])

    def _encode(self, command: do.Encode, pending: Pending) -> None:
        """Worker: pack an offer, unless it was dropped meanwhile."""
        p = command.fragment
        if self.pending.get(p) is not pending:
            return
        content = bytes_of(self.replica.encode(p, pending))
        name = xxhash.xxh3_128_hexdigest(content)
        with self.lock:
            offer = self.machine.slots[p].offer
            if offer is None or (offer.epoch, offer.round) != (command.epoch, command.round):
                return
            header = offer.header
            body = msg.Body(header.name, header.incarnation, offer.epoch, offer.round, p, name, len(content))
            self.bodies[p] = (body, content)
            self._handle(ev.Encoded(self.loop.now_ns(), p, command.epoch, command.round, name, len(content)))

    def _queue_stage(self, command: do.Stage) -> None:
        self.worker.do(self._stage, command.publish, self.content)

    def _stage(self, publish: msg.Publish, content: memoryview | None) -> None:
        """Worker: compute the next base beside the model; it counts only if still wanted."""
        p, is_full = publish.fragment, publish.base_version == msg.FULL
        with self.lock:
            if self.machine.slots[p].staging is not publish:
                return
            newest = None if is_full else self.replica.newest(p)
        staged = None if content is None else self._next_base(p, newest, content)
        ok = staged is not None and digest(staged) == publish.digest
        cargo = self.replica.prefetch(staged) if ok and staged is not None else None
        with self.lock:
            if self.machine.slots[p].staging is not publish:
                self.replica.drop_cargo(cargo)
                return
            if ok and staged is not None:
                self.replica.put_staged(p, staged, cargo)
            self._handle(ev.Staged(self.loop.now_ns(), p, publish.version, publish.digest, ok))
        reach("L10")

    def _next_base(self, p: int, newest: Tensor | None, content: memoryview) -> Tensor:
        body = torch.frombuffer(content, dtype=torch.uint8)
        if newest is None:
            return self.replica.full_base(p, body.view(torch.float32))
        return self.replica.next_base(p, newest, body)

    def _adopt(self, command: do.Adopt) -> None:
        self.replica.adopt(command.fragment, command.merged, reset=command.reset)
        reach("L11")
        self.num_adopted += 1
        self.seeds.clear()  # the run has gone on from version 0

    def _drop(self, command: do.Drop) -> None:
        p = command.fragment
        pending = self.pending.pop(p, None)
        self.bodies.pop(p, None)
        self.replica.release(p)
        if pending is not None:
            self.worker.do(self.replica.settle, p, pending, command.merged)

    def _seed(self, command: do.SeedSnapshot) -> None:
        """Copy everything as version 0. The user's thread stands in `join`, so the model rests."""
        digests, sizes, is_finite = [], [], True
        for p in range(self.params.num_fragments):
            base = self.replica.set_base_from_local(p)
            is_finite = is_finite and bool(torch.isfinite(base).all())
            self.seeds[p] = bytes_of(base)
            digests.append(digest(base))
            sizes.append(len(self.seeds[p]))
        self.loop.call(self.handle, ev.SeedReady, command.epoch, tuple(digests), tuple(sizes), is_finite)

    def _settle(self, command: do.Settle) -> None:
        num = command.end - command.start
        if command.fate == "merged":
            self.merged_tokens += num
        elif command.fate == "overwritten":
            self.overwritten += num

    def _hold(self, command: do.Hold) -> None:
        self.is_held = True

    def _release(self, command: do.Release) -> None:
        self.is_held = False


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a flat CPU tensor; the view keeps it alive."""
    return memoryview(tensor.contiguous().view(torch.uint8).numpy().data)
