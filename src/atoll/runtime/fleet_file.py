"""What a fleet on one machine needs to go on after everything was killed: fleet.json, and who looks after it.

fleet.json is written before the first process and never again: how fast each learner is, and when the run
began. Everything else is kept by those whose it is: settings, weights and counters by the syncer, names,
keys, moments and data cursors by the learners.

The parent of a fleet holds a lock on the run directory. The kernel lets go of it when the parent dies,
however that happens. Its children then end by themselves, but not at once: `wait_for_orphans` sees them off.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atoll.errors import StoreError
from atoll.runtime.children import PATIENCE_S

__all__ = ["FleetFile", "fleet_lock", "wait_for_orphans", "write_safely"]

FLEET = "fleet.json"
LOCK = "fleet.lock"
CHILDREN_LOCKS = ("lock", "learners/*/lock")
PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class FleetFile:
    """The content of fleet.json."""

    speeds: tuple[float, ...]
    """One per learner: 0.5 takes twice the time for each step."""
    began_s: float
    """`time.time()` of the first start."""

    def write(self, run_dir: Path) -> None:
        """Keep it, whole or not at all. Raises OSError."""
        content = {"speeds": list(self.speeds), "began_s": self.began_s}
        write_safely(run_dir / FLEET, json.dumps(content) + "\n")

    @classmethod
    def read(cls, run_dir: Path) -> FleetFile:
        """Raises `StoreError` if there is none that can be read."""
        try:
            content = json.loads((run_dir / FLEET).read_text(encoding="utf-8"))
            return cls(tuple(float(speed) for speed in content["speeds"]), float(content["began_s"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{run_dir / FLEET} cannot be read: {error}.",
                "It says who took part, so it is not known whom to start.",
                "Only a run of `atoll train` can be resumed; for another, start its syncer and its learners.",
            ) from error


def write_safely(path: Path, content: str) -> None:
    """Write a small file that a power cut leaves whole or absent. Raises OSError."""
    part = path.with_suffix(path.suffix + ".part")
    with open(part, "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def fleet_lock(run_dir: Path) -> Iterator[None]:
    """Be the one that looks after this fleet. Raises `StoreError`, with the pid, if somebody else does."""
    try:
        descriptor = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(
            f"The run directory {run_dir} cannot be used: {error.strerror}.",
            "The run could not be kept, so it is not started.",
            "Make it a directory that can be written.",
        ) from error
    try:
        if not _take(descriptor):
            pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise StoreError(
                f"The run in {run_dir} is still running: process {pid or 'unknown'} looks after it.",
                "A second fleet would train under the same names.",
                f"Watch it with `atoll status {run_dir} --watch`, or stop that process first.",
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def wait_for_orphans(run_dir: Path, patience_s: float = 2 * PATIENCE_S) -> None:
    """Until no process of an earlier fleet holds anything here; whoever stays is told of by its successor."""
    deadline_s = time.monotonic() + patience_s
    paths = [path for pattern in CHILDREN_LOCKS for path in sorted(run_dir.glob(pattern))]
    while any(_is_held(path) for path in paths) and time.monotonic() < deadline_s:
        time.sleep(PAUSE_S)


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _take(descriptor)
    finally:
        os.close(descriptor)


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
