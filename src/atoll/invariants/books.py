"""The checker's own books: violations, versions, and intervals of tokens."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

from atoll.core.records import Contributor

__all__ = ["NO_INTERVALS", "Chain", "Commit", "Intervals", "Violation"]


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


@dataclass(slots=True)
class Chain:
    """The versions of a fragment that count, from the oldest one that is known; never empty."""

    commits: list[Commit]

    @property
    def last(self) -> Commit:
        """The current version."""
        return self.commits[-1]

    def at(self, version: int) -> Commit | None:
        """A version, if it counts and is known."""
        return next((commit for commit in reversed(self.commits) if commit.version == version), None)

    def fall_back(self, to: Commit) -> list[Commit]:
        """Forget all versions after one, which need not be known itself; returns them, the oldest first."""
        lost = [commit for commit in self.commits if commit.version > to.version]
        self.commits = [commit for commit in self.commits if commit.version <= to.version] or [to]
        return lost


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
        """Take out the interval that begins there, or the end, from there on, of one that begins before."""
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == start:
            del self._starts[at], self.rows[at]
        elif at and start < self.rows[at - 1][1]:
            begin, _, label = self.rows[at - 1]
            self.rows[at - 1] = (begin, start, label)


NO_INTERVALS = Intervals()
