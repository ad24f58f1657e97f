"""Codecs: a flat f32 tensor to bytes and back.

A codec has no state. It cuts values into groups (one value for f32 and bf16, 128 for the blockwise
codecs of `blockwise.py`) of a fixed size in bytes, so the size of a body follows from the number of
values. Groups are laid out in chunks of `BLOCK` values; within a chunk the scales come first, then the
codes. The bytes of values [a, b) are body[encoded_bytes(a) : encoded_bytes(b)] whenever a is a
multiple of `BLOCK`: a body can be read, checked and merged while it is still arriving. The last group
is filled up with zeros.

| name | bits per value | largest error |
|---|---|---|
| f32 | 32 | none |
| bf16 | 16 | 2^-8 of the value (half to even); above 3.39e38 becomes infinite |
| int8 | 8.125 | half a step, step = largest of 128 / 127, rounded up to bf16 |
| int4 | 4.125 | half a step, step = largest of 128 / 7, rounded up to bf16 |
| fp4 | 4.125 | E3M0: a third of the value, or 1.2 % of the largest of 128 where that is more |
| int2 | 2.125 | half a step, step = largest of 128 / 2; an experiment |

Half a step holds to 2^-14 of it: the quotient is rounded too. In a group of the blockwise codecs whose
largest value is below about 2^-113 everything becomes zero; one of 2^127 and more counts as infinite. A
non-finite value never hides: it, or its whole group, decodes to something non-finite. The bits of such a
body are not promised.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.errors import CodecError, ConfigError
from atoll.numerics import blockwise
from atoll.numerics.blockwise import GROUP, Pack, Unpack
from atoll.numerics.scratch import BLOCK, borrow

__all__ = ["CODECS", "Codec", "codec_for"]


@dataclass(frozen=True, slots=True)
class Codec:
    """One way to write f32 values as bytes. Stateless, safe to share between threads."""

    name: str
    code_bytes: int
    """Bytes of one group without its scale: one value if `pack` is None, else `GROUP` values."""
    dtype: torch.dtype = torch.float32
    """The type values are cast to when there are no groups."""
    pack: Pack | None = None
    unpack: Unpack | None = None
    wants_feedback: bool = False
    """Whether the error is large enough that the encoder should keep it for the next offer."""

    @property
    def exact(self) -> bool:
        """Whether decoding gives back every bit."""
        return self.pack is None and self.dtype == torch.float32

    def encoded_bytes(self, numel: int) -> int:
        """Size of the body of `numel` values."""
        if self.pack is None:
            return numel * self.code_bytes
        return -(-numel // GROUP) * (2 + self.code_bytes)

    def bits_per_value(self, numel: int) -> float:
        """Bits on the wire per value, scales and filling included; 0 for an empty body."""
        return 8 * self.encoded_bytes(numel) / numel if numel else 0.0

    def encode(self, values: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the body (flat uint8) of a flat f32 tensor, in `out` if given."""
        _check_values(values)
        size = self.encoded_bytes(values.numel())
        body = torch.empty(size, dtype=torch.uint8, device="cpu") if out is None else out
        self.check(body, values.numel())
        for start in range(0, values.numel(), BLOCK):
            piece = values[start : start + BLOCK]
            self._encode_chunk(piece, body[self.encoded_bytes(start) :])
        return body

    def decode(self, body: Tensor, start: int, stop: int, out: Tensor) -> Tensor:
        """Write values [start, stop) of a body into the flat f32 `out`, and return it.

        `start` is a multiple of `BLOCK`; `stop` is too, or the end of the body.
        """
        if start % BLOCK or stop < start or out.numel() != stop - start:
            raise CodecError(
                f"Cannot decode values {start}..{stop} into a tensor of {out.numel()}.",
                f"Pieces of a body start at multiples of {BLOCK} and fill their target exactly.",
                "Ask for aligned pieces, or for the whole body at once.",
            )
        if stop % BLOCK or body.numel() < self.encoded_bytes(stop):
            self.check(body, stop)
        for at in range(start, stop, BLOCK):
            end = min(at + BLOCK, stop)
            chunk = body[self.encoded_bytes(at) : self.encoded_bytes(end)]
            self._decode_chunk(chunk, out[at - start : end - start])
        return out

    def check(self, body: Tensor, numel: int) -> None:
        """Raise `CodecError` unless the body is that of exactly `numel` values."""
        if body.dtype == torch.uint8 and body.dim() == 1 and body.numel() == self.encoded_bytes(numel):
            return
        raise CodecError(
            f"A {self.name} body of {numel} values is {self.encoded_bytes(numel)} flat bytes (uint8), "
            f"but this one is {body.dtype} of shape {tuple(body.shape)}.",
            "It belongs to another fragment or codec, or it was cut short, so its values are unknown.",
            "Check that both sides hold the same manifest and codec, and receive the whole body.",
        )

    def _encode_chunk(self, values: Tensor, body: Tensor) -> None:
        if self.pack is None:
            target = body[: values.numel() * self.code_bytes]
            target.view(self.dtype).copy_(values)
            return
        scales, codes = self._split(body, values.numel())
        whole = values.numel() // GROUP
        if whole * GROUP == values.numel():
            self.pack(values.view(whole, GROUP), scales, codes)
            return
        if whole:
            self.pack(values[: whole * GROUP].view(whole, GROUP), scales[:whole], codes[:whole])
        rest = values[whole * GROUP :]
        filled = borrow("last group", GROUP).zero_()
        filled[: rest.numel()].copy_(rest)
        self.pack(filled.view(1, GROUP), scales[whole:], codes[whole:])

    def _decode_chunk(self, body: Tensor, out: Tensor) -> None:
        if self.unpack is None:
            out.copy_(_aligned(body, self.code_bytes).view(self.dtype))
            return
        scales, codes = self._split(_aligned(body, 2), out.numel())
        whole = out.numel() // GROUP
        if whole * GROUP == out.numel():
            self.unpack(scales, codes, out.view(whole, GROUP))
            return
        if whole:
            self.unpack(scales[:whole], codes[:whole], out[: whole * GROUP].view(whole, GROUP))
        rest = out[whole * GROUP :]
        filled = borrow("last group", GROUP)
        self.unpack(scales[whole:], codes[whole:], filled.view(1, GROUP))
        rest.copy_(filled[: rest.numel()])

    def _split(self, body: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Views of a chunk: scales as bf16 (k,), codes as int8 (k, code_bytes)."""
        groups = -(-numel // GROUP)
        scales = body[: 2 * groups].view(torch.bfloat16)
        codes = body[2 * groups : (2 + self.code_bytes) * groups].view(torch.int8)
        return scales, codes.view(groups, self.code_bytes)


CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        Codec("f32", 4),
        Codec("bf16", 2, dtype=torch.bfloat16),
        Codec("int8", 128, pack=blockwise.pack_int8, unpack=blockwise.unpack_int8, wants_feedback=True),
        Codec("int4", 64, pack=blockwise.pack_int4, unpack=blockwise.unpack_int4, wants_feedback=True),
        Codec("fp4", 64, pack=blockwise.pack_fp4, unpack=blockwise.unpack_fp4, wants_feedback=True),
        Codec("int2", 32, pack=blockwise.pack_int2, unpack=blockwise.unpack_int2, wants_feedback=True),
    )
}


def codec_for(name: str) -> Codec:
    """The codec of that name."""
    codec = CODECS.get(name)
    if codec is None:
        raise ConfigError(
            f"There is no codec {name!r}.",
            "Learners and syncer could not agree on the bytes of an offer.",
            f"Choose one of {', '.join(CODECS)}.",
        )
    return codec


def _check_values(values: Tensor) -> None:
    if values.dtype != torch.float32 or values.dim() != 1 or not values.is_contiguous():
        raise CodecError(
            f"Codecs take flat contiguous f32 tensors, not {values.dtype} of shape {tuple(values.shape)}.",
            "The order of the values in the body would be undefined.",
            "Pass tensor.float().reshape(-1).",
        )


def _aligned(body: Tensor, width: int) -> Tensor:
    """The same bytes at an offset that allows wider views; a copy only if they lie at an odd one."""
    if body.storage_offset() % width == 0:
        return body
    return borrow("aligned", body.numel(), torch.uint8).copy_(body)
