"""What a socket is asked for and what it tells: options, bytes under way, and errors in words."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import ssl
import struct
import termios

from atoll.errors import AtollError

__all__ = ["num_in_kernel", "reason_of", "tune"]

log = logging.getLogger("atoll")


def tune(sock: socket.socket, *, bulk: bool) -> None:
    """Small messages leave at once, and a peer that has vanished is noticed within a minute; bulk keeps
    little unsent in the kernel, and prefers bbr where it exists."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (*_VANISHED, *(_BULK if bulk else ())):
        option = getattr(socket, name, None)
        if option is None:
            continue
        try:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        except OSError as error:
            log.debug("socket option %s: %s", name, error)


_VANISHED = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 60_000))
"""A path may lose its state while a connection rests (NAT does); only asking tells."""
_BULK: tuple[tuple[str, int | bytes], ...] = (("TCP_NOTSENT_LOWAT", 256 << 10), ("TCP_CONGESTION", b"bbr"))


def num_in_kernel(sock: socket.socket) -> int:
    """Bytes that a socket was given and its peer has not acknowledged; 0 where nobody can tell."""
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))
    except (OSError, ValueError):
        return 0
    return int(count)


def reason_of(error: Exception) -> str:
    """Why a connection ended, for logs and for users."""
    if isinstance(error, AtollError):
        return f"{type(error).__name__}: {error.what}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        return "the other side closed the connection"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
