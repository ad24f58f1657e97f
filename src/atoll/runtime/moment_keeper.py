"""Keeps the optimizer state of one learner: saves it beside training, and finds it again for the next life.

Saving: one fragment is copied at a step boundary, and written by the worker; in `heal.save_every_steps` steps
all of them. A boundary that copies for an offer or an adoption is passed over if the next will do, and while
a write is under way nothing is copied: what is late is skipped, never queued. Who leaves saves everything.

Coming back, in this order: the optimizer's own state, if it was given with some; the files of the last life,
if they are of this run and young enough; a peer's, where `heal.moments` says so; else it starts fresh.
Whoever starts fresh in a run that has begun warms up again: `warmup` rises from 1 / (n + 1) to 1 over n
steps, at most `heal.warmup_steps` and at most as many as the run is old. A peer's state comes while training
goes on, is put together by the worker, and is taken in at a boundary.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import xxhash

from atoll.config.sections import HealConfig
from atoll.core import commands as do
from atoll.core import events as ev
from atoll.errors import ModelError
from atoll.numerics.moments import Copied, Moments, Prepared
from atoll.runtime.learner_shell import LearnerShell
from atoll.runtime.moment_files import Found, MomentFiles, Stamp

__all__ = ["MomentKeeper"]

log = logging.getLogger("atoll")

RETRY_S = 0.002
"""Pause before a copy is tried again because the optimizer was at work."""


@dataclass(eq=False)
class MomentKeeper:
    """Between a learner's optimizer, its disk and its machine. Methods say which thread may call them."""

    name: str
    run: str
    shell: LearnerShell
    heal: HealConfig
    moments: Moments | None = None
    """None if no optimizer was given to `join`."""
    files: MomentFiles | None = None
    donation_limit: Callable[[int], int] = lambda fragment: 0
    """Largest number of bytes that may be sent to a peer, by fragment."""
    num_saved: int = 0
    """Fragments written so far."""
    _warm_from: int = 0
    _warm_steps: int = 0
    _num_done: int = 0
    _next: int = 0
    _num_copies: int = 0
    _num_donated: int = 0
    _is_writing: bool = False
    _told: set[str] = field(default_factory=set)
    _own: dict[int, Copied] = field(default_factory=dict)
    """Of the last life, as long as a peer is asked for the rest."""
    _lacking: tuple[str, ...] = ()
    """Parameters that a peer's state is awaited for."""
    _borrowed: dict[int, Copied] = field(default_factory=dict)
    _arrived: tuple[Prepared, str] | None = None
    _reset_reason: str = ""

    def __post_init__(self) -> None:
        self.shell.performers.update(
            {
                do.CopyMoments: self._copy_for_peer,
                do.TakeMoments: self._take,
                do.EndMoments: self._end,
                do.ResetMoments: self._reset_soon,
            }
        )

    @property
    def warmup(self) -> float:
        """Factor on the learning rate for the next step; 1.0 unless the optimizer started fresh."""
        k = self.shell.machine.steps - self._warm_from
        return 1.0 if k >= self._warm_steps else (k + 1) / (self._warm_steps + 1)

    def memory_bytes(self) -> int:
        """What is kept beside the optimizer."""
        return self.moments.memory_bytes() if self.moments is not None else 0

    # Coming back: the user's thread, inside join

    def restore(self) -> None:
        """Find the optimizer state, or ask a peer for it; say which."""
        t = self.shell.machine.global_t
        if self.moments is None:
            self._say("none", "no optimizer was given to join")
        elif self.moments.has_state:
            self._say("own", "the optimizer came with its state")
        else:
            self._restore(self.moments, t)

    def _restore(self, moments: Moments, t: int) -> None:
        found = self._find(moments, t)
        installed = moments.install(found.copies.values())
        if found.copies and not installed.fresh:
            self._say("own", f"saved {max(0, t - found.oldest_t)} ticks ago at tick {found.oldest_t}")
            return
        if t == 0 and not found.copies:
            self._say("fresh", "the run begins")
            return
        self._warm_up(min(t, self.heal.warmup_steps))
        missing = tuple(p for p in range(len(moments.manifest.fragments)) if p not in found.copies)
        if self.heal.moments == "peer" and missing:
            self._own, self._lacking = found.copies, installed.fresh
            log.info("%s: %s, so a peer is asked for optimizer state", self.name, _first(found))
            self.shell.handle(ev.MomentsWanted, missing)
        elif found.copies:
            num = len(installed.fresh)
            why = _first(found) if found.problems else "state of another shape is not saved"
            self._say("own", f"but {num} parameters start fresh: {why}")
        else:
            self._say("fresh", _first(found))

    def _find(self, moments: Moments, t: int) -> Found:
        if self.heal.moments == "fresh":
            return Found(problems={0: "heal.moments is fresh"})
        if self.files is None:
            return Found(problems={0: "there is no state_dir"})
        cycle = self.shell.params.interval_steps
        return self.files.find(moments, self.run, t, self.heal.max_age_steps, max_ahead=2 * cycle)

    def _say(self, source: str, reason: str) -> None:
        """To the log, and through the machine to the tape and the syncer. Never waits."""
        log.info("%s: optimizer state: %s (%s)", self.name, source, reason)
        self.shell.loop.call(self.shell.handle, ev.MomentsRestored, source, reason)

    def _warm_up(self, num_steps: int) -> None:
        self._warm_from, self._warm_steps = self.shell.machine.steps, num_steps

    # At a boundary: the training thread

    def boundary(self) -> None:
        """After the machine's own boundary: take in what has arrived, copy one fragment if one is due."""
        if self._reset_reason:
            if all(slot.version >= 0 for slot in self.shell.machine.slots):
                self._begin_anew()
            return
        moments = self.moments
        if moments is None:
            return
        arrived, self._arrived = self._arrived, None
        if arrived is not None:
            self._put(moments, *arrived)
        if self.files is not None and self.heal.save_every_steps and self.heal.moments != "fresh":
            self._save_one(moments)

    def _save_one(self, moments: Moments) -> None:
        shell, num_fragments = self.shell, len(moments.manifest.fragments)
        num_copies = shell.num_offers + shell.num_adopted + self._num_donated
        is_quiet, self._num_copies = num_copies == self._num_copies, num_copies
        due = shell.machine.steps * num_fragments // self.heal.save_every_steps
        num_late = due - self._num_done
        if num_late <= 0 or self._is_writing or (not is_quiet and num_late == 1):
            return
        self._num_done, self._is_writing = due, True
        shell.worker.do(self._write, moments, moments.copy(self._next), self._stamp())
        self._next = (self._next + 1) % num_fragments

    def _stamp(self) -> Stamp:
        machine = self.shell.machine
        return Stamp(self.run, machine.global_t, machine.steps, machine.incarnation)

    def _begin_anew(self) -> None:
        """After a quarantine, once every fragment was sent again. Each was taken in when it came and trained
        on beside others that were still spoiled: one NaN among them spoils all within a step. So they begin
        together, and the optimizer with them."""
        log.warning("%s: begins anew, with fresh optimizer state: %s", self.name, self._reset_reason)
        for fragment in range(len(self.shell.machine.slots)):
            self.shell.replica.rewind(fragment)
        reason, self._reset_reason = self._reset_reason, ""
        if self.moments is None:
            return
        self.moments.reset()
        self._warm_up(self.heal.warmup_steps)
        if self.files is not None:
            self.shell.worker.do(self.files.forget)
        self.shell.loop.call(self.shell.handle, ev.MomentsRestored, "fresh", reason)
        if self.heal.moments == "peer":
            manifest = self.moments.manifest
            self._lacking = tuple(storage.name for storage in manifest.storages)
            everything = tuple(range(len(manifest.fragments)))
            self.shell.loop.call(self.shell.handle, ev.MomentsWanted, everything)

    def _put(self, moments: Moments, prepared: Prepared, reason: str) -> None:
        installed = moments.put(prepared)
        if not installed.fresh:
            self._warm_steps = 0
            self._say("peer", reason)
        elif installed.restored:
            self._say("peer", f"{reason}; {len(installed.fresh)} parameters start fresh")
        else:
            self._say("fresh", reason)

    # On the worker

    def _write(
        self, moments: Moments, copied: Copied, stamp: Stamp, done: threading.Event | None = None
    ) -> None:
        assert self.files is not None
        try:
            self.files.write(moments, copied, stamp)
            self.num_saved += 1
        except OSError as error:
            self._complain(f"optimizer state could not be saved: {error.strerror}")
        for unit in copied.units:
            if not unit.savable:
                self._complain(f"{unit.storage}: its {moments.kind} state has another shape and is not saved")
        moments.release(copied)
        self._is_writing = False
        if done is not None:
            done.set()

    def _complain(self, complaint: str) -> None:
        """Once each."""
        if complaint not in self._told:
            self._told.add(complaint)
            log.warning("%s: %s", self.name, complaint)

    # Leaving: any thread

    def close(self) -> None:
        """Leave the optimizer alone from now on."""
        if self.moments is not None:
            self.moments.detach()

    def save_all(self, timeout_s: float) -> None:
        """Save every fragment as it stands now, for as long as that takes or the time allows."""
        moments, deadline_s = self.moments, time.monotonic() + timeout_s
        if moments is None or self.files is None or self.heal.moments == "fresh":
            return
        if not self.shell.machine.steps or not self.heal.save_every_steps:
            return
        if self._reset_reason:  # what is there is not to be built upon
            self.shell.worker.do(self.files.forget)
            return
        for fragment in range(len(moments.manifest.fragments)):
            copied = self._copy_until(moments, fragment, deadline_s)
            done = threading.Event()
            if copied is not None and self.shell.worker.is_alive:
                self.shell.worker.do(self._write, moments, copied, self._stamp(), done)
                done.wait(max(0.0, deadline_s - time.monotonic()))
            if not done.is_set():
                log.warning("%s: optimizer state from fragment %d on is older", self.name, fragment)
                return

    def _copy_until(self, moments: Moments, fragment: int, deadline_s: float) -> Copied | None:
        """A copy between two steps of the optimizer; None if it does not come to rest."""
        while not moments.is_broken_off:
            copied = moments.copy_between(fragment)
            if copied is not None or time.monotonic() > deadline_s:
                return copied
            time.sleep(RETRY_S)
        return None

    # Commands, with the shell's lock held

    def _copy_for_peer(self, command: do.CopyMoments) -> None:
        """Donor, at a boundary: copy now, pack on the worker."""
        moments = self.moments
        copied = moments.copy(command.fragment) if moments is not None and moments.has_state else None
        self._num_donated += 1
        self.shell.worker.do(self._pack, command.fragment, copied)

    def _pack(self, fragment: int, copied: Copied | None) -> None:
        """Worker: the content waits in the shell until the machine sends it."""
        content = b""
        if self.moments is not None and copied is not None:
            content = self.moments.to_wire(copied)
            self.moments.release(copied)
        if len(content) > self.donation_limit(fragment):
            content = b""
        self.shell.donations[fragment] = memoryview(content)
        digest = xxhash.xxh3_128_hexdigest(content)
        self.shell.handle(ev.MomentsCopied, fragment, digest, len(content))
        self.shell.donations.pop(fragment, None)

    def _take(self, command: do.TakeMoments) -> None:
        """Who is in need: a fragment has come; look at it on the worker."""
        if self.shell.content is not None:
            self.shell.worker.do(self._read, command.message.fragment, self.shell.content)

    def _read(self, fragment: int, content: memoryview) -> None:
        assert self.moments is not None
        try:
            self._borrowed[fragment] = self.moments.from_bytes(fragment, content)
        except ModelError as error:
            log.warning("%s: a peer's optimizer state is of no use: %s", self.name, error.what)

    def _end(self, command: do.EndMoments) -> None:
        self.shell.worker.do(self._prepare, command.reason)

    def _prepare(self, reason: str) -> None:
        """Worker: put together what has come, for the next boundary."""
        assert self.moments is not None
        copies = [*self._own.values(), *self._borrowed.values()]
        self._arrived = (self.moments.prepare(copies, self._lacking), reason)
        self._own, self._borrowed = {}, {}

    def _reset_soon(self, command: do.ResetMoments) -> None:
        self._reset_reason = command.reason


def _first(found: Found) -> str:
    """Why there is nothing to go on from: fragments mostly lack the same."""
    return next(iter(found.problems.values()), "nothing was saved")
