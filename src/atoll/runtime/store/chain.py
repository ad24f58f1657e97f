"""The records in run.db: how they are encoded, chained, read, and what stands for those that were cut away.

The chain is chain_n = blake2b(chain_{n-1}, kind_n, 0, body_n). A run that does not keep everything loses its
oldest records at a cut; then one row of the table `base` stands for them: the number and chain of the newest
one that went, and the fold of them all, under a digest. The first record that is left must fit that chain, so
a run is verified from its base on exactly as another one is from its beginning.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from atoll.core.records import EpochRecord, Record, RoundRecord, StoredState, fold
from atoll.runtime.store import tables

__all__ = [
    "Past",
    "encode",
    "link",
    "num_before",
    "past_before",
    "put_past",
    "read_epoch",
    "read_past",
    "read_records",
    "read_tail",
]

_encode = msgspec.msgpack.Encoder().encode
_decode_state = msgspec.msgpack.Decoder(StoredState).decode
_decoders = {kind: msgspec.msgpack.Decoder(cls) for kind, cls in tables.KINDS.items()}
_kinds = {cls: kind for kind, cls in tables.KINDS.items()}


@dataclass(frozen=True, slots=True)
class Past:
    """What stands for the records that were cut away."""

    record_id: int = 0
    """The newest of them; 0 if none was."""
    chain: bytes = b""
    state: StoredState | None = None
    """Their fold; None if none was cut away."""


def encode(record: Record) -> tuple[str, bytes]:
    """Kind and body of a record, as they are stored."""
    return _kinds[type(record)], _encode(record)


def link(previous: bytes, kind: str, body: bytes) -> bytes:
    """The next digest of the chain."""
    return hashlib.blake2b(previous + kind.encode() + b"\0" + body, digest_size=16).digest()


def read_past(db: sqlite3.Connection) -> Past:
    """The base of a run; raises `ValueError` if it is damaged."""
    rows = db.execute(
        "SELECT record_id, coalesce(CAST(chain AS BLOB), x''), coalesce(CAST(state AS BLOB), x''),"
        " CAST(digest AS BLOB) FROM base"
    ).fetchall()
    if not rows:
        return Past()
    record_id, chain, body, digest = rows[0]
    if len(rows) > 1 or _past_digest(record_id, chain, body) != digest:
        raise ValueError("the base, which stands for its oldest records, does not have its digest")
    try:
        return Past(record_id, chain, _decode_state(body))
    except msgspec.MsgspecError as error:
        raise ValueError(f"the base cannot be read by this Atoll: {error}") from error


def put_past(db: sqlite3.Connection, past: Past) -> None:
    """Replace all records up to a base by it, and the rows that follow from them; the caller commits.

    Of the members the newest incarnation of each name stays: a name is never given to another key.
    """
    body = _encode(past.state)
    db.execute("DELETE FROM base")
    row = (past.record_id, past.chain, body, _past_digest(past.record_id, past.chain, body))
    db.execute("INSERT INTO base VALUES (?, ?, ?, ?)", row)
    db.execute("DELETE FROM records WHERE id <= ?", (past.record_id,))
    db.execute("DELETE FROM commits WHERE record_id <= ?", (past.record_id,))
    db.execute("DELETE FROM contributions WHERE record_id <= ?", (past.record_id,))
    db.execute(
        "DELETE FROM members WHERE record_id <= ? AND EXISTS (SELECT 1 FROM members AS newer"
        " WHERE newer.learner = members.learner AND newer.incarnation > members.incarnation)",
        (past.record_id,),
    )


def past_before(
    db: sqlite3.Connection, past: Past, records: Sequence[Record], versions: tuple[int, ...], upto: int
) -> Past | None:
    """The base after the newest record up to `upto` that goes beyond none of these versions, if any."""
    num_cut = num_before(past.state, records[: upto - past.record_id], versions)
    if num_cut == 0:
        return None
    record_id = past.record_id + num_cut
    (chain,) = db.execute("SELECT chain FROM records WHERE id = ?", (record_id,)).fetchone()
    return Past(record_id, chain, fold(records[:num_cut], past.state))


def num_before(base: StoredState | None, records: Sequence[Record], versions: tuple[int, ...]) -> int:
    """How many records a snapshot of these versions makes needless: it was taken after them at the earliest.

    A snapshot is registered some time after it was taken, so records that came before its registration may
    hold versions that it does not have.
    """
    state = base.copy() if base is not None else StoredState()
    num_cut = 0
    for number, record in enumerate(records, 1):
        state.apply(record)
        if isinstance(record, (RoundRecord, EpochRecord)) or number == len(records):
            held = [fragment.version for fragment in state.fragments]
            if len(held) == len(versions) and all(a <= b for a, b in zip(held, versions, strict=True)):
                num_cut = number
    return num_cut


def read_records(db: sqlite3.Connection, past: Past) -> tuple[list[Record], str]:
    """The records after the base, each held against the chain, and why they end early, or ""."""
    records: list[Record] = []
    chain, number = past.chain, past.record_id + 1
    try:
        # The casts: a value that somebody replaced with text, or with none, is damage like any other.
        rows = db.execute(
            "SELECT id, coalesce(CAST(kind AS TEXT), ''), coalesce(CAST(body AS BLOB), x''),"
            " CAST(chain AS BLOB) FROM records ORDER BY id"
        )
        for found, kind, body, held in rows:
            chain = link(chain, kind, body)
            if found != number or chain != held:
                return records, f"record {number} does not fit the digest chain"
            records.append(_decoders[kind].decode(body))
            number += 1
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return records, f"record {number} cannot be read: {error}"
    except (msgspec.MsgspecError, KeyError) as error:
        return records, f"record {number} is of a kind or shape that this Atoll does not know: {error}"
    return records, ""


def read_tail(db: sqlite3.Connection) -> tuple[int, bytes]:
    """Number and chain of the newest record; raises `ValueError` like `read_past`."""
    row = db.execute("SELECT id, chain FROM records ORDER BY id DESC LIMIT 1").fetchone()
    if row:
        return row[0], row[1]
    past = read_past(db)
    return past.record_id, past.chain


def read_epoch(db: sqlite3.Connection) -> int:
    """The newest epoch; raises `ValueError` if its record cannot be read."""
    row = db.execute("SELECT body FROM records WHERE kind = 'epoch' ORDER BY id DESC LIMIT 1").fetchone()
    try:
        if row:
            return int(_decoders["epoch"].decode(row[0]).epoch)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the newest epoch record cannot be read: {error}") from error
    past = read_past(db)
    return past.state.epoch if past.state is not None else 0


def _past_digest(record_id: int, chain: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(f"{record_id}\0".encode() + chain + body, digest_size=16).digest()
