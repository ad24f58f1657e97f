"""What can be wrong inside run.db, beyond what a restart reads: each check returns sentences, or none.

A restart believes the records alone. The tables derived from them are there for people and for SQL; here they
are made again in memory, from the records, and compared. The token ledger is added up from its own table and
held against the fold.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing

from atoll.config import RunConfig
from atoll.core.records import Record, StoredState
from atoll.errors import ModelError
from atoll.numerics.manifest import Manifest
from atoll.runtime.store import tables
from atoll.runtime.store.chain import Past
from atoll.runtime.store.ledger import meta_digest
from atoll.runtime.store.settings import CONFIG, edits

__all__ = [
    "check_derived",
    "check_integrity",
    "check_meta",
    "check_schema",
    "check_settings",
    "check_snapshot_list",
    "check_tokens",
]

MAX_NAMED = 5
"""Rows that one sentence names."""


def check_integrity(db: sqlite3.Connection) -> list[str]:
    """SQLite's own check of its pages and indexes."""
    found = [str(row[0]) for row in db.execute(f"PRAGMA integrity_check({MAX_NAMED})")]
    return [] if found == ["ok"] else [f"SQLite finds it damaged: {'; '.join(found)}"]


def check_schema(db: sqlite3.Connection) -> list[str]:
    """That the tables are those which this Atoll makes, to the letter."""
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master"
    wanted = sqlite3.connect(":memory:")
    try:
        tables.create(wanted)
        wrong = set(db.execute(query)) ^ set(wanted.execute(query))
    finally:
        wanted.close()
    names = ", ".join(sorted({str(row[1]) for row in wrong}))
    return [f"the definition of its tables was changed, at {names}"] if wrong else _check_types(db)


def _check_types(db: sqlite3.Connection) -> list[str]:
    """That bytes are kept as bytes and text as text: we read the one as the other, and others do not."""
    columns = db.execute(
        "SELECT m.name, c.name, lower(c.type) FROM sqlite_master AS m, pragma_table_info(m.name) AS c"
        " WHERE m.type = 'table'"
    ).fetchall()
    query = "SELECT 1 FROM {} WHERE typeof({}) NOT IN (?, 'null')"
    wrong = [f"{t}.{c}" for t, c, kind in columns if db.execute(query.format(t, c), (kind,)).fetchone()]
    return [f"there are values of another type in {', '.join(wrong)}"] if wrong else []


def check_meta(db: sqlite3.Connection) -> list[str]:
    """Format and manifest, and the digest of every entry."""
    problems, held = [], {}
    rows = db.execute("SELECT key, coalesce(CAST(value AS TEXT), ''), CAST(digest AS BLOB) FROM meta")
    for key, value, digest in rows:
        held[key] = value
        if meta_digest(str(key), value) != digest:
            problems.append(f"the entry {key!r} of the table meta does not have its digest")
    if held.get("format") != str(tables.FORMAT):
        problems.append(f"it has format {held.get('format')}, and this Atoll reads format {tables.FORMAT}")
    try:
        if "manifest" in held:
            Manifest.from_dict(json.loads(held["manifest"]))
    except (ModelError, ValueError) as error:
        problems.append(f"the manifest cannot be read: {error}")
    return problems


def check_settings(db: sqlite3.Connection, config: RunConfig) -> list[str]:
    """That config.toml says what the run was started with, as far as that was kept."""
    kept = db.execute("SELECT CAST(value AS TEXT) FROM meta WHERE key = 'settings'").fetchone()
    return [
        f"the run was started with {name} = {before!r}, and {CONFIG} says {now!r}"
        for name, before, now in edits(kept[0] if kept else None, config)
    ]


def check_snapshot_list(db: sqlite3.Connection) -> list[str]:
    """That every entry of the list of snapshots has its digest."""
    rows = db.execute("SELECT name, record_id, merges, versions, digest, CAST(seal AS BLOB) FROM snapshots")
    return [
        f"the entry of the snapshot {row[0]} does not have its digest"
        for *row, found in rows
        if tables.seal(tuple(row)) != found
    ]


def check_derived(db: sqlite3.Connection, past: Past, records: Sequence[Record]) -> list[str]:
    """Commits, contributions, members and voided snapshots, against what the records derive."""
    problems: list[str] = []
    with closing(sqlite3.connect(":memory:")) as wanted:
        if problem := _derive(wanted, db, past, records):
            return [problem]
        for table in ("commits", "contributions", "members", "snapshots"):
            query = f"SELECT * FROM {table}"
            held = set(db.execute(query))
            if table == "members":
                kept = {row for row in held if row[0] <= past.record_id}
                problems += _check_kept_members(past.state, kept)
                held -= kept
            if wrong := held ^ set(wanted.execute(query)):
                problems.append(_differs(table, wrong))
    return problems


def check_tokens(db: sqlite3.Connection, past: Past, state: StoredState) -> list[str]:
    """That no token of an incarnation was merged into a fragment twice, and the totals are the fold's."""
    problems: list[str] = []
    before = past.state or StoredState()
    upto: dict[tuple[str, int, int], int] = {}
    tokens: dict[tuple[str, int, int], int] = defaultdict(int)
    for (name, p), kept in before.contributions.items():
        key = (name, before.members[name].incarnation, p)
        upto[key], tokens[key] = kept.upto, kept.tokens
    merged = before.merged_tokens
    for name, incarnation, p, start, end in db.execute(
        "SELECT learner, incarnation, fragment, start_token, end_token FROM contributions"
        " WHERE voided_by IS NULL ORDER BY learner, incarnation, fragment, start_token"
    ):
        key = (name, incarnation, p)
        if start < upto.get(key, start):
            who = f"incarnation {incarnation} of {name}"
            problems.append(f"tokens {start} to {upto[key]} of {who} were merged into fragment {p} twice")
        upto[key] = end
        tokens[key] += end - start
        merged += end - start
    if merged != state.merged_tokens:
        problems.append(f"the ledger has {merged} merged tokens, and the records {state.merged_tokens}")
    for (name, p), held in sorted(state.contributions.items()):
        found = tokens[name, state.members[name].incarnation, p]
        if found != held.tokens:
            problems.append(
                f"the ledger has {found} tokens of {name} in fragment {p}, and the records {held.tokens}"
            )
    return problems


def _derive(wanted: sqlite3.Connection, db: sqlite3.Connection, past: Past, records: Sequence[Record]) -> str:
    """Make the tables again; a snapshot is there from its registration on, so that rollbacks void it."""
    tables.create(wanted)
    waiting = db.execute("SELECT * FROM snapshots ORDER BY record_id DESC, rowid DESC").fetchall()
    number = past.record_id
    try:
        for number, record in enumerate(records, past.record_id + 1):
            _register(wanted, waiting, number)
            tables.derive(wanted, number, record)
        _register(wanted, waiting, number + 1)
    except sqlite3.IntegrityError as error:
        return f"record {number} repeats a version, an incarnation or a contribution: {error}"
    except (ValueError, IndexError, TypeError) as error:
        return f"the list of snapshots cannot be read: {error}"
    return ""


def _register(wanted: sqlite3.Connection, waiting: list[tuple[object, ...]], before: int) -> None:
    while waiting and (not isinstance(waiting[-1][1], int) or waiting[-1][1] < before):
        *row, _ = waiting.pop()
        wanted.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?, NULL)", row)


def _check_kept_members(state: StoredState | None, rows: set[tuple[object, ...]]) -> list[str]:
    """Those whose records were cut away, against the fold."""
    members = state.members if state is not None else {}
    held = {(name, incarnation, key, shard) for _, name, incarnation, key, _, shard, _ in rows}
    wanted = {(m.name, m.incarnation, m.key, m.shard) for m in members.values()}
    names = sorted({str(row[0]) for row in held - wanted})
    if not names:
        return []
    return [f"the table members does not say what the base says, about {', '.join(names[:MAX_NAMED])}"]


def _differs(table: str, wrong: set[tuple[object, ...]]) -> str:
    at = 1 if table == "snapshots" else 0
    numbers = sorted({str(row[at]) for row in wrong}, key=lambda text: (len(text), text))
    more = f" and {len(numbers) - MAX_NAMED} more" if len(numbers) > MAX_NAMED else ""
    where = f"record {', '.join(numbers[:MAX_NAMED])}{more}"
    return f"the table {table} does not say what the records say, at {where}; no version is affected"
