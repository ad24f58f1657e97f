"""Every operation of the store on files, so that a test can make any one of them fail.

A file becomes visible whole: it is written under a temporary name, forced to disk, renamed, and the
folder is forced to disk. If an fsync fails, the kernel has dropped the pages it could not write and the
next fsync of the same file would succeed without them. So nothing is ever retried in place: the temporary
file is deleted, and the next attempt writes the content again under a new name.

`Files.step` is called before every operation, and before every commit of the database. It does nothing
here; a test overrides it to count, to raise `OSError`, or to stop the world.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from atoll.errors import StoreError

__all__ = ["NO_SPACE", "TEMPORARY", "Files", "reason_of"]

TEMPORARY = ".tmp-"
"""How the name of everything unfinished begins."""
NO_SPACE = "no space left on the disk"

_numbers = itertools.count(1)


class Files:
    """The file system, as far as the store needs it. Has no state; safe in any thread."""

    def step(self, operation: str, path: Path) -> None:
        """Called before each operation with its name; a test may raise from here."""

    def write_durably(self, path: Path, parts: Iterable[bytes | memoryview], *, sync: bool) -> None:
        """Put a file in place whole, or raise `OSError` and leave what was there before.

        Without `sync` it is whole for every reader, but may be lost or torn by a power cut.
        """
        unfinished = self.unfinished_name(path)
        try:
            self.write(unfinished, parts, sync=sync)
            self.rename(unfinished, path)
        except OSError:
            self.discard(unfinished)
            raise
        if sync:
            self.sync_folder(path.parent)

    def write(self, path: Path, parts: Iterable[bytes | memoryview], *, sync: bool) -> None:
        """Write a new file under this very name."""
        self.step("create", path)
        with open(path, "xb", buffering=0) as file:
            for part in parts:
                self.step("write", path)
                write_all(file, part)
            if sync:
                self.step("fsync", path)
                os.fsync(file.fileno())

    def overwrite(self, path: Path, at: int, part: bytes) -> None:
        """Write some bytes in place; a power cut may take them, or tear them if they span sectors."""
        self.step("overwrite", path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, part, at)
        finally:
            os.close(descriptor)

    def sync_file(self, path: Path) -> None:
        """Force a file to disk that was written earlier; if that fails it must be written anew."""
        self.step("fsync", path)
        with open(path, "rb", buffering=0) as file:
            os.fsync(file.fileno())

    def sync_folder(self, folder: Path) -> None:
        """Force the names in a folder to disk."""
        self.step("fsync folder", folder)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file or folder its final name."""
        self.step("rename", new)
        os.rename(old, new)

    def make_folder(self, folder: Path) -> None:
        """Make a folder, and those above it; an existing one is fine."""
        self.step("make folder", folder)
        folder.mkdir(parents=True, exist_ok=True)

    def open(self, path: Path) -> BinaryIO:
        """Open a file for reading."""
        self.step("open", path)
        return open(path, "rb", buffering=0)

    def forget(self, path: Path) -> None:
        """Have the kernel drop its copy of a file on disk, where it can, so that reading reads the disk."""
        if hasattr(os, "posix_fadvise"):
            with self.open(path) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def discard(self, path: Path) -> None:
        """Delete a file or folder if it can be; one that stays is deleted another time."""
        with contextlib.suppress(OSError):
            self.step("delete", path)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def unfinished_name(self, path: Path) -> Path:
        """A name beside `path` that nobody has used."""
        return path.with_name(f"{TEMPORARY}{os.getpid()}-{next(_numbers)}-{path.name}")

    def discard_unfinished(self, folder: Path) -> None:
        """Delete what an earlier process left half written."""
        for path in folder.glob(f"{TEMPORARY}*"):
            self.discard(path)


def write_all(file: BinaryIO, part: bytes | memoryview) -> None:
    """Write every byte: one call may take only some, above all when space runs out."""
    rest = memoryview(part)
    while rest:
        rest = rest[file.write(rest) :]


def reason_of(error: Exception) -> str:
    """A failure of the disk in words, for the tape and for status."""
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return NO_SPACE
        where = f" ({_place(error.filename)})" if error.filename else ""
        return f"{os.strerror(error.errno).lower()}{where}" if error.errno else str(error)
    if isinstance(error, sqlite3.Error):
        return NO_SPACE if "disk is full" in str(error) else f"run.db: {error}"
    return error.what if isinstance(error, StoreError) else str(error)


def _place(filename: str) -> Path:
    """Where it was; of what is unfinished the folder, since every attempt has another name."""
    path = Path(filename)
    return path.parent if path.name.startswith(TEMPORARY) else path
