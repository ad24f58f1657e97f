"""The global model: what the syncer computes with.

Of every fragment there is one `OuterState`: served values, remainder, momentum. A round goes through
three calls: `inspect` measures the bodies for the gates, `merge` computes the outer gradient and the next
state aside, `install` serves it. Between the last two the syncer makes the result durable, or forgets it.

Served tensors are never changed, only replaced. So `update_bytes` and `full_bytes` hand out the memory
itself: a send that is under way while the next version is installed goes on reading the version it began
with, and the memory is freed when the last reader is done. Pure computing; no threads, no I/O.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.core.events import Inspection
from atoll.core.records import Contributor
from atoll.errors import ModelError, ProtocolError
from atoll.numerics.codec import Codec
from atoll.numerics.manifest import Manifest
from atoll.numerics.merge import inspect, merge
from atoll.numerics.outer import OuterState, digest, fold, outer_step
from atoll.numerics.scratch import BLOCK

__all__ = ["GlobalModel", "MergeResult"]


@dataclass(frozen=True, slots=True, eq=False)
class MergeResult:
    """A merge and its outer step, computed aside."""

    delta: Tensor
    """D, the merged outer gradient as applied: what the store keeps."""
    delta_digest: str
    digest: str
    """Of the values that would be served."""
    finite: bool
    state: OuterState
    body: Tensor
    """The encoded update, to be published."""


class GlobalModel:
    """The states of all fragments, and the arithmetic of a round."""

    def __init__(
        self, manifest: Manifest, offer_codec: Codec, publish_codec: Codec, eta: float, mu: float
    ) -> None:
        """`eta` and `mu` are the outer learning rate and Nesterov momentum."""
        self.manifest = manifest
        self.offer_codec = offer_codec
        self.publish_codec = publish_codec
        self.eta = eta
        self.mu = mu
        self.states: list[OuterState] = []
        self._updates: dict[int, Tensor] = {}
        self._norms: dict[int, list[tuple[weakref.ref[Tensor], tuple[float, ...]]]] = {}

    def start(self, values: Sequence[Tensor]) -> None:
        """Serve these values as version 0, one tensor per fragment. They are copied."""
        self.restore([OuterState.start(one) for one in values])

    def restore(self, states: Sequence[OuterState]) -> None:
        """Serve these states from now on. They are taken over, not copied."""
        sizes = [state.served.numel() for state in states]
        expected = [fragment.numel for fragment in self.manifest.fragments]
        if sizes != expected:
            raise ModelError(
                f"The fragments of this model have {expected} values, the given ones {sizes}.",
                "They belong to another model or to another cut of it.",
                "Start from weights or a snapshot of this run.",
            )
        self.states = list(states)
        self._updates.clear()
        self._norms.clear()

    def fold(self, fragment: int, delta: Tensor, momentum_factor: float) -> str:
        """Apply a stored outer gradient after `restore`, and return the digest of the served values.

        In place: only before anything is served.
        """
        fold(self.states[fragment], delta, self.eta, self.mu * momentum_factor, self.publish_codec)
        return digest(self.states[fragment].served)

    def inspect(self, fragment: int, bodies: Sequence[tuple[str, Tensor]]) -> list[Inspection]:
        """Decode each (name, body) once and measure it; the norms are kept for `merge`."""
        kept, results = [], []
        for name, body in bodies:
            norms = inspect(body, self.offer_codec, self.manifest.fragments[fragment])
            norm = math.sqrt(sum(one * one for one in norms))
            kept.append((weakref.ref(body), norms))
            results.append(Inspection(name, math.isfinite(norm), norm))
        self._norms[fragment] = kept
        return results

    def merge(
        self,
        fragment: int,
        parts: Sequence[Contributor],
        bodies: Sequence[Tensor],
        momentum_factor: float,
    ) -> MergeResult:
        """Merge the bodies with their contributors' weights and take the outer step on a copy.

        Both in order of learner name; mu is multiplied by the factor. Norms are not taken again for tensors
        that `inspect` has seen.
        """
        cut = self.manifest.fragments[fragment]
        norms = [self._norms_of(fragment, body) for body in bodies]
        weights, scales = [part.weight for part in parts], [part.scale for part in parts]
        delta = merge(bodies, weights, self.offer_codec, cut, norms, scales=scales)
        state = _copy(self.states[fragment])
        body = outer_step(state, delta, self.eta, self.mu * momentum_factor, self.publish_codec)
        return MergeResult(delta, digest(delta), digest(state.served), _finite(state.served), state, body)

    def install(self, fragment: int, result: MergeResult) -> None:
        """Serve what was merged."""
        self.states[fragment], self._updates[fragment] = result.state, result.body
        self._norms.pop(fragment, None)

    def update(self, fragment: int) -> Tensor:
        """The encoded update that led to the served version. Not to be changed."""
        body = self._updates.get(fragment)
        if body is None:
            raise ProtocolError(
                f"Fragment {fragment} was not merged since the start.",
                "There is no update that leads to its version.",
                "Send the full fragment.",
            )
        return body

    def update_bytes(self, fragment: int) -> memoryview:
        """The encoded update that led to the served version, without a copy."""
        return _bytes_of(self.update(fragment))

    def full_bytes(self, fragment: int) -> memoryview:
        """The served values as f32, without a copy."""
        return _bytes_of(self.states[fragment].served)

    def _norms_of(self, fragment: int, body: Tensor) -> tuple[float, ...]:
        for seen, norms in self._norms.get(fragment, ()):
            if seen() is body:
                return norms
        return inspect(body, self.offer_codec, self.manifest.fragments[fragment])


def _copy(state: OuterState) -> OuterState:
    return OuterState(state.served.clone(), state.remainder.clone(), state.momentum.clone())


def _finite(values: Tensor) -> bool:
    """Whether all values are finite, block by block: the mask stays in the cache."""
    return all(bool(torch.isfinite(values[at : at + BLOCK]).all()) for at in range(0, values.numel(), BLOCK))


def _bytes_of(values: Tensor) -> memoryview:
    return values.view(torch.uint8).numpy().data.toreadonly()
