"""A tape on disk: blocks of compressed lines in SQLite, each chained to the one before.

A block is what was written in one go: a MessagePack list of packed lines, compressed. Beside it
stands chain_n = blake2b(chain_{n-1} || content_n), and the chain before the first block is empty. So
a block that was changed, lost or moved is found when the next one is read; a tape that merely ends
early, as after a power cut, is whole as far as it goes.

A learner's tape is a file of its own, `TapeFile`. The syncer's blocks stand in the same table inside
its run.db: `create`, `append` and `read` work on any connection, and `append` leaves the commit to
the caller, so that lines can share a transaction with the record they led to.

A tape need not begin at the beginning. An image of the machine always begins a block, so a tape can be `cut`
there: all blocks before go, and the chain that they ended with is kept, so that reading verifies from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import zstandard

from atoll.errors import TapeError
from atoll.tape.entries import Entry, Image
from atoll.tape.tape import pack, unpack

__all__ = ["MAX_LIVES", "TapeFile", "append", "create", "cut", "open_life", "read", "size", "starts_at"]

COMPRESSION_LEVEL = 3  # of zstd
MAX_LIVES = 8
"""Lives of a learner whose tapes are kept."""


class TapeFile:
    """One tape in one file; an existing file is continued. For one thread at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._db = _open(path)

    def append(self, entries: list[Entry]) -> None:
        """Write the entries, all or none.

        A disk that refuses raises `sqlite3.Error`: the entries are then not on the tape, which is as
        whole as before, and they may be given again.
        """
        with self._db:
            append(self._db, entries)

    def begin_anew(self, entries: list[Entry]) -> None:
        """Write the entries, the last of which is a learner's image, and cut all before it, at once."""
        with self._db:
            append(self._db, entries)
            cut(self._db, 0)

    def size(self) -> int:
        """Bytes of content."""
        return size(self._db)

    def read(self) -> Iterator[Entry]:
        """Every entry from the beginning; a damaged block is a `TapeError` that names it."""
        return read(self._db)

    def close(self) -> None:
        """Let go of the file; closing twice does no harm."""
        self._db.close()


def open_life(state_dir: Path, life: int) -> TapeFile:
    """A tape for a new life of a learner; those of its oldest lives are deleted."""
    tape = TapeFile(state_dir / f"tape-{life:012x}.db")
    with contextlib.suppress(OSError):  # two lives at once may delete the same tapes
        tapes = sorted(state_dir.glob("tape-*.db"), key=lambda path: (path.stat().st_mtime_ns, path.name))
        for path in tapes[:-MAX_LIVES]:
            for ending in ("", "-wal", "-shm"):
                path.with_name(path.name + ending).unlink(missing_ok=True)
    return tape


def create(db: sqlite3.Connection) -> None:
    """Make the tables, unless they are there."""
    columns = "id INTEGER PRIMARY KEY, content BLOB NOT NULL, chain BLOB NOT NULL, image INTEGER"
    db.execute(f"CREATE TABLE IF NOT EXISTS blocks ({columns})")
    db.execute("CREATE TABLE IF NOT EXISTS tape_cut (chain BLOB NOT NULL)")


def append(db: sqlite3.Connection, entries: list[Entry]) -> None:
    """Add the entries within the caller's transaction: one block, and one more from each image on."""
    first = 0
    for at in range(1, len(entries) + 1):
        if at == len(entries) or isinstance(entries[at].item, Image):
            _append_block(db, entries[first:at])
            first = at


def read(db: sqlite3.Connection) -> Iterator[Entry]:
    """Every entry from the beginning, block by block; a damaged block is a `TapeError` that names it."""
    number, chain = 0, None
    try:
        # The casts: a value that somebody replaced with text, or with none, is damage like any other.
        # One statement, so that blocks and cut are of the same moment.
        rows = db.execute(
            "SELECT id, coalesce(CAST(content AS BLOB), x''), CAST(chain AS BLOB), image,"
            " (SELECT CAST(chain AS BLOB) FROM tape_cut) FROM blocks ORDER BY id"
        )
        for number, content, link, image, before in rows:
            chain = _link(before or b"" if chain is None else chain, content)
            if chain != link:
                raise TapeError(
                    f"Block {number} of the tape does not fit the digest chain.",
                    "This block, or one before it, was changed, lost or moved after it was written.",
                    f"Trust the blocks before {number} only, or restore the tape from a copy.",
                )
            entries = _entries(number, content)
            if image != _image_of(entries):
                raise _unreadable(number, "it does not begin with the image that it is said to begin with")
            yield from entries
    except sqlite3.Error as error:
        raise _unreadable(number + 1, error) from error


def cut(db: sqlite3.Connection, merges: int) -> bool:
    """Let the tape begin at the newest image with so many merges, within the caller's transaction.

    False, and nothing is cut, if there is no such image.
    """
    (first,) = db.execute("SELECT max(id) FROM blocks WHERE image = ?", (merges,)).fetchone()
    if first is None:
        return False
    last = db.execute("SELECT chain FROM blocks WHERE id < ? ORDER BY id DESC LIMIT 1", (first,)).fetchone()
    if last is not None:
        db.execute("DELETE FROM tape_cut")
        db.execute("INSERT INTO tape_cut (chain) VALUES (?)", last)
        db.execute("DELETE FROM blocks WHERE id < ?", (first,))
    return True


def size(db: sqlite3.Connection) -> int:
    """Bytes of content, compressed as they are."""
    (num_bytes,) = db.execute("SELECT coalesce(sum(length(content)), 0) FROM blocks").fetchone()
    return int(num_bytes)


def starts_at(db: sqlite3.Connection) -> int | None:
    """The merges of the image that the tape begins with; None if it begins at the beginning."""
    first = db.execute("SELECT image FROM blocks ORDER BY id LIMIT 1").fetchone()
    return None if first is None else first[0]


def _append_block(db: sqlite3.Connection, entries: list[Entry]) -> None:
    lines = msgspec.msgpack.encode([pack(entry) for entry in entries])
    # A compressor of its own for each block: they are not made to be shared between threads.
    content = zstandard.ZstdCompressor(level=COMPRESSION_LEVEL).compress(lines)
    # The last link is asked for, not remembered, so that a transaction rolled back leaves no trace.
    last = db.execute("SELECT chain FROM blocks ORDER BY id DESC LIMIT 1").fetchone()
    chain = _link(last[0] if last else b"", content)
    row = (content, chain, _image_of(entries))
    db.execute("INSERT INTO blocks (content, chain, image) VALUES (?, ?, ?)", row)


def _image_of(entries: list[Entry]) -> int | None:
    first = entries[0].item if entries else None
    return first.merges if isinstance(first, Image) else None


def _open(path: str | os.PathLike[str]) -> sqlite3.Connection:
    db = None
    try:
        db = sqlite3.connect(path, check_same_thread=False)
        # A power cut may cost the newest blocks and nothing else, so a commit need not wait for the disk.
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        create(db)
    except sqlite3.Error as error:
        if db is not None:
            db.close()
        raise TapeError(
            f"The tape {os.fspath(path)} cannot be opened: {error}.",
            "What happens from here on could not be written down.",
            "Name a tape, or a new file in a folder that can be written.",
        ) from error
    return db


def _link(previous: bytes, content: bytes) -> bytes:
    return hashlib.blake2b(previous + content, digest_size=16).digest()


def _entries(number: int, content: bytes) -> list[Entry]:
    try:
        lines = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(content), type=list[bytes])
        return [unpack(line) for line in lines]
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise _unreadable(number, error) from error
    except TapeError as error:
        raise _unreadable(number, error.what.rstrip(".")) from error


def _unreadable(number: int, reason: object) -> TapeError:
    return TapeError(
        f"Block {number} of the tape cannot be read: {reason}.",
        "The run cannot be replayed past this block.",
        f"Trust the blocks before {number} only, or restore the tape from a copy.",
    )
