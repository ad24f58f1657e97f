"""A learner that is broken or means harm: the syncer lives on, and the others do not notice."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import atoll
from atoll.core import messages as msg
from atoll.numerics.codec import codec_for
from atoll.wire import messages as wire
from tests.integration.conditions import wait_until
from tests.integration.peer import LIFE, NOTHING, Peer
from tests.integration.programs import Task, config, model, sgd, train

ONES: Any = [1] * 12
CODECS = ["f32", "bf16", "int8", "int4", "fp4", "int2"]


class House:
    """A run with an honest learner that trains all the time."""

    def __init__(self, up: str = "bf16") -> None:
        self.enough = threading.Event()
        self.up = up
        self.num_liars = 0
        self.syncer = atoll.Syncer(
            config(interval=16, codec={"up": up}, network={"piece_bytes": 4096})
        ).start()
        self.task = Task(self._train)
        wait_until(self._knows_usual_norms)

    def _knows_usual_norms(self) -> bool:
        """Before that, nobody can say that an offer is far too large."""
        machine = self.syncer._shell.machine
        return machine is not None and all(gate.median > 0 for gate in machine.rounds.gates)

    def _train(self) -> None:
        net = model()
        optimizer = sgd(net)
        with atoll.join(self.syncer.url, model=net, optimizer=optimizer, name="honest") as learner:
            train(learner, net, optimizer, self.enough.is_set)

    def peer(self) -> Peer:
        """One more liar, under a name of its own."""
        self.num_liars += 1
        peer = Peer(self.syncer.url, self.syncer.token, f"liar-{self.num_liars}")
        peer.get_in()
        return peer

    def row(self, name: str) -> dict[str, Any]:
        return next(row for row in self.syncer.status()["learner_details"] if row["name"] == name)

    def check_undisturbed(self) -> None:
        """The honest learner's offers go on being merged."""
        assert self.syncer.error is None
        before = self.row("honest")["merged_offers"]
        wait_until(lambda: self.row("honest")["merged_offers"] > before)

    def close(self) -> None:
        self.enough.set()
        self.task.result()
        self.syncer.stop()
        assert self.syncer.error is None


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    house = House()
    yield house
    house.close()


# On the control connection


def in_anothers_name(peer: Peer) -> None:
    peer.say(msg.Leave("honest", 1, peer.epoch))


def with_anothers_key(peer: Peer) -> None:
    peer.say(msg.Hello(peer.name, "0" * 32, LIFE, 0, 0))


def as_the_syncer(peer: Peer) -> None:
    peer.say(msg.Beat(peer.epoch, 1, 1 << 40, 1, 1, True, ()))


def a_body_without_its_content(peer: Peer) -> None:
    peer.say(msg.Body(peer.name, peer.incarnation, peer.epoch, 1, 0, "00", 10))


def a_frame_twice(peer: Peer) -> None:
    peer.line.sequence = 0
    peer.say(peer.opening)


def a_count_that_no_integer_holds(peer: Peer) -> None:
    kind = wire.kind_of(msg.Leave("", 0, 0))
    peer.line.send(kind, b"\x93\xa4liar\xcf" + b"\xff" * 8 + b"\x01")


@pytest.mark.parametrize(
    "act",
    [
        lambda peer: peer.say(peer.opening),
        lambda peer: peer.say(peer.model_message()),
        lambda peer: peer.say(wire.Attach("00" * 16, bytes(32))),
        lambda peer: peer.say(wire.StatusAsk()),
        lambda peer: peer.say(wire.FinishAsk("because I say so")),
        in_anothers_name,
        with_anothers_key,
        as_the_syncer,
        a_body_without_its_content,
        a_frame_twice,
        a_count_that_no_integer_holds,
    ],
    ids=lambda act: getattr(act, "__name__", "").replace("<lambda>", "at the wrong time"),
)
def test_a_wrong_word_ends_the_speakers_connection_and_no_other(house, act: Callable[[Peer], None]):
    with house.peer() as peer:
        act(peer)
        assert peer.is_hung_up_on()
    house.check_undisturbed()
    assert house.syncer.status()["state"] == "training"


@pytest.mark.parametrize(
    "changes",
    [
        {"clock": -5},
        {"tokens": -1},
        {"step_ns": -1},
        {"clock": (1 << 53) + 0, "tokens": -3},
        {"held_on": 99},
        {"holdings": ()},
        {"epoch": 77},
        {"incarnation": 99},
    ],
    ids=str,
)
def test_absurd_reports_are_not_believed(house, changes):
    with house.peer() as peer:
        peer.holdings = [NOTHING] * 2
        peer.report(**changes)
        peer.say(wire.Telemetry(*[peer.name, peer.incarnation, *ONES, "cpu", "the last word"]))
        wait_until(lambda: house.row(peer.name)["note"] == "the last word")
        row = house.row(peer.name)
        assert (row["state"], row["tokens"], row["steps"]) == ("healing", 0, 0)
    house.check_undisturbed()


def test_holding_versions_that_never_were_does_not_make_a_learner_healed(house):
    with house.peer() as peer:
        peer.holdings = [msg.Holding(1 << 40, "?", 1, 1, 1, 1, 1)] * 2
        peer.clock += 1
        peer.report()
        wait_until(lambda: house.row(peer.name)["clock"] == peer.clock)
        assert house.row(peer.name)["state"] == "healing"
    house.check_undisturbed()


def test_a_report_from_the_past_changes_nothing(house):
    with house.peer() as peer:
        peer.holdings = [NOTHING] * 2
        peer.clock += 10
        peer.report()
        wait_until(lambda: house.row(peer.name)["clock"] == peer.clock)
        peer.num_reports -= 2
        peer.clock -= 5
        peer.report()
        peer.num_reports += 10
        peer.clock += 7
        peer.report()
        wait_until(lambda: house.row(peer.name)["clock"] == peer.clock)
    house.check_undisturbed()


def test_telemetry_of_impossible_values_leaves_the_status_readable(house):
    nan, inf = float("nan"), float("inf")
    with house.peer() as peer:
        peer.say(
            wire.Telemetry(
                peer.name, peer.incarnation, nan, 0, -1, inf, -1, 1, 1, 1, 0, 1, 1, 1, "cpu", "hello"
            )
        )
        wait_until(lambda: house.row(peer.name)["note"] == "hello")
        row = house.row(peer.name)
        assert row["loss"] is None
        assert row["tokens_per_s"] == 0.0
        assert b"NaN" not in house.syncer._shell.status()
        assert b"Infinity" not in house.syncer._shell.status()
    house.check_undisturbed()


def test_a_dishonest_end_of_a_frame_is_noticed_at_the_hang_up(house):
    with house.peer() as peer:
        peer.control.sendall(b"ATOL\x01")
    house.check_undisturbed()


# On a data connection


def header_of(kind: int, packed: bytes, offset: int) -> bytes:
    return struct.pack(">BHQ", kind, len(packed), offset) + packed


def buffers(**changes: object) -> wire.BufferValues:
    fields: dict[str, object] = {
        "name": "", "incarnation": 1, "tokens": 1, "names": ("a",), "shapes": ((2,),), "num_bytes": 8,
        "digest": "",
    }  # fmt: skip
    return wire.BufferValues(**{**fields, **changes})  # type: ignore[arg-type]


def bulk_of(message: wire.BufferValues, content: bytes) -> Callable[[Peer], None]:
    return lambda peer: peer.send_bulk(replace(message, name=message.name or peer.name), content)


def a_huge_body(peer: Peer) -> None:
    body = msg.Body(peer.name, peer.incarnation, peer.epoch, 1, 0, "00", 1 << 40)
    peer.data[0].send(wire.PIECE, header_of(20, wire.encode(body), 0) + bytes(4096))


def a_body_of_a_fragment_that_is_none(peer: Peer) -> None:
    peer.send_bulk(msg.Body(peer.name, peer.incarnation, peer.epoch, 1, 99, "00", 8), bytes(8))


def a_publish(peer: Peer) -> None:
    peer.send_bulk(msg.Publish(1, 1, 0, 1, 9, "", -2, "", "none", "", 0, 8), bytes(8))


def a_piece_in_the_wrong_place(peer: Peer) -> None:
    body = msg.SeedBody(peer.name, peer.incarnation, peer.epoch, 0, "00", 4 * 46)
    peer.data[0].send(wire.PIECE, header_of(21, wire.encode(body), 17) + bytes(10))


@pytest.mark.parametrize(
    "act",
    [
        lambda peer: peer.data[0].send(wire.PIECE, b""),
        lambda peer: peer.data[0].send(wire.PIECE, b"\xff" * 40),
        lambda peer: peer.data[0].send(8, b""),
        bulk_of(buffers(num_bytes=0, shapes=((0,),)), b""),
        bulk_of(buffers(num_bytes=7), bytes(7)),
        bulk_of(buffers(shapes=((-1, -2),)), bytes(8)),
        bulk_of(buffers(shapes=()), bytes(8)),
        bulk_of(buffers(shapes=((1 << 40, 1 << 40),)), bytes(8)),
        bulk_of(buffers(tokens=-1), bytes(8)),
        bulk_of(buffers(name="honest"), bytes(8)),
        a_huge_body,
        a_body_of_a_fragment_that_is_none,
        a_publish,
        a_piece_in_the_wrong_place,
    ],
)
def test_wrong_content_ends_its_data_connection_and_no_other(house, act: Callable[[Peer], None]):
    with house.peer() as peer:
        act(peer)
        assert list(peer.data[0].frames()) is not None  # until it is hung up on
        peer.attach()
        peer.say(msg.Want(peer.name, peer.incarnation, peer.epoch, 0))
        assert next(peer.data[1].frames()).kind == wire.PIECE, "the control connection still works"
    house.check_undisturbed()


def test_buffers_that_the_model_does_not_have_are_not_kept(house):
    with house.peer() as peer:
        peer.send_bulk(buffers(name=peer.name), bytes(8))
        held = wait_until(lambda: house.syncer._shell.buffers.get(peer.name))
        assert held is not None
        assert held.values == {}
    house.check_undisturbed()


# Offers


def asked(peer: Peer) -> msg.Ask:
    """Take part until there is a round to answer."""
    peer.follow()
    while True:
        ask: msg.Ask = peer.hear(msg.Ask)
        if peer.holdings[ask.fragment].version in (ask.version, ask.version - 1) and not ask.want_body:
            return ask


def offer(
    house: House, content: Callable[[int], bytes], send: Callable[..., None] = Peer.send_bulk
) -> dict[str, Any]:
    """Answer a round with content of the size that the fragment has; returns what the status says of it."""
    with house.peer() as peer:
        ask = asked(peer)
        assert peer.manifest is not None
        num_bytes = codec_for(house.up).encoded_bytes(peer.manifest.fragments[ask.fragment].numel)
        body = content(num_bytes)
        peer.say(peer.header(ask))
        send(peer, peer.body(ask, body), body)
        wait_until(lambda: house.row(peer.name)["offers"])
        house.check_undisturbed()
        return house.row(peer.name)


def all_finite(house: House) -> bool:
    return all(bool(torch.isfinite(values).all()) for values in house.syncer.weights().values())


@pytest.mark.parametrize("up", CODECS)
def test_a_body_of_any_bytes_is_merged_or_rejected_and_the_model_stays_finite(up):
    house = House(up)
    try:
        for byte in (b"\xff", b"\x7f", b"\x00", b"\x80"):
            offer(house, lambda num_bytes, byte=byte: byte * num_bytes)
            assert all_finite(house)
    finally:
        house.close()


def test_a_body_that_is_not_a_number_is_rejected(house):
    """A round may close before the liar's header came; then it tries again."""
    while not offer(house, lambda num_bytes: b"\xc0\x7f" * (num_bytes // 2))["rejected"]:
        pass
    assert all_finite(house)


def test_a_body_that_does_not_fit_its_digest_is_not_taken(house):
    def send(peer: Peer, body: msg.Body, content: bytes) -> None:
        spoiled = bytes(len(content) - 1) + b"\x01"
        peer.send_bulk(body, spoiled)

    offer(house, bytes, send)


def test_pieces_in_any_order_twice_and_over_two_connections_make_a_body():
    house = House("f32")
    try:
        with house.peer() as peer:
            ask = asked(peer)
            assert peer.manifest is not None
            size = 4 * peer.manifest.fragments[ask.fragment].numel
            content = torch.full((size // 4,), 0.001).numpy().tobytes()
            other = peer.attach()
            peer.say(peer.header(ask))
            pieces = peer.pieces(peer.body(ask, content), content)
            for piece in (*reversed(pieces), *pieces):
                other.send(wire.PIECE, piece)
                peer.data[0].send(wire.PIECE, piece)
            house.check_undisturbed()
    finally:
        house.close()


def test_a_body_that_never_comes_whole_delays_nobody(house):
    def send(peer: Peer, body: msg.Body, content: bytes) -> None:
        """Nothing at all."""

    offer(house, bytes, send)
