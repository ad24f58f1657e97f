"""How the fragments come back: the newest base that can be read, and the deltas after it.

A base is a snapshot of one fragment, or version 0. Each fragment is rebuilt for itself, because any
vector of committed versions is a legal state: from its newest base whose digests agree, fold by fold, and
after every fold the served values must have the digest in the record. Where that ends, the fragment's
history ends; `recover` turns what lies beyond into rollbacks. Nothing is believed unread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from atoll.config import RunConfig
from atoll.core.records import (
    Record,
    RoundRecord,
    SeedRecord,
    StoredFragment,
    StoredState,
    history,
    recover,
)
from atoll.errors import StoreError
from atoll.numerics.codec import codec_for
from atoll.numerics.outer import OuterState, digest, fold

__all__ = ["Base", "Rebuilt", "Thread", "rebuild", "threads"]


@dataclass(frozen=True, slots=True)
class Base:
    """A version of one fragment that a store holds whole."""

    version: int
    name: str
    """Where it lies, for people and to tell damaged ones by."""
    read: Callable[[], OuterState]
    """Reads and checks it. Raises `OSError` or `ValueError`."""


@dataclass(slots=True)
class Rebuilt:
    """What came back, and what did not."""

    state: StoredState = field(default_factory=StoredState)
    fragments: list[OuterState] | None = None
    damaged: list[str] = field(default_factory=list)
    """Names of bases that could not be used."""


def rebuild(
    records: Sequence[Record],
    bases: Callable[[int], Iterable[Base]],
    read_delta: Callable[[str], Tensor],
    config: RunConfig,
    past: StoredState | None = None,
) -> Rebuilt:
    """Fold the records and rebuild every fragment.

    `bases` lists what there is of a fragment, newest first. `read_delta` reads and checks a delta by its
    digest; it raises `OSError` or `ValueError`. `past` is the fold of the records before these.
    """
    result = Rebuilt()
    problems: list[str] = []
    reached: dict[int, int] = {}
    for thread in threads(records, read_delta, config, past):
        end = thread.run(bases(thread.fragment))
        problems += thread.problems
        if end is None:
            raise StoreError(
                f"Fragment {thread.fragment} cannot be rebuilt: {'; '.join(problems)}.",
                "Neither a snapshot nor the initial weights of it can be read, so the model is not whole.",
                "Restore the run directory from a copy, or start a new run from an exported model.",
            )
        reached[thread.fragment] = end.version
        result.damaged += thread.damaged
        result.fragments = [*(result.fragments or []), end.state]
    result.state = recover(records, lambda record: record.version <= reached[record.fragment], past)
    result.state.problems = (*problems, *result.state.problems)
    return result


def threads(
    records: Sequence[Record],
    read_delta: Callable[[str], Tensor],
    config: RunConfig,
    past: StoredState | None = None,
) -> list[Thread]:
    """The history of every fragment, in order; none before the seed."""
    seed = next((record for record in records if isinstance(record, SeedRecord)), None)
    starts = (
        past.fragments if past else [StoredFragment(0, name, "") for name in seed.digests] if seed else []
    )
    chains = history(records, past)
    return [Thread(p, start, chains.get(p, []), read_delta, config) for p, start in enumerate(starts)]


@dataclass(frozen=True, slots=True)
class End:
    """Where the history of a fragment ends, as far as it can be rebuilt."""

    version: int
    state: OuterState
    base: Base


@dataclass(slots=True)
class Thread:
    """The history of one fragment."""

    fragment: int
    start: StoredFragment
    """The oldest version that there is a digest of."""
    chain: list[RoundRecord]
    """The versions after it."""
    read_delta: Callable[[str], Tensor]
    config: RunConfig
    problems: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    """Names of bases that could not be used."""

    @property
    def newest(self) -> int:
        """The version that the records end with."""
        return self.start.version + len(self.chain)

    def run(self, bases: Iterable[Base]) -> End | None:
        """Rebuild the fragment from the first of these bases that can be read; None if none can."""
        for base in bases:
            if base.version < self.start.version:
                continue  # the records that would lead on from it are gone
            state = self._open(base)
            if state is None:
                self.damaged.append(base.name)
                continue
            reached = self._fold(base, state, self.newest)
            if reached.is_spoiled:  # the fold went one too far, in place: do it again up to there
                state = base.read()
                self._fold(base, state, reached.version)
            return End(reached.version, state, base)
        return None

    def _open(self, base: Base) -> OuterState | None:
        try:
            state = base.read()
            if base.version > self.newest or digest(state.served) != self._digest(base.version):
                raise ValueError(f"it is not version {base.version} of this run")
        except (OSError, ValueError) as error:
            self.problems.append(f"fragment {self.fragment}: {base.name} cannot be used: {error}")
            return None
        return state

    def _digest(self, version: int) -> str:
        at = version - self.start.version
        return self.chain[at - 1].digest if at else self.start.digest

    def _fold(self, base: Base, state: OuterState, upto: int) -> _Reached:
        outer, codec = self.config.outer, codec_for(self.config.codec.down)
        for record in self.chain[base.version - self.start.version : upto - self.start.version]:
            try:
                delta = self.read_delta(record.delta_digest)
                if delta.numel() != state.served.numel():
                    raise ValueError(f"it has {delta.numel()} values, not {state.served.numel()}")
            except (OSError, ValueError) as error:
                self._report(record, f"its delta {record.delta_digest} cannot be used: {error}")
                return _Reached(record.version - 1, is_spoiled=False)
            fold(state, delta, *outer.step(record.momentum_factor), codec)
            if digest(state.served) != record.digest:
                self._report(record, "its delta does not lead to the digest in its record")
                return _Reached(record.version - 1, is_spoiled=True)
        return _Reached(upto, is_spoiled=False)

    def _report(self, record: RoundRecord, why: str) -> None:
        self.problems.append(f"fragment {self.fragment}, version {record.version}: {why}")


@dataclass(frozen=True, slots=True)
class _Reached:
    version: int
    is_spoiled: bool
    """Whether the state went past this version, to one that is none."""
