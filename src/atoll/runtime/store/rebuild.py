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
from atoll.core.records import Record, RoundRecord, SeedRecord, StoredState, history, recover
from atoll.errors import StoreError
from atoll.numerics.codec import codec_for
from atoll.numerics.outer import OuterState, digest, fold

__all__ = ["Base", "Rebuilt", "rebuild"]


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
) -> Rebuilt:
    """Fold the records and rebuild every fragment.

    `bases` lists what there is of a fragment, newest first. `read_delta` reads and checks a delta by its
    digest; it raises `OSError` or `ValueError`.
    """
    result = Rebuilt()
    problems: list[str] = []
    seed = next((record for record in records if isinstance(record, SeedRecord)), None)
    chains = history(records)
    reached: dict[int, int] = {}
    if seed is not None:
        result.fragments = []
        for p, start in enumerate(seed.digests):
            thread = _Thread(p, start, chains.get(p, []), read_delta, config, problems)
            reached[p] = thread.run(bases(p), result)
    result.state = recover(records, lambda record: record.version <= reached[record.fragment])
    result.state.problems = (*problems, *result.state.problems)
    return result


@dataclass(slots=True)
class _Thread:
    """The history of one fragment."""

    fragment: int
    start: str
    chain: list[RoundRecord]
    read_delta: Callable[[str], Tensor]
    config: RunConfig
    problems: list[str]

    def run(self, bases: Iterable[Base], result: Rebuilt) -> int:
        """Add the fragment to the result; returns the version it reached."""
        assert result.fragments is not None
        for base in bases:
            state = self._open(base)
            if state is None:
                result.damaged.append(base.name)
                continue
            reached = self._fold(base, state, len(self.chain))
            if reached.is_spoiled:  # the fold went one too far, in place: do it again up to there
                state = base.read()
                self._fold(base, state, reached.version)
            result.fragments.append(state)
            return reached.version
        raise StoreError(
            f"Fragment {self.fragment} cannot be rebuilt: {'; '.join(self.problems)}.",
            "Neither a snapshot nor the initial weights of it can be read, so the model is not whole.",
            "Restore the run directory from a copy, or start a new run from an exported model.",
        )

    def _open(self, base: Base) -> OuterState | None:
        try:
            state = base.read()
            if base.version > len(self.chain) or digest(state.served) != self._digest(base.version):
                raise ValueError(f"it is not version {base.version} of this run")
        except (OSError, ValueError) as error:
            self.problems.append(f"fragment {self.fragment}: {base.name} cannot be used: {error}")
            return None
        return state

    def _digest(self, version: int) -> str:
        return self.chain[version - 1].digest if version else self.start

    def _fold(self, base: Base, state: OuterState, upto: int) -> _Reached:
        outer, codec = self.config.outer, codec_for(self.config.codec.down)
        for record in self.chain[base.version : upto]:
            try:
                delta = self.read_delta(record.delta_digest)
                if delta.numel() != state.served.numel():
                    raise ValueError(f"it has {delta.numel()} values, not {state.served.numel()}")
            except (OSError, ValueError) as error:
                self._report(record, f"its delta {record.delta_digest} cannot be used: {error}")
                return _Reached(record.version - 1, is_spoiled=False)
            fold(state, delta, outer.learning_rate, outer.momentum, codec)
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
