"""One thread that waits for sockets and timers, and calls back.

A turn of the loop: wait until a socket is ready, a timer is due or somebody calls; serve the sockets;
run what was called for; fire the timers. Sockets come before timers on purpose: after a pause (a
suspended laptop, a busy machine) messages that wait in the kernel are read before deadlines are
judged, so nobody is declared late who was not.

Only `call`, `stop` and `is_running` may be used from other threads. A callback that raises is a bug in
us: the loop stops, and `on_crash` hears the exception. However it ends, it closes the sockets it watched:
the other side must not wait for a loop that serves it no more. A forked child has no loop: its copies of
the sockets are closed at once, for the same reason.
"""

from __future__ import annotations

import ctypes
import heapq
import logging
import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["READ", "WRITE", "Loop", "Timer"]

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE
LONGEST_WAIT_S = 60.0

log = logging.getLogger("atoll")


class Timer:
    """A call at a time; `cancel` makes it never happen."""

    __slots__ = ("args", "what", "when_ns")

    def __init__(self, when_ns: int, what: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.when_ns = when_ns
        self.what: Callable[..., object] | None = what
        self.args = args

    def cancel(self) -> None:
        """Never fire."""
        self.what, self.args = None, ()


class Loop:
    """A selector, a heap of timers and a mailbox of calls, served by one daemon thread."""

    def __init__(self, name: str, on_crash: Callable[[BaseException], None] | None = None) -> None:
        self.name = name
        self.on_crash = on_crash
        self._selector = selectors.DefaultSelector()
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[int, int, Timer]] = []
        self._num_timers = 0
        self._ear, self._alarm = os.pipe()
        for descriptor in (self._ear, self._alarm):
            os.set_blocking(descriptor, False)
        # Whoever calls may be about to ring when the loop ends, and the number could be another file's by
        # then; so the pipe lives as long as this object.
        self._pipe = weakref.finalize(self, _close_all, self._ear, self._alarm)
        self._pipe.atexit = False
        self._is_awake = False
        self._is_stopping = False
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._selector.register(self._ear, READ, self._heard)
        _loops.add(self)

    @staticmethod
    def now_ns() -> int:
        """The clock of every runtime event."""
        return time.monotonic_ns()

    @property
    def is_running(self) -> bool:
        """Whether the thread lives."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Begin to serve."""
        self._thread = threading.Thread(target=self._run, name=f"atoll-{self.name}", daemon=True)
        self._thread.start()

    def call(self, what: Callable[..., object], *args: Any) -> None:
        """Have the loop's thread call something soon; from any thread, in order, never blocking.

        Once the loop is over nothing is called, and nothing is kept.
        """
        if self._is_over:
            return
        self._calls.append((what, args))
        if not self._is_awake:
            self._is_awake = True
            _ring(self._alarm, b"!", 1)  # fails if full: then it will wake anyway

    def at(self, when_ns: int, what: Callable[..., object], *args: Any) -> Timer:
        """Call something at a time. Loop's thread only."""
        timer = Timer(when_ns, what, args)
        self._num_timers += 1
        heapq.heappush(self._timers, (when_ns, self._num_timers, timer))
        return timer

    def after(self, delay_ns: int, what: Callable[..., object], *args: Any) -> Timer:
        """Call something after a while. Loop's thread only."""
        return self.at(self.now_ns() + delay_ns, what, *args)

    def watch(self, sock: socket.socket, mask: int, handler: Callable[[int], None]) -> None:
        """Call `handler(mask)` whenever the socket is ready; a mask of 0 stops that."""
        watched = sock.fileno() >= 0 and sock in self._selector.get_map()
        if mask and watched:
            self._selector.modify(sock, mask, handler)
        elif mask:
            self._selector.register(sock, mask, handler)
        elif watched:
            self._selector.unregister(sock)

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread; from any thread, also from its own, and also if it never began."""
        if self._thread is None:
            self._close()
            self._pipe()
            return
        self.call(self._stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _stop(self) -> None:
        self._is_stopping = True

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._turn()
        except BaseException as error:
            log.exception("%s: the loop stopped on an unexpected error", self.name)
            if self.on_crash is not None:
                self.on_crash(error)
        finally:
            self._close()

    def _turn(self) -> None:
        for key, mask in self._selector.select(self._patience_s()):
            handler: Callable[[int], None] = key.data
            handler(mask)
        self._is_awake = False
        for _ in range(len(self._calls)):
            what, args = self._calls.popleft()
            what(*args)
        for timer in self._due():
            if timer.what is not None:  # not cancelled by one before it
                timer.what(*timer.args)

    def _due(self) -> list[Timer]:
        """Timers whose time has come. Those that they set have to wait for the sockets again."""
        now, due = self.now_ns(), []
        while self._timers and self._timers[0][0] <= now:
            due.append(heapq.heappop(self._timers)[2])
        return due

    def _patience_s(self) -> float:
        if self._calls or self._is_stopping:
            return 0.0
        if not self._timers:
            return LONGEST_WAIT_S
        return min(max(0.0, (self._timers[0][0] - self.now_ns()) / 1e9), LONGEST_WAIT_S)

    def _heard(self, mask: int) -> None:
        try:
            while os.read(self._ear, 4096):
                pass
        except BlockingIOError:
            pass

    def _close(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        _loops.discard(self)
        for sock in self._sockets():
            sock.close()
        self._selector.close()
        self._calls.clear()
        self._timers.clear()

    def _sockets(self) -> list[socket.socket]:
        watched = [key.fileobj for key in self._selector.get_map().values()]
        return [sock for sock in watched if isinstance(sock, socket.socket)]

    def _forget_sockets(self) -> None:
        """In a forked child: let go of every inherited socket, without a word to the other side."""
        for sock in self._sockets():
            if sock.fileno() >= 0:
                os.close(sock.detach())
        self._pipe()
        self._selector.close()
        self._is_over = True
        self._calls.clear()


def _close_all(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _bell() -> Callable[[int, bytes, int], object]:
    """write(2) without letting go of the interpreter's lock.

    `socket.send` lets go of it, and a training thread that only wanted to wake the loop would then wait for
    the loop's whole turn to get it back: that doubled the time that a step is held, measured. The descriptor
    does not block, so the lock is held for a microsecond.
    """
    write = ctypes.PyDLL(None).write
    write.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)
    write.restype = ctypes.c_ssize_t
    return write


_ring = _bell()
_loops: weakref.WeakSet[Loop] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for loop in list(_loops):
        loop._forget_sockets()


os.register_at_fork(after_in_child=_after_fork_in_child)
