"""Messages of every kind, drawn from a seed, and frames as they would come from a socket."""

from __future__ import annotations

import random
from typing import Any, Literal, get_args, get_origin, get_type_hints

from atoll.core.messages import Body
from atoll.wire.frames import Frame, Reader, pack_header

RUN = 0x0123_4567_89AB_CDEF
LENGTHS = {"challenge": 32, "secret": 32, "key": 32, "signature": 64}
COUNTS = {
    "data_connections": (1, 64),
    "piece_bytes": (1, 2**24),
    "shards": (1, 2**40),
    "num_bytes": (0, 2**40),
}


def draw(message: type, rng: random.Random) -> Any:
    """Any message of a type, within the bounds of the wire."""
    hints = get_type_hints(message)
    return message(*(draw_value(name, hint, rng) for name, hint in hints.items()))


def draw_value(name: str, hint: Any, rng: random.Random) -> Any:
    if hint is int:
        return (
            rng.choice([0, 1, rng.randrange(128), rng.randrange(2**32)])
            if name not in COUNTS
            else (rng.randint(*COUNTS[name]))
        )
    if hint is str:
        return "".join(rng.choice("abcé€😀 0") for _ in range(rng.randrange(12)))
    if hint is bytes:
        return rng.randbytes(LENGTHS.get(name, rng.randrange(40)))
    if hint is bool:
        return rng.random() < 0.5
    if hint is float:
        return rng.uniform(-1e9, 1e9)
    if get_origin(hint) is tuple:
        return tuple(draw_value(name, get_args(hint)[0], rng) for _ in range(rng.randrange(4)))
    if get_origin(hint) is Literal:
        return rng.choice(get_args(hint))
    if hasattr(hint, "_fields"):
        return draw(hint, rng)
    return rng.choice([None, 1.5])  # float | None


def body_of(content: bytes, round_number: int = 4) -> Body:
    """An offer's body that announces this content."""
    return Body("learner-1", 2, 3, round_number, 5, "0" * 32, len(content))


def stream(*bodies: bytes, kind: int = 17, start: int = 0) -> bytes:
    """Frames one after the other, as one connection would carry them."""
    return b"".join(
        pack_header(kind, RUN, 3, 2, start + number, body) + body for number, body in enumerate(bodies)
    )


def feed(reader: Reader, data: bytes, rng: random.Random | None = None) -> list[Frame]:
    """Give a reader these bytes, in chunks of any size if `rng` is given; returns the frames."""
    frames = []
    while data:
        buffer = reader.buffer()
        size = min(len(buffer), len(data))
        size = rng.randint(1, size) if rng else size
        buffer[:size] = data[:size]
        frame = reader.advance(size)
        frames += [frame] if frame else []
        data = data[size:]
    return frames
