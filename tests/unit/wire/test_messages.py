from __future__ import annotations

import math
import random
from dataclasses import fields, replace
from typing import Any, get_args

import msgspec
import pytest

from atoll.core import messages as core
from atoll.errors import WireError
from atoll.wire import connection
from atoll.wire.messages import (
    BULK,
    FROM_LEARNER,
    FROM_SYNCER,
    KINDS,
    LARGEST_BYTES,
    PIECE,
    Accepted,
    Attach,
    BufferValues,
    Done,
    Kind,
    Message,
    Open,
    Ready,
    Telemetry,
    decode,
    encode,
    kind_of,
    limit_of,
)
from atoll.wire.schema import MAX_TEXT
from tests.unit.wire.samples import draw

pack = msgspec.msgpack.encode

HOLDING = core.Holding(7, "ab", 100, 3, 90, 10, 0)
REPORT = core.Report("learner-1", 1, 2, 3, 40, 500, 6, 7, -1, 8, (HOLDING, HOLDING))
PUBLISH = core.Publish(1, 2, 3, 4, 5, "ab", 4, "cd", "merged", "", 90, 12)

NUMBERS = {
    "Open": 1, "Accepted": 2, "Model": 3, "Ready": 4, "Rejected": 5, "Attach": 6, "Attached": 7,
    "Telemetry": 8, "BufferValues": 9, "StatusAsk": 10, "Status": 11, "FinishAsk": 12, "Done": 13,
    "Hello": 16, "Report": 17, "Header": 18, "Abstain": 19, "Body": 20, "SeedBody": 21, "Want": 22,
    "Leave": 23, "Welcome": 32, "Refused": 33, "Fenced": 34, "WhoIs": 35, "Beat": 36, "SeedAsk": 37,
    "Ask": 38, "Publish": 39, "Cancelled": 40, "MomentsAsk": 24, "Donation": 25, "Restored": 26,
    "DonateAsk": 41, "Moments": 42, "NoMoments": 43, "Quarantined": 44,
}  # fmt: skip


def row(message: Message) -> list[Any]:
    """The fields of a message as the other side would have packed them."""
    return list(msgspec.msgpack.decode(encode(message)))


def refusal(kind: int, body: bytes) -> str:
    with pytest.raises(WireError) as caught:
        decode(kind, body)
    assert caught.value.so_what
    assert caught.value.now_what
    return caught.value.what


def refusal_of(message: Message, **changed: object) -> str:
    """What is said when these fields of a message are replaced on the wire."""
    names = [field.name for field in fields(message)]
    values = dict(zip(names, row(message), strict=True)) | changed
    return refusal(kind_of(message), pack(list(values.values())))


def test_kinds_keep_their_numbers():
    assert {kind.message.__name__: kind.number for kind in KINDS} == NUMBERS
    assert PIECE == 15


def test_every_message_has_a_kind_and_every_kind_one_sender():
    types = {kind.message for kind in KINDS}
    assert types == {*get_args(core.Message), *get_args(connection.Connection)}
    assert {PIECE} == FROM_LEARNER & FROM_SYNCER
    assert {PIECE, *NUMBERS.values()} == FROM_LEARNER | FROM_SYNCER
    for kind in KINDS:
        if kind.message in get_args(core.FromLearner):
            assert kind.number in FROM_LEARNER
        if kind.message in get_args(core.FromSyncer):
            assert kind.number in FROM_SYNCER


def test_bulk_kinds_are_those_that_announce_content():
    assert {k.number for k in KINDS if "num_bytes" in {f.name for f in fields(k.message)}} == BULK


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.message.__name__)
def test_what_is_decoded_is_what_was_encoded(kind: Kind):
    for seed in range(50):
        message = draw(kind.message, random.Random(seed))
        decoded = decode(kind_of(message), encode(message))
        assert decoded == message
        assert type(decoded) is type(message)
        assert encode(decoded) == encode(message)


def test_a_message_is_an_array_of_its_fields_and_so_is_what_is_in_it():
    assert row(REPORT) == ["learner-1", 1, 2, 3, 40, 500, 6, 7, -1, 8, [list(HOLDING)] * 2]
    assert row(core.WhoIs(7)) == [7]
    assert row(connection.Attached()) == []


def test_a_message_is_the_same_bytes_for_ever():
    assert encode(core.Want("a", 1, 2, 3)).hex() == "94a161010203"
    assert encode(core.Beat(1, 2, 3, 4, 5, True, (6, 7))).hex() == "970102030405c3920607"
    assert encode(PUBLISH).hex() == "9c0102030405a2616204a26364a66d6572676564a05a0c"


def test_a_decoded_report_holds_holdings():
    decoded = decode(17, encode(REPORT))
    assert isinstance(decoded, core.Report)
    assert all(isinstance(holding, core.Holding) for holding in decoded.holdings)
    assert repr(decoded) == repr(REPORT)


def test_a_message_may_lie_in_any_kind_of_buffer():
    body = encode(REPORT)
    assert decode(17, memoryview(bytearray(b"x" + body))[1:]) == REPORT == decode(17, bytearray(body))


@pytest.mark.parametrize("kind", [0, 14, PIECE, 27, 45, 255])
def test_a_kind_that_does_not_exist_is_refused(kind: int):
    assert f"no message of kind {kind}" in refusal(kind, b"\x90")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.message.__name__)
def test_missing_and_extra_fields_and_trailing_bytes_are_refused(kind: Kind):
    body = encode(draw(kind.message, random.Random(1)))
    values = msgspec.msgpack.decode(body)
    name = kind.message.__name__
    assert f"A {name} cannot be read" in refusal(kind.number, pack([*values, 0]))
    assert "trailing" in refusal(kind.number, body + b"\xc0")
    assert "truncated" in refusal(kind.number, body[:-1])
    assert "cannot be read" in refusal(kind.number, pack(dict(enumerate(values))))
    if values:
        assert "length" in refusal(kind.number, pack(values[:-1]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 1),
        ("name", b"learner-1"),
        ("name", None),
        ("tokens", "1"),
        ("tokens", 1.0),
        ("tokens", math.nan),
        ("tokens", True),
        ("tokens", None),
        ("tokens", 2**53 + 1),
        ("tokens", 2**64 - 1),
        ("tokens", -(2**31) - 1),
        ("epoch", -1),
        ("epoch", 2**32),
        ("incarnation", 2**32),
        ("echo_ns", 2**63),
        ("holdings", 3),
        ("holdings", [[1, "ab", 2, 3, 4, 5]]),
        ("holdings", [[1, "ab", 2, 3, 4, 5, 6, 7]]),
        ("holdings", [[1, "ab", 2, 3, 4, 5, 2**53 + 1]]),
        ("holdings", [{"version": 1}]),
    ],
)
def test_a_wrong_value_is_refused_and_its_field_is_named(field: str, value: object):
    what = refusal_of(REPORT, **{field: value})
    assert what.startswith("A Report cannot be read: ")
    assert field in what


def test_the_ends_of_the_ranges_are_allowed():
    report = replace(REPORT, tokens=2**53, clock=-(2**31), epoch=2**32 - 1, echo_ns=2**63 - 1)
    assert decode(17, encode(report)) == report
    hello = core.Hello("a", "k", 2**63 - 1, 0, 0)
    assert decode(16, encode(hello)) == hello


def test_verdicts_and_roles_are_among_the_known_words():
    assert "verdict" in refusal_of(PUBLISH, verdict="perhaps")
    assert "role" in refusal_of(Open(1, "run", "reader", "t", "", "1"), role="owner")


def test_strings_have_a_length_that_cannot_hurt():
    assert "reason" in refusal_of(PUBLISH, reason="x" * (MAX_TEXT + 1))
    assert "name" in refusal_of(REPORT, name="x" * (MAX_TEXT + 1))
    accepted = Accepted(1, "run", "x" * 2**20, bytes(32), "s")
    assert decode(2, encode(accepted)) == accepted
    assert "config" in refusal_of(accepted, config="x" * (2**20 + 1))


def test_keys_and_secrets_have_their_exact_length():
    ready = Ready(bytes(32), 4, 2**20, 64, 0)
    assert decode(4, encode(ready)) == ready
    assert "secret" in refusal_of(ready, secret=bytes(31))
    assert "secret" in refusal_of(ready, secret=bytes(33))
    assert "secret" in refusal_of(ready, secret="x" * 32)


@pytest.mark.parametrize(
    ("field", "value"),
    [("data_connections", 0), ("piece_bytes", 0), ("piece_bytes", 2**24 + 1), ("shards", 0)],
)
def test_a_learner_is_not_told_to_send_in_pieces_of_nothing(field: str, value: int):
    assert field in refusal_of(Ready(bytes(32), 4, 2**20, 64, 0), **{field: value})


def test_no_content_is_of_negative_size():
    assert "num_bytes" in refusal_of(PUBLISH, num_bytes=-1)


def test_tuples_have_a_bound_and_a_claimed_length_makes_no_room():
    ask = core.SeedAsk(1, 2, tuple(range(65_536)))
    assert decode(37, encode(ask)) == ask
    assert "missing" in refusal_of(ask, missing=list(range(65_537)))
    assert "missing" in refusal(37, b"\x93\x01\x02\xdd\xff\xff\xff\xff")
    assert "cannot be read" in refusal(37, b"\x93\x01\x02\xdd\x00\x01\x00\x00")
    values = BufferValues("a", 1, 2, ("x",), ((2, 3),), 24, "ab")
    assert "shapes" in refusal_of(values, shapes=[[1, "x"]])


def test_text_that_is_no_utf8_is_refused():
    assert "cannot be read" in refusal(13, b"\x91\xa2\xff\xfe")


def test_a_body_beyond_the_limit_of_its_kind_is_not_even_parsed():
    limit = limit_of(kind_of(Done("")))
    assert f"at most {limit}" in refusal(13, b"\x91" + b"\xc1" * limit)


def test_limits_are_where_they_must_be():
    assert limit_of(14) == 0
    assert max(limit_of(kind.number) for kind in KINDS) <= LARGEST_BYTES
    assert limit_of(PIECE) >= 2**24 + 11 + 2**16
    holding = core.Holding(2**40, "0" * 32, 2**50, 2**20, 2**50, 2**50, 2**50)
    assert len(encode(replace(REPORT, holdings=(holding,) * 65_536))) < limit_of(17)
    for kind in BULK:
        assert limit_of(kind) <= 2**16


def test_a_refusal_is_short_whatever_was_sent():
    assert len(refusal_of(PUBLISH, verdict="x" * 50_000)) < 300


def test_a_reason_too_long_is_cut_short_by_the_sender():
    message = core.Abstain("a", 1, 2, 3, 4, "é" * 10_000)
    decoded = decode(kind_of(message), encode(message))
    assert decoded == replace(message, reason="é" * (MAX_TEXT - 3) + "...")
    exact = Done("x" * MAX_TEXT)
    assert decode(13, encode(exact)) == exact
    assert said(replace(TELEMETRY, note="x" * 5_000)).note.endswith("x...")


TELEMETRY: Telemetry = draw(Telemetry, random.Random(3))


def said(message: Message) -> Any:
    """A message after its journey."""
    return decode(kind_of(message), encode(message))


def test_a_loss_may_be_unknown_or_not_a_number():
    assert said(replace(TELEMETRY, loss=None)).loss is None
    assert math.isnan(said(replace(TELEMETRY, loss=math.nan)).loss)
    assert said(replace(TELEMETRY, loss=2)).loss == 2.0


def test_secrets_do_not_show_when_messages_are_printed():
    secret = b"hush" * 8
    shown = [repr(Open(1, "run", "learner", "hush", "a", "1")), repr(Ready(secret, 4, 1, 1, 0))]
    shown.append(repr(Attach("s", secret)))
    assert not any("hush" in text for text in shown)
