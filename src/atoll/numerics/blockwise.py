"""Leaves of the blockwise codecs: 128 values, one bf16 scale, a few bits per value.

A leaf sees whole groups only, as a (k, 128) tensor. It finds the largest magnitude of each group,
divides it by the largest code and rounds *up* to bf16: that is the step, and no value can clip.
Values are divided by the step that the reader will see, then rounded half to even.

Why the bits agree everywhere: largest magnitudes are exact, and every other operation is a single
correctly rounded multiply, divide, round or integer operation per value.

A group with a non-finite value, or one of 2^127 and more (whose step, rounded up, could take it beyond
f32), gets a NaN scale and zero codes, so that it decodes to NaN throughout and the gates see it. A group
whose step would be below 2^-120 decodes to zero.

Codes are two's complement. Where several share a byte, the group is cut into as many equal runs as
there are codes in a byte, and byte j holds the j-th value of each run, the first run in the low bits:
long runs of neighbours are what vector units like.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from atoll.numerics.scratch import borrow

__all__ = [
    "GROUP",
    "pack_fp4",
    "pack_int2",
    "pack_int4",
    "pack_int8",
    "unpack_fp4",
    "unpack_int2",
    "unpack_int4",
    "unpack_int8",
]

GROUP = 128
"""Values that share a scale."""

Pack = Callable[[Tensor, Tensor, Tensor], None]
"""(values f32 (k, 128), scales bf16 (k,) out, codes int8 (k, bytes) out)."""
Unpack = Callable[[Tensor, Tensor, Tensor], None]
"""(scales bf16 (k,), codes int8 (k, bytes), values f32 (k, 128) out)."""

_MAGNITUDE = 0x7FFFFFFF
_SMALLEST_STEP = (127 - 120) << 23  # 2^-120 as f32 bits: its inverse is still finite
_NAN_BF16 = 0x7FC00000
_ORDINARY_LOW = (127 - 112) << 23  # groups whose largest lies in [2^-112, 2^127) need no care
_ORDINARY_HIGH = (127 + 127) << 23


def pack_int8(values: Tensor, scales: Tensor, codes: Tensor) -> None:
    """255 levels: |x - decoded| <= step/2, step = largest/127 rounded up to bf16."""
    codes.copy_(_divide(values, scales, 127.0).round_())


def unpack_int8(scales: Tensor, codes: Tensor, values: Tensor) -> None:
    """Code times step."""
    values.copy_(codes).mul_(_wide(scales))


def pack_int4(values: Tensor, scales: Tensor, codes: Tensor) -> None:
    """15 levels: |x - decoded| <= step/2, step = largest/7 rounded up to bf16."""
    nibbles = borrow("codes", values.numel(), torch.int8).view_as(values)
    nibbles.copy_(_divide(values, scales, 7.0).round_())
    _pack_nibbles(nibbles, codes)


def unpack_int4(scales: Tensor, codes: Tensor, values: Tensor) -> None:
    """Code times step."""
    values.copy_(_unpack_nibbles(codes, values)).mul_(_wide(scales).mul_(1.0 / 16.0))


def pack_fp4(values: Tensor, scales: Tensor, codes: Tensor) -> None:
    """E3M0: sign and a power of two, 2^-6 to 1 times the scale, or zero.

    Rounded to the nearer power, ties away from zero: |x - decoded| <= |x|/3, or 1.5 * 2^-7 of the
    scale where that is more (what is smaller becomes zero). Scale = largest, rounded up to bf16.
    """
    ratio = _divide(values, scales, 1.0).view(torch.int32)
    ratio.add_(1 << 22).bitwise_right_shift_(23)  # half a binade up, then sign and exponent remain
    exponent = borrow("exponents", values.numel(), torch.int16).view_as(values).copy_(ratio)
    sign = borrow("signs", values.numel(), torch.int16).view_as(values)
    torch.bitwise_right_shift(exponent, 8, out=sign).bitwise_and_(8)
    exponent.bitwise_and_(255).sub_(127 - 7).clamp_min_(0).bitwise_or_(sign)
    nibbles = borrow("codes", values.numel(), torch.int8).view_as(values).copy_(exponent)
    _pack_nibbles(nibbles, codes)


def unpack_fp4(scales: Tensor, codes: Tensor, values: Tensor) -> None:
    """Build sign and exponent as bf16 bits around 2^-127, then move them into place.

    An exponent code of zero is then a true zero, and the product with 2^120 is exact.
    """
    bits = borrow("exponents", values.numel(), torch.int16).view_as(values)
    sign = borrow("signs", values.numel(), torch.int16).view_as(values)
    sign.copy_(_unpack_nibbles(codes, values))
    torch.bitwise_and(sign, 7 << 4, out=bits).bitwise_left_shift_(3)
    bits.bitwise_or_(sign.bitwise_and_(-(1 << 15)))
    values.copy_(bits.view(torch.bfloat16)).mul_(2.0**120).mul_(_wide(scales))


def pack_int2(values: Tensor, scales: Tensor, codes: Tensor) -> None:
    """Four levels at -3/2, -1/2, 1/2, 3/2 steps: |x - decoded| <= step/2, step = largest/2 rounded up.

    An experiment: there is no zero level, so it is only of use with error feedback.
    """
    pairs = borrow("codes", values.numel(), torch.int8).view_as(values)
    pairs.copy_(_divide(values, scales, 2.0).floor_().clamp_(-2.0, 1.0)).bitwise_and_(3)
    run = GROUP // 4
    codes.copy_(pairs[:, :run])
    for k in (1, 2, 3):
        codes.bitwise_or_(pairs[:, k * run : (k + 1) * run].bitwise_left_shift_(2 * k))


def unpack_int2(scales: Tensor, codes: Tensor, values: Tensor) -> None:
    """(Code + 1/2) times step."""
    pairs = borrow("codes", values.numel(), torch.int8).view_as(values)
    run = GROUP // 4
    for k in range(4):
        part = pairs[:, k * run : (k + 1) * run]
        torch.bitwise_left_shift(codes, 6 - 2 * k, out=part)
        part.bitwise_right_shift_(6)
    values.copy_(pairs).add_(0.5).mul_(_wide(scales))


def _divide(values: Tensor, scales: Tensor, largest_code: float) -> Tensor:
    """Fill in the scales and return values / scale in a kept buffer, |result| <= largest code."""
    ratios = borrow("ratios", values.numel()).view_as(values)
    bits = torch.bitwise_and(values.view(torch.int32), _MAGNITUDE, out=ratios.view(torch.int32))
    largest = torch.amax(bits, dim=1)  # magnitudes of floats order as their bits do, NaN above all
    step = (largest.view(torch.float32) / largest_code).view(torch.int32)
    step.add_(0xFFFF).bitwise_and_(-0x10000)  # up to the next bf16
    low, high = torch.aminmax(largest)
    if int(low) >= _ORDINARY_LOW and int(high) < _ORDINARY_HIGH:
        inverse = torch.reciprocal(step.view(torch.float32))
    else:
        values, inverse = _tame(values, largest, step)
    scales.view(torch.int16).copy_(step.bitwise_right_shift_(16))
    return torch.mul(values, inverse.unsqueeze(1), out=ratios)


def _tame(values: Tensor, largest: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Where some group is zero, tiny, huge or non-finite: mend `step`, return values and 1 / step."""
    step.masked_fill_(step < _SMALLEST_STEP, 0)
    broken = largest >= _ORDINARY_HIGH
    step.masked_fill_(broken, _NAN_BF16)
    inverse = torch.reciprocal(step.view(torch.float32)).masked_fill_((step == 0) | broken, 0.0)
    if bool(broken.any()):
        values = values.masked_fill(broken.unsqueeze(1), 0.0)
    return values, inverse


def _wide(scales: Tensor) -> Tensor:
    """Scales as an f32 column."""
    return scales.to(torch.float32).unsqueeze(1)


def _pack_nibbles(nibbles: Tensor, codes: Tensor) -> None:
    half = GROUP // 2
    torch.bitwise_left_shift(nibbles[:, half:], 4, out=codes)
    codes.bitwise_or_(nibbles[:, :half].bitwise_and_(15))


def _unpack_nibbles(codes: Tensor, like: Tensor) -> Tensor:
    """16 times each signed nibble: left in the high bits, its sign is the byte's."""
    half = GROUP // 2
    nibbles = borrow("codes", like.numel(), torch.int8).view_as(like)
    torch.bitwise_left_shift(codes, 4, out=nibbles[:, :half])
    torch.bitwise_and(codes, -16, out=nibbles[:, half:])
    return nibbles
