"""What must hold when a run of the kill matrix is over, read from what it left on disk.

Nothing here trusts the processes of the run: the ledger, the deltas and snapshots, and the tapes of the
syncer and of every life of every learner are held against each other.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.records import FinishRecord, RoundRecord, SeedRecord
from atoll.numerics.outer import digest
from atoll.runtime.store import RunView, read_run
from atoll.runtime.tape_file import TapeFile
from atoll.runtime.verdict import check_run
from atoll.tape.entries import Entry

__all__ = ["doubled", "problems_of"]


def problems_of(run_dir: Path, victim: str | None) -> tuple[int, list[str]]:
    """How many checks of invariants were made, and whatever is wrong, one sentence each."""
    verdict = check_run(run_dir)
    view = read_run(run_dir)
    merges = [record for record in view.records if isinstance(record, RoundRecord)]
    tapes = {path: list(_read(path)) for path in sorted((run_dir / "learners").glob("*/tape-*.db"))}
    problems = [*verdict.violations, *verdict.replay, *_state(view), *_ledger(run_dir, merges)]
    problems += doubled(merges)
    problems += _lost(view, tapes)
    problems += _held(tapes)
    if victim is not None and len([path for path in tapes if path.parent.name == victim]) < 2:
        problems.append(f"{victim} has left one tape, although it lived twice")
    if not any(isinstance(record, FinishRecord) for record in view.records):
        problems.append("the run was not finished")
    return verdict.num_checks, problems


def _state(view: RunView) -> list[str]:
    """What a restart would load is what the records say, bit for bit."""
    found = view.found()
    problems = list(found.state.problems)
    if found.fragments is None or len(found.fragments) != len(view.state.fragments):
        return [*problems, "the store does not hold every fragment"]
    for p, (held, said) in enumerate(zip(found.fragments, view.state.fragments, strict=True)):
        if digest(held.served) != said.digest:
            problems.append(f"fragment {p} is loaded with another digest than version {said.version} has")
    return problems


def _ledger(run_dir: Path, merges: list[RoundRecord]) -> list[str]:
    """Versions rise by one, and the tables for people say what the records say."""
    problems = []
    seen: Counter[int] = Counter()
    for record in merges:
        seen[record.fragment] += 1
        if record.version != seen[record.fragment]:
            problems.append(f"fragment {record.fragment}: version {record.version} is number {seen}")
    with sqlite3.connect(f"file:{run_dir / 'run.db'}?mode=ro", uri=True) as db:
        rows = db.execute(
            "SELECT fragment, epoch, round, learner, incarnation, start_token, end_token"
            " FROM contributions WHERE voided_by IS NULL"
        ).fetchall()
    told = sorted(
        (record.fragment, record.epoch, record.round, part.name, part.incarnation, part.start, part.end)
        for record in merges
        for part in record.contributors
    )
    if sorted(rows) != told:
        problems.append(f"the ledger has {len(rows)} contributions, the records have {len(told)}")
    return problems


def doubled(merges: list[RoundRecord]) -> list[str]:
    """No token of a life is in a fragment twice."""
    intervals: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for record in merges:
        for part in record.contributors:
            whose = (part.name, part.incarnation, record.fragment)
            intervals.setdefault(whose, []).append((part.start, part.end))
    return [
        f"{name}, life {life}, fragment {p}: tokens {later[0]} to {earlier[1]} were merged twice"
        for (name, life, p), spans in intervals.items()
        for earlier, later in zip(sorted(spans), sorted(spans)[1:], strict=False)
        if later[0] < earlier[1]
    ]


def _lost(view: RunView, tapes: dict[Path, list[Entry]]) -> list[str]:
    """Every version that anybody was ever sent is in the ledger, with the very same bits."""
    seed = next(record for record in view.records if isinstance(record, SeedRecord))
    known = {(p, 0, name) for p, name in enumerate(seed.digests)}
    known |= {(r.fragment, r.version, r.digest) for r in view.records if isinstance(r, RoundRecord)}
    return [
        f"{path.parent.name} was sent version {publish.version} of fragment {publish.fragment}, now lost"
        for path, entries in tapes.items()
        for publish in _publishes(entries)
        if (publish.fragment, publish.version, publish.digest) not in known
    ]


def _held(tapes: dict[Path, list[Entry]]) -> list[str]:
    """No step of anybody was held, whoever was dead."""
    return [
        f"{path.parent.name} was held for {entry.item.held_ns} ns at a step"
        for path, entries in tapes.items()
        for entry in entries
        if isinstance(entry.item, ev.Stepped) and entry.item.held_ns
    ]


def _publishes(entries: list[Entry]) -> Iterator[msg.Publish]:
    for entry in entries:
        if isinstance(entry.item, ev.Received) and isinstance(entry.item.message, msg.Publish):
            yield entry.item.message


def _read(path: Path) -> Iterator[Entry]:
    tape = TapeFile(path)
    try:
        yield from tape.read()
    finally:
        tape.close()
