"""What can be wrong with the files beside run.db: each check returns sentences, none if all is well.

Every delta that a counting record names is held against its name, every registered snapshot against its list
of contents, every kept offer against its digests. Then comes the fold: each fragment from the oldest base
that a restart may need to its newest version, the digest compared at every commit. Files that belong to
nothing are strays: a crash left them, or they are about to be named. Those of versions that were rolled back
are told apart. Neither is a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from torch import Tensor

from atoll.config import RunConfig
from atoll.core.records import Record, RoundRecord, history
from atoll.numerics.outer import OuterState, digest
from atoll.runtime import offers
from atoll.runtime.store import snapshots
from atoll.runtime.store.chain import Past
from atoll.runtime.store.files import Files
from atoll.runtime.store.floor import find_floor
from atoll.runtime.store.ledger import SnapshotRow
from atoll.runtime.store.rebuild import Base, End, Thread, threads
from atoll.runtime.store.run_store import bases_of

__all__ = ["FileChecks", "Saved"]

KNOWN = "it was named above"


@dataclass(frozen=True, slots=True)
class Saved:
    """What there is of a fragment."""

    fragment: int
    version: int
    """The newest one in the records that can be trusted."""
    recoverable: int | None
    """The newest one that can be rebuilt, bit for bit; None if none can."""
    source: str
    """What it is rebuilt from."""


@dataclass(slots=True)
class FileChecks:
    """The checks, to be asked in this order: later ones do not repeat what earlier ones said."""

    run_dir: Path
    files: Files
    config: RunConfig | None
    """None if it cannot be read: then nothing can be folded."""
    past: Past
    records: list[Record]
    rows: list[SnapshotRow]
    strays: list[str] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    """Files of versions that were rolled back."""
    num_deltas: int = 0
    num_offers: int = 0
    since: str = ""
    """Where the fold began."""
    saved: list[Saved] = field(default_factory=list)
    _chains: dict[int, list[RoundRecord]] = field(init=False)
    _present: list[Path] = field(init=False)
    """What is in the folder of the deltas."""
    _floor: SnapshotRow | None = field(init=False)
    """Where the run begins, if not at version 0."""
    _bad: set[object] = field(default_factory=set)
    """Deltas by digest, bases by name and fragment."""

    def __post_init__(self) -> None:
        self._chains = history(self.records, self.past.state)
        self._present = sorted((self.run_dir / "deltas").glob("*"))
        self._floor = self._find_floor()

    def deltas(self) -> list[str]:
        """Every delta that is there, and every one that should be."""
        folder, problems = self.run_dir / "deltas", []
        uses: dict[str, list[RoundRecord]] = {}
        for chain in self._chains.values():
            for record in chain:
                uses.setdefault(record.delta_digest, []).append(record)
        once = {f"{record.delta_digest}.safetensors" for record in self._rounds()}
        for path in self._present:
            if path.suffix != ".safetensors" or path.stem not in uses:
                self._set_aside("deltas", path.name, once)
                continue
            self.num_deltas += 1
            if why := _why_not(partial(snapshots.read_delta, self.files, folder, path.stem)):
                problems.append(f"deltas/{path.name}: {why}; it leads to {self._versions(uses[path.stem])}.")
                self._bad.add(path.stem)
        floor, held = self._floor, {path.stem for path in self._present}
        for name, records in uses.items():
            needed = [r for r in records if floor is None or r.version > floor.versions[r.fragment]]
            if needed and name not in held:
                problems.append(
                    f"deltas/{name}.safetensors is missing; it leads to {self._versions(needed)}."
                )
                self._bad.add(name)
        return problems

    def snapshots(self) -> list[str]:
        """Every registered snapshot, and the initial weights unless the run begins after them."""
        folder, problems = self.run_dir / "snapshots", []
        for row in self.rows:
            for p, version in enumerate(row.versions):
                if why := _why_not(
                    partial(snapshots.read_fragment, self.files, folder / row.name, p, row.digest)
                ):
                    where = f"snapshots/{row.name}/{p}.safetensors"
                    problems.append(f"{where}: {why}; it holds version {version} of fragment {p}.")
                    self._bad.add((row.name, p))
        for thread in self._threads() if self.past.state is None else []:
            if why := _why_not(partial(self._read_seed, thread)):
                where = f"snapshots/{snapshots.SEED}"
                problems.append(f"{where}: {why}; it holds version 0 of fragment {thread.fragment}.")
                self._bad.add((snapshots.SEED, thread.fragment))
        known = {snapshots.SEED, *(row.name for row in self.rows)}
        self.strays += [
            f"snapshots/{path.name}" for path in sorted(folder.glob("*")) if path.name not in known
        ]
        return problems

    def offers(self) -> list[str]:
        """Every kept offer."""
        folder, problems = self.run_dir / offers.FOLDER, []
        known = {offers.offers_path(folder, r).name: r for chain in self._chains.values() for r in chain}
        once = {offers.offers_path(folder, record).name for record in self._rounds()}
        for path in sorted(folder.glob("*")):
            record = known.get(path.name)
            if record is None:
                self._set_aside(offers.FOLDER, path.name, once)
                continue
            self.num_offers += 1
            if why := _why_not(partial(offers.read_offers, self.files, path)):
                which = f"version {record.version} of fragment {record.fragment}"
                problems.append(f"{offers.FOLDER}/{path.name}: {why}; {which} cannot be merged again.")
        return problems

    def fold(self) -> list[str]:
        """Every version from the oldest base that may be needed on; fills `saved` and `since`."""
        problems = []
        floor = self._floor
        self.since = f"snapshot {floor.name}" if floor is not None else "version 0"
        for thread in self._threads():
            good = [
                base for base in self._bases(thread.fragment) if (base.name, thread.fragment) not in self._bad
            ]
            first = floor.versions[thread.fragment] if floor is not None else 0
            end = thread.run(base for base in reversed(good) if base.version >= first)
            for problem in thread.problems:
                if not problem.endswith(KNOWN):
                    problems.append(f"{problem}; the newest version is {thread.newest}.")
            if end is None or end.version < thread.newest:
                newer = self._threads()[thread.fragment].run(good)
                end = max((e for e in (end, newer) if e is not None), key=lambda e: e.version, default=None)
            self.saved.append(_saved(thread, end))
        return problems

    def _rounds(self) -> Iterable[RoundRecord]:
        """All of them, those too that count no more."""
        return (record for record in self.records if isinstance(record, RoundRecord))

    def _set_aside(self, folder: str, name: str, once: set[str]) -> None:
        """A file that no counting record names; `once` are the names that any record ever gave."""
        (self.given_up if name in once else self.strays).append(f"{folder}/{name}")

    def _threads(self) -> list[Thread]:
        return threads(self.records, self._delta, self.config or RunConfig(), self.past.state)

    def _delta(self, name: str) -> Tensor:
        if name in self._bad or self.config is None:
            raise ValueError(KNOWN)
        return snapshots.read_delta(self.files, self.run_dir / "deltas", name)

    def _bases(self, fragment: int) -> Iterable[Base]:
        folder = self.run_dir / "snapshots"
        return bases_of(self.rows, self.records, self.past.record_id, self.files, folder, fragment)

    def _read_seed(self, thread: Thread) -> OuterState:
        state = snapshots.read_seed(self.files, self.run_dir / "snapshots", thread.fragment)
        if digest(state.served) != thread.start.digest:
            raise ValueError("its content does not have the digest in the records")
        return state

    def _find_floor(self) -> SnapshotRow | None:
        num_fragments = len(self._threads())
        usable = [row for row in self.rows if not row.is_voided and len(row.versions) == num_fragments]
        return find_floor(
            usable[::-1],
            self._chains,
            {path.stem for path in self._present},
            keeps_all=self.config is not None and self.config.durability.keep == "all",
            is_cut=self.past.state is not None,
        )

    def _versions(self, records: list[RoundRecord]) -> str:
        newest = {p: chain[-1].version for p, chain in self._chains.items() if chain}
        return " and ".join(
            f"version {r.version} of fragment {r.fragment}, whose newest is {newest[r.fragment]}"
            for r in records
        )


def _saved(thread: Thread, end: End | None) -> Saved:
    if end is None:
        return Saved(thread.fragment, thread.newest, None, "nothing that is left can be read")
    base = "the initial weights" if end.base.name == snapshots.SEED else f"snapshot {end.base.name}"
    num_deltas = end.version - end.base.version
    deltas = f" and {num_deltas} delta{'s' if num_deltas > 1 else ''}" if num_deltas else ""
    return Saved(thread.fragment, thread.newest, end.version, base + deltas)


def _why_not(read: Callable[[], object]) -> str:
    """Why something cannot be read, or ""."""
    try:
        read()
    except OSError as error:
        return error.strerror.lower() if error.strerror else str(error)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return str(error)
    return ""
