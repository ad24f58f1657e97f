"""The syncer's door: who comes in, and the sentence for whoever does not.

A stranger has little: a frame of 64 KiB, a few seconds, and one of three first messages. `Open` with a good
token leads on: a reader may ask for the status, an admin may also end the run, a learner is given the
config and a challenge, and must answer with the run's model and a signature by its identity key. Then it is
`Ready`, and a `Link` carries its messages. `Attach` adds a data connection to a link, by the secret that
`Ready` told. Every refusal is a sentence that says which of these was wrong.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from atoll.config import RunConfig
from atoll.core.members import NAME
from atoll.errors import AtollError
from atoll.numerics.manifest import Manifest
from atoll.runtime.connection import Connection, Handlers, Outgoing
from atoll.runtime.links import Link
from atoll.runtime.loop import READ, Loop
from atoll.runtime.security.certificates import certified_name
from atoll.runtime.security.identity import key_id_of, verify
from atoll.runtime.security.tokens import Tokens
from atoll.runtime.sockets import tune
from atoll.wire import messages as wire
from atoll.wire.frames import VERSION, Frame, run_id

__all__ = ["Door", "House"]

log = logging.getLogger("atoll")

DOOR_LIMIT = 64 << 10
PATIENCE_NS = 15_000_000_000
"""A stranger that is not in by then is shut out."""
READER_PATIENCE_NS = 600_000_000_000
"""A reader may stay, but not in silence for ever: its place is needed."""
MAX_STRANGERS = 256
"""Connections that may stand at the door at the same time."""
BREATH_NS = 1_000_000_000
"""How long nobody is let in when there are no descriptors left."""


class House(Protocol):
    """What the door asks of the syncer behind it. All on the loop's thread."""

    def admit_model(self, manifest: Manifest, then: Callable[[str], None]) -> None:
        """Compare a model with the run's, or make it the run's; answers "" or why not."""

    def num_links(self) -> int:
        """Learners connected now."""

    def welcome(self, link: Link) -> None:
        """A learner is in."""

    def status(self) -> bytes:
        """The status as JSON."""

    def finish(self, reason: str) -> str:
        """An admin ends the run; answers "" or why not."""


@dataclass(eq=False)
class Door:
    """Listens, and turns connections into links. Loop's thread only, but for `open`."""

    loop: Loop
    run: str
    config: RunConfig
    tokens: Tokens
    context: ssl.SSLContext | None
    house: House
    listener: socket.socket | None = None
    links: dict[str, Link] = field(default_factory=dict)
    """By session."""
    visits: set[Connection] = field(default_factory=set)

    def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(1024)
        except BaseException:
            listener.close()
            raise
        listener.setblocking(False)
        self.listener = listener
        self.loop.call(self.loop.watch, listener, READ, self._knock)
        address: tuple[str, int] = listener.getsockname()[:2]
        return address

    def close(self) -> None:
        """Stop listening and let everybody go."""
        if self.listener is not None:
            self.loop.watch(self.listener, 0, self._knock)
            self.listener.close()
            self.listener = None
        for connection in [*self.visits, *(c for link in self.links.values() for c in link.connections())]:
            connection.close("the syncer is going down")

    def forget(self, link: Link) -> None:
        """A link is gone: its secret opens nothing any more."""
        self.links.pop(link.session, None)

    def _knock(self, mask: int) -> None:
        for _ in range(64):
            assert self.listener is not None
            try:
                sock, _ = self.listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:  # out of descriptors: those who are in matter more
                log.warning("cannot accept a connection: %s", error.strerror)
                self.loop.watch(self.listener, 0, self._knock)
                self.loop.after(BREATH_NS, self._listen_again)
                return
            if len(self.visits) >= MAX_STRANGERS:
                sock.close()
                continue
            tune(sock, bulk=False)
            visit = _Visit(self)
            handlers = Handlers(visit.opened, visit.frame, visit.closed, on_mistake=visit.mistaken)
            connection = Connection(
                self.loop, sock, run_id(self.run), DOOR_LIMIT, handlers, self.context, is_server=True
            )
            self.visits.add(connection)
            self.loop.after(PATIENCE_NS, visit.impatient, connection)
            connection.accept()

    def _listen_again(self) -> None:
        if self.listener is not None:
            self.loop.watch(self.listener, READ, self._knock)


@dataclass(eq=False)
class _Visit:
    """One connection on its way in."""

    door: Door
    opening: wire.Open | None = None
    challenge: bytes = b""
    session: str = ""
    has_shown: bool = False
    """The model, which is looked at once."""

    def opened(self, connection: Connection) -> None:
        """TLS is up; the visitor speaks first."""

    def closed(self, connection: Connection, reason: str) -> None:
        """Gone before it was in."""
        self.door.visits.discard(connection)
        if self.opening is not None:
            log.debug("%s left the door: %s", connection.peer, reason)

    def impatient(self, connection: Connection) -> None:
        """Long enough; a reader may stay as long as it asks."""
        loop = self.door.loop
        if connection not in self.door.visits:
            return
        is_reader = self.opening is not None and self.opening.role != "learner" and not connection.is_closing
        if is_reader and loop.now_ns() - connection.heard_ns <= READER_PATIENCE_NS:
            loop.after(PATIENCE_NS, self.impatient, connection)
        else:
            connection.close("took too long at the door")

    def mistaken(self, connection: Connection, error: AtollError) -> None:
        """Not the protocol, or another version of it."""
        self._reject(connection, error.what)

    def frame(self, connection: Connection, frame: Frame) -> None:
        """One message of a visitor."""
        message = wire.decode(frame.kind, frame.body)
        if isinstance(message, wire.Open) and self.opening is None:
            self._open(connection, message)
        elif isinstance(message, wire.Attach) and self.opening is None:
            self._attach(connection, message)
        elif self.opening is None:
            self._reject(connection, "Say Open or Attach first.")
        elif isinstance(message, wire.Model) and self.opening.role == "learner" and not self.has_shown:
            self.has_shown = True
            self._model(connection, message)
        elif isinstance(message, wire.StatusAsk) and self.opening.role != "learner":
            _send(connection, wire.Status(self.door.house.status()))
        elif isinstance(message, wire.FinishAsk) and self.opening.role == "admin":
            why_not = self.door.house.finish(message.reason)
            _send(connection, wire.Done(why_not or f"the run will end: {message.reason}"))
        else:
            role = self.opening.role
            self._reject(connection, f"A {role} may not send {type(message).__name__}.")

    def _open(self, connection: Connection, message: wire.Open) -> None:
        door = self.door
        why_not = self._why_not(message) or self._why_not_certified(connection, message)
        if why_not:
            self._reject(connection, why_not)
            return
        if message.role == "learner" and self._is_full(connection):
            return
        self.opening = message
        self.challenge, self.session = secrets.token_bytes(32), secrets.token_hex(16)
        connection.trust(wire.limit_of(wire.kind_of(_ANY_MODEL)))
        _send(
            connection,
            wire.Accepted(VERSION, door.run, door.config.to_toml(), self.challenge, self.session),
        )

    def _is_full(self, connection: Connection) -> bool:
        """Asked when a learner knocks, and again when it is let in: others may have been faster."""
        limit = self.door.config.network.max_learners
        if self.door.house.num_links() < limit:
            return False
        self._reject(connection, f"The run is full: network.max_learners is {limit}.", retry=True)
        return True

    def _why_not(self, message: wire.Open) -> str:
        door = self.door
        if message.protocol != VERSION:
            return (
                f"Protocol version {message.protocol} is not {VERSION}, which this syncer speaks: "
                "install the same version of Atoll on both sides."
            )
        if message.run != door.run:
            return f"This syncer serves run {door.run!r}, not {message.run!r}: check the URL."
        if door.context is not None and not door.tokens.role_allows(message.role, message.token):
            return f"The token is wrong for the role {message.role}: check ATOLL_TOKEN."
        if message.role == "learner" and not NAME.fullmatch(message.name):
            return f"The name {message.name[:80]!r} does not match {NAME.pattern}."
        return ""

    def _why_not_certified(self, connection: Connection, message: wire.Open) -> str:
        """mTLS: the certificate names the learner, and nobody else may use that name."""
        if not self.door.config.security.mtls or message.role != "learner":
            return ""
        try:
            name = certified_name(connection.certificate or b"")
        except AtollError as error:
            return error.what
        if name != message.name:
            return f"The certificate is for {name!r}, not for {message.name!r}."
        return ""

    def _model(self, connection: Connection, message: wire.Model) -> None:
        assert self.opening is not None
        name = self.opening.name
        if not verify(message.key, message.signature, self.challenge, name):
            self._reject(connection, "The signature does not prove the identity key.")
            return
        try:
            manifest = Manifest.from_dict(json.loads(message.manifest))
        except (ValueError, TypeError, RecursionError):
            self._reject(connection, "The manifest of the model is not JSON.")
            return
        except AtollError as error:
            self._reject(connection, error.what)
            return

        def answer(why_not: str) -> None:
            if connection.state != "open" or connection.is_closing:
                return
            if why_not:
                self._reject(connection, why_not)
            elif not self._is_full(connection):
                self._let_in(connection, name, key_id_of(message.key))

        self.door.house.admit_model(manifest, answer)

    def _let_in(self, connection: Connection, name: str, key: str) -> None:
        door, network = self.door, self.door.config.network
        door.visits.discard(connection)
        secret = secrets.token_bytes(32)
        link = Link(door.loop, self.session, secret, name, key, connection, network.piece_bytes)
        door.links[self.session] = link
        link.on_gone.append(lambda: door.forget(link))
        connection.trust(wire.LARGEST_BYTES)
        connection.handlers = link.control_handlers()
        ready = wire.Ready(
            secret, network.data_connections, network.piece_bytes, door.config.shards, door.config.data.seed
        )
        _send(connection, ready)
        if connection.state != "closed":
            door.house.welcome(link)

    def _attach(self, connection: Connection, message: wire.Attach) -> None:
        door = self.door
        link = door.links.get(message.session)
        if link is None or not hmac.compare_digest(link.secret, message.secret):
            self._reject(connection, "There is no such session: join again.", retry=True)
            return
        if len(link.data) >= door.config.network.data_connections:
            self._reject(connection, "This session has all its data connections.", retry=True)
            return
        door.visits.discard(connection)
        connection.trust(wire.limit_of(wire.PIECE))
        tune(connection.sock, bulk=True)
        _send(connection, wire.Attached())
        if connection.state != "closed":
            link.attach(connection)

    def _reject(self, connection: Connection, reason: str, *, retry: bool = False) -> None:
        if connection.is_closing:
            return
        log.warning("refused %s: %s", connection.peer, reason)
        _send(connection, wire.Rejected(reason, retry))
        connection.finish()


def _send(connection: Connection, message: wire.Message) -> None:
    connection.send(Outgoing(wire.kind_of(message), (wire.encode(message),)))


_ANY_MODEL = wire.Model(b"", "", b"", b"")
