"""One child that is kept running: whoever dies is started again.

A child whose life was long enough is started again at once; one that dies again and again waits longer each
time. A signal is the world's doing, and may happen for ever. An exit code is the child's own fault: a few of
those within `ERRORS_S`, and it is given up. Exit code 0 means that there is nothing left to do.

    child = Child("syncer", run_syncer, args, log_path)
    child.start()
    while not child.is_done:
        wait_for_an_end([child], LOOK_S)
        events += child.look(time.time())
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from atoll.errors import StoreError
from atoll.runtime.children import PATIENCE_S
from atoll.runtime.forking import end_of, how_ended, spawn

__all__ = [
    "LOOK_S",
    "Child",
    "Event",
    "address_mark",
    "listening_s",
    "terminate",
    "wait_for_an_end",
    "wait_for_ends",
]

LOOK_S = 0.2
"""How often to look after children when none has ended."""
STEADY_S = 5.0
"""A life at least this long is followed by the next at once."""
FIRST_PAUSE_S = 0.5
LAST_PAUSE_S = 30.0
MAX_ERRORS = 4
"""Times that a child may end with an error of its own before it is given up. A signal is none."""
ERRORS_S = 600.0
"""Errors longer ago than this are forgotten."""
UNKNOWN = 255
"""What is reported of a child if the fork server has died and cannot say how it ended, nor whether it did."""


@dataclass(frozen=True, slots=True)
class Event:
    """What became of a child: `killed`, `died`, `restarted`. Time is `time.time()`."""

    at_s: float
    kind: str
    who: str
    reason: str


@dataclass(slots=True, eq=False)
class Child:
    """One name, and the process that bears it at the moment. For one thread."""

    name: str
    what: Callable[..., None]
    args: tuple[Any, ...]
    log_path: Path | None = None
    """None: it shares the terminal."""
    down_s: float = 0.0
    """How long it stays dead after `kill`."""
    process: BaseProcess | None = None
    began_s: float = 0.0
    """When this life began."""
    is_down: bool = False
    """Dead, and to be started again at `due_s`."""
    due_s: float = 0.0
    num_short: int = 0
    """Lives in a row that ended before they were steady, and not by `kill`."""
    errors_s: list[float] = field(default_factory=list)
    """When it ended by its own fault, lately."""
    was_killed: bool = False
    is_done: bool = False

    def start(self) -> None:
        """Begin a life."""
        self.began_s = time.time()
        self.process = spawn(self.name, self.log_path, self.what, self.args)
        self.is_down = self.was_killed = False

    def look(self, now_s: float) -> list[Event]:
        """Notice its end, and start it again if its pause is over. Raises `StoreError` if it is given up."""
        events = []
        code = self.process.exitcode if self.process is not None and not self.is_down else None
        if code is not None and not self.is_done:
            events += self._ended(code, now_s)
        if self.is_down and now_s >= self.due_s:
            self.start()
            events.append(Event(now_s, "restarted", self.name, ""))
        return events

    def kill(self) -> bool:
        """Kill -9, as a power cut would, and be sure of its death; False if there is nobody to kill."""
        process = self.process
        if process is None or process.exitcode is not None or self.is_done:
            return False
        self.was_killed = True
        process.kill()
        process.join()
        return True

    def given_up(self, code: int) -> StoreError:
        """Why it is not started again."""
        words = end_of(self.log_path) if self.log_path is not None else ""
        log = "What it said stands above." if self.log_path is None else f"Its whole log is {self.log_path}"
        return StoreError(
            f"{self.name} cannot be kept running: {words or how_ended(code)}", "The run was stopped.", log
        )

    def _ended(self, code: int, now_s: float) -> list[Event]:
        if code == 0:
            self.is_done = True
            return []
        if code == UNKNOWN:
            self._make_sure()
        self.is_down, self.due_s = True, now_s + self.down_s
        if self.was_killed:
            return []
        self.num_short = 0 if now_s - self.began_s >= STEADY_S else self.num_short + 1
        if code > 0:
            self.errors_s = [at_s for at_s in self.errors_s if now_s - at_s < ERRORS_S] + [now_s]
        if len(self.errors_s) >= MAX_ERRORS:
            raise self.given_up(code)
        pause_s = FIRST_PAUSE_S * 2 ** min(self.num_short - 1, 16) if self.num_short else 0.0
        self.due_s = now_s + min(pause_s, LAST_PAUSE_S)
        return [Event(now_s, "died", self.name, how_ended(code))]

    def _make_sure(self) -> None:
        """Two of one name would fight for its port and its files."""
        if self.process is not None and self.process.pid is not None:
            with contextlib.suppress(OSError):
                os.kill(self.process.pid, signal.SIGKILL)


def wait_for_an_end(those: Sequence[Child], patience_s: float) -> None:
    """Until one of them ends, but not longer than this."""
    living = [c.process for c in those if c.process is not None and c.process.exitcode is None]
    if living:
        connection.wait([process.sentinel for process in living], patience_s)
    else:
        time.sleep(patience_s)


def wait_for_ends(those: Sequence[Child], patience_s: float) -> None:
    """Until all of them have ended, but not longer than this."""
    deadline_s = time.monotonic() + patience_s
    for child in those:
        if child.process is not None:
            child.process.join(max(0.0, deadline_s - time.monotonic()))


def terminate(those: Sequence[Child]) -> None:
    """Ask all of them to end in order, and wait; whoever takes too long is left to `kill`."""
    living = [
        child.process for child in those if child.process is not None and child.process.exitcode is None
    ]
    for process in living:
        process.terminate()
    wait_for_ends(those, PATIENCE_S)


def address_mark(run_dir: Path) -> tuple[int, int]:
    """Changes whenever a syncer begins to listen: it writes its URL down then, as a new file."""
    try:
        found = (run_dir / "url").stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def listening_s(run_dir: Path) -> float:
    """When the newest life of a syncer began to listen, as `time.time()`."""
    return address_mark(run_dir)[1] / 1e9
