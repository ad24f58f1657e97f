"""The syncer that users hold: `Syncer(config, run_dir)`, started, waited for, stopped.

Start order: lock the directory, read the store, make the epoch durable, listen. Only then is there a URL. The
URL carries host, run and key fingerprint, and no secret; the token is in the run directory. Without a run
directory the run lives in memory, and dies with the process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import shutil
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from atoll.config import NetworkConfig, RunConfig
from atoll.errors import StoreError
from atoll.runtime import bookkeeping, found
from atoll.runtime.archive import Archive
from atoll.runtime.door import Door
from atoll.runtime.failpoints import reach
from atoll.runtime.loop import Loop
from atoll.runtime.offers import FOLDER as OFFERS
from atoll.runtime.offers import KeptOffers
from atoll.runtime.security.certificates import ServerIdentity
from atoll.runtime.security.tls import server_context
from atoll.runtime.security.tokens import Tokens
from atoll.runtime.spool import Spool
from atoll.runtime.store import MemoryStore, RunStore, Store
from atoll.runtime.store.files import Files
from atoll.runtime.syncer_shell import SyncerShell
from atoll.runtime.worker import Worker
from atoll.wire.url import RUN_NAME, RunURL

__all__ = ["Syncer"]

log = logging.getLogger("atoll")

BOOKS = "books.json"
STATUS_NS = 1_000_000_000
METRICS_BYTES_PER_S, METRICS_LINES = 4096, 10_000
"""metrics.jsonl has a line a second at most, and fewer the longer they are and the older the run gets."""
NUM_OWN_FILES = 256
"""Descriptors that are no learner's: the store's, the logs', the user's."""
START_S = 600.0
"""Longest wait for the store to be read; large runs have large snapshots."""


class Syncer:
    """Owns the global fragments of one run. CPU only."""

    def __init__(
        self,
        config: RunConfig | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        listen: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        accepts_loss: bool = False,
    ) -> None:
        """`name` is the run's, by default that of its directory; `advertise` is the host written into the
        URL."""
        self.config = config or RunConfig()
        self._keeps = run_dir is not None
        self.run_dir = Path(tempfile.mkdtemp(prefix="atoll-") if run_dir is None else run_dir)
        self.name = _run_name(name or (self.run_dir.resolve().name if self._keeps else "local"))
        self.listen, self.port = listen, port
        self.advertise = advertise
        self.accepts_loss = accepts_loss
        self.url = ""
        self.error: BaseException | None = None
        self._listening = threading.Event()
        self._over = threading.Event()
        self._pid = os.getpid()
        self._last_status: dict[str, Any] = {}
        self._stopped = False
        self._finished_ns = 0
        self._metrics_due_ns = 0
        if not self._keeps:
            self._forget = weakref.finalize(self, _remove, self.run_dir, self._pid)

    # What users call

    def start(self) -> Syncer:
        """Read the run, listen, return; once. Raises what keeps it from starting."""
        if hasattr(self, "_store"):
            raise StoreError(
                f"This syncer of run {self.name} was started before.",
                "One object is one life of a syncer.",
                "Make another Syncer with the same run_dir.",
            )
        reach("S0")
        store = self._open_store()
        reach("S1")
        try:
            self._identity = ServerIdentity.load_or_make(self.run_dir, self.name)
            self._tokens = Tokens.load_or_make(self.run_dir)
            self._build(store)
        except BaseException:
            store.close()
            raise
        self._store = store
        _make_room(self.config.network)
        self._loop.start()
        for worker in self._workers:
            worker.start()
        self._shell.start()
        if not self._listening.wait(START_S):
            self.error = StoreError(f"The run directory was not read within {START_S:g} s.")
        if self.error is not None:
            error = self.error
            self.stop()
            raise error
        return self

    @property
    def token(self) -> str:
        """The join token; whoever has it may take part."""
        return self._tokens.join

    @property
    def tokens(self) -> Tokens:
        """All three."""
        return self._tokens

    def status(self) -> dict[str, Any]:
        """How the run stands; see `atoll status`."""
        self._on_loop(self._remember_status)
        return dict(self._last_status)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the run is finished and its learners had time to take in the end; False if the time is up
        first."""
        is_over = self._over.wait(timeout_s)
        if self.error is not None:
            raise self.error
        return is_over

    def finish(self, reason: str = "asked to finish") -> None:
        """End the run before its budget: one last round per fragment, then `wait` returns."""
        why_not: list[str] = []
        self._on_loop(lambda: why_not.append(self._shell.finish(reason)))
        if why_not and why_not[0]:
            raise StoreError(
                f"The run cannot be finished: {why_not[0]}.",
                "It stays as it is.",
                "Stop the syncer instead, or wait until a learner has joined.",
            )

    def weights(self) -> dict[str, Tensor]:
        """The global model now, by parameter name."""
        from atoll.runtime.export import weights_of

        manifest, work = self._shell.manifest, self._shell.workshop
        if manifest is None or work is None or not work.model.states:
            raise StoreError("The run has no weights yet.", "No learner has joined.", "Join one first.")
        return weights_of(manifest, [state.served for state in work.model.states])

    def stop(self) -> None:
        """Close everything; what was committed stays. A second call does nothing, nor does one in a child
        that was forked: it has inherited the object, not the run."""
        if self._stopped or os.getpid() != self._pid:
            return
        if hasattr(self, "_store"):
            self._close()
        self._stopped = True
        self._over.set()
        if not self._keeps:
            self._forget()

    def __enter__(self) -> Syncer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # Building

    def _open_store(self) -> Store:
        if self._keeps:
            return RunStore.open(self.run_dir, self.config, accepts_loss=self.accepts_loss)
        return MemoryStore(self.config)

    def _build(self, store: Store) -> None:
        secure = self.config.security.tls
        context = server_context(self._identity, self.config.security.mtls) if secure else None
        self._loop = Loop("syncer", self._crashed)
        names = ("compute", "store", "snapshots")
        self._workers = [Worker(name, self._crashed) for name in names]
        compute, storing, snapshots = self._workers
        spool: Spool[tuple[int, int, str]] = Spool(self.run_dir / "spool", self.config.network.spool_mb << 20)
        keeps_offers = self._keeps and self.config.tape.keep_offers
        offers = KeptOffers(self.run_dir / OFFERS, Files()) if keeps_offers else None
        self._shell = SyncerShell(
            self.config,
            self.name,
            Archive(store, self._loop, storing, snapshots, offers),
            spool,
            self._loop,
            compute,
            self.accepts_loss,
            on_active=self._open,
            on_waiting=self._open,
            on_failed=self._crashed,
        )
        self._take_up_books()
        self._door = Door(self._loop, self.name, self.config, self._tokens, context, self._shell)
        if not secure:
            log.warning("run %s is open to everybody who can reach it: security.tls is off", self.name)

    def _take_up_books(self) -> None:
        path = self.run_dir / BOOKS
        if path.exists():
            shell, now_ns = self._shell, self._loop.now_ns()
            moved = bookkeeping.restore(shell.books, path.read_bytes(), now_ns, time.time())
            shell.past_up, shell.past_down = moved

    def _open(self) -> None:
        """Loop's thread: the store is read, and the epoch, if there was a run, is durable."""
        if self._door.listener is not None:
            return
        try:
            host, port = self._door.open(self.listen, self.port)
        except OSError as error:
            where = f"{self.listen}:{self.port}"
            cure = "Choose another port, or stop what listens there."
            self.error = StoreError(
                f"Cannot listen on {where}: {error.strerror}.", "Nobody could join.", cure
            )
        else:
            shown = self.advertise or (_own_address() if host in ("0.0.0.0", "::") else host)
            plain = not self.config.security.tls
            fingerprint = "" if plain else self._identity.fingerprint
            self.url = str(RunURL(shown, port, self.name, fingerprint, plain))
            self.port = port
            found.register(self.url, self._tokens.join)
            self._write("url", f"{self.url}\n".encode())
            self._tick()
        self._listening.set()

    def _tick(self) -> None:
        """Loop's thread, once a second: write down how it stands, and notice the end."""
        self._remember_status()
        status, now = self._last_status, self._loop.now_ns()
        content = json.dumps(status).encode()
        self._workers[2].do(self._write, "status.json", content)
        books, traffic = self._shell.books, self._shell.traffic()
        self._workers[2].do(self._write, BOOKS, bookkeeping.save(books, traffic, now, time.time()))
        self._keep_buffers()
        if now >= self._metrics_due_ns:
            pause_s = max(1.0, len(content) / METRICS_BYTES_PER_S, status["uptime_s"] / METRICS_LINES)
            self._metrics_due_ns = now + int((pause_s - 0.5) * 1e9)
            self._workers[2].do(self._append, "metrics.jsonl", content + b"\n")
        if status["state"] == "finished":
            self._finished_ns = self._finished_ns or now
            patience_ns = int(3e9 * self.config.sync.alive_s)
            if not self._shell.links or now - self._finished_ns > patience_ns:
                self._over.set()
        self._loop.after(STATUS_NS, self._tick)

    def _write(self, name: str, content: bytes) -> None:
        part = (self.run_dir / name).with_suffix(".part")
        try:
            if part.parent != self.run_dir:
                part.parent.mkdir(exist_ok=True)
            part.write_bytes(content)
            os.replace(part, self.run_dir / name)
        except OSError as error:
            with contextlib.suppress(OSError):  # half of it would only take space that is short
                part.unlink(missing_ok=True)
            log.debug("%s was not written: %s", name, error.strerror)

    def _append(self, name: str, content: bytes) -> None:
        try:
            with open(self.run_dir / name, "ab") as file:
                file.write(content)
        except OSError as error:
            log.debug("%s was not written: %s", name, error.strerror)

    # Ending

    def _crashed(self, error: BaseException) -> None:
        """Any thread. A refusal to start, or a bug in us: either way this life of the syncer is over."""
        if self.error is None:
            self.error = error
        self._listening.set()
        self._over.set()
        self._loop.stop(0.0)  # learners must not believe in a syncer that merges no more

    def _close(self) -> None:
        found.forget(self.url)
        self._on_loop(self._remember_status)
        self._on_loop(self._keep_buffers)
        self._on_loop(self._close_door)
        compute, storing, snapshots = self._workers
        for worker in (compute, snapshots, storing):  # the last one is given work by the others
            worker.stop()
        self._loop.stop()
        self._store.close()
        if self._last_status:
            self._write("status.json", json.dumps(self._last_status).encode())

    def _close_door(self) -> None:
        self._door.close()
        self._shell.archive.flush(self._shell.take_lines())

    def _remember_status(self) -> None:
        self._last_status = self._shell.status_now()

    def _keep_buffers(self) -> None:
        """The newest float buffers of every learner, for export: on disk a second after they came."""
        for name, held in self._shell.buffers.items():
            if held.is_news:
                held.is_news = False
                self._workers[2].do(self._write, f"buffers/{name}.safetensors", held.to_bytes())

    def _on_loop(self, what: Callable[[], None]) -> None:
        """Have the loop do something, and wait for it; a loop that has ended does nothing."""
        if self._stopped or not hasattr(self, "_store"):
            return
        done = threading.Event()

        def run() -> None:
            what()
            done.set()

        self._loop.call(run)
        while not done.wait(0.05) and self._loop.is_running:
            pass


def _run_name(name: str) -> str:
    if not RUN_NAME.fullmatch(name):
        raise StoreError(
            f"A run cannot be called {name!r}.",
            f"Names of runs match {RUN_NAME.pattern}, because they stand in URLs.",
            "Choose another directory, or pass name=.",
        )
    return name


def _own_address() -> str:
    """This machine's address as others may know it; the URL can be edited where it is not."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def _make_room(network: NetworkConfig) -> None:
    """Let this process have as many connections as the run may need, if the system allows it."""
    wanted = network.max_learners * (1 + network.data_connections) + NUM_OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))


def _remove(folder: Path, owner: int) -> None:
    """Delete a run that was not to be kept; a forked child has no say in that."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
