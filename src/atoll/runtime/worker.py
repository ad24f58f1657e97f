"""A thread that does slow work in the order in which it was asked for."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Worker"]

log = logging.getLogger("atoll")


class Worker:
    """First in, first out, one at a time. A job that raises is a bug in us: `on_crash` hears of it."""

    def __init__(self, name: str, on_crash: Callable[[BaseException], None]) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]] | None] = (
            queue.SimpleQueue()
        )
        self._on_crash = on_crash
        self._thread = threading.Thread(target=self._run, name=f"atoll-{name}", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether the thread lives."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def do(self, what: Callable[..., object], *args: Any) -> None:
        """Queue a job; from any thread, never blocking."""
        self._jobs.put((what, args))

    def stop(self, timeout_s: float = 10.0) -> None:
        """Finish what is queued, then end."""
        self._jobs.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            what, args = job
            try:
                what(*args)
            except BaseException as error:
                log.exception("unexpected error in %s", self._thread.name)
                self._on_crash(error)
                return
