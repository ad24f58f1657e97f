"""What the store keeps: the rows of its ledger, and the state they fold into.

A record is committed whole or not at all. The state of a run is the fold of its records
(`fold`), so a restart, a replay and the checker of invariants all compute it the same way.
Deltas and snapshots are files beside the records, named by digest and believed only if it agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

__all__ = [
    "Contribution",
    "Contributor",
    "EpochRecord",
    "FinishRecord",
    "MemberRecord",
    "Record",
    "Rollback",
    "RoundRecord",
    "SeedRecord",
    "StoredFragment",
    "StoredMember",
    "StoredState",
    "fold",
    "history",
    "recover",
    "version_in",
]


class Contributor(NamedTuple):
    """One learner's part in a commit."""

    name: str
    incarnation: int
    start: int
    end: int
    steps: int
    base_version: int
    weight: float
    scale: float = 1.0
    """What the offer was multiplied by: less than 1 if it was clipped."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """Versions of a fragment that a crash destroyed, outside `merge` durability."""

    fragment: int
    from_version: int
    to_version: int
    digest: str
    """Of `to_version`, and of the version before it."""
    previous_digest: str
    voided: tuple[Contributor, ...]
    """Contributions that went with the versions."""


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One life of the syncer; durable before it says a word. Or an operator's way back: then t says where."""

    epoch: int
    rollbacks: tuple[Rollback, ...]
    t: int = -1
    """The tick that an operator went back to; -1: nobody did."""


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """An admission: a name is bound to a key, its life gets the next incarnation."""

    epoch: int
    name: str
    key: str
    life: int
    incarnation: int
    shard: int


@dataclass(frozen=True, slots=True)
class SeedRecord:
    """Version 0 of every fragment, and the incarnation of the learner it came from."""

    epoch: int
    source: str
    incarnation: int
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """A merge: the commit point of a round."""

    epoch: int
    round: int
    fragment: int
    version: int
    digest: str
    delta_digest: str
    t: int
    contributors: tuple[Contributor, ...]
    momentum_factor: float = 1.0
    """What mu was multiplied by in the outer step."""


@dataclass(frozen=True, slots=True)
class FinishRecord:
    """The budget is spent and the last rounds are in."""

    epoch: int
    t: int
    reason: str


Record: TypeAlias = EpochRecord | MemberRecord | SeedRecord | RoundRecord | FinishRecord


class StoredFragment(NamedTuple):
    """Version and digest of a fragment, and of the version before."""

    version: int
    digest: str
    previous_digest: str


class StoredMember(NamedTuple):
    """The newest incarnation of a name, and the lives it has had."""

    name: str
    key: str
    incarnation: int
    shard: int
    lives: tuple[int, ...]


class Contribution(NamedTuple):
    """What the newest incarnation of a name has in a fragment."""

    version: int
    """Newest version it contributed to."""
    upto: int
    """End of the last merged token interval."""
    tokens: int
    """All tokens merged."""


@dataclass(slots=True)
class StoredState:
    """The fold of the records."""

    epoch: int = 0
    t: int = 0
    merges: int = 0
    merged_tokens: int = 0
    finished: bool = False
    rewound: int = 0
    """The last epoch in which an operator went back; clocks of learners that knew earlier ones are void."""
    fragments: list[StoredFragment] = field(default_factory=list)
    members: dict[str, StoredMember] = field(default_factory=dict)
    contributions: dict[tuple[str, int], Contribution] = field(default_factory=dict)
    """Of the newest incarnation of a name, by (name, fragment)."""
    rollbacks: tuple[Rollback, ...] = ()
    """Found by the store while loading; the next epoch record makes them history."""
    problems: tuple[str, ...] = ()
    """What the store found damaged, in words."""

    def copy(self) -> StoredState:
        """A state of its own, that may go on while this one stays."""
        return replace(
            self,
            fragments=list(self.fragments),
            members=dict(self.members),
            contributions=dict(self.contributions),
        )

    def apply(self, record: Record) -> None:
        """Take one committed record into the state."""
        match record:
            case RoundRecord():
                self._apply_round(record)
            case MemberRecord():
                self._apply_member(record)
            case EpochRecord():
                self.epoch = record.epoch
                self.rollbacks = ()
                for rollback in record.rollbacks:
                    self._apply_rollback(rollback)
                if record.t >= 0:
                    self.t, self.finished, self.rewound = record.t, False, record.epoch
            case SeedRecord():
                self.fragments = [StoredFragment(0, digest, "") for digest in record.digests]
            case FinishRecord():
                self.finished = True
                self.t = max(self.t, record.t)

    def _apply_round(self, record: RoundRecord) -> None:
        old = self.fragments[record.fragment]
        self.fragments[record.fragment] = StoredFragment(record.version, record.digest, old.digest)
        self.t = max(self.t, record.t)
        self.merges += 1
        for part in record.contributors:
            tokens = part.end - part.start
            self.merged_tokens += tokens
            held = self.contributions.get((part.name, record.fragment))
            before = held.tokens if held else 0
            self.contributions[part.name, record.fragment] = Contribution(
                record.version, part.end, before + tokens
            )

    def _apply_rollback(self, rollback: Rollback) -> None:
        p, version = rollback.fragment, rollback.to_version
        self.fragments[p] = StoredFragment(version, rollback.digest, rollback.previous_digest)
        self.merges -= rollback.from_version - version
        for part in rollback.voided:
            self.merged_tokens -= part.end - part.start
        for (name, fragment), held in self.contributions.items():
            if fragment == p and held.version > version:
                incarnation = self.members[name].incarnation
                void = [part for part in rollback.voided if part[:2] == (name, incarnation)]
                tokens = held.tokens - sum(part.end - part.start for part in void)
                upto = min([held.upto, *(part.start for part in void)])
                self.contributions[name, p] = Contribution(version, upto, tokens)

    def _apply_member(self, record: MemberRecord) -> None:
        old = self.members.get(record.name)
        lives = (*(old.lives if old else ()), record.life)[-MAX_LIVES:]
        self.members[record.name] = StoredMember(
            record.name, record.key, record.incarnation, record.shard, lives
        )
        for key in [key for key in self.contributions if key[0] == record.name]:
            del self.contributions[key]


MAX_LIVES = 64
"""Lives of one name that are remembered, so that a late hello of one of them fences nobody."""


def history(records: Iterable[Record], base: StoredState | None = None) -> dict[int, list[RoundRecord]]:
    """Fragment -> the records of its versions that still count, from the first one after `base` on.

    `base` is the fold of the records before these; without it they are all there are, from version 1.
    """
    chains: dict[int, list[RoundRecord]] = {}
    for record in records:
        if isinstance(record, RoundRecord):
            chains.setdefault(record.fragment, []).append(record)
        elif isinstance(record, EpochRecord):
            for rollback in record.rollbacks:
                first = version_in(base, rollback.fragment)
                del chains.get(rollback.fragment, [])[rollback.to_version - first :]
    return chains


def version_in(base: StoredState | None, fragment: int) -> int:
    """The version of a fragment in a base; 0 if there is none, because everything begins with that."""
    return base.fragments[fragment].version if base is not None else 0


def recover(
    records: Sequence[Record], intact: Callable[[RoundRecord], bool], base: StoredState | None = None
) -> StoredState:
    """Fold what the store holds and name the versions whose deltas cannot be read.

    `intact` says whether the delta of a record is readable with the right digest, or is not
    needed because a verified snapshot lies at or after its version. The state returned is the
    fold of all the records; its `rollbacks` take effect with the next epoch record.
    """
    state = fold(records, base)
    seeds = next((record.digests for record in records if isinstance(record, SeedRecord)), ())
    rollbacks = []
    for p, chain in sorted(history(records, base).items()):
        keep = next((i for i, record in enumerate(chain) if not intact(record)), len(chain))
        if keep < len(chain):
            first = base.fragments[p] if base is not None else StoredFragment(0, seeds[p], "")
            digests = [first.previous_digest, first.digest, *(record.digest for record in chain)]
            voided = tuple(part for record in chain[keep:] for part in record.contributors)
            versions = first.version + len(chain), first.version + keep
            rollbacks.append(Rollback(p, *versions, digests[keep + 1], digests[keep], voided))
    state.rollbacks = tuple(rollbacks)
    state.problems = tuple(
        f"fragment {r.fragment}: the delta of version {r.to_version + 1} is torn or missing, "
        f"so versions {r.to_version + 1} to {r.from_version} cannot be rebuilt"
        for r in rollbacks
    )
    return state


def fold(records: Iterable[Record], base: StoredState | None = None) -> StoredState:
    """The state that a sequence of committed records amounts to; `base` is the fold of those before them."""
    state = base.copy() if base is not None else StoredState()
    for record in records:
        state.apply(record)
    return state
