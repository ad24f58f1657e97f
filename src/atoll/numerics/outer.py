"""The outer optimizer: SGD with Nesterov momentum on one fragment, and the version it serves.

With D the merged outer gradient, b the momentum, X the parameters:

    b <- mu b + D
    X <- X - eta (D + mu b)

A version must be one bit pattern on every machine, also when publishes are quantised. So X is kept as
two f32 tensors: `served`, which learners hold, and `remainder`, what they have not been told yet. The
outer update U = remainder - eta (D + mu b) is encoded with the publish codec; syncer and learners alike
decode the body and add it to the served values (`apply_update`); what the body and the addition dropped,

    remainder <- U - (served' - served)

stays with the syncer and goes out with the next publish. Nothing is lost, for any codec: served +
remainder is X to better than f32. With the f32 codec, served is X rounded, and the remainder holds the
rounding only.

All in f32, multiply and add apart, in blocks and in place.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.errors import CodecError
from atoll.numerics.codec import Codec
from atoll.numerics.scratch import BLOCK, borrow

__all__ = ["OuterState", "apply_update", "digest", "fold", "outer_step"]

HALF = BLOCK // 2


@dataclass(slots=True)
class OuterState:
    """What the syncer keeps of one fragment: three flat f32 tensors, changed in place."""

    served: Tensor
    remainder: Tensor
    momentum: Tensor  # b

    @classmethod
    def start(cls, values: Tensor) -> OuterState:
        """Version 0: these values, at rest."""
        served = values.detach().to(torch.float32).reshape(-1).clone()
        return cls(served, torch.zeros_like(served), torch.zeros_like(served))


def outer_step(
    state: OuterState, merged: Tensor, eta: float, mu: float, codec: Codec, out: Tensor | None = None
) -> Tensor:
    """Take one outer step with D = `merged` and return the body to publish."""
    numel = state.served.numel()
    body = _room(codec.encoded_bytes(numel)) if out is None else out
    codec.check(body, numel)
    _check_length(state, merged)
    for start in range(0, numel, BLOCK):
        stop = min(start + BLOCK, numel)
        piece = body[codec.encoded_bytes(start) : codec.encoded_bytes(stop)]
        _step_block(state, merged[start:stop], eta, mu, codec, start, piece)
    return body


def fold(state: OuterState, merged: Tensor, eta: float, mu: float, codec: Codec) -> None:
    """Take the same outer step for a restart or a replay: state only, the body is not kept."""
    numel = state.served.numel()
    _check_length(state, merged)
    for start in range(0, numel, BLOCK):
        stop = min(start + BLOCK, numel)
        piece = borrow("folded body", codec.encoded_bytes(stop - start), torch.uint8)
        _step_block(state, merged[start:stop], eta, mu, codec, start, piece)


def apply_update(served: Tensor, body: Tensor, codec: Codec, out: Tensor | None = None) -> Tensor:
    """Move served values to the next version, in place or into `out`, with the bits of the syncer."""
    codec.check(body, served.numel())
    target = served if out is None else out
    for start in range(0, served.numel(), BLOCK):
        stop = min(start + BLOCK, served.numel())
        update = codec.decode(body, start, stop, borrow("update", stop - start))
        torch.add(served[start:stop], update, out=target[start:stop])
    return target


def digest(values: Tensor) -> str:
    """Hex digest of the bits of a flat tensor: names a version together with its number."""
    plain = values.detach().contiguous().view(torch.uint8).numpy()
    return hashlib.sha256(plain.data).hexdigest()[:32]


def _step_block(
    state: OuterState, merged: Tensor, eta: float, mu: float, codec: Codec, start: int, body: Tensor
) -> None:
    """One block of the outer step; `body` takes the encoded update of this block."""
    numel = merged.numel()
    served = state.served[start : start + numel]
    remainder = state.remainder[start : start + numel]
    momentum = state.momentum[start : start + numel]
    for low in range(0, numel, HALF):  # four operands at a time stay in the cache
        part = slice(low, low + HALF)
        step = borrow("step", min(HALF, numel - low))
        momentum[part].mul_(mu).add_(merged[part])
        torch.mul(momentum[part], mu, out=step).add_(merged[part]).mul_(eta)
        remainder[part].sub_(step)  # now U
    codec.encode(remainder, body)
    update = codec.decode(body, 0, numel, borrow("update", numel))
    update.add_(served)  # served'
    remainder.add_(served.sub_(update))  # U - (served' - served): negation is exact
    served.copy_(update)


def _check_length(state: OuterState, merged: Tensor) -> None:
    if merged.numel() != state.served.numel() or merged.dtype != torch.float32:
        raise CodecError(
            f"An outer gradient of {merged.numel()} values ({merged.dtype}) does not fit a fragment of "
            f"{state.served.numel()}.",
            "The step would mix up parameters.",
            "Merge with the fragment of the same manifest.",
        )


def _room(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, device="cpu")
