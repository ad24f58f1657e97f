"""Files that only their owner can read, written whole or not at all.

A file is written under a temporary name beside its place, forced to disk, then renamed: a crash leaves the
old file, the new one, or none, and at worst a temporary file that nobody reads. A folder of files that
belong together is made the same way, so that a key never lies there without its certificate. Modes are set
on the open file and do not depend on the umask of the process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["FILE_MODE", "FOLDER_MODE", "write_private", "write_private_folder"]

FILE_MODE = 0o600
FOLDER_MODE = 0o700


def write_private(path: Path, content: bytes) -> None:
    """Put content at path, whole or not at all; its folder is made if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        _fill(descriptor, content)
        os.rename(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_private_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder with all these files, or none of it. A folder that holds something is never replaced."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        temporary.chmod(FOLDER_MODE)
        for name, content in files.items():
            _fill(os.open(temporary / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), content)
        _sync_folder(temporary)
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync_folder(folder.parent)


def _fill(descriptor: int, content: bytes) -> None:
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), FILE_MODE)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """A rename is durable once the folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
