"""Messages to MessagePack and back: every kind has a number, a sender, a size limit and a schema.

A message is a MessagePack array of its fields in the order of its dataclass; a `Holding` inside it is an
array too. The schema of a kind is made once from the annotations of its dataclass, with bounds added:
how long a string or tuple, how large an integer may be. Whatever does not fit is a `WireError`, so
the machines only ever see messages of the right shape. `decode` builds the field values in C and the
message from them; the same arrays are the encoding, so nothing has to be kept in step by hand.

Numbers are never given to another kind, and fields are never reordered, within one `frames.VERSION`.
Bulk messages (`BULK`) describe content that travels beside them, as pieces (`bulk`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, TypeAlias, get_args

import msgspec

from atoll.core import messages as core
from atoll.errors import WireError
from atoll.wire.connection import (
    Accepted,
    Attach,
    Attached,
    BufferValues,
    Connection,
    Done,
    FinishAsk,
    Model,
    Open,
    Ready,
    Rejected,
    Status,
    StatusAsk,
    Telemetry,
)
from atoll.wire.frames import Bytes
from atoll.wire.schema import MAX_PIECE, schema_of, values_of

__all__ = [
    "BULK",
    "FROM_LEARNER",
    "FROM_SYNCER",
    "KINDS",
    "LARGEST_BYTES",
    "PIECE",
    "Accepted",
    "Attach",
    "Attached",
    "BufferValues",
    "Bulk",
    "Done",
    "FinishAsk",
    "Kind",
    "Message",
    "Model",
    "Open",
    "Ready",
    "Rejected",
    "Status",
    "StatusAsk",
    "Telemetry",
    "decode",
    "encode",
    "kind_of",
    "limit_of",
]

Message: TypeAlias = core.Message | Connection
Bulk: TypeAlias = core.Body | core.SeedBody | core.Donation | core.Publish | core.Moments | BufferValues

PIECE = 15
"""The kind of a frame that carries a piece of a bulk message's content."""

SMALL, MEDIUM, LARGE = 64 * 1024, 8 * 1024**2, 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table of kinds."""

    number: int
    message: type
    sender: Literal["learner", "syncer"]
    """`learner` stands for every client, readers and admins too."""
    limit: int = SMALL
    """Largest body in bytes."""


KINDS: tuple[Kind, ...] = (
    Kind(1, Open, "learner"),
    Kind(2, Accepted, "syncer", MEDIUM),
    Kind(3, Model, "learner", LARGE),
    Kind(4, Ready, "syncer"),
    Kind(5, Rejected, "syncer"),
    Kind(6, Attach, "learner"),
    Kind(7, Attached, "syncer"),
    Kind(8, Telemetry, "learner"),
    Kind(9, BufferValues, "learner"),
    Kind(10, StatusAsk, "learner"),
    Kind(11, Status, "syncer", LARGE),
    Kind(12, FinishAsk, "learner"),
    Kind(13, Done, "syncer"),
    # 15 is PIECE
    Kind(16, core.Hello, "learner"),
    Kind(17, core.Report, "learner", MEDIUM),
    Kind(18, core.Header, "learner", MEDIUM),
    Kind(19, core.Abstain, "learner"),
    Kind(20, core.Body, "learner"),
    Kind(21, core.SeedBody, "learner"),
    Kind(22, core.Want, "learner"),
    Kind(23, core.Leave, "learner"),
    Kind(24, core.MomentsAsk, "learner"),
    Kind(25, core.Donation, "learner"),
    Kind(26, core.Restored, "learner"),
    Kind(32, core.Welcome, "syncer"),
    Kind(33, core.Refused, "syncer"),
    Kind(34, core.Fenced, "syncer"),
    Kind(35, core.WhoIs, "syncer"),
    Kind(36, core.Beat, "syncer", MEDIUM),
    Kind(37, core.SeedAsk, "syncer", MEDIUM),
    Kind(38, core.Ask, "syncer"),
    Kind(39, core.Publish, "syncer"),
    Kind(40, core.Cancelled, "syncer"),
    Kind(41, core.DonateAsk, "syncer"),
    Kind(42, core.Moments, "syncer"),
    Kind(43, core.NoMoments, "syncer"),
    Kind(44, core.Quarantined, "syncer"),
)
BULK: frozenset[int] = frozenset(kind.number for kind in KINDS if kind.message in get_args(Bulk))
"""Kinds that travel only inside pieces."""
FROM_LEARNER: frozenset[int] = frozenset({PIECE, *(k.number for k in KINDS if k.sender == "learner")})
FROM_SYNCER: frozenset[int] = frozenset({PIECE, *(k.number for k in KINDS if k.sender == "syncer")})

_PIECE_ROOM = 128 * 1024  # before the content: 11 bytes, and a packed message of at most 65,535
_LIMITS = {kind.number: kind.limit for kind in KINDS} | {PIECE: MAX_PIECE + _PIECE_ROOM}
LARGEST_BYTES = max(_LIMITS.values())
"""The limit for a reader of frames once the other side has shown its token."""


def kind_of(message: Message) -> int:
    """The number of a message's kind."""
    return _NUMBERS[type(message)]


def limit_of(kind: int) -> int:
    """Largest body of a kind in bytes; 0 for a kind that does not exist."""
    return _LIMITS.get(kind, 0)


def encode(message: Message) -> bytes:
    """The body of a message's frame. A reason longer than the other side accepts is cut short."""
    return _encode(_VALUES[type(message)](message))


def decode(kind: int, body: Bytes) -> Message:
    """The message in a body, or `WireError` if it is not exactly one of that kind."""
    message = _MESSAGES.get(kind)
    if message is None:
        raise _refused(f"There is no message of kind {kind}")
    if len(body) > _LIMITS[kind]:
        limit = f"at most {_LIMITS[kind]} are allowed"
        raise _refused(f"A {message.__name__} has {len(body)} bytes, but {limit}")
    try:
        decoded: Message = message(*_DECODERS[kind](body))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _refused(f"A {message.__name__} cannot be read: {_explain(error, message)}") from error
    return decoded


_encode = msgspec.msgpack.Encoder().encode
_NUMBERS: dict[type, int] = {kind.message: kind.number for kind in KINDS}
_MESSAGES: dict[int, type] = {kind.number: kind.message for kind in KINDS}
_VALUES = {kind.message: values_of(kind.message) for kind in KINDS}
_DECODERS = {kind.number: msgspec.msgpack.Decoder(schema_of(kind.message)).decode for kind in KINDS}


def _explain(error: Exception, message: type) -> str:
    """What was wrong, with the name of the field instead of its place, and not at any length."""
    text = str(error)
    for index, field in enumerate(fields(message)):
        text = text.replace(f"$[{index}]", field.name)
    return text[:200]


def _refused(what: str) -> WireError:
    return WireError(
        f"{what}.",
        "It is not believed, and the connection is closed.",
        "Check that both sides run the same version of Atoll; docs/protocol.md has every field.",
    )
