"""The verdict on a real run: its tapes, held against the invariants and against the machines.

The syncer's tape stands in run.db; each life of a learner on this machine left one in its own directory. All
were written by one monotonic clock, so they are merged by time, every tape in its own order; if the machine
was started again in between, `Clock` lines say so, and the later clock comes later. They hold events and what
the store testified; the commands are made again by running the machines (`tape.replay.expand`), and the whole
goes through `atoll.invariants`, exactly as a simulated run does.

Replay is a by-product: each record that was stored must be one that the machine, given the same events,
commits again. A life that was killed lacks the last moments of its tape, which is no violation.

Long tapes are cut: then the syncer's begins with an image of its machine, taken with a snapshot, and the
verdict holds since that snapshot.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from atoll.core import commands as do
from atoll.core.records import EpochRecord, Record, StoredState, fold
from atoll.core.syncer import SyncerMachine
from atoll.errors import AtollError, TapeError
from atoll.invariants import Checker
from atoll.runtime.joining import sizes_of
from atoll.runtime.store import RunView, read_run
from atoll.runtime.tape_file import TapeFile
from atoll.tape.entries import SYNCER, Clock, Entry, Image, Stored
from atoll.tape.image import machine_from
from atoll.tape.replay import expand

__all__ = ["Verdict", "check_run"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tapes of a run say."""

    violations: list[str]
    """Broken invariants, one sentence each."""
    num_checks: int
    num_entries: int
    """Lines read from the tapes, commands included."""
    replay: list[str] = field(default_factory=list)
    """Where the machines decide otherwise today than they did then."""
    since: str = ""
    """From where on the tape was kept, in words; empty if it begins at the beginning."""
    is_cut_off: bool = False
    """Whether a tape is damaged: that is the last of `replay`, and the machines were not asked beyond it."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.violations and not self.replay


def check_run(run_dir: Path) -> Verdict:
    """Check every tape of a run directory. Raises `StoreError` if it holds no run."""
    view = read_run(run_dir)
    if view.manifest is None:
        return Verdict([], 0, 0)
    params = sizes_of(view.manifest, view.config)
    checker, commits = Checker(params, slack_ns=params.alive_ns), _Commits()
    num_entries, is_cut_off = 0, False
    try:
        for entry in expand(_merged(_tapes(view)), params):
            num_entries += 1
            checker.read(entry)
            commits.read(entry)
    except AtollError as error:
        commits.problems.append(error.what)
        is_cut_off = isinstance(error, TapeError)
    except Exception as error:  # a machine that stumbles over a tape with a gap is a finding too
        commits.problems.append(f"line {num_entries} cannot be replayed: {type(error).__name__}: {error}")
    records, base = _as_of(view, commits.stored)
    commits.compare(records)
    if commits.since and not commits.problems and not checker.in_flight:
        commits.compare_sums(checker.num_merges, fold(records, base).merges)
    violations = [str(violation) for violation in checker.violations]
    num_checks = sum(checker.num_checks.values())
    return Verdict(violations, num_checks, num_entries, commits.problems, commits.since, is_cut_off)


@dataclass(slots=True)
class _Commits:
    """Holds what was stored against what the machine commands, and against the ledger."""

    commanded: list[Record] = field(default_factory=list)
    stored: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    since: str = ""
    has_begun: bool = False

    def read(self, entry: Entry) -> None:
        if entry.actor != SYNCER:
            return
        match entry.item:
            case Image() if not self.has_begun:
                self._begin(entry.item)
            case do.Commit(record=record):
                self.commanded.append(record)
            case Stored(record=record):
                self.stored.append(record)
                if record in self.commanded:
                    self.commanded.remove(record)
                elif not (isinstance(record, EpochRecord) and record.t >= 0):  # an operator's: no machine's
                    self.problems.append(f"{record} was stored, and the machine does not commit it today")
        self.has_begun = True

    def _begin(self, image: Image) -> None:
        machine = machine_from(image.content)
        assert isinstance(machine, SyncerMachine)
        self.since = f"since the snapshot at merge {image.merges:,}"
        self.commanded = [pending.record for pending in machine.desk.pending.values()]

    def compare(self, records: tuple[Record, ...]) -> None:
        """The tape must hold every record of the ledger, in its order.

        A cut tape and a cut ledger do not begin with the same record: what both hold must agree.
        """
        stored = tuple(self.stored)
        if self.since:
            num_both = min(len(stored), len(records))
            stored, records = stored[len(stored) - num_both :], records[len(records) - num_both :]
        if not self.problems and stored != records:
            num = len(stored)
            self.problems.append(f"the tape saw {num} records stored, the ledger has {len(records)}")

    def compare_sums(self, on_tape: int, in_ledger: int) -> None:
        """From a cut on, tape and ledger must lead to the same number of merges."""
        if on_tape != in_ledger:
            self.problems.append(f"the tape leads to {on_tape:,} merges, the ledger to {in_ledger:,}")


def _as_of(view: RunView, stored: list[Record]) -> tuple[tuple[Record, ...], StoredState | None]:
    """The ledger up to the newest record on the tape: a syncer that is running has gone on meanwhile."""
    if stored and stored[-1] not in view.records:
        newer = read_run(view.run_dir)
        if stored[-1] in newer.records:
            return newer.records[: newer.records.index(stored[-1]) + 1], newer.base
    return view.records, view.base


def _tapes(view: RunView) -> Iterator[Iterator[Entry]]:
    yield view.entries()
    for path in sorted((view.run_dir / "learners").glob("*/tape-*.db")):
        yield _read(path)


def _read(path: Path) -> Iterator[Entry]:
    tape = TapeFile(path)
    try:
        yield from tape.read()
    except TapeError as error:
        raise TapeError(f"{path}: {error.what}", error.so_what, error.now_what) from error
    finally:
        tape.close()


def _merged(tapes: Iterator[Iterator[Entry]]) -> Iterator[Entry]:
    """All tapes as one, by time. A line never comes before the one above it on its own tape."""
    clocks: dict[str, int] = {}
    keyed = [_keyed(number, tape, clocks) for number, tape in enumerate(tapes)]
    for _, _, _, entry in heapq.merge(*keyed):
        yield entry


def _keyed(
    number: int, tape: Iterator[Entry], clocks: dict[str, int]
) -> Iterator[tuple[int, int, int, Entry]]:
    """`clocks` is what all tapes know of them: one clock has one place, whoever named it first."""
    newest_ns = wall_ns = 0
    for line, entry in enumerate(tape):
        if isinstance(entry.item, Clock):
            wall_ns = clocks.setdefault(entry.item.boot, entry.item.wall_ns)
        newest_ns = max(newest_ns, wall_ns + entry.at_ns)
        yield newest_ns, number, line, entry
