"""A tape in memory, its digest chain, and its bytes.

Each line is packed as MessagePack with the names of its types beside it, and chained:
digest_n = blake2b(digest_{n-1} || line_n). A changed, missing or moved line changes every digest
after it. Commands follow from events, so the digest of a run covers events and testimony only;
`replay` checks that the same commands still follow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import get_args

import msgspec

from atoll.core.commands import Command
from atoll.errors import TapeError
from atoll.tape.entries import Entry, Item, item_type

__all__ = ["Tape", "dump", "load", "pack", "unpack"]

_encode = msgspec.msgpack.Encoder().encode
_COMMANDS = frozenset(get_args(Command))


@dataclass(slots=True)
class Tape:
    """Entries in the order in which they happened."""

    entries: list[Entry] = field(default_factory=list)

    def add(self, at_ns: int, actor: str, item: Item) -> None:
        """Write one line."""
        self.entries.append(Entry(at_ns, actor, item))

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def digest(self) -> str:
        """One digest over every event and testimony, in order."""
        whole = hashlib.blake2b(digest_size=16)
        for entry in self.entries:
            if type(entry.item) not in _COMMANDS:
                whole.update(pack(entry))
        return whole.hexdigest()


def pack(entry: Entry) -> bytes:
    """One line as bytes: time, actor, type, type of what is inside, content."""
    item = entry.item
    inner = getattr(item, "message", None) or getattr(item, "record", None)
    inside = type(inner).__name__ if inner is not None else ""
    return _encode((entry.at_ns, entry.actor, type(item).__name__, inside, item))


def unpack(line: bytes) -> Entry:
    """The entry that `pack` wrote."""
    try:
        at_ns, actor, outer, inner, content = msgspec.msgpack.decode(line, strict=False)
        cls = item_type(outer)
        for name in ("message", "record"):
            if inner and name in content:
                content[name] = msgspec.convert(content[name], item_type(inner))
                rest = {f.name: content[f.name] for f in fields(cls) if f.name != name}
                return Entry(at_ns, actor, cls(**rest, **{name: content[name]}))
        return Entry(at_ns, actor, msgspec.convert(content, cls))
    except (msgspec.MsgspecError, KeyError, ValueError, TypeError) as error:
        raise TapeError(
            f"A line of the tape cannot be read: {error}.",
            "The run cannot be replayed past this line.",
            "Restore the tape from a copy, or replay up to the line before.",
        ) from error


def dump(tape: Tape) -> bytes:
    """A whole tape as bytes, each line followed by the digest of the chain up to it."""
    chain = b""
    lines = []
    for entry in tape:
        line = pack(entry)
        chain = hashlib.blake2b(chain + line, digest_size=16).digest()
        lines.append((line, chain))
    return _encode(lines)


def load(content: bytes) -> Tape:
    """Read what `dump` wrote; refuses a tape whose chain does not hold."""
    try:
        lines = msgspec.msgpack.decode(content, type=list[tuple[bytes, bytes]])
    except msgspec.MsgspecError as error:
        raise TapeError(
            f"The tape is torn, or is no tape: {error}.",
            "Nothing on it can be trusted.",
            "Restore the tape from a copy.",
        ) from error
    tape, chain = Tape(), b""
    for number, (line, digest) in enumerate(lines):
        chain = hashlib.blake2b(chain + line, digest_size=16).digest()
        if chain != digest:
            raise TapeError(
                f"Line {number} of the tape does not fit the digest chain.",
                "This line, or one before it, was changed after it was written.",
                f"Trust the {number} lines before it only, or restore the tape from a copy.",
            )
        tape.entries.append(unpack(line))
    return tape
