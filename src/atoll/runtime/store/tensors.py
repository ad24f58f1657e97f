"""Flat f32 tensors in safetensors files, written and read without a second copy in memory.

The format: eight bytes with the length of a JSON header, the header, the values. It is written from views
of the tensors, and read into their own memory, which a library call that takes or gives one block of
bytes cannot do. Files are read, not mapped: a file that ends early or a disk that fails is then an error
here, and not a signal that kills the process. Whoever reads checks digests; a file is believed only
because its content has the digest it should have.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from atoll.runtime.store.files import Files

__all__ = ["read_tensors", "tensor_parts"]

MAX_HEADER_BYTES = 1 << 24
ALIGNMENT = 8

assert sys.byteorder == "little", "values are stored as they lie in memory"


def tensor_parts(tensors: Mapping[str, Tensor]) -> list[bytes | memoryview]:
    """The parts of a safetensors file that holds these flat f32 tensors, in this order."""
    header: dict[str, Any] = {}
    values: list[bytes | memoryview] = []
    end = 0
    for name, tensor in tensors.items():
        view = bytes_of(tensor)
        start, end = end, end + view.nbytes
        header[name] = {"dtype": "F32", "shape": [tensor.numel()], "data_offsets": [start, end]}
        values.append(view)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return [len(text).to_bytes(8, "little") + text, *values]


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a flat f32 tensor, in place."""
    assert tensor.dtype == torch.float32
    assert tensor.dim() == 1
    return tensor.detach().contiguous().view(torch.uint8).numpy().data


def read_tensors(files: Files, path: Path, only: str | None = None) -> dict[str, Tensor]:
    """Read a file that `tensor_parts` made, or one tensor of it.

    Raises `OSError`, or `ValueError` if the file is torn or is something else.
    """
    with files.open(path) as file:
        size = int.from_bytes(_read(file, 8), "little")
        if size > MAX_HEADER_BYTES:
            raise ValueError("it does not begin like a file of tensors")
        layout = _layout(_read(file, size))
        if os.fstat(file.fileno()).st_size != 8 + size + 4 * sum(numel for _, numel in layout):
            raise ValueError("its length is not what its header says")
        tensors = {}
        for name, numel in layout:
            if only not in (None, name):
                file.seek(4 * numel, os.SEEK_CUR)
                continue
            tensor = torch.empty(numel, dtype=torch.float32, device="cpu")
            _fill(file, bytes_of(tensor))
            tensors[name] = tensor
    return tensors


def _layout(text: bytes) -> list[tuple[str, int]]:
    """Name and number of values of each tensor, in the order of their bytes."""
    layout, end = [], 0
    try:
        for name, entry in json.loads(text).items():
            (numel,), (start, stop) = entry["shape"], entry["data_offsets"]
            is_count = type(numel) is int and numel >= 0
            if not is_count or entry["dtype"] != "F32" or (start, stop) != (end, end + 4 * numel):
                raise ValueError("its tensors are not flat f32, one after the other")
            layout.append((name, numel))
            end = stop
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("its header is damaged") from error
    return layout


def _read(file: BinaryIO, size: int) -> bytes:
    room = bytearray(size)
    _fill(file, memoryview(room))
    return bytes(room)


def _fill(file: BinaryIO, room: memoryview) -> None:
    while room:
        count = file.readinto(room)  # type: ignore[attr-defined]  # a raw file has it
        if not count:
            raise ValueError("it ends too early")
        room = room[count:]
