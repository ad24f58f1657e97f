"""Models without numbers: what a fragment contains is told by names and intervals.

A ghost knows exactly which tokens of which learner are in a delta, because it is told what was
done and not what was counted. So it is the witness against the machines' own counters: if a
counter is not reset or a stale base is used, header and ghost disagree. Digests are hashes of
content, chained from version to version as real ones are.
"""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from atoll.core.events import Inspection
from atoll.core.params import RunParams
from atoll.core.records import Contributor
from atoll.tape.entries import Content

__all__ = ["GhostLearner", "GhostSyncer", "LearnerModel", "MergeResult", "SyncerModel", "hash_of"]


def hash_of(*parts: Any) -> str:
    """A short digest of plain values."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


class MergeResult(NamedTuple):
    """A merge computed aside."""

    delta_digest: str
    digest: str
    finite: bool
    delta: Any
    contents: tuple[Content, ...]


class LearnerModel(Protocol):
    """What a simulated learner trains: a ghost or real tensors."""

    def step(self, tokens: int) -> None: ...
    def seed(self) -> list[tuple[str, Any]]: ...
    def seed_payload(self, p: int) -> Any: ...
    def snapshot(self, p: int) -> None: ...
    def encode(self, p: int, name: str, incarnation: int, poison: str) -> tuple[str, Any]: ...
    def stage(self, p: int, payload: Any, *, full: bool) -> str: ...
    def unstage(self, p: int) -> None: ...
    def adopt(self, p: int, *, merged: bool, unresolved: bool, reset: bool) -> None: ...
    def drop(self, p: int, *, merged: bool) -> None: ...
    def rewind(self, p: int) -> None: ...


class SyncerModel(Protocol):
    """What a simulated syncer serves: a ghost or real tensors."""

    def seed(self, payloads: list[Any]) -> None: ...
    def inspect(self, p: int, bodies: list[tuple[str, Any]]) -> list[Inspection]: ...
    def merge(
        self, p: int, parts: tuple[Contributor, ...], bodies: list[Any], momentum_factor: float
    ) -> MergeResult: ...
    def install(self, p: int) -> None: ...
    def update(self, p: int) -> Any: ...
    def full(self, p: int) -> Any: ...
    def snapshot(self) -> Any: ...
    def restore(self, snapshot: Any, deltas: list[tuple[int, Any, float]]) -> list[str]: ...


@dataclass(slots=True)
class _Part:
    """A ghost's fragment: the base it stands on and where its own progress begins."""

    base: str = ""
    start: int = 0
    shot: tuple[str, int, int] | None = None
    staged: str = ""


@dataclass(slots=True)
class GhostLearner:
    """A learner's model as intervals of its own tokens."""

    params: RunParams
    rng: random.Random
    tokens: int = 0
    parts: list[_Part] = field(init=False)

    def __post_init__(self) -> None:
        self.parts = [_Part() for _ in range(self.params.num_fragments)]

    def step(self, tokens: int) -> None:
        """One optimizer step."""
        self.tokens += tokens

    def seed(self) -> list[tuple[str, Any]]:
        """Make what it has now its own base."""
        for p, part in enumerate(self.parts):
            part.base, part.start = hash_of("seed", p, self.rng.random()), self.tokens
        return [(part.base, part.base) for part in self.parts]

    def seed_payload(self, p: int) -> Any:
        """The base, to be sent again."""
        return self.parts[p].base

    def snapshot(self, p: int) -> None:
        """Remember what the fragment contains now."""
        part = self.parts[p]
        part.shot = (part.base, part.start, self.tokens)

    def encode(self, p: int, name: str, incarnation: int, poison: str) -> tuple[str, Any]:
        """The body of the snapshot: its true content and a norm."""
        shot = self.parts[p].shot
        assert shot is not None
        base, start, end = shot
        content = Content(name, incarnation, start, end, base, poison != "nan")
        norm = math.sqrt(max(1, end - start)) * (0.9 + 0.2 * self.rng.random())
        if poison:
            norm = math.nan if poison == "nan" else norm * 1e6
        return hash_of(content, repr(norm)), (content, norm)

    def stage(self, p: int, payload: Any, *, full: bool) -> str:
        """The digest of the version that the payload leads to from here."""
        part = self.parts[p]
        part.staged = payload if full else hash_of(part.staged or part.base, payload)
        return part.staged

    def unstage(self, p: int) -> None:
        """Forget what was staged."""
        self.parts[p].staged = ""

    def adopt(self, p: int, *, merged: bool, unresolved: bool, reset: bool) -> None:
        """Stand on the staged version."""
        part = self.parts[p]
        if self.params.adopt == "rebase" and part.base and not reset:
            if merged and part.shot is not None:
                part.start = max(part.start, part.shot[2])
        else:
            part.start = self.tokens
        part.base, part.staged = part.staged, ""

    def drop(self, p: int, *, merged: bool) -> None:
        """The offer is settled."""
        self.parts[p].shot = None

    def rewind(self, p: int) -> None:
        """Give up what was trained since the base."""
        self.parts[p].start = self.tokens


@dataclass(slots=True)
class GhostSyncer:
    """The global fragments as a chain of digests."""

    params: RunParams
    served: list[str] = field(default_factory=list)
    updates: dict[int, str] = field(default_factory=dict)
    aside: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By fragment: the update and the digest of a version that is not served yet."""

    def seed(self, payloads: list[Any]) -> None:
        """Version 0."""
        self.served = list(payloads)

    def inspect(self, p: int, bodies: list[tuple[str, Any]]) -> list[Inspection]:
        """Finite or not, and how large."""
        return [Inspection(name, math.isfinite(norm), norm) for name, (_, norm) in bodies]

    def merge(
        self, p: int, parts: tuple[Contributor, ...], bodies: list[Any], momentum_factor: float
    ) -> MergeResult:
        """Hash what is merged, how the step is taken, and what it is merged onto."""
        contents = tuple(content for content, _ in bodies)
        delta = hash_of(contents, tuple((part.weight, part.scale) for part in parts))
        finite = all(content.finite for content in contents)
        update = _update(delta, momentum_factor)
        self.aside[p] = update, hash_of(self.served[p], update)
        return MergeResult(delta, self.aside[p][1], finite, delta, contents)

    def install(self, p: int) -> None:
        """Serve what was merged."""
        self.updates[p], self.served[p] = self.aside.pop(p)

    def update(self, p: int) -> Any:
        """What leads from the version before to this one."""
        return self.updates[p]

    def full(self, p: int) -> Any:
        """The whole fragment."""
        return self.served[p]

    def snapshot(self) -> Any:
        """A copy of everything."""
        return list(self.served)

    def restore(self, snapshot: Any, deltas: list[tuple[int, Any, float]]) -> list[str]:
        """Rebuild from a snapshot and the deltas after it; returns the digests."""
        self.served = list(snapshot)
        for p, delta, momentum_factor in deltas:
            self.updates[p] = _update(delta, momentum_factor)
            self.served[p] = hash_of(self.served[p], self.updates[p])
        return list(self.served)


def _update(delta: str, momentum_factor: float) -> str:
    """What leads to the next version: the delta itself where momentum is whole."""
    return delta if momentum_factor == 1.0 else hash_of(delta, momentum_factor)
