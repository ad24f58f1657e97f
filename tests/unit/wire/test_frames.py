from __future__ import annotations

import hashlib
import random
import struct

import pytest
import xxhash

from atoll.errors import WireError
from atoll.wire.frames import HEADER_BYTES, UNTRUSTED_BYTES, Reader, pack_header, run_id
from tests.unit.wire.samples import RUN, feed, stream


def changed(data: bytes, at: int, new: bytes, *, mend: bool = True) -> bytes:
    """One frame with some bytes of it replaced, and the checksum made to fit again."""
    data = data[:at] + new + data[at + len(new) :]
    if mend:
        checksum = xxhash.xxh3_64(data[:40] + data[HEADER_BYTES:]).digest()
        data = data[:40] + checksum + data[HEADER_BYTES:]
    return data


def refusal(data: bytes, reader: Reader | None = None) -> str:
    with pytest.raises(WireError) as caught:
        feed(reader or Reader(UNTRUSTED_BYTES, RUN), data)
    error = caught.value
    assert error.what
    assert error.so_what
    assert error.now_what
    return error.what


def test_a_header_is_laid_out_byte_by_byte_as_the_contract_says():
    header = pack_header(17, RUN, 3, 2, 9, b"hello ", bytearray(b"world"))
    fields = struct.pack(">4sBBHQIIQII", b"ATOL", 1, 17, 0, RUN, 3, 2, 9, 11, 0)
    assert header == fields + xxhash.xxh3_64(fields + b"hello world").digest()
    assert len(header) == HEADER_BYTES == 48


def test_a_header_is_the_same_bytes_for_ever():
    header = pack_header(36, run_id("my-run"), 1, 2, 3, b"body")
    assert header.hex(" ", 8) == (
        "41544f4c01240000 feefa77bdb26ee58 0000000100000002 "
        "0000000000000003 0000000400000000 c254aeff33d2fb70"
    )


def test_a_run_is_named_by_eight_bytes_of_its_digest():
    assert run_id("my-run") == int(hashlib.blake2b(b"my-run").hexdigest()[:16], 16)
    assert run_id("my-run") != run_id("my-run2")


def test_frames_come_out_as_they_went_in_however_the_bytes_are_chopped():
    for seed in range(50):
        rng = random.Random(seed)
        bodies = [rng.randbytes(rng.choice([0, 1, 47, 48, 49, 1000])) for _ in range(5)]
        frames = feed(Reader(UNTRUSTED_BYTES, RUN), stream(*bodies), rng)
        assert [bytes(frame.body) for frame in frames] == bodies
        assert [frame.sequence for frame in frames] == [0, 1, 2, 3, 4]
        assert {(f.kind, f.run, f.epoch, f.incarnation) for f in frames} == {(17, RUN, 3, 2)}


def test_a_body_is_received_in_place_and_belongs_to_its_frame_alone():
    reader = Reader(UNTRUSTED_BYTES)
    first, second = feed(reader, stream(b"first", b"other"))
    assert bytes(first.body) == b"first"
    second.body[:] = b"xxxxx"
    assert bytes(first.body) == b"first"


def test_the_buffer_never_reaches_into_the_next_frame():
    reader = Reader(UNTRUSTED_BYTES)
    assert len(reader.buffer()) == HEADER_BYTES
    feed(reader, stream(b"12345")[:HEADER_BYTES])
    assert len(reader.buffer()) == 5
    feed(reader, b"123")
    assert len(reader.buffer()) == 2
    feed(reader, b"45")
    assert len(reader.buffer()) == HEADER_BYTES


def test_a_stranger_is_recognised_by_its_first_byte():
    assert "does not speak Atoll" in refusal(b"G")
    assert "b'AT'" not in refusal(b"HTTP/1.1 400 Bad Request")
    assert "b'ATOM'" in refusal(b"ATOM")


def test_another_version_is_refused_before_anything_else_is_read():
    data = changed(stream(b"x"), 4, b"\x02")
    assert "version 2" in refusal(data)
    assert "version 2" in refusal(changed(data, 8, b"another!"))


@pytest.mark.parametrize("at", [6, 7, 36, 39])
def test_bits_that_mean_nothing_yet_are_refused(at: int):
    assert "another version" in refusal(changed(stream(b"x"), at, b"\x01"))


def test_a_frame_of_another_run_is_refused():
    data = changed(stream(b"x"), 8, b"another!")
    assert "belongs to run 616e6f7468657221" in refusal(data)


def test_before_the_run_is_known_any_run_may_speak_and_then_only_that_one():
    reader = Reader(UNTRUSTED_BYTES)
    (frame,) = feed(reader, changed(stream(b"x"), 8, b"another!"))
    reader.run = frame.run
    assert "belongs to run" in refusal(stream(b"x", start=1), reader)


def test_a_body_beyond_the_limit_is_refused_before_room_is_made_for_it():
    data = changed(stream(b""), 32, b"\xff\xff\xff\xff")
    assert "4294967295 bytes" in refusal(data)


def test_the_limit_is_inclusive_and_may_be_raised_between_two_frames():
    reader = Reader(4, RUN)
    assert len(feed(reader, stream(b"1234"))) == 1
    reader.limit = 5
    assert len(feed(reader, stream(b"12345", start=1))) == 1
    assert "at most 5" in refusal(stream(b"123456", start=2), reader)


@pytest.mark.parametrize("start", [0, 2, 2**64 - 1])
def test_a_frame_out_of_order_is_refused(start: int):
    reader = Reader(UNTRUSTED_BYTES, RUN)
    feed(reader, stream(b"x"))
    assert f"Frame {start} came where frame 1 was due" in refusal(stream(b"y", start=start), reader)


def test_any_flipped_bit_is_noticed():
    data = stream(b"some body")
    for bit in range(8 * len(data)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        reader = Reader(UNTRUSTED_BYTES, RUN)
        try:
            frames = feed(reader, bytes(broken))
        except WireError:
            continue
        assert not frames  # a longer body was announced, and the reader waits for the rest of it
        assert reader.buffer()


def test_a_checksum_that_does_not_fit_is_named():
    assert "checksum of frame 0" in refusal(changed(stream(b"abc"), HEADER_BYTES, b"x", mend=False))
    assert "checksum of frame 0" in refusal(changed(stream(b""), 47, b"\x00", mend=False))
