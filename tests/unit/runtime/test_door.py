"""The door's own troubles: no descriptors, readers that fall asleep, learners that come all at once."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from atoll.config import RunConfig
from atoll.numerics.manifest import Manifest
from atoll.runtime import door as door_module
from atoll.runtime.door import Door
from atoll.runtime.links import Link
from atoll.runtime.loop import Loop
from atoll.runtime.security.tokens import Tokens
from atoll.wire import messages as wire
from atoll.wire.frames import VERSION, Reader, pack_header, run_id
from tests.integration.conditions import LIMIT_S, wait_until

RUN = "reef"


class House:
    """Lets everybody in, and answers with as little as it may."""

    def __init__(self) -> None:
        self.links: list[Link] = []

    def admit_model(self, manifest: Manifest, then: Callable[[str], None]) -> None:
        then("")

    def num_links(self) -> int:
        return len(self.links)

    def welcome(self, link: Link) -> None:
        self.links.append(link)

    def status(self) -> bytes:
        return b"{}"

    def finish(self, reason: str) -> str:
        return ""


@pytest.fixture
def door() -> Iterator[Door]:
    loop = Loop("test")
    loop.start()
    door = Door(loop, RUN, RunConfig(), Tokens("j", "r", "a"), None, House())
    yield door
    assert loop.is_running, "something crashed the loop"
    loop.call(door.close)
    loop.stop()


class Visitor:
    """A blocking client."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address, LIMIT_S)
        self.reader = Reader(wire.LARGEST_BYTES)
        self.sequence = 0

    def ask(self, message: wire.Message) -> Any:
        body = wire.encode(message)
        self.sock.sendall(pack_header(wire.kind_of(message), run_id(RUN), 0, 0, self.sequence, body) + body)
        self.sequence += 1
        while True:
            count = self.sock.recv_into(self.reader.buffer())
            if not count:
                return None
            frame = self.reader.advance(count)
            if frame is not None:
                return wire.decode(frame.kind, frame.body)


def opening(role: str) -> wire.Open:
    return wire.Open(VERSION, RUN, role, "", "ada", "test")  # type: ignore[arg-type]


class Exhausted:
    """A listener in a process that has no descriptors left."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.is_exhausted = True
        self.num_tries = 0

    def fileno(self) -> int:
        return self.sock.fileno()

    def accept(self) -> tuple[socket.socket, Any]:
        self.num_tries += 1
        if self.is_exhausted:
            raise OSError(errno.EMFILE, "Too many open files")
        return self.sock.accept()

    def close(self) -> None:
        self.sock.close()


def test_without_descriptors_the_door_takes_a_breath_instead_of_spinning(door, monkeypatch):
    monkeypatch.setattr(door_module, "BREATH_NS", int(1e9 * 3600))
    address = door.open("127.0.0.1", 0)
    listener = Exhausted(door.listener)
    door.listener = listener
    visitor = Visitor(address)
    wait_until(lambda: listener.num_tries)
    turns = [0]
    for _ in range(50):
        door.loop.call(turns.__setitem__, 0, 1)
    wait_until(lambda: turns[0])
    assert listener.num_tries == 1
    listener.is_exhausted = False
    door.loop.call(door._listen_again)
    assert isinstance(visitor.ask(opening("reader")), wire.Accepted)
    visitor.sock.close()


def test_a_port_that_is_taken_leaves_no_descriptor_behind(door):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        door.open(*taken.getsockname())
    assert door.listener is None


def test_more_strangers_than_there_is_room_for_are_turned_away(door, monkeypatch):
    monkeypatch.setattr(door_module, "MAX_STRANGERS", 2)
    address = door.open("127.0.0.1", 0)
    first = [Visitor(address) for _ in range(2)]
    wait_until(lambda: len(door.visits) == 2)
    with Visitor(address).sock as third:
        assert third.recv(1) == b""
    assert isinstance(first[0].ask(opening("reader")), wire.Accepted)
    for visitor in first:
        visitor.sock.close()


def test_a_stranger_that_says_nothing_is_shut_out(door, monkeypatch):
    monkeypatch.setattr(door_module, "PATIENCE_NS", 1_000_000)
    with Visitor(door.open("127.0.0.1", 0)).sock as silent:
        assert silent.recv(1) == b""
    wait_until(lambda: not door.visits)


def test_a_reader_may_stay_as_long_as_it_asks_and_not_asleep(door, monkeypatch):
    visitor = Visitor(door.open("127.0.0.1", 0))
    assert isinstance(visitor.ask(opening("reader")), wire.Accepted)
    (connection,) = door.visits
    visit = connection.handlers.on_frame.__self__
    monkeypatch.setattr(door_module, "PATIENCE_NS", 1_000)
    door.loop.call(visit.impatient, connection)  # and from here on again and again
    for _ in range(50):
        assert isinstance(visitor.ask(wire.StatusAsk()), wire.Status)
    monkeypatch.setattr(door_module, "READER_PATIENCE_NS", -1)
    assert visitor.sock.recv(1) == b""
    visitor.sock.close()


def test_a_reader_may_not_do_what_an_admin_may(door):
    visitor = Visitor(door.open("127.0.0.1", 0))
    visitor.ask(opening("reader"))
    answer = visitor.ask(wire.FinishAsk("please"))
    assert answer == wire.Rejected("A reader may not send FinishAsk.", False)
    visitor.sock.close()


def test_an_admin_may_also_read(door):
    visitor = Visitor(door.open("127.0.0.1", 0))
    visitor.ask(opening("admin"))
    assert visitor.ask(wire.StatusAsk()) == wire.Status(b"{}")
    assert visitor.ask(wire.FinishAsk("please")) == wire.Done("the run will end: please")
    visitor.sock.close()


def test_closing_the_door_lets_everybody_go(door):
    address = door.open("127.0.0.1", 0)
    visitor = Visitor(address)
    visitor.ask(opening("reader"))
    door.loop.call(door.close)
    assert visitor.sock.recv(1) == b""
    visitor.sock.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, LIMIT_S)
