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
from torch import nn

from atoll.core.events import Inspection
from atoll.core.params import RunParams
from atoll.core.records import Contributor
from atoll.numerics import global_state
from atoll.numerics.codec import Codec, codec_for
from atoll.numerics.global_state import GlobalModel
from atoll.numerics.manifest import Manifest
from atoll.numerics.outer import OuterState, digest
from atoll.numerics.partition import partition
from atoll.numerics.replica import Pending, Replica
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
    pending: dict[int, Pending] = field(default_factory=dict)
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
        self.pending[p] = self.replica.snapshot(p)

    def encode(self, p: int, name: str, incarnation: int, poison: str) -> tuple[str, Any]:
        """The body of the offer; poison spoils its values."""
        _, (content, _) = self.ghost.encode(p, name, incarnation, poison)
        body = self.replica.encode(p, self.pending[p])
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

    def rewind(self, p: int) -> None:
        """Take the fragment back to its base."""
        self.ghost.rewind(p)
        self.replica.rewind(p)


@dataclass(slots=True)
class TensorSyncer:
    """The global fragments with momentum and remainders."""

    params: RunParams
    model: GlobalModel = field(init=False)
    aside: dict[int, global_state.MergeResult] = field(default_factory=dict)

    def __post_init__(self) -> None:
        up, down = codecs_of(self.params)
        self.model = GlobalModel(manifest_for(self.params.num_fragments), up, down, ETA, MU)

    def seed(self, payloads: list[Any]) -> None:
        """Version 0."""
        self.model.start(payloads)

    def inspect(self, p: int, bodies: list[tuple[str, Any]]) -> list[Inspection]:
        """Decode each body once and measure it."""
        return self.model.inspect(p, [(name, body) for name, (_, body) in bodies])

    def merge(
        self, p: int, parts: tuple[Contributor, ...], bodies: list[Any], momentum_factor: float
    ) -> MergeResult:
        """RDA and the outer step on a copy."""
        result = self.model.merge(p, parts, [body for _, body in bodies], momentum_factor)
        self.aside[p] = result
        contents = tuple(content for content, _ in bodies)
        return MergeResult(result.delta_digest, result.digest, result.finite, result.delta, contents)

    def install(self, p: int) -> None:
        """Serve what was merged."""
        self.model.install(p, self.aside.pop(p))

    def update(self, p: int) -> Any:
        """The encoded update to the current version."""
        return self.model.update(p)

    def full(self, p: int) -> Any:
        """The served values."""
        return self.model.states[p].served

    def snapshot(self) -> Any:
        """Everything: served states are replaced, never changed."""
        return list(self.model.states)

    def restore(self, snapshot: Any, deltas: list[tuple[int, Any, float]]) -> list[str]:
        """Fold the deltas onto a snapshot (or onto the seed), bit for bit."""
        self.model.restore(
            [_copy(state) if isinstance(state, OuterState) else OuterState.start(state) for state in snapshot]
        )
        for p, merged, momentum_factor in deltas:
            self.model.fold(p, merged, momentum_factor)
        return [digest(state.served) for state in self.model.states]


def _copy(state: OuterState) -> OuterState:
    return OuterState(state.served.clone(), state.remainder.clone(), state.momentum.clone())
