from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from atoll.runtime import connection as connection_module
from atoll.runtime.connection import Connection, Handlers, Outgoing
from atoll.runtime.loop import Loop
from atoll.runtime.security.certificates import ServerIdentity
from atoll.runtime.security.tls import client_context, server_context
from atoll.runtime.sockets import tune
from atoll.wire.frames import Frame, Reader, pack_header
from tests.integration.conditions import LIMIT_S, wait_until

RUN = 7
LIMIT = 16 << 20


@dataclass
class End:
    """One end of a connection, and what it was told."""

    connection: Connection
    frames: list[tuple[int, bytes]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    is_open: bool = False

    @property
    def reason(self) -> str:
        return self.closed[0] if self.closed else ""

    def send(self, kind: int, *parts: bytes) -> None:
        frame = Outgoing(kind, tuple(parts))
        self.connection.loop.call(self.connection.send, frame)


def end_of(
    loop: Loop,
    sock: socket.socket,
    context: ssl.SSLContext | None,
    *,
    is_server: bool,
    feed: Callable[[Connection], Outgoing | None] | None = None,
) -> End:
    def opened(connection: Connection) -> None:
        end.is_open = True

    def framed(connection: Connection, frame: Frame) -> None:
        end.frames.append((frame.kind, bytes(frame.body)))

    def closed(connection: Connection, reason: str) -> None:
        end.closed.append(reason)

    handlers = Handlers(opened, framed, closed, feed)
    end = End(Connection(loop, sock, RUN, LIMIT, handlers, context, is_server=is_server))
    return end


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop("test", lambda error: None)
    loop.start()
    yield loop
    assert loop.is_running, "something crashed the loop"
    loop.stop()


@pytest.fixture(scope="module")
def contexts(tmp_path_factory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    identity = ServerIdentity.load_or_make(Path(tmp_path_factory.mktemp("tls")), "run")
    return server_context(identity, mtls=False), client_context(None)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT_S)
        yield listener


def accepted(listener: socket.socket) -> socket.socket:
    sock = listener.accept()[0]
    tune(sock, bulk=False)
    return sock


Pair = Callable[..., tuple[End, End]]


@pytest.fixture(params=["plain", "tls"])
def connect(request, loop, contexts, listener) -> Pair:
    """Makes a pair of ends that are open: server, client."""
    server_side, client_side = contexts if request.param == "tls" else (None, None)

    def make(feed: Callable[[Connection], Outgoing | None] | None = None) -> tuple[End, End]:
        client = end_of(loop, socket.socket(), client_side, is_server=False)
        loop.call(client.connection.connect, listener.getsockname())
        server = end_of(loop, accepted(listener), server_side, is_server=True, feed=feed)
        loop.call(server.connection.accept)
        wait_until(lambda: server.is_open and client.is_open)
        return server, client

    return make


def test_frames_travel_both_ways_in_order(connect: Pair):
    server, client = connect()
    sent = [(number % 200, bytes([number % 256]) * number) for number in range(300)]
    for kind, body in sent:
        client.send(kind, body)
        server.send(kind, body[: len(body) // 2], body[len(body) // 2 :])
    wait_until(lambda: len(server.frames) == len(client.frames) == len(sent))
    assert server.frames == client.frames == sent


def test_a_frame_larger_than_every_buffer_arrives_whole(connect: Pair):
    server, client = connect()
    body = bytes(range(256)) * (40 << 10)
    server.send(1, b"head", body)
    server.send(2, b"after")
    wait_until(lambda: len(client.frames) == 2)
    assert client.frames == [(1, b"head" + body), (2, b"after")]


def test_a_feed_is_asked_until_it_is_empty_and_again_when_woken(connect: Pair):
    waiting = [Outgoing(15, (bytes([n]) * (1 << 20),)) for n in range(8)]
    server, client = connect(lambda connection: waiting.pop(0) if waiting else None)
    wait_until(lambda: len(client.frames) == 8)
    waiting.append(Outgoing(15, (b"one more",)))
    server.connection.loop.call(server.connection.wake)
    wait_until(lambda: len(client.frames) == 9)
    assert client.frames[-1] == (15, b"one more")


def test_a_peer_that_never_reads_is_cut_off_at_the_bound(connect: Pair, monkeypatch):
    monkeypatch.setattr(connection_module, "MAX_QUEUED", 1 << 20)
    server, client = connect()
    loop = server.connection.loop
    loop.call(loop.watch, client.connection.sock, 0, lambda mask: None)
    for _ in range(64):
        server.send(1, bytes(1 << 20))
    wait_until(lambda: server.closed)
    assert "bytes wait for a peer that does not read" in server.reason
    assert server.connection.num_queued == 0


def test_a_bad_frame_closes_its_connection_and_no_other(connect: Pair):
    server, client = connect()
    other_server, other_client = connect()

    def spoil() -> None:
        header = bytearray(pack_header(1, RUN, 0, 0, 0, b"body"))
        header[-1] ^= 1
        client.connection.queue.append(bytes(header) + b"body")
        client.connection._flush()

    client.connection.loop.call(spoil)
    wait_until(lambda: server.closed and client.closed)
    assert "checksum of frame 0" in server.reason
    assert client.reason == "the other side closed the connection"
    other_client.send(3, b"still here")
    wait_until(lambda: other_server.frames == [(3, b"still here")])


def test_a_frame_of_another_run_is_refused_once_the_peer_is_trusted(connect: Pair):
    server, client = connect()
    client.connection.run = RUN + 1
    client.send(1, b"at the door")
    wait_until(lambda: server.frames)
    server.connection.loop.call(server.connection.trust)
    client.send(1, b"inside")
    wait_until(lambda: server.closed)
    assert "belongs to run" in server.reason


def test_an_owner_hears_of_the_end_once(connect: Pair):
    server, client = connect()
    loop = server.connection.loop
    for reason in ("first", "second"):
        loop.call(server.connection.close, reason)
    wait_until(lambda: client.closed)
    assert server.closed == ["first"]


def test_nothing_is_sent_on_a_closed_connection(connect: Pair):
    server, client = connect()
    server.connection.loop.call(server.connection.close, "over")
    server.send(1, b"too late")
    wait_until(lambda: client.closed)
    assert client.frames == []
    assert server.connection.num_queued == 0


def test_nobody_at_the_port_is_a_reason_not_an_error(loop, listener):
    address = listener.getsockname()
    listener.close()
    client = end_of(loop, socket.socket(), None, is_server=False)
    loop.call(client.connection.connect, address)
    wait_until(lambda: client.closed)
    assert client.reason == "Connection refused"


def test_a_connection_to_itself_counts_as_nobody_at_the_port(loop):
    """TCP allows it: a port that nobody listens on may be given to the very socket that dials it."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    client = end_of(loop, sock, None, is_server=False)
    loop.call(client.connection.connect, sock.getsockname())
    wait_until(lambda: client.closed)
    assert client.reason == "Connection refused"
    assert not client.is_open


def reset(sock: socket.socket) -> None:
    """Close so that the other side gets a reset and not a goodbye."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("words", [b"", b"\x16\x03\x01"])
def test_a_peer_that_is_gone_before_its_handshake_harms_nobody(loop, contexts, listener, words):
    dialler = socket.create_connection(listener.getsockname())
    dialler.sendall(words)
    reset(dialler)
    server = end_of(loop, accepted(listener), contexts[0], is_server=True)
    loop.call(server.connection.accept)
    wait_until(lambda: server.closed)


def test_last_words_arrive_although_the_peer_is_not_listened_to(loop, listener):
    with socket.create_connection(listener.getsockname(), LIMIT_S) as stranger:
        stranger.sendall(bytes(100_000))
        server = end_of(loop, accepted(listener), None, is_server=True)

        def refuse(connection: Connection) -> None:
            connection.send(Outgoing(5, (b"not you",)))
            connection.finish()

        server.connection.handlers.on_open = refuse
        loop.call(server.connection.accept)
        reader, frames = Reader(LIMIT), []
        while count := stranger.recv_into(reader.buffer()):  # a reset would raise
            frames.append(reader.advance(count))
    assert [bytes(frame.body) for frame in frames if frame] == [b"not you"]
    wait_until(lambda: server.closed)
    assert server.frames == []


def test_what_a_peer_said_before_it_was_gone_is_heard_although_nothing_can_be_sent_to_it(loop, listener):
    gate = threading.Event()
    dialler = socket.create_connection(listener.getsockname())
    server = end_of(loop, accepted(listener), None, is_server=True)
    loop.call(server.connection.accept)
    wait_until(lambda: server.is_open)
    loop.call(gate.wait, LIMIT_S)
    for number in range(3):
        server.send(1, b"are you there?")  # the first one makes the system notice, the next ones fail
        body = b"goodbye %d" % number
        dialler.sendall(pack_header(23, RUN, 0, 0, number, body) + body)
    reset(dialler)
    gate.set()
    wait_until(lambda: server.closed)
    assert [body for _, body in server.frames] == [b"goodbye 0", b"goodbye 1", b"goodbye 2"]


def test_a_peer_that_does_not_hang_up_is_hung_up_on(loop, listener, monkeypatch):
    monkeypatch.setattr(connection_module, "LINGER_NS", 1_000_000)
    with socket.create_connection(listener.getsockname(), LIMIT_S):
        server = end_of(loop, accepted(listener), None, is_server=True)
        loop.call(server.connection.accept)
        loop.call(server.connection.finish)
        wait_until(lambda: server.closed)
    assert server.reason == "closed by this side"


def test_a_mistake_may_be_answered_before_the_connection_closes(loop, listener):
    with socket.create_connection(listener.getsockname(), LIMIT_S) as stranger:
        server = end_of(loop, accepted(listener), None, is_server=True)

        def answer(connection: Connection, error: Exception) -> None:
            connection.send(Outgoing(5, (str(error).encode(),)))
            connection.finish()

        server.connection.handlers.on_mistake = answer
        loop.call(server.connection.accept)
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        reader, frames = Reader(LIMIT), []
        while count := stranger.recv_into(reader.buffer()):
            frames.append(reader.advance(count))
    words = [bytes(frame.body) for frame in frames if frame]
    assert len(words) == 1
    assert b"does not speak Atoll" in words[0]


def test_a_feed_that_cannot_go_on_closes_its_connection_and_no_other(connect: Pair):
    from atoll.errors import ProtocolError

    def feed(connection: Connection) -> Outgoing | None:
        raise ProtocolError("the content is not what it was said to be")

    other_server, other_client = connect()
    client = connect_unfed(other_server.connection.loop, feed)
    wait_until(lambda: client.closed)
    assert "not what it was said to be" in client.reason
    other_client.send(3, b"still here")
    wait_until(lambda: other_server.frames == [(3, b"still here")])


def connect_unfed(loop: Loop, feed: Callable[[Connection], Outgoing | None]) -> End:
    ours, _theirs = socket.socketpair()
    end = end_of(loop, ours, None, is_server=True, feed=feed)
    loop.call(end.connection.accept)
    return end


def test_a_tuned_socket_notices_within_a_minute_that_its_peer_has_vanished(listener):
    with socket.create_connection(listener.getsockname()) as sock:
        tune(sock, bulk=True)
        get = lambda option: sock.getsockopt(socket.IPPROTO_TCP, option)  # noqa: E731
        asks_for_s = get(socket.TCP_KEEPIDLE) + get(socket.TCP_KEEPCNT) * get(socket.TCP_KEEPINTVL)
        assert asks_for_s <= 60
        assert get(socket.TCP_USER_TIMEOUT) <= 60_000
