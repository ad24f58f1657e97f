"""Models with numbers: the same runs through the real numerics and codecs.

A ghost goes along as witness of what each delta should contain; the values are real: partition,
replica, codec, streaming merge, outer step, quantised publishes. Digests are of the bits, so a
run only stays whole if syncer and learners compute exactly the same. The gradients are noise: what
is under test is the traffic, not the learning.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from atoll.core.events import Inspection
from atoll.core.params import RunParams
from atoll.core.records import Contributor
from atoll.numerics.codec import Codec, codec_for
from atoll.numerics.manifest import Manifest
from atoll.numerics.merge import inspect, merge
from atoll.numerics.outer import OuterState, digest, fold, outer_step
from atoll.numerics.partition import partition
from atoll.numerics.replica import Replica
from atoll.sim.ghost import GhostLearner, MergeResult

__all__ = ["TensorLearner", "TensorSyncer"]

ETA, MU = 0.4, 0.9
CODECS = ("f32", "bf16", "int8", "int4", "fp4", "int2")


class TinyModel(nn.Module):
    """An embedding tied to the output, a matrix, a norm and a frozen bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.inner = nn.Linear(16, 48)
        self.outer = nn.Linear(48, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embedding.weight
        self.inner.bias.requires_grad_(False)


@lru_cache(maxsize=16)
def manifest_for(num_fragments: int) -> Manifest:
    """The partition of the tiny model."""
    return partition(TinyModel(), num_fragments)


def codecs_of(params: RunParams) -> tuple[Codec, Codec]:
    """Upward and downward codec of a run, spread over all of them."""
    salt = params.num_fragments + 3 * params.interval_steps + 7 * params.min_quorum
    return codec_for(CODECS[salt % 6]), codec_for(CODECS[(salt // 6) % 6])


@dataclass(slots=True)
class TensorLearner:
    """A learner's model in f32, with its replica."""

    params: RunParams
    rng: random.Random
    ghost: GhostLearner = field(init=False)
    model: TinyModel = field(init=False)
    replica: Replica = field(init=False)
    noise: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        self.ghost = GhostLearner(self.params, self.rng)
        self.noise = torch.Generator().manual_seed(self.rng.getrandbits(48))
        self.model = TinyModel()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=self.noise) * 0.1)
        up, down = codecs_of(self.params)
        manifest = manifest_for(self.params.num_fragments)
        self.replica = Replica(self.model, manifest, up, down, adopt=self.params.adopt)

    def step(self, tokens: int) -> None:
        """One optimizer step: a little noise."""
        self.ghost.step(tokens)
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=self.noise), alpha=1e-3)

    def seed(self) -> list[tuple[str, Any]]:
        """Make the local values the base."""
        self.ghost.seed()
        seeds = []
        for p in range(self.params.num_fragments):
            values = self.replica.set_base_from_local(p)
            self.ghost.parts[p].base = digest(values)
            seeds.append((digest(values), values))
        return seeds

    def seed_payload(self, p: int) -> Any:
        """The base, to be sent again."""
        return self.replica.base(p).clone()

    def snapshot(self, p: int) -> None:
        """Copy the fragment."""
        self.ghost.snapshot(p)
        self.replica.snapshot(p)

    def encode(self, p: int, name: str, incarnation: int, poison: str) -> tuple[str, Any]:
        """The body of the offer; poison spoils its values."""
        _, (content, _) = self.ghost.encode(p, name, incarnation, poison)
        body = self.replica.encode(p).clone()
        if poison:
            up, _ = codecs_of(self.params)
            numel = manifest_for(self.params.num_fragments).fragments[p].numel
            body = up.encode(torch.full((numel,), math.nan if poison == "nan" else 1e6))
        return digest(body), (content, body)

    def stage(self, p: int, payload: Any, *, full: bool) -> str:
        """Compute the next base aside."""
        if full:
            self.replica.stage_full(p, payload)
            found = digest(payload)
        else:
            found = digest(self.replica.stage(p, payload))
        self.ghost.parts[p].staged = found
        return found

    def unstage(self, p: int) -> None:
        """Forget what was staged."""
        self.ghost.unstage(p)
        self.replica.unstage(p)

    def adopt(self, p: int, *, merged: bool, unresolved: bool, reset: bool) -> None:
        """Take the staged version in."""
        self.ghost.adopt(p, merged=merged, unresolved=unresolved, reset=reset)
        self.replica.adopt(p, merged, reset=reset)

    def drop(self, p: int, *, merged: bool) -> None:
        """Settle the offer and its residual."""
        self.ghost.drop(p, merged=merged)
        self.replica.resolve(p, merged)


@dataclass(slots=True)
class _Aside:
    """A merged state that is not served yet."""

    state: OuterState
    body: Tensor


@dataclass(slots=True)
class TensorSyncer:
    """The global fragments with momentum and remainders."""

    params: RunParams
    states: list[OuterState] = field(default_factory=list)
    aside: dict[int, _Aside] = field(default_factory=dict)
    updates: dict[int, Tensor] = field(default_factory=dict)

    def seed(self, payloads: list[Any]) -> None:
        """Version 0."""
        self.states = [OuterState.start(values) for values in payloads]

    def inspect(self, p: int, bodies: list[tuple[str, Any]]) -> list[Inspection]:
        """Decode each body once and measure it."""
        up, _ = codecs_of(self.params)
        fragment = manifest_for(self.params.num_fragments).fragments[p]
        results = []
        for name, (_, body) in bodies:
            norms = inspect(body, up, fragment)
            norm = math.sqrt(sum(one * one for one in norms))
            results.append(Inspection(name, math.isfinite(norm), norm))
        return results

    def merge(self, p: int, parts: tuple[Contributor, ...], bodies: list[Any]) -> MergeResult:
        """RDA and the outer step on a copy."""
        up, down = codecs_of(self.params)
        fragment = manifest_for(self.params.num_fragments).fragments[p]
        merged = merge([body for _, body in bodies], [part.weight for part in parts], up, fragment)
        state = _copy(self.states[p])
        body = outer_step(state, merged, ETA, MU, down)
        self.aside[p] = _Aside(state, body)
        finite = bool(torch.isfinite(state.served).all())
        contents = tuple(content for content, _ in bodies)
        return MergeResult(digest(merged), digest(state.served), finite, merged, contents)

    def install(self, p: int) -> None:
        """Serve what was merged."""
        aside = self.aside.pop(p)
        self.states[p], self.updates[p] = aside.state, aside.body

    def update(self, p: int) -> Any:
        """The encoded update to the current version."""
        return self.updates[p]

    def full(self, p: int) -> Any:
        """The served values."""
        return self.states[p].served.clone()

    def snapshot(self) -> Any:
        """A copy of everything."""
        return [_copy(state) for state in self.states]

    def restore(self, snapshot: Any, deltas: list[tuple[int, Any]]) -> list[str]:
        """Fold the deltas onto a snapshot (or onto the seed), bit for bit."""
        _, down = codecs_of(self.params)
        self.states = [
            _copy(state) if isinstance(state, OuterState) else OuterState.start(state) for state in snapshot
        ]
        for p, merged in deltas:
            fold(self.states[p], merged, ETA, MU, down)
        return [digest(state.served) for state in self.states]


def _copy(state: OuterState) -> OuterState:
    return OuterState(state.served.clone(), state.remainder.clone(), state.momentum.clone())
