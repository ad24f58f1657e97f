"""A learner's way to its syncer: one control connection, several data connections, redialled for ever.

    dial -> open -> Accepted(config) -> Model(manifest, identity) -> Ready -> attach the data connections

The learner dials out; nothing dials in. Control messages have a connection of their own and never wait
behind bulk data. When the control connection breaks or falls silent, all connections go and the uplink dials
again, with a jittered back-off, as long as the process lives: what was on its way is lost, which the protocol
bears. Only before the first admission does a refusal end it, or an answer that is not a syncer's: then the
user is still there to read the reason.
"""

from __future__ import annotations

import logging
import random
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata

from atoll.core import messages as msg
from atoll.errors import AtollError, JoinError
from atoll.runtime.connection import Connection, Handlers, Outgoing
from atoll.runtime.failpoints import reach
from atoll.runtime.loop import Loop, Timer
from atoll.runtime.outbox import Outbox
from atoll.runtime.refusals import why_hopeless
from atoll.runtime.security.tls import check_fingerprint
from atoll.runtime.sockets import tune
from atoll.wire import messages as wire
from atoll.wire.bulk import Assembly
from atoll.wire.frames import VERSION, Frame, run_id
from atoll.wire.url import RunURL

__all__ = ["Events", "Uplink"]

log = logging.getLogger("atoll")

ATTEMPT_S = 15.0
"""A dial that has not reached Ready by then is given up and tried again."""
FIRST_BACKOFF_S = 0.1
LAST_BACKOFF_S = 1.0
MAX_WAITING = 4096
"""Control messages kept while the loop is busy; state is repeated, so the oldest may go."""
DOOR_LIMIT = 2 << 20
"""Largest frame before Ready: the config."""
MAX_ASSEMBLY = 1 << 40
MAX_OPEN = 64
"""Bulk messages of the syncer, trusted by its key, that may arrive at the same time."""
SOFTWARE = f"atoll {metadata.version('atoll')}"


@dataclass(slots=True)
class Events:
    """What the uplink tells the learner, on the loop's thread."""

    model: Callable[[wire.Accepted], wire.Model]
    """The config is here: answer with the manifest and a proof of identity. May raise AtollError."""
    ready: Callable[[wire.Ready], None]
    message: Callable[[wire.Message, memoryview | None], None]
    size_of: Callable[[wire.Bulk], int | None]
    """Expected size of a bulk message's content."""
    failed: Callable[[AtollError], None]
    """Will not come right by itself: refused, not our syncer, not our protocol."""
    silent_s: Callable[[], float]
    """Seconds without a word after which the connection counts as broken."""
    link: Callable[[bool, str], None]
    """The control connection is up, or down with the reason."""


@dataclass(eq=False)
class Uplink:
    """See the module. `tell` and `bulk` may be called from any thread; they never block."""

    loop: Loop
    url: RunURL
    token: str
    name: str
    context: ssl.SSLContext | None
    events: Events
    control: Connection | None = None
    data: list[Connection] = field(default_factory=list)
    attached: set[Connection] = field(default_factory=set)
    carried: dict[tuple[Connection, wire.Bulk], int] = field(default_factory=dict)
    """Where in a data connection's bytes the last piece of a message ends."""
    session: str = ""
    secret: bytes = b""
    num_data: int = 0
    outbox: Outbox = field(default_factory=lambda: Outbox(1 << 20))
    assembly: Assembly | None = None
    is_ready: bool = False
    was_ready: bool = False
    is_stopped: bool = False
    on_stopped: Callable[[], None] = lambda: None
    num_failures: int = 0
    last_reason: str = ""
    bytes_up: int = 0
    bytes_down: int = 0
    telling: deque[wire.Message] = field(default_factory=lambda: deque(maxlen=MAX_WAITING))
    is_scheduled: bool = False
    num_dials: int = 0
    attempt: Timer | None = None
    address: tuple[int, tuple[str, int]] = (socket.AF_INET, ("", 0))

    # From any thread

    def tell(self, message: wire.Message) -> None:
        """Send a control message soon, if the link is up; else it is dropped, as the protocol allows."""
        self.telling.append(message)
        if not self.is_scheduled:
            self.is_scheduled = True
            self.loop.call(self._drain)

    def bulk(self, message: wire.Bulk, content: memoryview) -> None:
        """Send a message with content over the data connections, unless it is still on its way."""
        self.loop.call(self._bulk, message, content)

    def start(self) -> None:
        """Begin to dial."""
        self.loop.call(self._dial)
        self.loop.call(self._watch_silence)

    def stop(self, then: Callable[[], None] = lambda: None) -> None:
        """Close everything and stay closed, so that what was sent arrives; then call back, on the loop."""
        self.loop.call(self._stop, then)

    @property
    def is_drained(self) -> bool:
        """Whether everything told and everything bulky has left this process."""
        if not self.is_ready or self.control is None:
            return True
        pending = bool(self.telling) or not self.outbox.is_empty or bool(self.control.num_queued)
        return not pending and not any(connection.num_queued for connection in self.data)

    # Dialling

    def _dial(self) -> None:
        if self.is_stopped or self.control is not None:
            return
        if self.attempt is not None:
            self.attempt.cancel()
        self.attempt = self.loop.after(int(ATTEMPT_S * 1e9), self._give_up)
        self.num_dials += 1
        resolver = threading.Thread(
            target=self._resolve, args=(self.num_dials,), name="atoll-resolve", daemon=True
        )
        resolver.start()

    def _resolve(self, dial: int) -> None:
        """Names may take seconds to resolve, so that happens on a thread of its own."""
        try:
            found = socket.getaddrinfo(self.url.host, self.url.port, type=socket.SOCK_STREAM)
        except OSError as error:
            self.loop.call(self._unresolved, dial, f"{self.url.host} cannot be resolved: {error.strerror}")
        else:  # of several addresses each has its turn: not every one may be reachable from here
            family, _, _, _, address = found[(dial - 1) % len(found)]
            self.loop.call(self._resolved, dial, family, address)

    def _unresolved(self, dial: int, reason: str) -> None:
        if self._is_current(dial):
            self._broken(reason)

    def _is_current(self, dial: int) -> bool:
        """Whether a resolver's answer is still waited for: it may come long after the dial was given up."""
        return dial == self.num_dials and not self.is_stopped and self.control is None

    def _resolved(self, dial: int, family: int, address: tuple[str, int]) -> None:
        if not self._is_current(dial):
            return
        self.address = (family, address)
        handlers = Handlers(self._opened, self._control_frame, self._closed)
        self.control = self._connection(handlers, DOOR_LIMIT, bulk=False)
        self.control.connect(address)

    def _connection(self, handlers: Handlers, limit: int, *, bulk: bool) -> Connection:
        sock = socket.socket(self.address[0], socket.SOCK_STREAM)
        tune(sock, bulk=bulk)
        return Connection(self.loop, sock, run_id(self.url.run), limit, handlers, self.context)

    def _opened(self, connection: Connection) -> None:
        try:
            self._check_syncer(connection)
        except JoinError as error:
            connection.close(error.what)
            self._refused(error)
            return
        opening = wire.Open(VERSION, self.url.run, "learner", self.token, self.name, SOFTWARE)
        connection.send(_frame(opening))

    def _check_syncer(self, connection: Connection) -> None:
        """Before a single secret leaves: is this the syncer that the URL names?"""
        if self.context is not None:
            check_fingerprint(connection.certificate, self.url.fingerprint)

    def _give_up(self) -> None:
        if self.control is not None and not self.is_ready:
            self.control.close(f"no answer within {ATTEMPT_S:g} s")
        elif self.control is None:
            self._broken(f"no answer within {ATTEMPT_S:g} s")

    def _closed(self, connection: Connection, reason: str) -> None:
        if connection is self.control:
            self._count(connection)
            self.control = None
            self._broken(reason)
            hopeless = why_hopeless(connection.error, self.url, self.name)
            if hopeless is not None and not self.was_ready:
                self._refused(hopeless)
            if self.is_stopped:
                self.on_stopped()

    def _broken(self, reason: str) -> None:
        """Everything goes; dial again after a while."""
        if self.attempt is not None:
            self.attempt.cancel()
        self.last_reason = reason
        was_up, self.is_ready = self.is_ready, False
        for connection in list(self.data):
            connection.close("the control connection is gone")
        self.outbox.clear()
        self.assembly = None
        if was_up and not self.is_stopped:
            self.events.link(False, reason)
        if not self.is_stopped:
            backoff = min(FIRST_BACKOFF_S * 2 ** min(self.num_failures, 16), LAST_BACKOFF_S)
            self.num_failures += 1
            self.loop.after(int(backoff * random.uniform(0.5, 1.5) * 1e9), self._dial)

    def _refused(self, error: AtollError) -> None:
        """Fatal before the first admission; later the syncer may be replaced, so go on trying."""
        self.num_failures = max(self.num_failures, 4)
        if not self.was_ready:
            self.is_stopped = True
        self.events.failed(error)

    def _watch_silence(self) -> None:
        control, limit_ns = self.control, int(self.events.silent_s() * 1e9)
        if control is not None and self.is_ready and self.loop.now_ns() - control.heard_ns > limit_ns:
            control.close(f"nothing heard for {limit_ns / 1e9:.1f} s")
        if not self.is_stopped:
            self.loop.after(max(limit_ns // 4, 50_000_000), self._watch_silence)

    # The door

    def _control_frame(self, connection: Connection, frame: Frame) -> None:
        message = wire.decode(frame.kind, frame.body)
        if self.is_ready:
            self.events.message(message, None)
        elif isinstance(message, wire.Accepted):
            self._accepted(connection, message)
        elif isinstance(message, wire.Ready):
            self._ready(connection, message)
        elif isinstance(message, wire.Rejected):
            connection.close(f"refused: {message.reason}")
            if not message.retry:
                self._refused(
                    JoinError(message.reason, "The syncer did not let this learner in.", _CURES["refused"])
                )

    def _accepted(self, connection: Connection, message: wire.Accepted) -> None:
        self.session = message.session
        try:
            answer = self.events.model(message)
        except AtollError as error:
            connection.close(error.what)
            self._refused(error)
            return
        connection.send(_frame(answer))

    def _ready(self, connection: Connection, message: wire.Ready) -> None:
        if self.attempt is not None:
            self.attempt.cancel()
        self.is_ready = self.was_ready = True
        self.num_failures = 0
        connection.trust(wire.LARGEST_BYTES)
        self.secret, self.num_data = message.secret, message.data_connections
        self.outbox = Outbox(message.piece_bytes)
        self.assembly = Assembly(MAX_ASSEMBLY, MAX_OPEN, message.piece_bytes, self.events.size_of)
        for _ in range(self.num_data):
            self._dial_data()
        self.events.link(True, "")
        self.events.ready(message)

    # Data connections

    def _dial_data(self) -> None:
        if not self.is_ready or len(self.data) >= self.num_data:
            return
        handlers = Handlers(self._data_opened, self._data_frame, self._data_closed, self._feed)
        connection = self._connection(handlers, wire.limit_of(wire.PIECE), bulk=True)
        self.data.append(connection)
        connection.connect(self.address[1])

    def _data_opened(self, connection: Connection) -> None:
        self._check_syncer(connection)
        connection.send(_frame(wire.Attach(self.session, self.secret)))

    def _data_frame(self, connection: Connection, frame: Frame) -> None:
        if frame.kind == wire.PIECE and self.assembly is not None:
            whole = self.assembly.add(frame.body)
            if whole is not None:
                self.assembly.forget(lambda message: message is whole[0])  # if it was no use, it comes again
                self.events.message(whole[0], whole[1])
            else:
                reach("L9")
            return
        message = wire.decode(frame.kind, frame.body)
        if isinstance(message, wire.Attached):
            connection.trust()
            self.attached.add(connection)
            connection.wake()
        elif isinstance(message, wire.Rejected):
            connection.close(message.reason)

    def _data_closed(self, connection: Connection, reason: str) -> None:
        self._count(connection)
        self.attached.discard(connection)
        self.data.remove(connection)
        if self.is_stopped:
            self._hang_up()
        elif self.is_ready:
            log.debug("%s: data connection closed: %s", self.name, reason)
            self.loop.after(int(random.uniform(0.5, 1.5) * 1e9), self._dial_data)

    def _feed(self, connection: Connection) -> Outgoing | None:
        if connection not in self.attached:
            return None
        begun = self.outbox.current
        piece = self.outbox.feed()
        if isinstance(begun, msg.Body):
            reach("L7" if self.outbox.current is begun else "L8")
        if piece is not None and self.outbox.current is not None:
            end = connection.num_sent + sum(len(part) for part in piece.parts)
            self.carried[connection, self.outbox.current] = end
        return piece

    def _is_under_way(self, message: wire.Bulk) -> bool:
        """Whether it waits, or a piece of it may not have arrived. On a thin link that takes many seconds;
        sent again whenever the syncer asks again, it would take twice as many."""
        carried = self.carried.items()
        self.carried = {key: end for key, end in carried if key[0] in self.attached and key[0].num_left < end}
        return self.outbox.holds(message) or any(message == held for _, held in self.carried)

    # Sending

    def _drain(self) -> None:
        self.is_scheduled = False
        batch = [self.telling.popleft() for _ in range(len(self.telling))]
        newest = next((m for m in reversed(batch) if isinstance(m, msg.Report)), None)
        if self.control is not None and self.is_ready:  # of several reports, only the newest says anything
            useful = [m for m in batch if m is newest or not isinstance(m, msg.Report)]
            self.control.send(*map(_frame, useful))

    def _bulk(self, message: wire.Bulk, content: memoryview) -> None:
        if self.is_ready and not self._is_under_way(message):
            self.outbox.put(message, content)
            for connection in list(self.attached):
                if not self.outbox.is_empty:  # most bodies are one piece
                    connection.wake()

    def _count(self, connection: Connection) -> None:
        self.bytes_up += connection.num_sent
        self.bytes_down += connection.num_received

    def traffic(self) -> tuple[int, int]:
        """Bytes up and down since the beginning, frames and all."""
        connections = [*self.data, *([self.control] if self.control is not None else [])]
        up = self.bytes_up + sum(connection.num_sent for connection in connections)
        down = self.bytes_down + sum(connection.num_received for connection in connections)
        return up, down

    def _stop(self, then: Callable[[], None]) -> None:
        self.is_stopped, self.on_stopped = True, then
        for connection in list(self.data):
            _finish(connection)
        self._hang_up()

    def _hang_up(self) -> None:
        """The control connection goes last: with it the syncer lets go of bodies that are still arriving."""
        if self.control is None:
            self.on_stopped()
        elif not self.data:
            _finish(self.control)


def _finish(connection: Connection) -> None:
    """Not with a reset: that could overtake what was sent before."""
    if connection.state == "open":
        connection.finish()
    else:
        connection.close("closed by this side")


def _frame(message: wire.Message) -> Outgoing:
    epoch, incarnation = getattr(message, "epoch", 0), getattr(message, "incarnation", 0)
    return Outgoing(wire.kind_of(message), (wire.encode(message),), epoch, incarnation)


_CURES = {"refused": "Check the URL, the token, the name and the model against the run's, then join again."}
