"""One learner's connections at the syncer: a control connection, data connections, an outbox.

A link belongs to one dial of one learner. It checks that nobody speaks in another's name, puts the pieces of
bulk messages together, and hands whole messages on. Which incarnation it carries, it learns from the messages
that pass: a link whose learner was fenced still hears that it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from atoll.core import messages as msg
from atoll.errors import WireError
from atoll.runtime.connection import Connection, Handlers, Outgoing
from atoll.runtime.failpoints import reach
from atoll.runtime.loop import Loop
from atoll.runtime.outbox import Outbox
from atoll.wire import messages as wire
from atoll.wire.bulk import Assembly
from atoll.wire.frames import Frame

__all__ = ["Link"]

MAX_OPEN = 64
"""Bulk messages of one learner that may arrive at the same time."""
SPOKEN = (
    msg.Hello,
    msg.Report,
    msg.Header,
    msg.Abstain,
    msg.Want,
    msg.MomentsAsk,
    msg.Restored,
    msg.Leave,
    wire.Telemetry,
)
"""What a learner says on its control connection once it is in."""


@dataclass(eq=False)
class Link:
    """See the module. Loop's thread only."""

    loop: Loop
    session: str
    secret: bytes
    name: str
    key: str
    control: Connection
    piece_bytes: int
    data: list[Connection] = field(default_factory=list)
    life: int | None = None
    """Of the learner, once it has said hello on this link."""
    incarnation: int = 0
    was_asked: bool = False
    outbox: Outbox = field(init=False)
    assembly: Assembly | None = None
    on_message: Callable[[Link, wire.Message, memoryview | None], None] = lambda link, message, content: None
    on_gone: list[Callable[[], None]] = field(default_factory=list)
    closed_up: int = 0
    closed_down: int = 0

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.piece_bytes)

    def expect(self, limit_bytes: int, size_of: Callable[[wire.Bulk], int | None]) -> None:
        """Allow bulk messages, of these sizes."""
        self.assembly = Assembly(limit_bytes, MAX_OPEN, self.piece_bytes, size_of)

    def control_handlers(self) -> Handlers:
        """For the control connection, from now on."""
        return Handlers(lambda connection: None, self._control_frame, self._control_closed)

    def attach(self, connection: Connection) -> None:
        """Another data connection."""
        connection.handlers = Handlers(
            lambda connection: None, self._data_frame, self._data_closed, lambda _: self._feed()
        )
        self.data.append(connection)
        connection.wake()

    def connections(self) -> list[Connection]:
        """All that are open."""
        return [self.control, *self.data]

    def traffic(self) -> tuple[int, int]:
        """Bytes from and to this learner, frames and all."""
        up = self.closed_up + sum(c.num_received for c in self.connections() if c.state != "closed")
        down = self.closed_down + sum(c.num_sent for c in self.connections() if c.state != "closed")
        return up, down

    # Out

    def send(self, message: msg.FromSyncer, content: memoryview | None = None) -> None:
        """A message to this learner; with content it goes over the data connections."""
        if isinstance(message, msg.Welcome):
            self.incarnation = message.incarnation
        if content is None:
            kind, body = wire.kind_of(message), wire.encode(message)
            self.control.send(Outgoing(kind, (body,), message.epoch, self.incarnation))
            return
        assert isinstance(message, (msg.Publish, msg.Moments))
        self.outbox.put(message, content)
        for connection in list(self.data):
            if not self.outbox.is_empty:  # most publishes are one piece
                connection.wake()

    def _feed(self) -> Outgoing | None:
        begun = self.outbox.current
        piece = self.outbox.feed()
        if begun is not None and self.outbox.current is begun:
            reach("S10")
        return piece

    def ask_who(self, epoch: int) -> None:
        """A life that dialled anew may not know that, and goes on as if nothing had happened: it has to say
        hello, so that what was on its way is sent again. Once is enough."""
        if not self.was_asked:
            self.was_asked = True
            self.send(msg.WhoIs(epoch))

    def close(self, reason: str) -> None:
        """End it."""
        self.control.close(reason)

    # In

    def _control_frame(self, connection: Connection, frame: Frame) -> None:
        message = wire.decode(frame.kind, frame.body)
        if not isinstance(message, SPOKEN):
            raise WireError(f"A learner may not send {type(message).__name__} here.")
        self._check_name(message)
        if isinstance(message, msg.Hello):
            self.life, self.incarnation = message.life, message.incarnation
        self.on_message(self, message, None)

    def _data_frame(self, connection: Connection, frame: Frame) -> None:
        if frame.kind != wire.PIECE or self.assembly is None:
            raise WireError(f"A data connection carries pieces only, not kind {frame.kind}.")
        whole = self.assembly.add(frame.body)
        if whole is not None:
            message, content = whole
            self.assembly.forget(lambda held: held is message)  # if it was no use, it comes again
            self._check_name(message)
            self.on_message(self, message, content)

    def _check_name(self, message: wire.Message) -> None:
        """Nobody speaks in another's name, or with another's key."""
        if getattr(message, "name", self.name) != self.name:
            raise WireError(f"{self.name} spoke in another's name.")
        if isinstance(message, msg.Hello) and message.key != self.key:
            raise WireError(f"{self.name} said hello with a key that it did not prove.")

    # Ends

    def _control_closed(self, connection: Connection, reason: str) -> None:
        self._count(connection)
        for other in list(self.data):
            other.close("the control connection is gone")
        self.outbox.clear()
        for what in self.on_gone:
            what()

    def _data_closed(self, connection: Connection, reason: str) -> None:
        self._count(connection)
        self.data.remove(connection)

    def _count(self, connection: Connection) -> None:
        self.closed_up += connection.num_received
        self.closed_down += connection.num_sent
