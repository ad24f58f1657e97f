"""Waiting for what must happen. A limit only ends a test that hangs; it never decides one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["LIMIT_S", "wait_until"]

LIMIT_S = 60.0
PAUSE_S = 0.005
T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float = LIMIT_S) -> T:
    """Ask again and again until the answer counts as true, and return it."""
    deadline = time.monotonic() + timeout
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not happen within {timeout:g} s")
        time.sleep(PAUSE_S)
    return answer
