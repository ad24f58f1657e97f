"""What is asked for again while it is on its way is not sent twice: a thin link would carry little else."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from atoll.core.messages import Body
from atoll.runtime.connection import Connection, Handlers
from atoll.runtime.loop import WRITE, Loop
from atoll.runtime.outbox import Outbox
from atoll.runtime.uplink import Events, Uplink
from atoll.wire.url import RunURL

CONTENT = memoryview(bytes(8 << 20))
"""More than a socket takes before its peer reads."""
BODY = Body("learner", 1, 1, 1, 0, "", len(CONTENT))


class Wires:
    """An uplink with two data connections and the other ends of these. No loop runs: the test is the loop."""

    def __init__(self) -> None:
        self.loop = Loop("test")
        silent = Events(
            model=lambda accepted: pytest.fail("nobody asked for a model"),
            ready=lambda ready: None,
            message=lambda message, content: None,
            size_of=lambda message: None,
            failed=lambda error: None,
            silent_s=lambda: 60.0,
            link=lambda is_up, reason: None,
        )
        url = RunURL("localhost", 7700, "run", "", plain=True)
        self.uplink = Uplink(self.loop, url, "", "learner", None, silent, is_ready=True)
        self.uplink.outbox = Outbox(len(CONTENT))
        self.connections, self.peers = [], []
        for _ in range(2):
            near, far = socket.socketpair()
            far.setblocking(False)
            handlers = Handlers(lambda c: None, lambda c, frame: None, lambda c, why: None, self.uplink._feed)
            connection = Connection(self.loop, near, 0, 1 << 20, handlers)
            connection.accept()
            self.uplink.attached.add(connection)
            self.connections.append(connection)
            self.peers.append(far)

    def num_given(self) -> int:
        """Bytes handed to the connections so far, sent or queued."""
        return sum(connection.num_sent + connection.num_queued for connection in self.connections)

    def read_all(self) -> None:
        """The other ends read until nothing is left on either side."""
        while any(connection.num_queued for connection in self.connections) or self._read():
            for connection in self.connections:
                connection._ready(WRITE)
            self._read()

    def _read(self) -> int:
        num = 0
        for peer in self.peers:
            try:
                num += len(peer.recv(1 << 20))
            except BlockingIOError:
                continue
        return num

    def close(self) -> None:
        for connection in self.connections:
            connection.close("the test is over")
        for peer in self.peers:
            peer.close()
        self.loop.stop()


@pytest.fixture
def wires() -> Iterator[Wires]:
    wires = Wires()
    yield wires
    wires.close()


def test_a_body_that_is_on_its_way_is_not_sent_a_second_time(wires):
    wires.uplink._bulk(BODY, CONTENT)
    given = wires.num_given()
    assert given > len(CONTENT)
    wires.uplink._bulk(BODY, CONTENT)
    assert wires.num_given() == given
    assert wires.uplink.outbox.is_empty


def test_a_body_that_the_kernel_still_holds_counts_as_on_its_way(wires):
    wires.uplink._bulk(BODY, CONTENT)
    given = wires.num_given()
    while any(connection.num_queued for connection in wires.connections):
        wires._read()
        for connection in wires.connections:
            connection._ready(WRITE)
    wires.uplink._bulk(BODY, CONTENT)  # all was handed to the kernel, and its last part nobody has read
    assert wires.num_given() == given


def test_a_body_that_has_arrived_is_sent_again_if_it_is_asked_for_again(wires):
    wires.uplink._bulk(BODY, CONTENT)
    given = wires.num_given()
    wires.read_all()
    wires.uplink._bulk(BODY, CONTENT)
    assert wires.num_given() == 2 * given


def test_a_body_whose_connection_is_gone_is_sent_again_over_another(wires):
    wires.uplink._bulk(BODY, CONTENT)
    given = wires.num_given()
    (carrier,) = {connection for connection, _ in wires.uplink.carried}
    wires.uplink.data = list(wires.connections)
    wires.uplink._data_closed(carrier, "cut")
    wires.uplink._bulk(BODY, CONTENT)
    assert wires.num_given() == 2 * given
