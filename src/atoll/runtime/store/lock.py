"""One syncer per run directory: an exclusive lock that dies with its process.

The kernel holds the lock (flock on the file `lock`), so a killed syncer leaves none behind. The file
holds the pid of the holder, for people. A forked child drops its copy at once, or a data-loading process
would keep the run locked after its parent is gone.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from atoll.errors import StoreError

__all__ = ["RunLock"]


class RunLock:
    """Holds a run directory until `release`, or raises `StoreError` naming who does."""

    def __init__(self, run_dir: Path) -> None:
        path = run_dir / "lock"
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            self.release()
            raise StoreError(
                f"The run directory {run_dir} is in use by {f'process {pid}' if pid else 'another process'}.",
                "Two syncers on one directory would overwrite each other's merges.",
                "Stop that process first, or choose another run directory.",
            ) from None
        except OSError:
            self.release()
            raise
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        _held.add(self)

    def release(self) -> None:
        """Let the next one in; a second time does no harm."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)
