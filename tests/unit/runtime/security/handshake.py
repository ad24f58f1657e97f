"""A TLS handshake in memory: no socket, no thread, no time."""

from __future__ import annotations

import ssl

MAX_FLIGHTS = 8


class Pair:
    """Both ends of one connection; bytes move when `shake` or `say` moves them."""

    def __init__(self, client: ssl.SSLContext, server: ssl.SSLContext) -> None:
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = client.wrap_bio(down, up, server_side=False)
        self.server = server.wrap_bio(up, down, server_side=True)
        self.up, self.down = up, down

    def shake(self) -> Pair:
        """Run the handshake to its end; whichever end refuses raises ssl.SSLError."""
        waiting = [self.client, self.server]
        for _ in range(MAX_FLIGHTS):
            waiting = [end for end in waiting if not _done(end)]
            if not waiting:
                return self
        raise AssertionError("the handshake never ends")

    def say(self, text: bytes) -> bytes:
        """Send text from client to server, and return what arrived."""
        self.client.write(text)
        return self.server.read(len(text))

    @property
    def shown(self) -> bytes | None:
        """The certificate that the server showed, as a client sees it."""
        return self.client.getpeercert(binary_form=True)


def _done(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
