"""Error feedback: what a codec drops is kept and offered again.

The encoder adds its residual to the delta before encoding, and what the body does not say becomes the
next residual. Whether it may be forgotten or must be kept depends on the verdict: only if the offer was
merged has the syncer seen the body, so only then does the residual advance. Over any history the sum
of the merged bodies plus the residual is the sum of the merged deltas, up to f32 rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atoll.errors import CodecError
from atoll.numerics.codec import Codec
from atoll.numerics.scratch import BLOCK, borrow

__all__ = ["Encoder"]


class Encoder:
    """Encodes the offers of one fragment and keeps their error. One offer is open at a time."""

    def __init__(self, codec: Codec, numel: int, feedback: bool = True) -> None:
        self.codec = codec
        self.numel = numel
        self.feedback = feedback and not codec.exact
        self._residual: Tensor | None = None
        self._pending: Tensor | None = None

    @property
    def residual(self) -> Tensor | None:
        """What merged offers left unsaid; None while that is nothing."""
        return self._residual

    def held(self) -> list[Tensor]:
        """The tensors kept between calls, to be counted."""
        return [tensor for tensor in (self._residual, self._pending) if tensor is not None]

    def load(self, residual: Tensor | None) -> None:
        """Take a residual from a checkpoint; an open offer is forgotten."""
        if residual is not None and (residual.numel() != self.numel or not self.feedback):
            raise CodecError(
                f"A residual of {residual.numel()} values does not fit an encoder of {self.numel}"
                f"{'' if self.feedback else ' without error feedback'}.",
                "Errors of another fragment would be added to this one's offers.",
                "Restore residuals with the manifest and codec they were saved under, or drop them.",
            )
        self._residual = None if residual is None else residual.detach().to(torch.float32).reshape(-1).clone()
        self._pending = None

    def encode(self, delta: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the body of delta + residual; the new residual waits for `settle`."""
        if not self.feedback:
            return self.codec.encode(delta, out)
        if delta.numel() != self.numel:
            raise CodecError(
                f"A delta of {delta.numel()} values does not fit an encoder of {self.numel}.",
                "Its error could not be kept.",
                "Use one encoder per fragment.",
            )
        size = self.codec.encoded_bytes(self.numel)
        body = torch.empty(size, dtype=torch.uint8, device="cpu") if out is None else out
        self.codec.check(body, self.numel)
        pending = torch.empty(self.numel, dtype=torch.float32, device="cpu")
        for start in range(0, self.numel, BLOCK):
            stop = min(start + BLOCK, self.numel)
            error = pending[start:stop]
            if self._residual is None:
                error.copy_(delta[start:stop])
            else:
                torch.add(delta[start:stop], self._residual[start:stop], out=error)
            piece = body[self.codec.encoded_bytes(start) : self.codec.encoded_bytes(stop)]
            self.codec.encode(error, piece)
            error.sub_(self.codec.decode(piece, 0, stop - start, borrow("feedback", stop - start)))
        self._pending = pending
        return body

    def settle(self, merged: bool) -> None:
        """Close the open offer. Without one this does nothing, so that verdicts may be repeated."""
        if merged and self._pending is not None:
            self._residual = self._pending
        self._pending = None
