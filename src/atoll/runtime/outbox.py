"""Bulk messages that wait for a link, cut into pieces only as fast as links take them.

Several data connections feed from one outbox: whichever can write takes the next piece, so a message is
striped over all of them and a slow connection slows nobody. A piece that was handed to a connection that
then breaks is lost, and with it the message; the protocol asks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from atoll.runtime.connection import Outgoing
from atoll.wire.bulk import cut
from atoll.wire.messages import PIECE, BufferValues, Bulk

__all__ = ["Outbox"]

MAX_PER_FRAGMENT = 2
"""Messages of one kind on one fragment that may wait. A peer that is further behind will ask for the newest
version whole, so memory stays within two models however slow its link is."""


@dataclass(slots=True)
class Outbox:
    """A bounded queue of bulk messages with their content. One thread only."""

    piece_bytes: int
    waiting: deque[tuple[Bulk, memoryview]] = field(default_factory=deque)
    current: Bulk | None = None
    pieces: Iterator[tuple[bytes, memoryview]] | None = None
    num_messages: int = 0

    def put(self, message: Bulk, content: memoryview) -> None:
        """Let a message wait for its turn; the content must not change any more.

        If too many wait already, the oldest of them goes: the protocol asks again for what it misses.
        """
        about = _about(message)
        alike = [held for held in self.waiting if _about(held[0]) == about]
        if len(alike) >= MAX_PER_FRAGMENT:
            self.waiting = deque(held for held in self.waiting if held is not alike[0])
        self.waiting.append((message, content))

    def holds(self, message: Bulk) -> bool:
        """Whether this very message still waits or is being sent."""
        return message == self.current or any(message == held for held, _ in self.waiting)

    @property
    def is_empty(self) -> bool:
        """Whether everything was handed to a connection."""
        return self.pieces is None and not self.waiting

    def feed(self) -> Outgoing | None:
        """The next piece, or None."""
        while True:
            if self.pieces is None:
                if not self.waiting:
                    return None
                self.current, content = self.waiting.popleft()
                self.pieces = cut(self.current, content, self.piece_bytes)
            for prefix, part in self.pieces:
                epoch = getattr(self.current, "epoch", 0)
                return Outgoing(PIECE, (prefix, part), epoch, getattr(self.current, "incarnation", 0))
            self.num_messages += 1
            self.current = self.pieces = None

    def clear(self) -> None:
        """Forget everything: the other side is gone."""
        self.waiting.clear()
        self.current = self.pieces = None


def _about(message: Bulk) -> tuple[type, int, str]:
    """Messages about the same: a later one makes an earlier one needless, or is asked for whole."""
    first_buffer = message.names[0] if isinstance(message, BufferValues) and message.names else ""
    return type(message), getattr(message, "fragment", -1), first_buffer
