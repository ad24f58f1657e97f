"""The tape of a learner's life on a disk that may refuse for a while.

Lines that could not be written stay in memory and are written with the next ones, so trouble that passes
leaves no mark. If there are too many of them they are given up, and the tape begins anew with an image of the
machine; so does a tape that has become too long. What is on it never has a gap.
"""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass, field
from typing import Protocol

from atoll.runtime.tape_file import TapeFile
from atoll.tape.entries import Entry

__all__ = ["LifeTape"]

log = logging.getLogger("atoll")

MAX_LINES = 50_000
"""Lines that wait for the disk."""


class Take(Protocol):
    """Gives the lines that were not given yet, and, if asked for, an image of the machine after them."""

    def __call__(self, *, with_image: bool = False) -> list[Entry]: ...


@dataclass(eq=False)
class LifeTape:
    """A tape file, what feeds it, and what waits for it. For one thread at a time."""

    file: TapeFile
    max_bytes: int
    """More than that, and it begins anew."""
    take: Take
    _lines: list[Entry] = field(default_factory=list)
    _has_gap: bool = False
    """Lines were given up since the last write: it can only begin anew."""

    def save(self) -> str:
        """Write what is new, and what is left from before; returns what keeps it from that, "" if nothing."""
        self._lines += self.take()
        if len(self._lines) > MAX_LINES:
            self._lines, self._has_gap = [], True
        try:
            if self._has_gap or self.file.size() > self.max_bytes:
                self._has_gap = True
                self._lines = self.take(with_image=True)
                self.file.begin_anew(self._lines)
            else:
                self.file.append(self._lines)
        except sqlite3.Error as error:
            return str(error)
        self._lines, self._has_gap = [], False
        return ""

    def close(self) -> None:
        """Let go of the file; what it lacks is told."""
        if self._lines or self._has_gap:
            log.warning("the tape could not be written to the end")
        self.file.close()
