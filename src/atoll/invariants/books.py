"""The checker's own books: violations, versions, and intervals of tokens."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

from atoll.core.records import Contributor

__all__ = ["Commit", "Intervals", "Violation"]


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant, when and how."""

    invariant: str
    at_ns: int
    text: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.at_ns / 1e9:.3f} s: {self.text}"


class Commit(NamedTuple):
    """The checker's memory of one version of a fragment."""

    version: int
    digest: str
    contributors: tuple[Contributor, ...]


class Intervals:
    """Disjoint half-open intervals with a label each."""

    __slots__ = ("_starts", "rows")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self.rows: list[tuple[int, int, str]] = []

    def add(self, start: int, end: int, label: str) -> tuple[int, int, str] | None:
        """Insert; returns the row it overlaps with, if any (and does not insert then)."""
        at = bisect_left(self._starts, start)
        for row in self.rows[max(0, at - 1) : at + 1]:
            if row[0] < end and start < row[1]:
                return row
        self._starts.insert(at, start)
        self.rows.insert(at, (start, end, label))
        return None

    def remove(self, start: int) -> None:
        """Take the interval that begins there out again."""
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == start:
            del self._starts[at], self.rows[at]
