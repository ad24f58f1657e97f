"""A command of ours in this process, and what happens beside it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from atoll.errors import AtollError
from atoll.runtime.reader import StatusClient, read_status
from tests.integration.conditions import wait_until
from tests.integration.programs import Task

__all__ = ["LONG_S", "finish", "interrupt", "meanwhile", "status_of"]

LONG_S = 300.0
"""For many processes on a busy machine."""


def interrupt() -> None:
    """Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


@contextlib.contextmanager
def meanwhile(what: Callable[[], None]) -> Iterator[None]:
    """Do something beside the command; if it fails, the command is interrupted, and its error is raised.

    The command takes SIGTERM for itself, and has its process to itself; here it has not, so that is undone.
    """

    def act() -> None:
        try:
            what()
        except BaseException:
            interrupt()
            raise

    before = signal.getsignal(signal.SIGTERM)
    task = Task(act)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
    task.result(LONG_S)


def status_of(run_dir: Path) -> dict[str, Any] | None:
    """How a run stands; None as long as nobody can say."""
    try:
        return read_status(run_dir)
    except AtollError:
        return None


def finish(run_dir: Path) -> None:
    """End a run before its budget, however long its syncer takes to hear of it."""

    def ask() -> bool:
        try:
            admin = (run_dir / "tokens" / "admin.token").read_text().strip()
            with StatusClient((run_dir / "url").read_text().strip(), admin) as client:
                client.finish("the test has seen enough")
        except AtollError:
            return False
        return True

    wait_until(ask, timeout=LONG_S)
