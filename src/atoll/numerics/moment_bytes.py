"""Optimizer state of one fragment as bytes: a safetensors file, written without a second copy in memory.

Eight bytes with the length of a JSON header, the header, the values one after the other. The header's
`__metadata__` holds, as text, what the values are (`moments`: of which optimizer, units, keys and types), the
`notes` of whoever saves them, and a `digest` over all of it and the values. Readers of ours go by these; the
header's other entries let any safetensors library read the file too. Wide types come first, so that every
value lies where its type wants it.

For a peer the values are narrowed to bf16: half the bytes, and the same range. Counters stay exact.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash
from torch import Tensor

from atoll.errors import ModelError

__all__ = ["CODES", "Copied", "Number", "Piece", "Scalar", "UnitState", "dtype_name", "pack", "unpack"]

CODES = {
    "float64": "F64",
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""The types that can be saved, and what safetensors calls them."""
MAX_HEADER_BYTES = 1 << 26
ALIGNMENT = 8

Number = float | int | bool | None


@dataclass(frozen=True, slots=True)
class Piece:
    """A unit's part of one state tensor, flat, and the type that the tensor has in the optimizer."""

    values: Tensor
    dtype: str


@dataclass(frozen=True, slots=True)
class Scalar:
    """A counter or other single value: a plain number, or a tensor without dimensions."""

    value: Number
    dtype: str = ""
    """Empty for a plain number."""
    on_host: bool = True
    """Whether it lay in host memory, wherever the parameter was."""


@dataclass(frozen=True, slots=True)
class UnitState:
    """What an optimizer holds for one unit of a fragment."""

    storage: str
    start: int
    stop: int
    options: str
    """Settings of the parameter's group that decide which state there is."""
    savable: bool = True
    pieces: Mapping[str, Piece] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Copied:
    """The optimizer state of one fragment, apart from the optimizer."""

    fragment: int
    optimizer: str
    manifest: str
    """Digest of the manifest by which it was cut."""
    units: tuple[UnitState, ...]
    notes: Mapping[str, Any] = field(default_factory=dict)
    room: Tensor | None = None
    """The kept memory in which the values lie, if they do."""


def dtype_name(dtype: torch.dtype) -> str:
    """As the manifest writes it: float32, bfloat16, ..."""
    return str(dtype).removeprefix("torch.")


def pack(copied: Copied, notes: Mapping[str, Any], *, narrow: bool = False) -> list[bytes | memoryview]:
    """The parts of a file, in order. Views of the copy's own memory where nothing is narrowed."""
    stored = {
        (number, key): _stored(piece.values, narrow)
        for number, unit in enumerate(copied.units)
        for key, piece in unit.pieces.items()
    }
    order = _in_order({name: tensor.dtype for name, tensor in stored.items()})
    values = [_bytes_of(stored[name]) for name in order]
    moments, remarks = json.dumps(_describe(copied, stored)), json.dumps(dict(notes))
    metadata = {"moments": moments, "notes": remarks, "digest": _digest(moments, remarks, *values)}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for number, key in order:
        tensor = stored[number, key]
        start, end = end, end + tensor.nbytes
        code, offsets = CODES[dtype_name(tensor.dtype)], [start, end]
        header[f"{number}.{key}"] = {"dtype": code, "shape": [tensor.numel()], "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return [len(text).to_bytes(8, "little") + text, *values]


def unpack(content: bytearray | memoryview) -> Copied:
    """What `pack` made, its values lying in `content`; ModelError if a byte of it is not as it was."""
    try:
        size = int.from_bytes(content[:8], "little")
        if not 0 < size <= min(MAX_HEADER_BYTES, len(content) - 8):
            raise ValueError("it ends too early")
        metadata = json.loads(bytes(content[8 : 8 + size]))["__metadata__"]
        moments, notes, wanted = (metadata[name] for name in ("moments", "notes", "digest"))
        values = memoryview(content)[8 + size :]
        if _digest(moments, notes, values) != wanted:
            raise ValueError("its digest does not agree")
        return _read(json.loads(moments), json.loads(notes), values)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelError(
            f"This is not saved optimizer state: {error}.",
            "Its values cannot be believed.",
            "Nothing is to be done: the optimizer state starts fresh, or comes from a peer.",
        ) from error


def _describe(copied: Copied, stored: Mapping[tuple[int, str], Tensor]) -> dict[str, Any]:
    units = [
        {
            "storage": unit.storage,
            "start": unit.start,
            "stop": unit.stop,
            "options": unit.options,
            "savable": unit.savable,
            "pieces": {k: [p.dtype, dtype_name(stored[n, k].dtype)] for k, p in unit.pieces.items()},
            "scalars": {k: [s.value, s.dtype, s.on_host] for k, s in unit.scalars.items()},
        }
        for n, unit in enumerate(copied.units)
    ]
    return {
        "fragment": copied.fragment,
        "optimizer": copied.optimizer,
        "manifest": copied.manifest,
        "units": units,
    }


def _read(plain: dict[str, Any], notes: dict[str, Any], values: memoryview) -> Copied:
    units = plain["units"]
    dtypes = {
        (number, key): _dtype(stored)
        for number, unit in enumerate(units)
        for key, (_, stored) in unit["pieces"].items()
    }
    found: dict[tuple[int, str], Tensor] = {}
    at = 0
    for number, key in _in_order(dtypes):
        unit, dtype = units[number], dtypes[number, key]
        numel = int(unit["stop"]) - int(unit["start"])
        found[number, key] = _view(values, at, numel, dtype)
        at += numel * dtype.itemsize
    if at != len(values):
        raise ValueError(f"it has {len(values)} bytes of values, not {at}")
    return Copied(
        int(plain["fragment"]),
        str(plain["optimizer"]),
        str(plain["manifest"]),
        tuple(_read_unit(number, unit, found) for number, unit in enumerate(units)),
        dict(notes),
    )


def _read_unit(number: int, plain: dict[str, Any], found: Mapping[tuple[int, str], Tensor]) -> UnitState:
    return UnitState(
        str(plain["storage"]),
        int(plain["start"]),
        int(plain["stop"]),
        str(plain["options"]),
        bool(plain["savable"]),
        {k: Piece(found[number, k], dtype_name(_dtype(own))) for k, (own, _) in plain["pieces"].items()},
        {k: _read_scalar(*fields) for k, fields in plain["scalars"].items()},
    )


def _read_scalar(value: Any, dtype: str, on_host: bool) -> Scalar:
    if not isinstance(value, (float, int, type(None))) or (dtype and value is None):
        raise ValueError(f"{value!r} is no number")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a counter is not finite")
    return Scalar(value, dtype_name(_dtype(dtype)) if dtype else "", bool(on_host))


def _view(values: memoryview, at: int, numel: int, dtype: torch.dtype) -> Tensor:
    if numel <= 0 or at + numel * dtype.itemsize > len(values):
        raise ValueError("its values end too early")
    tensor = torch.frombuffer(values, dtype=dtype, count=numel, offset=at)
    if dtype.is_floating_point and not bool(torch.isfinite(tensor).all()):
        raise ValueError("it holds values that are not finite")
    return tensor


def _stored(values: Tensor, narrow: bool) -> Tensor:
    is_wide = values.dtype in (torch.float32, torch.float64)
    return values.to(torch.bfloat16) if narrow and is_wide else values


def _in_order(dtypes: Mapping[tuple[int, str], torch.dtype]) -> list[tuple[int, str]]:
    """Wide types first, so that no value is out of line."""
    return sorted(dtypes, key=lambda name: (-dtypes[name].itemsize, *name))


def _dtype(name: str) -> torch.dtype:
    if name not in CODES:
        raise ValueError(f"{name} is no type of values")
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def _digest(moments: str, notes: str, *values: memoryview) -> str:
    whole = xxhash.xxh3_128(moments.encode() + b"\n" + notes.encode() + b"\n")
    for part in values:
        whole.update(part)
    return whole.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.view(torch.uint8).numpy().data
