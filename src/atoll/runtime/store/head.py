"""`head`: how far a run has certainly come, beside run.db, so that a lost end is noticed.

SQLite drops the end of its log silently from the first page on whose checksum does not agree: after a power
cut that is right, but a flipped bit would take acknowledged records with it and nobody would know. So after
every synced commit the number and chain of the newest record and of the newest tape block are written here.
When the run is opened, run.db must hold that record and that block.

The file has two slots, written in turn, each under a digest. Nothing is forced to disk: after a power cut the
head may be older than run.db, and it is never newer than what was synced. A slot that is torn is overwritten
next, and the other one counts meanwhile. A run without a head is taken as it is.
"""

from __future__ import annotations

import hashlib
import sqlite3
import struct
from pathlib import Path
from typing import NamedTuple

from atoll.runtime.store.chain import Past
from atoll.runtime.store.files import Files

__all__ = ["HEAD", "Head", "loss", "read_head", "read_slots", "write_head"]

HEAD = "head"
SLOT_BYTES = 512
"""A slot has a sector of its own: a disk writes one whole or not at all."""
LAYOUT = struct.Struct("<QQQ16sQ16s")
DIGEST_BYTES = 16


class Head(NamedTuple):
    """A moment that was on the disk."""

    number: int
    """Counts the heads of a run; the highest one counts, and its parity is its slot."""
    epoch: int
    record_id: int
    chain: bytes
    block_id: int
    block_chain: bytes


def write_head(files: Files, path: Path, head: Head) -> None:
    """Put a head into its slot; raises `OSError`."""
    body = LAYOUT.pack(*head)
    files.overwrite(path, head.number % 2 * SLOT_BYTES, body + _digest(body))


def read_head(path: Path) -> Head | None:
    """The newest head that can be read, if there is one."""
    return max((head for head in read_slots(path) if isinstance(head, Head)), default=None)


def read_slots(path: Path) -> list[Head | str]:
    """Both slots: the head in it, "" if it was never written, or what is wrong with it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"it cannot be read: {error}"]
    return [_read_slot(content[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]


def loss(db: sqlite3.Connection, past: Past, head: Head) -> str:
    """What run.db lacks of a moment that was on the disk, in words; "" if nothing."""
    query = "SELECT coalesce(CAST(chain AS BLOB), x'') FROM {} WHERE id = ?"
    row = db.execute(query.format("records"), (head.record_id,)).fetchone()
    if row is None and head.record_id > past.record_id:
        newest = db.execute("SELECT max(id) FROM records").fetchone()[0] or past.record_id
        lost = f"record {head.record_id}" if head.record_id == newest + 1 else _range(newest, head.record_id)
        return f"its newest records are lost, {head.record_id - newest} of them: {lost}"
    chain = row[0] if row else past.chain if head.record_id == past.record_id else None
    if chain is not None and chain.ljust(16, b"\0") != head.chain:
        return f"record {head.record_id} is not the one that was committed: this is another history"
    row = db.execute(query.format("blocks"), (head.block_id,)).fetchone()
    (newest,) = db.execute("SELECT coalesce(max(id), 0) FROM blocks").fetchone()
    if head.block_id > newest:
        return f"its tape has lost its newest blocks, {head.block_id - newest} of them"
    if row is not None and row[0].ljust(16, b"\0") != head.block_chain:
        return f"block {head.block_id} of its tape is not the one that was committed"
    return ""


def _range(newest: int, last: int) -> str:
    return f"records {newest + 1} to {last}"


def _read_slot(content: bytes) -> Head | str:
    if not content.strip(b"\0"):
        return ""
    body, digest = content[: LAYOUT.size], content[LAYOUT.size : LAYOUT.size + DIGEST_BYTES]
    if len(body) < LAYOUT.size or _digest(body) != digest:
        return "it does not have its digest"
    return Head(*LAYOUT.unpack(body))


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()
