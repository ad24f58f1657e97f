"""The tables of run.db, and how each record spreads over those that are there to be queried.

`records` is the authority: the state of a run is the fold of its bodies, and nothing else is read to
rebuild it. `commits`, `contributions` and `members` say the same in columns, for people, reports and SQL;
they are written in the transaction of their record. They also guard it: a second commit of a version that
counts, or a second contribution of a learner to one round, is refused by an index whatever the code above
believes.

A version may be lost and made again outside `merge` durability. The rows of the lost one stay and name,
in `voided_by`, the epoch record that gave it up; `voided_by IS NULL` is what counts.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3

from atoll.core.records import (
    EpochRecord,
    FinishRecord,
    MemberRecord,
    Record,
    Rollback,
    RoundRecord,
    SeedRecord,
)
from atoll.runtime import tape_file

__all__ = ["FORMAT", "KINDS", "create", "derive", "seal"]

FORMAT = 3
"""Counted up whenever an older Atoll could not read what a newer one writes."""

KINDS: dict[str, type[Record]] = {
    "epoch": EpochRecord,
    "member": MemberRecord,
    "seed": SeedRecord,
    "round": RoundRecord,
    "finish": FinishRecord,
}
"""What the records are called in the database."""

SCHEMA = """
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL,
    digest BLOB NOT NULL           -- blake2b-16 of key, a zero byte, value
);
CREATE TABLE records (
    id INTEGER PRIMARY KEY,        -- 1, 2, 3, ... without a gap
    kind TEXT NOT NULL,
    body BLOB NOT NULL,            -- MessagePack
    chain BLOB NOT NULL            -- blake2b-16 of the chain before, kind, a zero byte, body
);
CREATE TABLE base (                -- at most one row: stands for the records that were cut away
    record_id INTEGER NOT NULL,    -- the newest of them
    chain BLOB NOT NULL,           -- of that record
    state BLOB NOT NULL,           -- their fold, MessagePack
    digest BLOB NOT NULL           -- blake2b-16 of record_id in digits, a zero byte, chain, state
);
CREATE TABLE commits (
    record_id INTEGER PRIMARY KEY REFERENCES records (id),
    fragment INTEGER NOT NULL,
    version INTEGER NOT NULL,
    digest TEXT NOT NULL,
    delta_digest TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    round INTEGER NOT NULL,
    t INTEGER NOT NULL,
    momentum_factor REAL NOT NULL, -- what mu was multiplied by in the outer step
    voided_by INTEGER REFERENCES records (id)
);
CREATE UNIQUE INDEX one_commit_per_version ON commits (fragment, version) WHERE voided_by IS NULL;
CREATE TABLE contributions (
    record_id INTEGER NOT NULL REFERENCES records (id),
    learner TEXT NOT NULL,
    incarnation INTEGER NOT NULL,
    fragment INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    round INTEGER NOT NULL,
    start_token INTEGER NOT NULL,
    end_token INTEGER NOT NULL,
    steps INTEGER NOT NULL,
    base_version INTEGER NOT NULL,
    weight REAL NOT NULL,
    voided_by INTEGER REFERENCES records (id),
    UNIQUE (learner, incarnation, fragment, epoch, round)
);
CREATE INDEX contributions_of_a_record ON contributions (record_id);
CREATE TABLE members (
    record_id INTEGER PRIMARY KEY REFERENCES records (id),
    learner TEXT NOT NULL,
    incarnation INTEGER NOT NULL,
    identity_key TEXT NOT NULL,
    life INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    UNIQUE (learner, incarnation)
);
CREATE TABLE snapshots (
    name TEXT PRIMARY KEY,         -- the folder below snapshots/
    record_id INTEGER NOT NULL,    -- the newest record when it was registered
    merges INTEGER NOT NULL,
    versions TEXT NOT NULL,        -- JSON list, by fragment
    digest TEXT NOT NULL,          -- of its contents.json
    seal BLOB NOT NULL,            -- blake2b-16 of the columns before it, as Python prints them
    voided_by INTEGER REFERENCES records (id)
);
"""


def create(db: sqlite3.Connection) -> None:
    """Make all tables, within the caller's transaction."""
    for statement in SCHEMA.split(";"):
        db.execute(statement)
    tape_file.create(db)


def derive(db: sqlite3.Connection, record_id: int, record: Record) -> None:
    """Write the rows that follow from a record."""
    match record:
        case RoundRecord():
            _derive_round(db, record_id, record)
        case MemberRecord():
            row = (record_id, record.name, record.incarnation, record.key, record.life, record.shard)
            db.execute("INSERT INTO members VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, record.epoch))
        case EpochRecord():
            for rollback in record.rollbacks:
                _void(db, record_id, rollback)
        case SeedRecord() | FinishRecord():
            pass


def seal(row: tuple[object, ...]) -> bytes:
    """What stands beside a row of `snapshots`, which no record could be asked about."""
    return hashlib.blake2b(repr(row).encode(), digest_size=16).digest()


def _derive_round(db: sqlite3.Connection, record_id: int, record: RoundRecord) -> None:
    r = record
    row = (record_id, r.fragment, r.version, r.digest, r.delta_digest, r.epoch, r.round, r.t)
    db.execute("INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)", (*row, r.momentum_factor))
    for part in r.contributors:
        whose = (record_id, part.name, part.incarnation, r.fragment, r.epoch, r.round)
        what = (part.start, part.end, part.steps, part.base_version, part.weight)
        db.execute(
            "INSERT INTO contributions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)", (*whose, *what)
        )


def _void(db: sqlite3.Connection, record_id: int, rollback: Rollback) -> None:
    """Mark what a rollback gives up: commits, what learners had in them, snapshots that contain them."""
    lost = (record_id, rollback.fragment, rollback.to_version)
    db.execute(
        "UPDATE contributions SET voided_by = ? WHERE record_id IN "
        "(SELECT record_id FROM commits WHERE fragment = ? AND version > ? AND voided_by IS NULL)",
        lost,
    )
    db.execute(
        "UPDATE commits SET voided_by = ? WHERE fragment = ? AND version > ? AND voided_by IS NULL", lost
    )
    for name, versions in db.execute(
        "SELECT name, versions FROM snapshots WHERE voided_by IS NULL"
    ).fetchall():
        if json.loads(versions)[rollback.fragment] > rollback.to_version:
            db.execute("UPDATE snapshots SET voided_by = ? WHERE name = ?", (record_id, name))
