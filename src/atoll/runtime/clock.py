"""Which clock this process reads: the same for all processes of a machine, until it is started again."""

from __future__ import annotations

import time
from pathlib import Path

from atoll.tape.entries import Clock

__all__ = ["this_clock"]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def this_clock() -> Clock:
    """For the head of a tape; where the system does not name its starts, all of them are taken for one."""
    try:
        boot = BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        boot = ""
    return Clock(boot, time.time_ns() - time.monotonic_ns())
