"""Real processes on this machine: one syncer and M learners, looked after by the process that started them.

Children come from a fork server that has imported torch and the model's library once, so a learner that was
killed does not import them again. Each child has a process group of its own, so Ctrl-C in a
terminal reaches the parent alone, which then stops everybody in order; a log file of its own; one torch
thread; and an eye on its parent, whose death it does not survive.

    fleet = Fleet(run_dir, config, recipe.settings(), speeds=[1.0, 0.5])
    fleet.start()
    while not fleet.is_over:
        fleet.look_after()      # a few times a second: restarts the dead
    fleet.stop()

Whoever dies is started again after a pause that grows with every death; the syncer on its old port, so that
its URL stays good. `events` records who was killed and restarted, and when.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from atoll import errors
from atoll.config import RunConfig
from atoll.errors import AtollError, StoreError
from atoll.recipes import recipe_from
from atoll.runtime import children
from atoll.runtime.children import PATIENCE_S, Settings
from atoll.wire.url import RunURL, parse

__all__ = ["SYNCER", "Event", "Fleet", "in_child", "learner_names"]

SYNCER = "syncer"

START_S = 120.0
"""Longest wait for the fork server's imports and the syncer's first word."""
FIRST_PAUSE_S = 0.5
LAST_PAUSE_S = 30.0
DOWN_S = 6.0
"""How long a learner that was killed on purpose stays dead: long enough to be missed, and seen."""
MAX_ERRORS = 4
"""Times that a child may end with an error of its own before the run is given up. A signal is none."""
GOODBYE_S = 5.0
"""After the end of a run, for learners to end by themselves."""
MAX_WORDS = 2000

PRELOAD = (
    "__main__",
    "torch",
    "atoll.runtime.syncer",
    "atoll.runtime.joining",
    "atoll.runtime.export",
    "atoll.runtime.verdict",
    "atoll.recipes.learning",
    "atoll.recipes.models",
)
LIBRARIES = {
    "tokens": ("transformers.models.gemma4.modeling_gemma4",),
    "images": ("transformers.models.vit.modeling_vit", "sklearn.datasets"),
}
"""By what a recipe counts. A module that is missing here only costs each child the time to import it."""


@dataclass(frozen=True, slots=True)
class Event:
    """What became of a child: `killed`, `died`, `restarted`. Time is `time.time()`."""

    at_s: float
    kind: str
    who: str
    reason: str


@dataclass(slots=True)
class _Child:
    """One name, and the process that bears it at the moment."""

    name: str
    what: Callable[..., None]
    args: tuple[Any, ...]
    process: BaseProcess | None = None
    is_down: bool = False
    """Dead, and to be started again at `due_s`."""
    due_s: float = 0.0
    num_deaths: int = 0
    """Not by our own hand."""
    num_errors: int = 0
    """Ends with an exit code, so by its own fault."""
    was_killed: bool = False
    is_done: bool = False


@dataclass(eq=False)
class Fleet:
    """A syncer and its learners as processes. For one thread."""

    run_dir: Path
    config: RunConfig
    settings: Settings
    """Of the recipe."""
    speeds: Sequence[float]
    """One per learner: 0.5 takes twice the time for each step."""
    down_s: float = DOWN_S
    url: str = ""
    events: list[Event] = field(default_factory=list)
    children: dict[str, _Child] = field(default_factory=dict)

    def start(self) -> None:
        """Start the syncer, wait for its URL, start the learners. Raises what keeps it from starting."""
        (self.run_dir / "logs").mkdir(parents=True, exist_ok=True)
        prepare(self.settings)
        warm_up()
        args = (self.config.to_toml(), str(self.run_dir), 0)
        self.children[SYNCER] = _Child(SYNCER, children.run_syncer, args)
        self._spawn(self.children[SYNCER])
        self.url = self._wait_for_url()
        where = parse(self.url)
        assert isinstance(where, RunURL)
        self.children[SYNCER].args = (*args[:2], where.port)
        for name, speed in zip(learner_names(len(self.speeds)), self.speeds, strict=True):
            state_dir = str(self.run_dir / "learners" / name)
            learner = (dict(self.settings), self.url, str(self.run_dir), name, state_dir, speed)
            self.children[name] = _Child(name, children.run_own_learner, learner)
            self._spawn(self.children[name])

    @property
    def is_over(self) -> bool:
        """Whether the run is finished: the syncer has seen everybody off and ended as it should."""
        return SYNCER in self.children and self.children[SYNCER].is_done

    def look_after(self) -> None:
        """Notice who has died, and start again whose pause is over."""
        now_s = time.time()
        for child in self.children.values():
            process = child.process
            if child.is_down and now_s >= child.due_s:
                self._spawn(child)
                self.events.append(Event(now_s, "restarted", child.name, ""))
            elif not child.is_down and process is not None and process.exitcode is not None:
                self._ended(child, process.exitcode, now_s)

    def kill(self, name: str) -> bool:
        """Kill -9, as a power cut would; False if there is nobody to kill."""
        child = self.children[name]
        process = child.process
        if process is None or process.exitcode is not None or child.is_done:
            return False
        child.was_killed = True
        self.events.append(Event(time.time(), "killed", name, "kill -9"))
        process.kill()
        process.join()
        return True

    def stop(self) -> None:
        """Stop everybody in order: learners say goodbye, the syncer closes, whoever is left is killed."""
        try:
            learners = [child for name, child in self.children.items() if name != SYNCER]
            if self.is_over:
                _wait(learners, GOODBYE_S)
            _terminate(learners)
            _terminate([child for name, child in self.children.items() if name == SYNCER])
        finally:
            for child in self.children.values():
                if child.process is not None and child.process.exitcode is None:
                    child.process.kill()
                    child.process.join()

    def words(self, name: str) -> str:
        """The end of a child's log."""
        return _end_of(self.log_path(name))

    def log_path(self, name: str) -> Path:
        """Where a child writes."""
        return self.run_dir / "logs" / f"{name}.log"

    # Inside

    def _spawn(self, child: _Child) -> None:
        process = _context().Process(
            target=children.enter, args=(child.name, str(self.log_path(child.name)), child.what, child.args)
        )
        with _undisturbed():
            process.start()
            child.process = process
        child.is_down = child.was_killed = False

    def _ended(self, child: _Child, code: int, now_s: float) -> None:
        if code == 0:
            child.is_done = True
            return
        child.is_down = True
        if child.was_killed:
            child.due_s = now_s + self.down_s
            return
        child.num_deaths += 1
        child.num_errors += code > 0
        if child.num_errors >= MAX_ERRORS:
            raise self._given_up(child, code)
        child.due_s = now_s + min(FIRST_PAUSE_S * 2 ** (child.num_deaths - 1), LAST_PAUSE_S)
        self.events.append(Event(now_s, "died", child.name, _how(code)))

    def _wait_for_url(self) -> str:
        """The syncer writes its URL once it listens."""
        path, deadline_s = self.run_dir / "url", time.monotonic() + START_S
        process = self.children[SYNCER].process
        assert process is not None
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                return path.read_text(encoding="utf-8").strip()
            process.join(0.05)
            if process.exitcode is not None:
                raise self._given_up(self.children[SYNCER], process.exitcode)
        raise StoreError(
            f"The syncer was not ready within {START_S:g} s.",
            "Nobody could join.",
            f"Its log may say why: {self.log_path(SYNCER)}",
        )

    def _given_up(self, child: _Child, code: int) -> StoreError:
        words = self.words(child.name) or _how(code)
        return StoreError(
            f"{child.name} cannot be kept running: {words}",
            "The run was stopped.",
            f"Its whole log is {self.log_path(child.name)}",
        )


def learner_names(num_learners: int) -> list[str]:
    """What the learners of a fleet are called."""
    return [f"learner-{index}" for index in range(num_learners)]


def prepare(settings: Settings) -> None:
    """Tell the fork server what to import; has an effect until its first child only."""
    # The server must have one thread when it forks, also where a library would start some at its import.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _context().set_forkserver_preload([*PRELOAD, *LIBRARIES[recipe_from(settings).unit]])


def warm_up() -> None:
    """Start the fork server and wait for its imports; a KeyboardInterrupt ends the wait at once.

    Its first child waits for the imports. That child is a thread's, and does nothing: so the wait can be
    left at any moment, and every later child starts too fast for anybody to wait.
    """
    with _undisturbed():
        resource_tracker.ensure_running()  # first, because it unblocks SIGINT
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which the server inherits
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    process = _context().Process(target=_nothing)
    waiting = threading.Thread(target=process.start, name="atoll-warm-up", daemon=True)
    waiting.start()
    while waiting.is_alive():
        waiting.join(0.05)
    process.join()


def in_child(log_path: Path, what: Callable[..., Any], *args: Any) -> Any:
    """The JSON value that `what(*args)` returns in a child of its own, which has torch at hand already.

    An `AtollError` there is raised here; any other failure is a `StoreError` with the end of its log.
    """
    ours, theirs = _context().Pipe(duplex=False)
    process = _context().Process(
        target=children.enter, args=(what.__name__, str(log_path), _answer, (theirs, what, args))
    )
    with _undisturbed():
        process.start()
    try:
        theirs.close()
        answer = json.loads(ours.recv_bytes())
    except EOFError:
        process.join()
        raise StoreError(
            f"{what.__name__} ended without an answer: {_end_of(log_path) or _how(process.exitcode or 0)}",
            "What it was asked for is not known.",
            f"Its whole log is {log_path}",
        ) from None
    except BaseException:
        process.kill()
        raise
    finally:
        process.join()
        ours.close()
    if "error" in answer:
        kind, *words = answer["error"]
        raise getattr(errors, kind, AtollError)(*words)
    return answer["value"]


def _answer(pipe: Any, what: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        answer = {"value": what(*args)}
    except AtollError as error:
        answer = {"error": [type(error).__name__, error.what, error.so_what, error.now_what]}
    pipe.send_bytes(json.dumps(answer).encode())


# Small things


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep Ctrl-C and SIGTERM back until the end of the block: half a start leaves a child without parent.

    By handler, not by mask: any thread may be the one that gets the signal, and the handler runs in this one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers never run here
        return
    kept: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, lambda got, frame: kept.append(got))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if kept:
            signal.raise_signal(kept[0])


def _nothing() -> None:
    pass


def _context() -> ForkServerContext:
    return multiprocessing.get_context("forkserver")


def _terminate(those: Sequence[_Child]) -> None:
    for child in those:
        if child.process is not None and child.process.exitcode is None:
            child.process.terminate()
    _wait(those, PATIENCE_S)


def _wait(those: Sequence[_Child], patience_s: float) -> None:
    deadline_s = time.monotonic() + patience_s
    for child in those:
        if child.process is not None:
            child.process.join(max(0.0, deadline_s - time.monotonic()))


def _how(code: int) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _end_of(path: Path) -> str:
    try:
        lines = path.read_bytes()[-MAX_WORDS:].decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-3:])
