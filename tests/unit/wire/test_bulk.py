from __future__ import annotations

import random
import struct
from dataclasses import replace
from typing import Any

import pytest

from atoll.core.messages import Publish, SeedBody, Want
from atoll.errors import ProtocolError, WireError
from atoll.wire.bulk import HUGE_PAGE, PREFIX_BYTES, REMEMBERED, Assembly, cut
from atoll.wire.messages import BufferValues, Bulk, encode, kind_of
from tests.unit.wire.samples import body_of

PIECE_BYTES = 10


def pieces(message: Bulk, content: bytes, piece_bytes: int = PIECE_BYTES) -> list[bytes]:
    return [prefix + part for prefix, part in cut(message, memoryview(content), piece_bytes)]


def assembly(limit_bytes: int = 1000, max_open: int = 4) -> Assembly:
    return Assembly(limit_bytes, max_open, PIECE_BYTES, lambda message: message.num_bytes)


def feed(target: Assembly, bodies: list[bytes]) -> list[tuple[Bulk, bytes]]:
    """Everything that becomes whole, in order."""
    added = [target.add(memoryview(body)) for body in bodies]
    return [(done[0], bytes(done[1])) for done in added if done is not None]


def numbered(count: int, size: int = 25) -> list[tuple[Bulk, bytes]]:
    return [(body_of(bytes([k]) * size, k), bytes([k]) * size) for k in range(count)]


def test_a_piece_is_laid_out_byte_by_byte_as_the_contract_says():
    content = bytes(range(25))
    message = body_of(content)
    packed = encode(message)
    expected = [
        struct.pack(">BHQ", 20, len(packed), offset) + packed + content[offset : offset + PIECE_BYTES]
        for offset in (0, 10, 20)
    ]
    assert pieces(message, content) == expected
    assert PREFIX_BYTES == 11


def test_cutting_copies_nothing():
    content = bytearray(25)
    parts = [part for _, part in cut(body_of(bytes(25)), memoryview(content), PIECE_BYTES)]
    content[20] = 7
    assert bytes(parts[2]) == b"\x07\0\0\0\0"


def test_content_may_be_a_view_of_wider_items():
    floats: Any = memoryview(bytearray(40)).cast("f")
    assert [len(part) for _, part in cut(body_of(bytes(40)), floats, 16)] == [16, 16, 8]


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 25])
def test_pieces_become_the_content_in_any_order(size: int):
    content = random.Random(size).randbytes(size)
    message = body_of(content)
    bodies = pieces(message, content)
    assert len(bodies) == max(1, -(-size // PIECE_BYTES))
    for seed in range(10):
        random.Random(seed).shuffle(bodies)
        target = assembly()
        assert feed(target, bodies) == [(message, content)]
        assert (target.num_open, target.num_bytes) == (0, 0)


def test_every_bulk_message_travels():
    content = bytes(24)
    publish = Publish(1, 2, 3, 4, 5, "ab", 4, "cd", "merged", "", 90, 24)
    messages: list[Bulk] = [
        body_of(content),
        SeedBody("a", 1, 2, 3, "ab", 24),
        publish,
        BufferValues("a", 1, 2, ("mean", "var"), ((2, 2), (2,)), 24, "ab"),
    ]
    target = assembly()
    for message in messages:
        assert feed(target, pieces(message, content)) == [(message, content)]


def test_messages_may_be_interleaved_and_pieces_come_twice():
    for seed in range(30):
        rng = random.Random(seed)
        messages = numbered(4)
        bodies = [body for message, content in messages for body in pieces(message, content)]
        bodies += rng.sample(bodies, 6)
        rng.shuffle(bodies)
        done = feed(assembly(), bodies)
        assert sorted(done, key=lambda item: item[1]) == messages


def test_a_repeated_piece_does_not_stand_for_a_missing_one():
    content = bytes(range(25))
    first, second, third = pieces(body_of(content), content)
    target = assembly()
    assert feed(target, [first, first, second, second]) == []
    assert feed(target, [third]) == [(body_of(content), content)]


def test_a_late_piece_of_a_whole_message_opens_nothing():
    content = bytes(range(25))
    bodies = pieces(body_of(content), content)
    target = assembly()
    assert len(feed(target, [*bodies, *bodies])) == 1
    assert target.num_open == 0


def test_what_was_thrown_away_can_be_sent_again_once_it_is_forgotten():
    content = bytes(range(25))
    bodies = pieces(body_of(content), content)
    target = assembly()
    feed(target, bodies)
    target.forget(lambda message: message == body_of(content))
    assert len(feed(target, bodies)) == 1


def test_forgetting_drops_what_is_open_of_these_and_only_these():
    (one, one_content), (two, two_content) = numbered(2)
    target = assembly()
    feed(target, pieces(one, one_content)[:2] + pieces(two, two_content)[:2])
    target.forget(lambda message: message == one)
    assert (target.num_open, target.num_bytes) == (1, 25)
    assert feed(target, [pieces(one, one_content)[2]]) == []
    assert feed(target, [pieces(two, two_content)[2]]) == [(two, two_content)]


def test_only_a_bounded_number_of_whole_messages_is_remembered():
    target = assembly()
    messages = numbered(1) + [(body_of(b"x", 1000 + k), b"x") for k in range(REMEMBERED)]
    for message, content in messages:
        assert len(feed(target, pieces(message, content))) == 1
    assert len(feed(target, pieces(*messages[0]))) == 1
    assert feed(target, pieces(*messages[-1])) == []


def test_too_many_open_messages_cost_the_oldest():
    messages = numbered(5)
    target = assembly(max_open=4)
    feed(target, [pieces(*item)[0] for item in messages])
    assert target.num_open == 4
    assert feed(target, [body for item in messages[1:] for body in pieces(*item)[1:]]) == messages[1:]
    assert feed(target, pieces(*messages[0])[1:]) == []


def test_too_many_open_bytes_cost_the_oldest_until_there_is_room():
    small, large = numbered(3), (body_of(bytes(90)), bytes(90))
    target = assembly(limit_bytes=120)
    feed(target, [pieces(*item)[0] for item in small])
    assert target.num_bytes == 75
    feed(target, pieces(*large)[:1])
    assert (target.num_open, target.num_bytes) == (2, 115)
    assert feed(target, pieces(*small[2])[1:]) == [small[2]]


def refused(target: Assembly, body: bytes) -> str:
    with pytest.raises(WireError) as caught:
        target.add(body)
    assert caught.value.now_what
    return caught.value.what


def test_a_size_that_is_not_the_expected_one_is_refused_before_room_is_made():
    content = bytes(25)
    target = Assembly(1000, 4, PIECE_BYTES, lambda message: 24)
    assert "announces 25 bytes, but its size is 24" in refused(target, pieces(body_of(content), content)[0])
    target = Assembly(1000, 4, PIECE_BYTES, lambda message: None)
    assert "nothing like it is expected" in refused(target, pieces(body_of(content), content)[0])
    assert "at most 24" in refused(assembly(limit_bytes=24), pieces(body_of(content), content)[0])
    assert target.num_open == 0


def placed(offset: int, length: int, size: int = 25) -> bytes:
    packed = encode(body_of(bytes(size)))
    return struct.pack(">BHQ", 20, len(packed), offset) + packed + bytes(length)


@pytest.mark.parametrize(
    ("offset", "length", "size"),
    [
        (5, 10, 25),
        (0, 9, 25),
        (0, 11, 25),
        (0, 0, 25),
        (20, 10, 25),
        (20, 4, 25),
        (30, 0, 25),
        (30, 10, 25),
        (20, 0, 20),
        (2**64 - 10, 10, 25),
        (2**63, 0, 25),
        (0, 1, 0),
        (10, 0, 0),
    ],
)
def test_a_piece_that_has_no_place_is_refused(offset: int, length: int, size: int):
    assert f"A piece of {length} bytes at {offset} does not fit" in refused(
        assembly(), placed(offset, length, size)
    )


def test_a_piece_that_does_not_say_what_it_belongs_to_is_refused():
    whole = placed(0, 10)
    for size in range(len(whole) - 10):
        assert "does not begin with a bulk message" in refused(assembly(), whole[:size])
    want = encode(Want("a", 1, 2, 3))
    body = struct.pack(">BHQ", kind_of(Want("a", 1, 2, 3)), len(want), 0) + want
    assert "does not begin with a bulk message" in refused(assembly(), body)
    assert "cannot be read" in refused(assembly(), struct.pack(">BHQ", 20, 1, 0) + b"\x90")


def test_a_shell_that_sends_other_content_than_it_announces_is_stopped():
    with pytest.raises(ProtocolError, match="25 bytes"):
        cut(body_of(bytes(25)), memoryview(bytes(24)), PIECE_BYTES)
    names = tuple(f"{k:060}" for k in range(2000))
    values = BufferValues("a", 1, 2, names, ((),) * 2000, 8000, "ab")
    with pytest.raises(ProtocolError, match="65535"):
        cut(values, memoryview(bytes(8000)), PIECE_BYTES)


def test_content_of_many_pages_is_memory_like_any_other():
    content = random.Random(1).randbytes(HUGE_PAGE + 5)
    message = replace(body_of(content), digest="large")
    target = Assembly(2 * HUGE_PAGE, 4, 1024**2, lambda message: message.num_bytes)
    (done,) = feed(target, pieces(message, content, 1024**2)[::-1])
    assert done == (message, content)
