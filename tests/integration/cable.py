"""A cable between a learner and its syncer that a test can cut and mend: a small TCP proxy."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

from atoll.wire.url import RunURL, parse

__all__ = ["Cable"]


class Cable:
    """Carries connections to the syncer of a URL; `url` is the one to join by."""

    def __init__(self, url: str) -> None:
        target = parse(url)
        assert isinstance(target, RunURL)
        self._target = (target.host, target.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        self._is_cut = False
        port = self._listener.getsockname()[1]
        self.url = str(RunURL("127.0.0.1", port, target.run, target.fingerprint, target.plain))
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Every connection breaks, and new ones too, until it is mended."""
        with self._lock:
            self._is_cut = True
            for end in self._ends:
                _hang_up(end)

    def mend(self) -> None:
        """From now on connections hold."""
        with self._lock:
            self._is_cut = False

    def __enter__(self) -> Cable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        _hang_up(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the test is over
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._target)
        except OSError:  # nobody is there
            near.close()
            return
        with self._lock:
            self._ends |= {near, far}
            if self._is_cut:
                _hang_up(near)
                _hang_up(far)
        back = threading.Thread(target=_pump, args=(far, near), daemon=True)
        back.start()
        _pump(near, far)
        back.join()
        with self._lock:
            self._ends -= {near, far}
        near.close()
        far.close()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Until one of them ends; then both do."""
    with contextlib.suppress(OSError):
        while content := source.recv(1 << 16):
            sink.sendall(content)
    _hang_up(source)
    _hang_up(sink)


def _hang_up(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
