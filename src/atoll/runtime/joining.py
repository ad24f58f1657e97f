"""`join`: from a URL and a model to a learner that holds the run's weights.

The URL says where the run is and by which key to know it. Everything else about the run, P, H, codecs,
budget, comes from the syncer once it has accepted the token; then the model is cut into fragments, shown to
the syncer, and compared there with the run's. `join` returns when every fragment has its first weights: the
run's, or, in an empty run, this model's own. Until then every wait has a deadline and names what it waits
for.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from atoll.config import RunConfig
from atoll.core import commands as do
from atoll.core import messages as msg
from atoll.core.params import RunParams
from atoll.errors import AtollError, JoinError
from atoll.numerics.codec import codec_for
from atoll.numerics.manifest import Manifest
from atoll.numerics.moments import Moments
from atoll.numerics.partition import partition
from atoll.numerics.replica import Replica
from atoll.runtime import found
from atoll.runtime.arguments import check_arguments
from atoll.runtime.failpoints import reach
from atoll.runtime.goodbye import say_goodbye_at_exit
from atoll.runtime.learner import Learner, Schedule, check_name
from atoll.runtime.learner_shell import LearnerShell
from atoll.runtime.life_tape import LifeTape
from atoll.runtime.loop import Loop
from atoll.runtime.moment_files import MomentFiles
from atoll.runtime.moment_keeper import MomentKeeper
from atoll.runtime.security.identity import LearnerIdentity, StateLock
from atoll.runtime.security.tls import client_context
from atoll.runtime.security.tokens import read_token
from atoll.runtime.tape_file import open_life
from atoll.runtime.uplink import Events, Uplink
from atoll.runtime.worker import Worker
from atoll.wire import messages as wire
from atoll.wire.url import LocalURL, RunURL, parse

__all__ = ["join", "moments_limit", "sizes_of"]

log = logging.getLogger("atoll")

JOIN_S = 60.0
SILENT_TIMES = 2.0
"""The control connection is redialled after this many times `sync.alive_s` of silence."""


def join(
    url: str,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    name: str | None = None,
    token: str | None = None,
    schedule: Schedule | None = None,
    state_dir: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    config: RunConfig | None = None,
    timeout_s: float = JOIN_S,
) -> Learner:
    """Take part in a run with this model; see the module for what happens.

    `name` is kept in `state_dir`, as are the identity key, the data cursor, the optimizer's state and the
    tape; without a `state_dir` the learner is a stranger each time. `token` comes from ATOLL_TOKEN or
    ATOLL_TOKEN_FILE if not given. `schedule` maps progress (0..1) to a factor on the learning rate of every
    group. `certificate` is for runs with mTLS. `config` is for `local://` only, where this process is its own
    syncer.
    """
    check_arguments(url, model, optimizer, schedule, config)
    where = parse(url)
    if isinstance(where, LocalURL):
        return _join_local(model, optimizer, name, schedule, state_dir, config or RunConfig(), timeout_s)
    if config is not None:
        raise JoinError(
            "A config was given for a run that has one already.",
            "The settings of a run come from its syncer, the same for everybody.",
            "Leave config out, or join local:// to run alone.",
        )
    secret = (token or "").strip() or found.token_of(str(where)) or read_token(None, os.environ, None)
    if secret is None and not where.plain:
        raise JoinError(
            f"There is no token for run {where.run}.",
            "The syncer lets nobody in without one.",
            "Set ATOLL_TOKEN or ATOLL_TOKEN_FILE to the join token in the syncer's run directory.",
        )
    folder = Path(state_dir) if state_dir is not None else None
    shown = "" if where.plain or secret is None else secret  # anybody could read it, and nobody asks for it
    joining = _Joining(where, shown, model, optimizer, schedule, folder, timeout_s)
    return joining.run(name, Path(certificate) if certificate is not None else None)


def _join_local(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    name: str | None,
    schedule: Schedule | None,
    state_dir: str | os.PathLike[str] | None,
    config: RunConfig,
    timeout_s: float,
) -> Learner:
    from atoll.runtime.syncer import Syncer  # a learner of a real run needs no syncer

    syncer = Syncer(config)
    syncer.start()
    try:
        learner = join(
            syncer.url,
            model=model,
            optimizer=optimizer,
            name=name,
            schedule=schedule,
            state_dir=state_dir,
            timeout_s=timeout_s,
        )
    except BaseException:
        syncer.stop()
        raise
    learner.on_left.append(syncer.stop)
    return learner


def sizes_of(manifest: Manifest, config: RunConfig) -> RunParams:
    """The numbers of the protocol for this model: settings, and the bytes of every fragment."""
    up, down = codec_for(config.codec.up), codec_for(config.codec.down)
    sizes = [fragment.numel for fragment in manifest.fragments]
    return config.params(
        fragment_bytes=tuple(up.encoded_bytes(numel) for numel in sizes),
        publish_bytes=tuple(down.encoded_bytes(numel) for numel in sizes),
        full_bytes=tuple(4 * numel for numel in sizes),
    )


def moments_limit(full_bytes: int) -> int:
    """Largest donation of optimizer state for a fragment of this size: a few values for each of its own."""
    return 4 * full_bytes + (1 << 20)


@dataclass(eq=False)
class _Joining:
    """One attempt to get in, and what it builds on the way."""

    url: RunURL
    token: str
    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    schedule: Schedule | None
    state_dir: Path | None
    timeout_s: float
    name: str = ""
    error: AtollError | None = None
    config: RunConfig | None = None
    manifest: Manifest | None = None
    shell: LearnerShell | None = None
    keeper: MomentKeeper | None = None
    learner: Learner | None = None
    is_started: bool = False
    changed: threading.Event = field(default_factory=threading.Event)

    def run(self, name: str | None, certificate: Path | None) -> Learner:
        """Join, or raise with everything closed again."""
        lock = StateLock(self.state_dir) if self.state_dir is not None else None
        self.loop = Loop("learner", self._crashed)
        self.worker = Worker("worker", self._crashed)
        try:
            self.identity = LearnerIdentity.load_or_make(self.state_dir)
            self.name = _settle_name(name, self.state_dir, self.identity)
            context = None if self.url.plain else client_context(certificate)
            self.uplink = Uplink(self.loop, self.url, self.token, self.name, context, self._events())
            self.loop.start()
            self.worker.start()
            self.uplink.start()
            self._wait()
            assert self.learner is not None
            self.learner._come_back()
        except BaseException:
            self.loop.stop()
            self.worker.stop()
            if self.keeper is not None:
                self.keeper.close()
            if self.learner is not None and self.learner.tape is not None:
                self.learner.tape.close()
            if lock is not None:
                lock.close()
            raise
        if lock is not None:
            self.learner.on_left.append(lock.close)
        self.learner.on_left.append(self.learner.keeper.close)
        self.loop.call(self.learner._housekeep)
        say_goodbye_at_exit(self.learner)
        reach("L4")
        return self.learner

    def _events(self) -> Events:
        return Events(
            model=self._show_model,
            ready=self._ready,
            message=self._message,
            size_of=self._size_of,
            failed=self._failed,
            silent_s=self._silent_s,
            link=self._link,
        )

    # On the loop

    def _show_model(self, accepted: wire.Accepted) -> wire.Model:
        if self.config is None:
            config = RunConfig.from_toml(accepted.config)
            manifest = partition(self.model, config.sync.num_fragments, config.sync.merge_rule)
            self._build(config, manifest)
        elif self.learner is not None:  # a syncer that was restarted may have another budget
            self.learner.config = RunConfig.from_toml(accepted.config)
        assert self.manifest is not None
        return wire.Model(
            json.dumps(self.manifest.to_dict(), separators=(",", ":")).encode(),
            self.manifest.digest,
            self.identity.public,
            self.identity.sign(accepted.challenge, self.name),
        )

    def _build(self, config: RunConfig, manifest: Manifest) -> None:
        codec, sync = config.codec, config.sync
        replica = Replica(
            self.model,
            manifest,
            codec_for(codec.up),
            codec_for(codec.down),
            sync.adopt,
            sync.blend_alpha,
            None if codec.error_feedback else False,
        )
        self.shell = LearnerShell(
            sizes_of(manifest, config),
            replica,
            self.loop,
            self.worker,
            self.uplink.tell,
            self.uplink.bulk,
            self._noted,
            keep_tape=self.state_dir is not None,
        )
        self.keeper = self._keeper(self.shell, config, manifest)
        self.config, self.manifest = config, manifest

    def _keeper(self, shell: LearnerShell, config: RunConfig, manifest: Manifest) -> MomentKeeper:
        sizes = shell.params.full_bytes
        return MomentKeeper(
            self.name,
            f"{self.url.run} {self.url.fingerprint}",
            shell,
            config.heal,
            Moments(self.optimizer, self.model, manifest) if self.optimizer is not None else None,
            MomentFiles(self.state_dir) if self.state_dir is not None else None,
            lambda fragment: moments_limit(sizes[fragment]),
        )

    def _ready(self, ready: wire.Ready) -> None:
        """The first time the machine's life begins here; later it finds its way back by itself."""
        assert self.shell is not None
        assert self.keeper is not None
        assert self.config is not None
        if self.is_started:
            return
        self.is_started = True
        life = secrets.randbits(48)
        try:
            tape = self._open_tape(life)
        except AtollError as error:
            self._failed(error)
            return
        self.shell.keep_tape = tape is not None
        self.learner = Learner(
            self.name,
            self.model,
            self.optimizer,
            self.config,
            self.schedule,
            self.state_dir,
            self.shell,
            self.uplink,
            self.loop,
            self.worker,
            self.keeper,
            tape=tape,
        )
        reach("L0")
        self.shell.start(self.name, self.identity.key_id, life)

    def _open_tape(self, life: int) -> LifeTape | None:
        assert self.shell is not None
        assert self.config is not None
        if self.state_dir is None:
            return None
        max_bytes = self.config.tape.keep_mb << 20
        return LifeTape(open_life(self.state_dir, life), max_bytes, self.shell.take_tape)

    def _message(self, message: wire.Message, content: memoryview | None) -> None:
        if isinstance(message, msg.FromSyncer) and self.shell is not None and self.is_started:
            if isinstance(message, msg.Beat) and self.learner is not None:
                self.learner.merged_tokens = message.merged_tokens  # first: it may have been all
            self.shell.deliver(message, content)
            self.changed.set()

    def _size_of(self, message: wire.Bulk) -> int | None:
        if not isinstance(message, (msg.Publish, msg.Moments)) or self.shell is None:
            return None
        params, p = self.shell.params, message.fragment
        if not 0 <= p < params.num_fragments:
            return None
        if isinstance(message, msg.Moments):
            return message.num_bytes if message.num_bytes <= moments_limit(params.full_bytes[p]) else None
        return params.full_bytes[p] if message.base_version == msg.FULL else params.publish_bytes[p]

    def _failed(self, error: AtollError) -> None:
        if self.learner is None:
            self.error = error
            self.changed.set()
        else:
            log.warning("%s: %s Trying again.", self.name, error.what)

    def _silent_s(self) -> float:
        return 30.0 if self.config is None else max(1.0, SILENT_TIMES * self.config.sync.alive_s)

    def _link(self, is_up: bool, reason: str) -> None:
        if is_up:
            log.info("%s: connected to %s:%d", self.name, self.url.host, self.url.port)
        else:
            log.info("%s: cut off (%s); training goes on, dialling again", self.name, reason)

    def _noted(self, note: do.Note) -> None:
        if note.kind == "refused" and self.learner is not None and not self._is_healed():
            cure = "Choose another name, or wait until the other learner has left."
            self.error = JoinError(note.reason, "The syncer did not admit this learner.", cure)
        elif note.kind == "seed":
            self.error = JoinError(note.reason, "The run has no weights to start from.", "Check the model.")
        if self.learner is not None:
            self.learner._noted(note)
        self.changed.set()

    def _crashed(self, error: BaseException) -> None:
        reason = f"an unexpected error inside Atoll: {type(error).__name__}: {error}"
        if self.learner is not None:
            self.learner.ended = reason
        if self.shell is not None:
            self.shell.is_dead = True
        self.uplink.stop()
        self.error = JoinError(f"Joining failed: {reason}", "", "Please report it, with the log.")
        self.changed.set()

    # On the user's thread

    def _wait(self) -> None:
        """Until every fragment has a base. Publishes that arrive are taken in here, between no steps."""
        deadline_ns = self.loop.now_ns() + int(self.timeout_s * 1e9)
        while not self._is_healed():
            if self.error is not None:
                raise self.error
            left_s = (deadline_ns - self.loop.now_ns()) / 1e9
            if left_s <= 0:
                raise self._too_late()
            self.changed.wait(min(left_s, 0.05))
            self.changed.clear()
            shell = self.shell
            if shell is not None and any(slot.staged is not None for slot in shell.machine.slots):
                shell.boundary(0, 0, steps=0)
        if self.error is not None:
            raise self.error

    def _is_healed(self) -> bool:
        slots = self.shell.machine.slots if self.shell is not None else []
        return self.learner is not None and bool(slots) and all(slot.version >= 0 for slot in slots)

    def _too_late(self) -> JoinError:
        where = f"{self.url.host}:{self.url.port}"
        if not self.uplink.was_ready:
            return JoinError(
                f"The syncer at {where} could not be reached within {self.timeout_s:g} s: "
                f"{self.uplink.last_reason or 'no answer'}.",
                "Nothing was trained.",
                "Check that it is running, the host and port in the URL, and firewalls; then join again.",
            )
        slots = self.shell.machine.slots if self.shell is not None else []
        have = sum(1 for slot in slots if slot.version >= 0)
        return JoinError(
            f"{self.name} was let in by {where}, but {have} of {len(slots)} fragments came within "
            f"{self.timeout_s:g} s.",
            "Without weights there is nothing to train from.",
            "Wait longer with timeout_s, or see `atoll status` for what the syncer is busy with.",
        )


def _settle_name(name: str | None, state_dir: Path | None, identity: LearnerIdentity) -> str:
    """The given name, else the one of an earlier life, else one made from the identity key."""
    path = state_dir / "name" if state_dir is not None else None
    saved = path.read_text(encoding="utf-8").strip() if path is not None and path.exists() else ""
    chosen = check_name(name or saved or f"learner-{identity.key_id[:8]}")
    if path is not None and chosen != saved:
        path.write_text(chosen + "\n", encoding="utf-8")
    return chosen
