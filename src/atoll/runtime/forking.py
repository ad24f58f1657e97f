"""Children from a fork server that has imported torch and the model's library once.

A process that was killed is back in the time of a fork: nothing is imported again. Each child has a process
group of its own, so Ctrl-C in a terminal reaches the parent alone, which then stops everybody in order; a log
file of its own, unless it shares the terminal; one torch thread; and an eye on its parent, whose death it
does not survive (`children.enter`).

    prepare(OF_A_SYNCER)
    warm_up()
    process = spawn("syncer", log_path, what, args)
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from atoll import errors
from atoll.errors import AtollError, StoreError
from atoll.runtime import children

__all__ = [
    "OF_A_LEARNER",
    "OF_A_SYNCER",
    "end_of",
    "how_ended",
    "in_child",
    "prepare",
    "spawn",
    "undisturbed",
    "warm_up",
]

MAX_WORDS = 2000

OF_A_SYNCER = ("__main__", "torch", "atoll.runtime.syncer")
OF_A_LEARNER = (
    "torch._dynamo",  # which the first optimizer of a process imports: more than a second
    "atoll.runtime.joining",
    "atoll.recipes.learning",
    "atoll.recipes.models",
)
"""What to import once. A module that is missing here only costs each child the time to import it."""


def prepare(modules: Sequence[str]) -> None:
    """Tell the fork server what to import; has an effect until its first child only."""
    # The server must have one thread when it forks, also where a library would start some at its import.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _context().set_forkserver_preload(list(modules))


def warm_up() -> None:
    """Start the fork server and wait for its imports; a KeyboardInterrupt ends the wait at once.

    Its first child waits for the imports. That child is a thread's, and does nothing: so the wait can be
    left at any moment, and every later child starts too fast for anybody to wait.
    """
    with undisturbed():
        resource_tracker.ensure_running()  # first, because it unblocks SIGINT
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which the server inherits
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    process = _context().Process(target=_nothing)
    failures: list[Exception] = []

    def start() -> None:
        try:
            process.start()
        except (OSError, EOFError) as error:
            failures.append(error)

    waiting = threading.Thread(target=start, name="atoll-warm-up", daemon=True)
    waiting.start()
    while waiting.is_alive():
        waiting.join(0.05)
    if failures:
        raise StoreError(
            "The process that imports torch ended before it was ready.",
            "It is the one that starts all others, so nothing was started.",
            "What it said stands above; if nothing does, it may have been killed for want of memory.",
        ) from failures[0]
    process.join()


def spawn(name: str, log_path: Path | None, what: Callable[..., None], args: tuple[Any, ...]) -> BaseProcess:
    """Start `what(*args)` in a child of its own; without a log file it shares the terminal."""
    log = None if log_path is None else str(log_path)
    process = _context().Process(target=children.enter, args=(name, log, what, args))
    with undisturbed():
        process.start()
    return process


def in_child(log_path: Path, what: Callable[..., Any], *args: Any) -> Any:
    """The JSON value that `what(*args)` returns in a child of its own, which has torch at hand already.

    An `AtollError` there is raised here; any other failure is a `StoreError` with the end of its log.
    """
    ours, theirs = _context().Pipe(duplex=False)
    process = spawn(what.__name__, log_path, _answer, (theirs, what, args))
    try:
        theirs.close()
        answer = json.loads(ours.recv_bytes())
    except EOFError:
        process.join()
        words = end_of(log_path) or how_ended(process.exitcode or 0)
        raise StoreError(
            f"{what.__name__} ended without an answer: {words}",
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


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
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


def how_ended(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"exit code {code}"


def end_of(path: Path) -> str:
    """The last lines of a log."""
    try:
        lines = path.read_bytes()[-MAX_WORDS:].decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-3:])


def _nothing() -> None:
    pass


def _context() -> ForkServerContext:
    return multiprocessing.get_context("forkserver")
