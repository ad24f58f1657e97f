"""What a disk may hold of a run directory when the power goes, told from the operations on it.

The rules of the model, which are those of POSIX and no kinder:

- What a file held at its last fsync is durable. Every 512-byte sector written since is as it was, as it is,
  as it was at any moment between, or torn in the middle. Its length is any that it had. A sector that was
  never written and lies below the new length holds zeros, or bytes of somebody else.
- A name (made, renamed, deleted) is durable after an fsync of its folder. Of the changes since, any first
  part may have happened; or, per file, any first part of its own. A rename is atomic: it replaces, or it did
  not happen. The fsync of a file says nothing about its name.
- Bytes that were written again with the same value stay (SQLite calls it powersafe overwrite).

`Files.step` and the statements of the connection tell when an operation begins; the difference of the folder
between two of them tells what it did. What SQLite does inside one statement is not seen, so it follows the
known order (its documentation, and a trace of the system calls of 3.40):

- COMMIT in WAL mode: if the log begins anew, its header is written and forced, and with the first fsync of a
  new log its folder too; then the frames; with synchronous FULL they are forced, with NORMAL they are not.
- A checkpoint (asked for, or after a COMMIT that made the log long, or at the last close): the log is
  forced, the pages are written into run.db, that is forced. Only then is the log truncated, begun anew or
  deleted, and nothing forces these.
- `PRAGMA journal_mode = WAL` on a new database goes through a rollback journal, forced at every step; it is
  taken as one operation that happens or does not.

`Disk.moments` is what could be on the disk at every instant of the recording, `tests.crash.image` picks one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from atoll.runtime.store.files import Files

__all__ = ["Change", "Disk", "Key", "Moment", "RecordedFiles"]

HEADER_BYTES = 32
"""Of the log of SQLite."""


class Key(NamedTuple):
    """A name: the number of its folder, and the name in it."""

    folder: int
    name: str


class Change(NamedTuple):
    """Something that happened to the name of a file or folder: made, renamed, or deleted."""

    node: int
    old: Key | None
    new: Key | None


@dataclass(frozen=True, slots=True)
class Moment:
    """Everything that a power cut at this instant may leave, and what was promised before it."""

    label: str
    names: dict[Key, int] = field(repr=False)
    """The durable names."""
    changes: tuple[Change, ...] = field(repr=False)
    """What happened to names since, in order."""
    contents: dict[int, tuple[bytes, ...]] = field(repr=False)
    """Of each file: what is durable, then what it held since, oldest first."""
    folders: frozenset[int] = field(repr=False)
    promise: object = field(repr=False)


@dataclass(slots=True, repr=False)
class Disk:
    """Watches the folder `root`; all that is in it at the beginning is durable."""

    root: Path
    moments: list[Moment] = field(default_factory=list)
    promise: object = None
    """Goes into every moment from now on."""
    is_full: bool = True
    """Whether a commit of SQLite forces its log now."""
    errors: list[BaseException] = field(default_factory=list)
    _held: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Inode -> our number and an open descriptor, so that the inode cannot be given to another file."""
    _seen: dict[int, Key] = field(default_factory=dict)
    _durable: dict[Key, int] = field(default_factory=dict)
    _changes: list[Change] = field(default_factory=list)
    _contents: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    _folders: set[int] = field(default_factory=set)
    _synced: set[int] = field(default_factory=set)
    _count: int = 0
    _under_way: tuple[str, Path] = ("nothing", Path())

    def __post_init__(self) -> None:
        self._seen, current = self._look()
        self._durable = {key: node for node, key in self._seen.items()}
        self._contents = {node: (content,) for node, content in current.items()}

    def before(self, operation: str, path: Path) -> None:
        """An operation begins, so the one before it is done."""
        self.settle()
        self._under_way = (operation, path)

    def statement(self, sql: str, path: Path) -> None:
        """A statement of SQLite begins. An error here would be swallowed, so it is kept."""
        try:
            if sql.startswith("PRAGMA synchronous"):
                self.is_full = sql.endswith("FULL")
            elif sql in ("COMMIT", "PRAGMA journal_mode = WAL") or sql.startswith("PRAGMA wal_checkpoint"):
                self.before(sql, path)
        except BaseException as error:
            self.errors.append(error)

    def settle(self) -> None:
        """Take in what the operation under way has done."""
        (operation, path), self._under_way = self._under_way, ("nothing", self.root)
        label = f"{operation} {path.name}"
        seen, current = self._look()
        if operation in ("COMMIT", "close") or operation.startswith("PRAGMA"):
            self._rename({**self._seen, **seen})  # SQLite deletes its log last
            self._settle_sql(operation, path, current, label)
        self._rename(seen)
        for node, content in current.items():
            self._write(node, content)
        self._note(label)
        forced = self._node_of(path)
        if operation == "fsync" and forced is not None:
            self._force(forced)
        elif operation == "fsync folder" and forced is not None:
            self._force_names(forced)
        if operation.startswith("fsync"):
            self._note(f"{label}, done")

    def close(self) -> None:
        """Let go of everything; an error of the recording itself is raised here."""
        for _, descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()
        if self.errors:
            raise self.errors[0]

    # What SQLite does inside one statement

    def _settle_sql(self, operation: str, path: Path, current: dict[int, bytes], label: str) -> None:
        database, log = self._node_of(path), self._node_of(path.with_name(f"{path.name}-wal"))
        if operation == "PRAGMA journal_mode = WAL":
            if database is not None:
                self._write(database, current[database])
                self._force(database)
            return
        new = current.get(log, b"") if log is not None else b""
        if log is not None and new:  # a log that was truncated or deleted has no new frames
            old = self._contents[log][-1]
            if new[:HEADER_BYTES] != old[:HEADER_BYTES]:
                self._write(log, new[:HEADER_BYTES] + old[HEADER_BYTES:])
                self._note(f"{label}: header of the log")
                self._force_log(log, path)
            self._write(log, new)
            self._note(f"{label}: frames of the log")
            if self.is_full and operation == "COMMIT":
                self._force_log(log, path)
        if database is not None and current[database] != self._contents[database][-1]:
            if log is not None:
                self._force_log(log, path)
            self._write(database, current[database])
            self._note(f"{label}: checkpoint")
            self._force(database)

    def _force_log(self, log: int, path: Path) -> None:
        if log not in self._synced:
            folder = self._node_of(path.parent)
            assert folder is not None
            self._force_names(folder)
        self._force(log)

    # Durability

    def _write(self, node: int, content: bytes) -> None:
        held = self._contents.setdefault(node, (b"",))
        if held[-1] != content:
            self._contents[node] = (*held, content)

    def _force(self, node: int) -> None:
        self._synced.add(node)
        self._contents[node] = self._contents[node][-1:]

    def _force_names(self, folder: int) -> None:
        rest = []
        for change in self._changes:
            key = change.new or change.old
            if key is not None and key.folder == folder:
                apply(self._durable, change)
            else:
                rest.append(change)
        self._changes = rest

    def _rename(self, seen: dict[int, Key]) -> None:
        """Tell from two looks what happened to names. A file whose name was taken is not deleted besides."""
        taken = set(seen.values())
        gone = [node for node in self._seen if node not in seen and self._seen[node] not in taken]
        changes = [Change(node, self._seen[node], None) for node in sorted(gone, reverse=True)]
        for node, key in sorted(seen.items()):
            if self._seen.get(node) != key:
                changes.append(Change(node, self._seen.get(node), key))
        self._changes += changes
        self._seen = seen

    def _note(self, label: str) -> None:
        contents, folders = dict(self._contents), frozenset(self._folders)
        names, changes = dict(self._durable), tuple(self._changes)
        self.moments.append(Moment(label, names, changes, contents, folders, self.promise))

    # Looking

    def _look(self) -> tuple[dict[int, Key], dict[int, bytes]]:
        """Every name below the root by the number of its file, and the content of every file."""
        seen: dict[int, Key] = {}
        content: dict[int, bytes] = {}
        present = set()
        for inode, node, key in self._walk(self.root, 0):
            present.add(inode)
            seen[node] = key
            if node not in self._folders:
                descriptor = self._held[inode][1]
                content[node] = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        for inode in self._held.keys() - present:
            os.close(self._held.pop(inode)[1])
        return seen, content

    def _walk(self, folder: Path, number: int) -> Iterator[tuple[int, int, Key]]:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                inode = entry.inode()
                if inode not in self._held:
                    self._count += 1
                    self._held[inode] = (self._count, os.open(entry.path, os.O_RDONLY))
                    if entry.is_dir():
                        self._folders.add(self._count)
                node = self._held[inode][0]
                yield inode, node, Key(number, entry.name)
                if node in self._folders:
                    yield from self._walk(Path(entry.path), node)

    def _node_of(self, path: Path) -> int | None:
        """The number of a file by its path now; of the root, 0."""
        if path == self.root:
            return 0
        if self.root not in path.parents:
            return None
        folder = self._node_of(path.parent)
        return next((node for node, key in self._seen.items() if key == (folder, path.name)), None)


def apply(names: dict[Key, int], change: Change) -> None:
    """Make a change of a name happen."""
    if change.old is not None and names.get(change.old) == change.node:
        del names[change.old]
    if change.new is not None:
        names[change.new] = change.node


class RecordedFiles(Files):
    """The file system of a store whose every operation is recorded."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def step(self, operation: str, path: Path) -> None:
        """Called before each operation."""
        self.disk.before(operation, path)
