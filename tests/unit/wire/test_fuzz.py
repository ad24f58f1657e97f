"""Whatever comes off a socket, the wire answers with a message or a `WireError`, and with nothing else.

Seeded, so that a failure is the same failure the next time: a good stream is taken, spoilt in a few
places, and fed to the code that a connection runs. A second kind of spoiling mends the checksums, so
that the schemas and the assembly meet nonsense that a frame would have kept from them.
"""

from __future__ import annotations

import random

import msgspec
import pytest

from atoll.errors import WireError
from atoll.wire.bulk import Assembly, cut
from atoll.wire.frames import UNTRUSTED_BYTES, Reader, pack_header
from atoll.wire.messages import BULK, KINDS, PIECE, decode, encode, kind_of
from tests.unit.wire.samples import RUN, body_of, draw, feed

SEEDS = range(100)
TYPES = tuple(kind.message for kind in KINDS)
KINDS_TO_TRY = (*(kind.number for kind in KINDS), PIECE, 0, 255)


def spoil(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, cut out, repeated or put in."""
    spoilt = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(spoilt) + 1)
        match rng.randrange(5):
            case 0 if at < len(spoilt):
                spoilt[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(spoilt):
                spoilt[at] = rng.choice([0, 0x7F, 0x80, 0xC1, 0xDD, 0xDF, 0xFF])
            case 2:
                del spoilt[at : at + rng.randrange(8)]
            case 3:
                spoilt[at:at] = rng.randbytes(rng.randrange(8))
            case _:
                spoilt[at:at] = spoilt[at : at + rng.randrange(16)]
    return bytes(spoilt)


def good_stream(rng: random.Random) -> list[tuple[int, bytes]]:
    """A few frames: messages, and the pieces of a bulk message."""
    messages = [draw(rng.choice(TYPES), rng) for _ in range(3)]
    frames = [(kind_of(message), encode(message)) for message in messages]
    content = rng.randbytes(rng.randrange(40))
    bulk = body_of(content)
    frames += [(PIECE, prefix + part) for prefix, part in cut(bulk, memoryview(content), 16)]
    rng.shuffle(frames)
    return frames


def pack(frames: list[tuple[int, bytes]]) -> bytes:
    return b"".join(
        pack_header(kind, RUN, 1, 1, number, body) + body for number, (kind, body) in enumerate(frames)
    )


def listen(data: bytes, rng: random.Random, assembly: Assembly) -> int:
    """What a connection does with bytes; returns how many messages it understood."""
    understood = 0
    for frame in feed(Reader(UNTRUSTED_BYTES, RUN), data, rng):
        if frame.kind == PIECE:
            understood += assembly.add(frame.body) is not None
        else:
            decode(frame.kind, frame.body)
            understood += 1
    return understood


def complaint(data: bytes, rng: random.Random, assembly: Assembly) -> str:
    """What the wire says against these bytes, if anything."""
    try:
        listen(data, rng, assembly)
    except WireError as error:
        return str(error)
    return ""


def new_assembly() -> Assembly:
    return Assembly(4096, 4, 16, lambda message: min(message.num_bytes, 64))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_good_stream_is_understood_whole(seed: int):
    rng = random.Random(seed)
    assert listen(pack(good_stream(rng)), rng, new_assembly()) == 4


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spoilt_stream_ends_in_a_wire_error_or_in_silence(seed: int):
    rng = random.Random(seed)
    assert len(complaint(spoil(pack(good_stream(rng)), rng), rng, new_assembly())) < 1000


@pytest.mark.parametrize("seed", SEEDS)
def test_spoilt_bodies_under_good_checksums_end_in_a_wire_error_or_in_a_message(seed: int):
    rng = random.Random(seed)
    assembly = new_assembly()
    for kind, body in good_stream(rng):
        for _ in range(10):
            tried = kind if rng.random() < 0.9 else rng.choice(KINDS_TO_TRY)
            spoilt = spoil(body, rng)
            said = complaint(pack([(tried, spoilt)]), rng, assembly)
            assert len(said) < 1000
            if not said and tried != PIECE:
                message = decode(tried, spoilt)
                assert repr(decode(tried, encode(message))) == repr(message)
    assert assembly.num_open <= 4
    assert assembly.num_bytes <= 4096


@pytest.mark.parametrize("seed", SEEDS)
def test_random_values_of_the_right_shape_are_messages_that_encode_again(seed: int):
    """Whatever passes the schema is a message that we could have sent ourselves."""
    rng = random.Random(seed)
    for kind in KINDS:
        values = msgspec.msgpack.decode(encode(draw(kind.message, rng)))
        if values:
            at = rng.randrange(len(values))
            values[at] = rng.choice(
                [0, -1, 2**31, 2**53, 2**63 - 1, "", "x", b"", True, None, 0.5, [], [[1]], {}]
            )
        try:
            message = decode(kind.number, msgspec.msgpack.encode(values))
        except WireError:
            continue
        assert decode(kind.number, encode(message)) == message


def test_the_fuzzer_reaches_bulk_and_control_alike():
    rng = random.Random(0)
    seen = {kind for _ in SEEDS for kind, _ in good_stream(rng)}
    assert seen >= {PIECE, 17, 36} | BULK
