"""Bulk messages in pieces: cut on one side, assembled on the other.

The content of a bulk message (an offer's body, a publish) is cut at multiples of `piece_bytes` and may
travel over several connections at once. The body of a piece's frame:

    offset  size  field        big-endian
         0     1  kind         of the message
         1     2  length       m, bytes of the packed message
         3     8  offset       of this piece in the content: a multiple of piece_bytes
        11     m  message      packed, the same bytes in every piece
      11+m        content      piece_bytes of them; in the last piece, what is left

Every piece names its whole message, so pieces may come over any connection, in any order, twice, or not
at all. An `Assembly` puts them into one buffer per message. It bounds its memory: when there are too many
open messages or bytes, the oldest one is forgotten, and will be asked for again by the protocol. Content
is not checked here: the message has a digest, and whoever uses the content compares it.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

from atoll.errors import ProtocolError, WireError
from atoll.wire.frames import Bytes
from atoll.wire.messages import BULK, Bulk, decode, encode, kind_of

__all__ = ["PREFIX_BYTES", "Assembly", "cut"]

_PREFIX = struct.Struct(">BHQ")
PREFIX_BYTES = _PREFIX.size
"""Of a piece before its packed message."""
MAX_PACKED = 2**16 - 1
HUGE_PAGE = 2 * 1024**2
REMEMBERED = 256
"""Whole messages whose late pieces are still recognised."""


def cut(message: Bulk, content: memoryview, piece_bytes: int) -> Iterator[tuple[bytes, memoryview]]:
    """The pieces of a message, each as a prefix and a part of the content: together a frame's body.

    Content of no bytes is one empty piece. Nothing is copied. `ProtocolError` at once if the content is not
    what the message announces.
    """
    content = content.cast("B")
    packed = encode(message)
    if len(content) != message.num_bytes or len(packed) > MAX_PACKED:
        raise ProtocolError(
            f"A {type(message).__name__} of {message.num_bytes} bytes ({len(packed)} itself) cannot "
            f"carry {len(content)}.",
            "The other side could not put it together.",
            f"Give it the content that it describes, and at most {MAX_PACKED} bytes of description.",
        )
    return _pieces(kind_of(message), packed, content, piece_bytes)


def _pieces(
    kind: int, packed: bytes, content: memoryview, piece_bytes: int
) -> Iterator[tuple[bytes, memoryview]]:
    for offset in range(0, max(len(content), 1), piece_bytes):
        prefix = _PREFIX.pack(kind, len(packed), offset)
        yield prefix + packed, content[offset : offset + piece_bytes]


@dataclass(slots=True)
class _Open:
    """A message that is still arriving."""

    message: Bulk
    content: memoryview
    missing: int
    """Pieces that have not come."""
    come: set[int] = field(default_factory=set)
    """Offsets of those that have."""


class Assembly:
    """Puts the pieces of one sender's bulk messages together. For one thread at a time."""

    def __init__(
        self, limit_bytes: int, max_open: int, piece_bytes: int, size_of: Callable[[Bulk], int | None]
    ) -> None:
        """`limit_bytes` and `max_open` bound what is open at once.

        `size_of` says how large the content of a message must be, None if there is no such content:
        an announced size is believed only if it is the same.
        """
        self.limit_bytes = limit_bytes
        self.max_open = max_open
        self.piece_bytes = piece_bytes
        self._size_of = size_of
        self._open: OrderedDict[bytes, _Open] = OrderedDict()  # by kind and packed message
        self._whole: OrderedDict[bytes, Bulk] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_open(self) -> int:
        """Messages that are still arriving."""
        return len(self._open)

    @property
    def num_bytes(self) -> int:
        """Memory held for them."""
        return self._num_bytes

    def add(self, body: Bytes) -> tuple[Bulk, memoryview] | None:
        """Take in a piece; returns the message and its content once the last one is here.

        A piece that is here already, or of a message that was whole, changes nothing.
        """
        body = memoryview(body)
        kind, packed, offset = _read_prefix(body)
        key = bytes((kind,)) + packed
        if key in self._whole:
            return None
        arriving = self._open.get(key) or self._begin(key, kind, packed)
        part = body[PREFIX_BYTES + len(packed) :]
        self._check_place(arriving, offset, len(part))
        if offset in arriving.come:
            return None
        arriving.content[offset : offset + len(part)] = part
        arriving.come.add(offset)
        arriving.missing -= 1
        return None if arriving.missing else self._finish(key)

    def forget(self, predicate: Callable[[Bulk], bool]) -> None:
        """Drop what is open of these messages, and let those that were whole be sent again."""
        for key in [key for key, arriving in self._open.items() if predicate(arriving.message)]:
            self._drop(key)
        for key in [key for key, message in self._whole.items() if predicate(message)]:
            del self._whole[key]

    def _begin(self, key: bytes, kind: int, packed: bytes) -> _Open:
        message = cast(Bulk, decode(kind, packed))
        size = self._size_of(message)
        if size != message.num_bytes or size > self.limit_bytes:
            expected = "nothing like it is expected" if size is None else f"its size is {size}"
            raise WireError(
                f"A {type(message).__name__} announces {message.num_bytes} bytes, but {expected} "
                f"and at most {self.limit_bytes} are allowed.",
                "There is no room made for it, and the connection is closed.",
                "Check that both sides have the same model, codec and configuration.",
            )
        while self._open and (len(self._open) >= self.max_open or self._num_bytes + size > self.limit_bytes):
            self._drop(next(iter(self._open)))
        arriving = _Open(message, _room(size), max(-(-size // self.piece_bytes), 1))
        self._open[key] = arriving
        self._num_bytes += size
        return arriving

    def _check_place(self, arriving: _Open, offset: int, length: int) -> None:
        size = len(arriving.content)
        expected = min(self.piece_bytes, size - offset)
        if offset % self.piece_bytes or offset >= max(size, 1) or length != expected:
            raise WireError(
                f"A piece of {length} bytes at {offset} does not fit a {type(arriving.message).__name__} of "
                f"{size} bytes in pieces of {self.piece_bytes}.",
                "It has no place in the content, and the connection is closed.",
                "Cut content at multiples of the piece_bytes that the syncer gave.",
            )

    def _drop(self, key: bytes) -> _Open:
        arriving = self._open.pop(key)
        self._num_bytes -= len(arriving.content)
        return arriving

    def _finish(self, key: bytes) -> tuple[Bulk, memoryview]:
        arriving = self._drop(key)
        self._whole[key] = arriving.message
        if len(self._whole) > REMEMBERED:
            self._whole.popitem(last=False)
        return arriving.message, arriving.content


def _room(size: int) -> memoryview:
    """Fresh memory. Large rooms are huge pages where the system has them.

    Measured, 64 MiB made and filled: 9 ms, a bytearray 60 ms, which is more than TLS takes to carry it.
    """
    if size < HUGE_PAGE:
        return memoryview(bytearray(size))
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            room.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(room)


def _read_prefix(body: memoryview) -> tuple[int, bytes, int]:
    """Kind, packed message and offset of a piece."""
    if len(body) >= PREFIX_BYTES:
        kind, length, offset = _PREFIX.unpack_from(body)
        if kind in BULK and len(body) >= PREFIX_BYTES + length:
            return kind, bytes(body[PREFIX_BYTES : PREFIX_BYTES + length]), offset
    raise WireError(
        f"A piece of {len(body)} bytes does not begin with a bulk message.",
        "Nobody knows what it belongs to, and the connection is closed.",
        "Check that both sides run the same version of Atoll; docs/protocol.md draws a piece.",
    )
