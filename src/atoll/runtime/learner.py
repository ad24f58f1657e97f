"""The learner that users hold: one call per optimizer step, and nothing of it waits for a network.

`step()` notes the tokens, gives the machine its boundary (copying at most the fragments that are due or have
arrived, or one of the optimizer's state), and sets the learning rate if a schedule was given. Everything
else, encoding, sending, receiving, decoding, the tape, the saved state, happens on other threads. When the
process ends, or gets SIGTERM, the learner saves its state and says goodbye; if it dies instead, nobody minds.
"""

from __future__ import annotations

import json
import logging
import math
import operator
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from atoll.config import RunConfig
from atoll.core import commands as do
from atoll.core.members import NAME
from atoll.errors import JoinError
from atoll.numerics.partition import float_buffers
from atoll.recipes import Shard
from atoll.runtime.arguments import what_changed
from atoll.runtime.buffers import BUFFER_LIMIT, in_groups
from atoll.runtime.cursor import load_cursor, save_cursor
from atoll.runtime.failpoints import reach
from atoll.runtime.learner_shell import LearnerShell, bytes_of
from atoll.runtime.life_tape import LifeTape
from atoll.runtime.loop import Loop
from atoll.runtime.moment_keeper import MomentKeeper
from atoll.runtime.stopwatch import Stopwatch, percentile, process_cpu_ns
from atoll.runtime.uplink import Uplink
from atoll.runtime.worker import Worker
from atoll.wire import messages as wire

__all__ = ["Learner"]

log = logging.getLogger("atoll")

HOUSEKEEPING_NS = 1_000_000_000
GOODBYE_S = 5.0
"""Longest wait for the last messages to leave when the learner does."""
MAX_STEP_TOKENS = 1 << 40
"""More than any step has; sums of them still fit the wire."""

Schedule = Callable[[float], float]


@dataclass(eq=False)
class Learner:
    """A place in a run. Made by `atoll.join`."""

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    config: RunConfig
    schedule: Schedule | None
    state_dir: Path | None
    shell: LearnerShell
    uplink: Uplink
    loop: Loop
    worker: Worker
    keeper: MomentKeeper
    on_left: list[Callable[[], None]] = field(default_factory=list)
    watch: Stopwatch = field(default_factory=Stopwatch)
    merged_tokens: int = 0
    """Of the whole run, summed over fragments, as the syncer last said."""
    tape: LifeTape | None = None
    ended: str = ""
    """Why this learner no longer takes part, if it does not."""
    _pid: int = field(default_factory=os.getpid)
    _loss: float | Tensor | None = None
    _cursor: str = "null"
    """As JSON: whatever the user does to the value later, this is what was put here."""
    _is_cursor_saved: bool = True
    _unsaved: str = ""
    """What the disk refuses at the moment."""
    _untaped: str = ""
    """The same, of the tape."""
    _has_left: bool = False
    _is_lent: bool = False
    """The parameters hold the merged model for a while."""
    _base_rates: list[float] = field(default_factory=list)
    _num_reports: int = -1
    _is_reporting: bool = False
    _told: set[str] = field(default_factory=set)
    """Complaints that are in the log already."""
    _heard: tuple[int, int] = (0, 0)
    """Global tick, and the own clock when it was heard."""
    _leaving: threading.RLock = field(default_factory=threading.RLock)
    """Of a kind that a signal handler may take again."""

    def __post_init__(self) -> None:
        self._known = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._buffers = [(name, buffer) for name, buffer in float_buffers(self.model) if buffer.numel()]
        num_bytes = 4 * sum(buffer.numel() for _, buffer in self._buffers)
        if not 0 < num_bytes <= BUFFER_LIMIT:
            if num_bytes:
                log.warning("%s: buffers of %d bytes stay out of the exported model", self.name, num_bytes)
            self._buffers = []

    # What users call

    def step(self, *, tokens: int, loss: float | Tensor | None = None) -> None:
        """Once per optimizer step, with the tokens (or samples) it was trained on. Never blocks on the
        network."""
        if not self.is_own:
            raise JoinError(
                f"step() was called in process {os.getpid()}, but {self.name} joined in process {self._pid}.",
                "A forked process has no connection to the run.",
                "Call step() where you called join(), and leave data loading to the workers.",
            )
        tokens = _count(tokens)
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise JoinError(
                f"step(loss=...): the loss has shape {list(loss.shape)}, not one value.",
                "There would be nothing to show.",
                "Pass its mean, or leave it out.",
            )
        if self._is_lent:
            raise JoinError(
                "step() was called inside global_weights().",
                "The parameters hold the merged model now, not what this learner has trained.",
                "Leave the `with` block first.",
            )
        self.watch.enter(self.loop.now_ns(), tokens)
        if loss is not None:
            self._loss = loss.detach() if isinstance(loss, Tensor) else float(loss)
        if not self._has_left and not self.ended:
            self.shell.boundary(tokens, self.watch.step_ns)
            self.keeper.boundary()
            self._follow()
        self.watch.leave(self.loop.now_ns())

    @property
    def progress(self) -> float:
        """Share of the run's budget that is spent, 0 to 1; extrapolated between two words of the syncer."""
        return self.config.progress(self.global_step, self.merged_tokens)

    @property
    def global_step(self) -> int:
        """The tick t of the run, as far as this learner knows."""
        machine = self.shell.machine
        heard_t, at_clock = self._heard
        return max(machine.global_t, heard_t + machine.clock - at_clock)

    @property
    def finished(self) -> bool:
        """Whether the run is over and its last versions are here, or this learner's part in it has ended."""
        return bool(self.ended) or self.shell.machine.is_complete(self.loop.now_ns())

    @property
    def shard(self) -> Shard:
        """Which part of the data is this learner's."""
        count = self.config.shards
        return Shard(self.shell.machine.shard % count, count, self.config.data.seed)

    @property
    def is_own(self) -> bool:
        """Whether this process joined; a forked child only inherited the learner."""
        return os.getpid() == self._pid

    @property
    def incarnation(self) -> int:
        """Which life of this name it is."""
        return self.shell.machine.incarnation

    @property
    def cursor(self) -> Any:
        """Where this learner's data stands: the JSON value put here last, also by an earlier life."""
        return json.loads(self._cursor)

    @cursor.setter
    def cursor(self, value: Any) -> None:
        try:
            self._cursor, self._is_cursor_saved = json.dumps(value), False
        except (TypeError, ValueError) as error:
            raise JoinError(
                f"A {type(value).__name__} cannot be the data cursor: {error}.",
                "It could not be saved, and the next life would not know where to go on.",
                "Put a JSON value here: numbers, strings, lists, or a dict of them.",
            ) from error

    @property
    def warmup(self) -> float:
        """Factor on the learning rate after a start with fresh optimizer state in a run that had begun; rises
        to 1.0, which it is otherwise. Part of what `schedule` sets; without one it is the user's to apply."""
        return self.keeper.warmup

    @property
    def metrics(self) -> dict[str, float]:
        """Figures about this life, cheap to read at any time."""
        watch, shell = self.watch, self.shell
        held, steps = list(watch.held), list(watch.steps)
        up, down = self.uplink.traffic()
        return {
            "steps": watch.num_steps,
            "tokens": watch.num_tokens,
            "global_step": self.global_step,
            "progress": self.progress,
            "step_ms": percentile(steps, 0.5) / 1e6,
            "held_ms": watch.held_ns / 1e6,
            "held_ms_median": percentile(held, 0.5) / 1e6,
            "held_ms_p99": percentile(held, 0.99) / 1e6,
            "stall_fraction": watch.stall_fraction(self.loop.now_ns()),
            "missed_boundaries": shell.num_missed,
            "offers": shell.num_offers,
            "rejected": shell.num_rejected,
            "adopted": shell.num_adopted,
            "bytes_up": up,
            "bytes_down": down,
            "extra_memory_bytes": shell.replica.memory_bytes() + self.keeper.memory_bytes(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Data cursor and error-feedback residuals, to be saved beside the user's own checkpoint."""
        return {"cursor": self.cursor, "residuals": self.shell.replica.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a cursor and residuals back."""
        self.cursor = state["cursor"]
        self.shell.replica.load_state_dict(state["residuals"])

    @contextmanager
    def global_weights(self) -> Iterator[nn.Module]:
        """The merged model, as this learner holds it, inside the `with`; afterwards its own values again."""
        with self.shell.replica.global_weights():
            self._is_lent = True
            try:
                yield self.model
            finally:
                self._is_lent = False

    def leave(self, timeout_s: float = GOODBYE_S) -> None:
        """Save, say goodbye and close: offers already made still count. A second call does nothing.

        Nothing is waited for longer than a few times `timeout_s`, whatever the network does.
        """
        if not self.is_own:
            return
        with self._leaving:
            if self._has_left:
                return
            self._has_left = True
            self._finish_work(timeout_s)
            if self.shell.lock.acquire(timeout=timeout_s):  # a handler may have interrupted its holder
                try:
                    self.shell.leave()
                finally:
                    self.shell.lock.release()
            reach("L13")
            self.keeper.save_all(timeout_s)
            self._settle_down(timeout_s)
            for what in self.on_left:
                what()

    def __enter__(self) -> Learner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    # Behind join()

    def _come_back(self) -> None:
        """Healed, and the user's thread stands in join: find what an earlier life has left."""
        self._cursor = load_cursor(self.state_dir, self.shard)
        self.keeper.restore()
        self._set_rate()

    # Behind step()

    def _follow(self) -> None:
        machine = self.shell.machine
        if machine.global_t != self._heard[0]:  # it falls only when an operator has gone back
            self._heard = (machine.global_t, machine.clock)
        self._set_rate()
        num_due = machine.steps // self.config.sync.interval_steps
        if self._buffers and num_due > self._num_reports and not self._is_reporting:
            self._num_reports, self._is_reporting = num_due, True
            self._report_buffers()
            self.loop.call(self._reported)

    def _set_rate(self) -> None:
        """The user's own thread: schedules are the user's code. Groups may have been added since."""
        if self.schedule is None or self.optimizer is None:
            return
        groups, rates = self.optimizer.param_groups, self._base_rates
        rates += [float(group.get("initial_lr", group["lr"])) for group in groups[len(rates) :]]
        factor = self.schedule(self.progress) * self.warmup
        for group, rate in zip(groups, rates, strict=False):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * factor)
            else:
                group["lr"] = rate * factor

    def _reported(self) -> None:
        """Loop: the report has left the training thread's hands; only then may the next one follow."""
        self._is_reporting = False

    def _report_buffers(self) -> None:
        for group in in_groups(self._buffers):
            content = bytes_of(torch.cat([buffer.detach().reshape(-1).float().cpu() for _, buffer in group]))
            message = wire.BufferValues(
                self.name,
                self.incarnation,
                self.watch.num_tokens,
                tuple(name for name, _ in group),
                tuple(tuple(buffer.shape) for _, buffer in group),
                len(content),
                "",
            )
            self.uplink.bulk(message, content)

    # On the other threads

    def _noted(self, note: do.Note) -> None:
        if note.kind in ("fenced", "refused"):
            self.ended = note.reason
            log.warning("%s no longer takes part: %s", self.name, note.reason)
        elif note.kind == "quarantined":
            log.warning("%s is quarantined, and heals anew: %s", self.name, note.reason)
        elif note.kind == "finished":
            log.info("%s: the run is over (%s); step() goes on without offering", self.name, note.reason)

    def _housekeep(self) -> None:
        """Loop, once a second: tell how it goes, let the worker save."""
        if self._has_left or not self.worker.is_alive:
            return
        self.worker.do(self._report_self)
        self.loop.after(HOUSEKEEPING_NS, self._housekeep)

    def _report_self(self) -> None:
        """Worker: reading the loss of a GPU may wait, so it is read here."""
        watch, shell = self.watch, self.shell
        loss = float(self._loss) if self._loss is not None else None
        steps = list(watch.steps)[-64:]
        step_ns = sum(steps) // len(steps) if steps else 0
        tokens = watch.num_tokens / max(1, watch.num_steps)
        self.uplink.tell(
            wire.Telemetry(
                self.name,
                self.incarnation,
                loss if loss is None or abs(loss) < float("inf") else None,
                watch.num_steps,
                watch.num_tokens,
                tokens / (step_ns / 1e9) if step_ns else 0.0,
                watch.total_held_ns,
                step_ns,
                watch.max_held_ns,
                process_cpu_ns(),
                self.loop.now_ns() - watch.began_ns,
                shell.overwritten,
                shell.num_offers,
                shell.replica.memory_bytes(),
                self._device(),
                self._complaint(loss),
            )
        )
        self._save()

    def _complaint(self, loss: float | None) -> str:
        """What is wrong with this learner, if something is: for the status, and once each for the log."""
        complaints = [
            what_changed(self.model, self._known),
            self.shell.rejection,
            self._unsaved,
            self._untaped,
        ]
        if loss is not None and not math.isfinite(loss):
            complaints.append(f"the loss is {loss}")
        for complaint in filter(None, complaints):
            kind = complaint.partition(":")[0]
            if kind not in self._told:
                self._told.add(kind)
                log.warning("%s: %s", self.name, complaint)
        return "; ".join(filter(None, complaints))

    def _device(self) -> str:
        first = next(self.model.parameters(), None)
        return str(first.device) if first is not None else "none"

    def _save(self) -> None:
        if self.tape is not None:
            reason = self.tape.save()
            self._untaped = f"the tape cannot be written: {reason}" if reason else ""
        if self.state_dir is not None and not self._is_cursor_saved:
            self._is_cursor_saved = True
            try:
                save_cursor(self.state_dir, self.shard, self._cursor)
                self._unsaved = ""
            except OSError as error:
                self._is_cursor_saved = False  # tried again in a second, and when it leaves
                self._unsaved = f"the data cursor cannot be saved: {error.strerror}"

    def _finish_work(self, timeout_s: float) -> None:
        """Let the worker encode the offers that were made, so that their bodies follow."""
        done = threading.Event()
        self.worker.do(done.set)
        if self.worker.is_alive:
            done.wait(timeout_s)

    def _settle_down(self, timeout_s: float) -> None:
        """Let the last words leave, then end the threads."""
        drained = threading.Event()
        deadline_ns = self.loop.now_ns() + int(timeout_s * 1e9)

        def look() -> None:
            if self.uplink.is_drained or self.loop.now_ns() >= deadline_ns:
                drained.set()
            else:
                self.loop.after(10_000_000, look)

        closed = threading.Event()
        self.loop.call(look)
        if self.loop.is_running:
            drained.wait(timeout_s)
        self.uplink.stop(closed.set)
        if self.loop.is_running:
            closed.wait(timeout_s)
        self.worker.do(self._save)
        self.worker.stop(timeout_s)
        self.loop.stop(timeout_s)
        if self.tape is not None:
            self.tape.close()


def _count(tokens: Any) -> int:
    """Tokens as a plain integer, whatever kind of whole number they are, or JoinError. Not from a tensor:
    reading one of a GPU would make the loop wait for it."""
    if hasattr(tokens, "__index__") and not isinstance(tokens, (bool, Tensor)):
        count = operator.index(tokens)
        if 0 <= count <= MAX_STEP_TOKENS:
            return count
    raise JoinError(
        f"step(tokens={tokens!r}): tokens must be a whole number from 0 to {MAX_STEP_TOKENS}.",
        "Merges are weighted by tokens, so a guess would spoil them.",
        "Pass the number of tokens or samples in the batch, for example input_ids.numel().",
    )


def check_name(name: str) -> str:
    """A name that may stand in a run, or JoinError."""
    if not NAME.fullmatch(name):
        raise JoinError(
            f"The name {name!r} does not match {NAME.pattern}.",
            "Names are used in files, logs and pages, so they are kept simple.",
            "Use small letters, digits, dots and dashes, for example learner-1.",
        )
    return name
