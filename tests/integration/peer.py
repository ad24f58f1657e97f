"""A learner driven by hand, message by message, over blocking sockets: for saying what no learner says."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import xxhash

from atoll.core import messages as msg
from atoll.numerics.manifest import Manifest
from atoll.numerics.partition import partition
from atoll.runtime.security.identity import LearnerIdentity
from atoll.runtime.security.tls import client_context
from atoll.wire import messages as wire
from atoll.wire.bulk import Assembly, cut
from atoll.wire.frames import VERSION, Frame, Reader, pack_header, run_id
from atoll.wire.url import RunURL, parse
from tests.integration.conditions import LIMIT_S
from tests.integration.programs import model

__all__ = ["Peer"]

LIFE = 4711
NOTHING = msg.Holding(-1, "", 0, 0, 0, 0, 0)


class Line:
    """Frames over one blocking socket."""

    def __init__(self, url: RunURL) -> None:
        sock = socket.create_connection((url.host, url.port), LIMIT_S)
        self.sock = sock if url.plain else client_context(None).wrap_socket(sock)
        self.run = run_id(url.run)
        self.reader = Reader(wire.LARGEST_BYTES)
        self.sequence = 0

    def send(self, kind: int, *parts: bytes | memoryview) -> None:
        header = pack_header(kind, self.run, 0, 0, self.sequence, *parts)
        self.sequence += 1
        self.sock.sendall(header + b"".join(bytes(part) for part in parts))

    def frames(self) -> Iterator[Frame]:
        """Until the other side hangs up, however it does that."""
        while True:
            try:
                count = self.sock.recv_into(self.reader.buffer())
            except TimeoutError:
                raise
            except OSError:
                return
            if not count:
                return
            frame = self.reader.advance(count)
            if frame is not None:
                yield frame


class Peer:
    """One learner's connections. Nothing is sent that was not asked for."""

    def __init__(self, url: str, token: str, name: str) -> None:
        parsed = parse(url)
        assert isinstance(parsed, RunURL)
        self.url, self.name = parsed, name
        self.identity = LearnerIdentity.load_or_make(None)
        self.line = Line(parsed)
        self.control, self.run = self.line.sock, self.line.run
        self.opening = wire.Open(VERSION, parsed.run, "learner", token, name, "by hand")
        self.accepted: wire.Accepted | None = None
        self.ready: wire.Ready | None = None
        self.manifest: Manifest | None = None
        self.incarnation = self.epoch = 0
        self.data: list[Line] = []
        self.holdings: list[msg.Holding] = []
        self.num_reports = self.clock = 0
        self.lock = threading.RLock()
        self.follower: threading.Thread | None = None

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in (self.line, *self.data):
            with contextlib.suppress(OSError):  # hung up on already
                socket.socket.shutdown(line.sock, socket.SHUT_RDWR)
        if self.follower is not None:  # while it reads, its descriptor must not become another's
            self.follower.join(LIMIT_S)
        for line in (self.line, *self.data):
            line.sock.close()

    def hang_up(self) -> None:
        """Say no more, and read until the other side hangs up too."""
        socket.socket.shutdown(self.control, socket.SHUT_WR)  # of TCP: what TLS still brings can be read
        for _ in self.line.frames():
            pass

    # Talking

    def say(self, *messages: wire.Message) -> None:
        with self.lock:
            for message in messages:
                self.line.send(wire.kind_of(message), wire.encode(message))

    def hear(self, *wanted: type) -> Any:
        """The next message of these kinds; others are passed over."""
        for frame in self.line.frames():
            message = wire.decode(frame.kind, frame.body)
            if isinstance(message, wanted):
                return message
        raise AssertionError(f"hung up without a {' or '.join(kind.__name__ for kind in wanted)}")

    def ask(self, message: wire.Message) -> wire.Message:
        self.say(message)
        return self.hear(object)

    def is_hung_up_on(self) -> bool:
        """Reads until the other side hangs up."""
        for _ in self.line.frames():
            pass
        return True

    # Getting in

    def open(self) -> None:
        self.say(self.opening)
        self.accepted = self.hear(wire.Accepted)

    def model_message(self, manifest: bytes | None = None) -> wire.Model:
        from atoll.config import RunConfig

        assert self.accepted is not None
        sync = RunConfig.from_toml(self.accepted.config).sync
        self.manifest = partition(model(), sync.num_fragments, sync.merge_rule)
        shown = json.dumps(self.manifest.to_dict()).encode() if manifest is None else manifest
        signature = self.identity.sign(self.accepted.challenge, self.name)
        return wire.Model(shown, self.manifest.digest, self.identity.public, signature)

    def get_in(self) -> None:
        """Up to Welcome, with one data connection."""
        self.open()
        self.say(self.model_message())
        self.ready = self.hear(wire.Ready)
        self.attach()
        self.say(msg.Hello(self.name, self.identity.key_id, LIFE, 0, 0))
        welcome = self.hear(msg.Welcome)
        self.incarnation, self.epoch, self.clock = welcome.incarnation, welcome.epoch, welcome.t

    def attach(self) -> Line:
        assert self.accepted is not None
        assert self.ready is not None
        line = Line(self.url)
        self.data.append(line)
        attach = wire.Attach(self.accepted.session, self.ready.secret)
        line.send(wire.kind_of(attach), wire.encode(attach))
        frame = next(line.frames())
        assert isinstance(wire.decode(frame.kind, frame.body), wire.Attached)
        return line

    # Taking part

    def follow(self) -> None:
        """Take in every version that is published, in the background, so as to be asked for offers."""
        assert self.manifest is not None
        self.holdings = [NOTHING] * len(self.manifest.fragments)
        self.follower = threading.Thread(target=self._follow, daemon=True)
        self.follower.start()
        self.report()

    def _follow(self) -> None:
        assert self.ready is not None
        assembly = Assembly(1 << 30, 64, self.ready.piece_bytes, lambda message: message.num_bytes)
        with contextlib.suppress(OSError, ValueError):  # the test is over
            for frame in self.data[0].frames():
                whole = assembly.add(frame.body)
                if whole is not None:
                    publish = whole[0]
                    assert isinstance(publish, msg.Publish)
                    held = msg.Holding(publish.version, publish.digest, 0, 0, 0, 0, 0)
                    self.holdings[publish.fragment] = held
                    self.report()

    def report(self, **changes: Any) -> None:
        with self.lock:
            self.num_reports += 1
            self._report(changes)

    def _report(self, changes: dict[str, Any]) -> None:
        fields: dict[str, Any] = {
            "name": self.name,
            "incarnation": self.incarnation,
            "epoch": self.epoch,
            "sequence": self.num_reports,
            "clock": self.clock,
            "tokens": 8 * self.clock,
            "step_ns": 1_000_000,
            "held_ns": 0,
            "held_on": -1,
            "echo_ns": 1 << 62,
            "holdings": tuple(self.holdings),
        }
        self.say(msg.Report(**{**fields, **changes}))

    def header(self, ask: msg.Ask) -> msg.Header:
        held = self.holdings[ask.fragment]
        bases = tuple(one.version for one in self.holdings)
        return msg.Header(
            self.name, self.incarnation, ask.epoch, ask.round, ask.fragment, held.version, held.digest,
            0, 8, 1, bases,
        )  # fmt: skip

    def body(self, ask: msg.Ask, content: bytes) -> msg.Body:
        name = xxhash.xxh3_128_hexdigest(content)
        fragment = ask.fragment
        return msg.Body(self.name, self.incarnation, ask.epoch, ask.round, fragment, name, len(content))

    def pieces(self, message: wire.Bulk, content: bytes) -> list[bytes]:
        assert self.ready is not None
        cuts = cut(message, memoryview(content), self.ready.piece_bytes)
        return [prefix + bytes(part) for prefix, part in cuts]

    def send_bulk(self, message: wire.Bulk, content: bytes) -> None:
        for piece in self.pieces(message, content):
            self.data[0].send(wire.PIECE, piece)
