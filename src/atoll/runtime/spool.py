"""Where encoded offers wait until their round has its contributors: in memory, and above a budget on disk.

Bodies arrive faster than they are merged, and all of them are needed at once; without a bound, many
learners with large fragments would fill the syncer's memory. A body that no longer fits the budget is
written to a file and mapped when it is read, so it costs memory only while somebody looks at it, and
memory that the kernel may take back. Spooled bodies are not meant to survive: the folder is emptied at
the start, and nothing is forced to disk. If a file cannot be written, the body stays in memory: better
too much memory than an offer lost.

One thread holds and drops, others may get. A tensor that was handed out stays valid after its body is
dropped.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

__all__ = ["Spool"]

Key = TypeVar("Key", bound=Hashable)
SUFFIX = ".body"


@dataclass(frozen=True, slots=True)
class _Body:
    num_bytes: int
    content: bytearray | None
    path: Path | None
    """Where it lies, if not in memory."""


class Spool(Generic[Key]):
    """Bodies by key, at most `budget_bytes` of them in memory if there is a folder for the rest."""

    def __init__(self, folder: Path | None, budget_bytes: int) -> None:
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._bodies: dict[Key, _Body] = {}
        self._num_files = 0
        if folder is not None and folder.exists():
            for path in folder.glob(f"*{SUFFIX}"):
                _delete(path)

    @property
    def num_bytes(self) -> int:
        """Bytes of all bodies held, wherever they lie."""
        with self._lock:
            return sum(body.num_bytes for body in self._bodies.values())

    @property
    def memory_bytes(self) -> int:
        """Bytes of the bodies held in memory."""
        with self._lock:
            return sum(len(body.content) for body in self._bodies.values() if body.content is not None)

    def __contains__(self, key: Key) -> bool:
        with self._lock:
            return key in self._bodies

    def hold(self, key: Key, content: bytearray | memoryview) -> None:
        """Keep a body; of two with one key the first stays. A bytearray is kept as it is, not copied."""
        if key in self:
            return
        body = self._on_disk(content) if self._is_too_much(len(content)) else None
        if body is None:
            whole = content if isinstance(content, bytearray) else bytearray(content)
            body = _Body(len(content), whole, None)
        with self._lock:
            self._bodies[key] = body

    def get(self, key: Key) -> Tensor:
        """A body as flat uint8, without a copy; `KeyError` if it is not held. Not to be written to."""
        with self._lock:
            body = self._bodies[key]
            if not body.num_bytes:
                return torch.empty(0, dtype=torch.uint8, device="cpu")
            if body.path is not None:  # mapped under the lock, so that it is not deleted before
                return torch.from_file(str(body.path), shared=False, size=body.num_bytes, dtype=torch.uint8)
            assert body.content is not None
            return torch.frombuffer(body.content, dtype=torch.uint8)

    def drop(self, what: Key | Callable[[Key], bool]) -> None:
        """Forget a body, or all whose key a function says yes to; one that is not held is fine."""
        with self._lock:
            keys = [key for key in self._bodies if (what(key) if callable(what) else key == what)]
            dropped = [self._bodies.pop(key) for key in keys]
        for body in dropped:
            if body.path is not None:
                _delete(body.path)

    def _is_too_much(self, num_bytes: int) -> bool:
        return self._folder is not None and self.memory_bytes + num_bytes > self._budget_bytes

    def _on_disk(self, content: bytearray | memoryview) -> _Body | None:
        """Write a body to a file; None if the disk refused."""
        assert self._folder is not None
        self._num_files += 1
        path = self._folder / f"{self._num_files}{SUFFIX}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError:
            _delete(path)
            return None
        return _Body(len(content), None, path)


def _delete(path: Path) -> None:
    """A file that cannot be deleted stays until the next start."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
