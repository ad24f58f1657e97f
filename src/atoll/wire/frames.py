"""Frames: the fixed header that stands before everything that travels.

    offset  size  field        big-endian
         0     4  magic        b"ATOL"
         4     1  version      1
         5     1  kind         what the body is, see `messages`
         6     2  flags        0
         8     8  run          the first 8 bytes of BLAKE2b-512 of the run's name
        16     4  epoch        the life of the syncer that the sender believes in, 0 before it knows one
        20     4  incarnation  the life of the learner, 0 before it has one
        24     8  sequence     counts the frames of one direction of one connection, from 0
        32     4  length       bytes of the body
        36     4  reserved     0
        40     8  checksum     XXH3-64, seed 0, of the 40 bytes above followed by the body
        48        body

TLS already guards against the network. Checksum and sequence guard against ourselves and the machine:
a buffer sent too early, a piece lost between two threads, a flipped bit in memory.

`Reader` has no socket. It says where the next bytes belong (`buffer`) and is told how many came
(`advance`): first into the header, then into a body of exactly the announced size, so nothing is copied
and nothing is read that belongs to the next frame. After a `WireError` the stream is out of step for
good: close the connection.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import TypeAlias

import xxhash

from atoll.errors import WireError

__all__ = [
    "HEADER_BYTES",
    "MAGIC",
    "UNTRUSTED_BYTES",
    "VERSION",
    "Bytes",
    "Frame",
    "Reader",
    "pack_header",
    "run_id",
]

Bytes: TypeAlias = bytes | bytearray | memoryview

MAGIC = b"ATOL"
VERSION = 1
"""Of the protocol: frames, kinds and fields together."""
UNTRUSTED_BYTES = 64 * 1024
"""Largest body that a reader should allow before the other side has shown its token."""

_FIELDS = struct.Struct(">4sBBHQIIQII")
_CHECKSUM = struct.Struct(">Q")
HEADER_BYTES = _FIELDS.size + _CHECKSUM.size


def run_id(name: str) -> int:
    """The number by which frames name a run: two runs on one host never mix."""
    return int.from_bytes(hashlib.blake2b(name.encode()).digest()[:8], "big")


def pack_header(kind: int, run: int, epoch: int, incarnation: int, sequence: int, *parts: Bytes) -> bytes:
    """The header of a frame whose body is these parts one after the other; they are not joined."""
    length = sum(memoryview(part).nbytes for part in parts)
    fields = _FIELDS.pack(MAGIC, VERSION, kind, 0, run, epoch, incarnation, sequence, length, 0)
    checksum = xxhash.xxh3_64(fields)
    for part in parts:
        checksum.update(part)
    return fields + _CHECKSUM.pack(checksum.intdigest())


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, whole and checked."""

    kind: int
    run: int
    epoch: int
    incarnation: int
    sequence: int
    body: memoryview


class Reader:
    """Turns the bytes of one direction of one connection into frames."""

    def __init__(self, limit: int, run: int | None = None) -> None:
        """`limit` bounds a body; `run` None accepts any run. Both may be set anew between two frames."""
        self.limit = limit
        self.run = run
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._target = self._header
        self._filled = 0
        self._sequence = 0

    def buffer(self) -> memoryview:
        """Where the next bytes are to be received; never empty."""
        return self._target[self._filled :]

    def advance(self, num_bytes: int) -> Frame | None:
        """Take note of bytes received into `buffer`; returns the frame that they complete, if any.

        Raises `WireError` if they are not the protocol, as soon as that is certain.
        """
        self._filled += num_bytes
        assert self._filled <= len(self._target), "more bytes than the buffer has room for"
        if self._target is self._header:
            _check_magic(bytes(self._header[: min(self._filled, len(MAGIC))]))
            if self._filled < HEADER_BYTES:
                return None
            length = self._check_header()
            self._target, self._filled = memoryview(bytearray(length)), 0
        return self._finish() if self._filled == len(self._target) else None

    def _check_header(self) -> int:
        """Refuse a header that cannot begin the next frame; returns the size of its body."""
        _, version, _, flags, run, _, _, sequence, length, reserved = _FIELDS.unpack_from(self._header)
        if version != VERSION:
            raise _other_version(f"version {version}")
        if flags or reserved:
            raise _other_version(f"flags {flags} and reserved bits {reserved}")
        if self.run is not None and run != self.run:
            raise WireError(
                f"A frame belongs to run {run:016x}, but this connection to run {self.run:016x}.",
                "Two runs must never mix, so the connection is closed.",
                "Check the run's name in the join URL.",
            )
        if length > self.limit:
            raise WireError(
                f"A frame announces a body of {length} bytes, but at most {self.limit} are allowed here.",
                "It is not received, and the connection is closed.",
                "Check that both sides run the same version of Atoll and the same configuration.",
            )
        if sequence != self._sequence:
            raise WireError(
                f"Frame {sequence} came where frame {self._sequence} was due.",
                "Frames were lost, repeated or mixed up on the other side, so the connection is closed.",
                "Connect again; if it comes back, one thread at a time may write to a connection.",
            )
        return int(length)

    def _finish(self) -> Frame:
        body = self._target
        checksum = xxhash.xxh3_64(self._header[: _FIELDS.size])
        checksum.update(body)
        (expected,) = _CHECKSUM.unpack_from(self._header, _FIELDS.size)
        if checksum.intdigest() != expected:
            raise WireError(
                f"The checksum of frame {self._sequence} is {checksum.hexdigest()}, not {expected:016x}.",
                "Its bytes were changed on the way or while they were sent, so the connection is closed.",
                "Connect again; if it comes back, test the memory of both machines.",
            )
        _, _, kind, _, run, epoch, incarnation, sequence, _, _ = _FIELDS.unpack_from(self._header)
        self._target, self._filled = self._header, 0
        self._sequence += 1
        return Frame(kind, run, epoch, incarnation, sequence, body)


def _check_magic(start: bytes) -> None:
    if not MAGIC.startswith(start):
        raise WireError(
            f"The other side does not speak Atoll: a frame starts with {start!r} instead of {MAGIC!r}.",
            "Nothing that it says can be understood, so the connection is closed.",
            "Check host and port, and that both sides use TLS or both do not.",
        )


def _other_version(what: str) -> WireError:
    return WireError(
        f"The other side speaks another version of the protocol: {what}, here it is {VERSION}.",
        "Its frames cannot be understood, so the connection is closed.",
        "Install the same version of Atoll on both sides.",
    )
