"""One socket, TLS or plain, that carries frames both ways without ever blocking.

Outward, frames wait in a queue; when it is empty a `feed`, if there is one, is asked for the next frame,
so that bulk data is cut only as fast as the link takes it. Inward, bytes are received straight into the
reader's buffers. Whatever goes wrong (the other side closed, a bad frame, a bad certificate) closes the
connection with a reason, once; nothing is raised out of it.

Last words are let arrive. To close a socket with bytes unread resets it, and a reset may overtake what was
sent before; so whoever is refused is read, and not listened to, until it hangs up or a moment has passed.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from atoll.errors import AtollError, WireError
from atoll.runtime.loop import READ, WRITE, Loop
from atoll.runtime.sockets import num_in_kernel, reason_of
from atoll.wire.frames import Frame, Reader, pack_header

__all__ = ["Connection", "Handlers", "Outgoing"]

log = logging.getLogger("atoll")

READ_TURN = 4 << 20
WRITE_TURN = 4 << 20
"""Bytes moved before other sockets have their turn."""
MAX_QUEUED = 64 << 20
"""A peer that lets this many bytes of control messages pile up is cut off; bulk data is fed, not queued."""
SMALL = 16 << 10
"""Parts up to this size are joined into one write, and one TLS record."""
NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")
"""What OpenSSL says of a client that does not begin with a handshake."""
LINGER_NS = 2_000_000_000
"""How long a peer has to hang up after last words."""


@dataclass(slots=True)
class Outgoing:
    """A frame to be sent."""

    kind: int
    parts: tuple[bytes | memoryview, ...]
    epoch: int = 0
    incarnation: int = 0


@dataclass(slots=True)
class Handlers:
    """What a connection tells its owner. `on_close` comes exactly once, with the reason.

    A peer's mistake closes the connection, unless `on_mistake` takes care of that with a last word.
    """

    on_open: Callable[[Connection], None]
    on_frame: Callable[[Connection, Frame], None]
    on_close: Callable[[Connection, str], None]
    feed: Callable[[Connection], Outgoing | None] | None = None
    on_mistake: Callable[[Connection, AtollError], None] | None = None


Piece: TypeAlias = bytes | memoryview


@dataclass(eq=False)
class Connection:
    """See the module. Everything here happens on the loop's thread."""

    loop: Loop
    sock: socket.socket
    run: int
    limit: int
    handlers: Handlers
    context: ssl.SSLContext | None = None
    is_server: bool = False
    state: str = "new"
    """new, connecting, handshaking, open, lingering, closed."""
    reader: Reader = field(init=False)
    peer: str = ""
    num_received: int = 0
    num_sent: int = 0
    heard_ns: int = 0
    sequence: int = 0
    queue: deque[Piece] = field(default_factory=deque)
    num_queued: int = 0
    watched: int = 0
    """What the loop watches the socket for."""
    is_closing: bool = False
    is_mute: bool = False
    """The other side takes nothing any more."""
    error: Exception | None = None
    """What closed it, if something went wrong."""

    def __post_init__(self) -> None:
        self.reader = Reader(self.limit)
        self.sock.setblocking(False)
        self.heard_ns = self.loop.now_ns()

    # Opening

    def accept(self) -> None:
        """Begin as the side that was dialled."""
        self._name_peer()
        self._secure()

    def connect(self, address: tuple[str, int]) -> None:
        """Begin as the side that dials; the name must be resolved already."""
        self.state = "connecting"
        try:
            code = self.sock.connect_ex(address)
        except OSError as error:
            self._fail(error)
            return
        if code not in (0, errno.EINPROGRESS):
            self._fail(OSError(code, ""))
            return
        self._watch(WRITE)

    def _secure(self) -> None:
        if self.context is None:
            self._opened()
            return
        if self.state == "connecting":
            self._watch(0)  # wrapping makes a new socket object of the same descriptor
        self.state = "handshaking"
        try:
            self.sock = self.context.wrap_socket(
                self.sock,
                server_side=self.is_server,
                do_handshake_on_connect=False,
                suppress_ragged_eofs=False,
            )
        except (OSError, ValueError) as error:  # a peer that has gone already
            self._fail(error)
            return
        self._shake_hands()

    def _shake_hands(self) -> None:
        assert isinstance(self.sock, ssl.SSLSocket)
        try:
            self.sock.do_handshake()
        except ssl.SSLWantReadError:
            self._watch(READ)
        except ssl.SSLWantWriteError:
            self._watch(WRITE)
        except (OSError, ValueError) as error:
            if not self.is_server:
                self._fail(error)
            elif getattr(error, "reason", "") in NOT_TLS and self.handlers.on_mistake is not None:
                self._answer_in_plain(self.handlers.on_mistake)
            else:  # OpenSSL has told the peer why; it should read that
                self.error = error
                self._linger(reason_of(error))
        else:
            self._opened()

    def _answer_in_plain(self, answer: Callable[[Connection, AtollError], None]) -> None:
        """Whoever does not speak TLS could not read a refusal in TLS."""
        self._watch(0)
        self.sock = socket.socket(fileno=self.sock.detach())
        self.sock.setblocking(False)
        self.state = "open"
        self._watch(READ)
        answer(self, WireError("This syncer speaks TLS, and the other side does not: use its atoll:// URL."))

    def _opened(self) -> None:
        self.state = "open"
        self._watch(READ)
        self._guard(self.handlers.on_open, self)
        if self.state == "open":
            self._flush()

    def _name_peer(self) -> None:
        try:
            peer = self.sock.getpeername()
        except OSError:
            return
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local"

    @property
    def certificate(self) -> bytes | None:
        """The other side's certificate, DER."""
        return self.sock.getpeercert(binary_form=True) if isinstance(self.sock, ssl.SSLSocket) else None

    # Sending

    @property
    def num_left(self) -> int:
        """Bytes sent that have left the system and arrived, as far as the system tells."""
        return self.num_sent - num_in_kernel(self.sock)

    def send(self, *frames: Outgoing) -> None:
        """Queue control frames and send what the socket takes now; small ones share a write."""
        if self.state == "closed" or self.is_closing or self.is_mute:
            return
        self._enqueue(frames)
        if self.num_queued > MAX_QUEUED:
            self.close(f"{self.num_queued} bytes wait for a peer that does not read")
        elif self.state == "open":
            self._flush()

    def wake(self) -> None:
        """The feed has something again."""
        if self.state == "open" and not self.queue and not self.is_mute:
            self._flush()

    def _enqueue(self, frames: Iterable[Outgoing]) -> None:
        small: list[Piece] = []
        for frame in frames:
            header = pack_header(
                frame.kind, self.run, frame.epoch, frame.incarnation, self.sequence, *frame.parts
            )
            self.sequence += 1
            small.append(header)
            for part in frame.parts:
                if len(part) <= SMALL:
                    small.append(part)
                else:
                    self._append(b"".join(small))
                    small = []
                    self._append(memoryview(part))
        self._append(b"".join(small))

    def _append(self, piece: Piece) -> None:
        if len(piece):
            self.queue.append(piece)
            self.num_queued += len(piece)

    def _flush(self) -> None:
        budget = WRITE_TURN
        wants = READ
        try:
            while budget > 0:
                if not self.queue and not self._fetch():
                    break
                piece = self.queue[0]
                sent = self.sock.send(piece)
                budget -= sent
                self.num_sent += sent
                self.num_queued -= sent
                if sent == len(piece):
                    self.queue.popleft()
                else:
                    self.queue[0] = memoryview(piece)[sent:]
            else:
                wants |= WRITE
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            wants |= WRITE
        except (OSError, ValueError, AtollError) as error:
            self._hear_out(error)
            return
        if self.is_closing and not self.queue:
            self._linger("closed by this side")
            return
        self._watch(wants)

    def _hear_out(self, error: Exception) -> None:
        """Nothing can be sent: the other side has gone. What it said before that may still wait here, and
        is read in the next turn: now its owner is busy with sending."""
        if not isinstance(error, OSError):
            self._fail(error)
            return
        self.is_mute = True
        self.queue.clear()
        self.num_queued = 0
        self.loop.after(LINGER_NS, self._fail, error)
        self._watch(READ)

    def _fetch(self) -> bool:
        if self.handlers.feed is None or self.is_closing:
            return False
        frame = self.handlers.feed(self)
        if frame is None:
            return False
        self._enqueue((frame,))
        return True

    # Receiving

    def _ready(self, mask: int) -> None:
        if self.state == "connecting":
            self._connected()
        elif self.state == "handshaking":
            self._shake_hands()
        elif self.state == "open":
            if mask & WRITE and not self.is_mute:
                self._flush()
            if mask & READ and self.state == "open":
                self._guard(self._receive)
        elif self.state == "lingering":
            self._ignore()

    def _connected(self) -> None:
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(OSError(code, ""))
        elif self.sock.getsockname() == self.sock.getpeername():
            # TCP does that on one host: the port that nobody listens on was given to us to dial from.
            self._fail(OSError(errno.ECONNREFUSED, ""))
        else:
            self._name_peer()
            self._secure()

    def _receive(self) -> None:
        budget = READ_TURN
        self.heard_ns = self.loop.now_ns()
        try:
            while budget > 0 and self.state == "open":
                count = self.sock.recv_into(self.reader.buffer())
                if count == 0:
                    self.close("the other side closed the connection")
                    return
                budget -= count
                self.num_received += count
                frame = None if self.is_closing else self.reader.advance(count)
                if frame is not None:
                    self.handlers.on_frame(self, frame)
                    if isinstance(self.sock, ssl.SSLSocket) and not self.sock.pending():
                        return  # another read might be in vain; what the kernel holds is announced
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
            return
        except (OSError, ValueError) as error:
            self._fail(error)
            return
        if self.state == "open":  # TLS may hold bytes that no selector will announce
            self.loop.call(self._ready, READ)

    def trust(self, limit: int | None = None) -> None:
        """Past the door: from here on every frame must carry this run, and may be larger."""
        self.reader.run = self.run
        self.reader.limit = self.limit if limit is None else limit

    # Closing

    def finish(self) -> None:
        """Listen no more, and close once everything queued has been sent."""
        self.is_closing = True
        if not self.queue:
            self._linger("closed by this side")

    def _linger(self, reason: str) -> None:
        """Hang up, and wait a moment for the other side to do so."""
        if self.state in ("lingering", "closed"):
            return
        try:
            self.sock.shutdown(socket.SHUT_WR)  # ends TLS, too: from here on bytes are bytes
        except (OSError, ValueError):
            self.close(reason)
            return
        self.state, self.is_closing = "lingering", True
        self.loop.after(LINGER_NS, self.close, reason)
        self._watch(READ)

    def _ignore(self) -> None:
        """Receive what is of no interest any more."""
        try:
            if not self.sock.recv(SMALL):
                self.close("closed by this side")
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, ValueError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.error = error
        self.close(reason_of(error))

    def close(self, reason: str) -> None:
        """Close now; the owner hears of it once."""
        if self.state == "closed":
            return
        if self.state != "new":
            self._watch(0)
        self.state = "closed"
        self.queue.clear()
        self.num_queued = 0
        try:
            self.sock.close()
        except OSError as error:
            log.debug("closing %s: %s", self.peer, error)
        self.handlers.on_close(self, reason)

    def _watch(self, mask: int) -> None:
        if mask != self.watched:  # asked for with every frame, and seldom news
            self.watched = mask
            self.loop.watch(self.sock, mask, self._ready)

    def _guard(self, what: Callable[..., None], *args: object) -> None:
        """A peer's mistake ends its own connection and nothing else."""
        try:
            what(*args)
        except AtollError as error:
            self.error = error
            if self.handlers.on_mistake is not None and self.state == "open":
                self.handlers.on_mistake(self, error)
            else:
                self._fail(error)
