"""Log lines of the commands that stay: one line each on standard error, with its time."""

from __future__ import annotations

import logging
import signal
import sys
from types import FrameType

__all__ = ["end_on_sigterm", "start_logging"]


def start_logging() -> None:
    """Show what Atoll logs from INFO on."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )


def end_on_sigterm() -> None:
    """SIGTERM ends a command as Ctrl-C does: in order."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
