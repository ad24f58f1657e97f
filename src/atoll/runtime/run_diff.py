"""Where two runs part: the first commit of each fragment that differs, from their records alone.

Two commits are the same if they have the same contributors with the same tokens, steps and weights, and lead
to the same values. When they happened (epoch, round, tick) is no difference: it moves no parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from atoll.core.records import Contributor, RoundRecord
from atoll.runtime.past import Past, open_past

__all__ = ["Parting", "RunDiff", "diff_runs"]

SHORT = 12
"""Digits of a digest that are shown."""


@dataclass(frozen=True, slots=True)
class Parting:
    """The first commit of a fragment at which two runs differ."""

    fragment: int
    version: int
    ticks: tuple[int | None, int | None]
    """When it was committed here and there; None where it was not."""
    words: tuple[str, ...]
    """What differs, one sentence each."""


@dataclass(frozen=True, slots=True)
class RunDiff:
    """Two runs, compared."""

    partings: tuple[Parting, ...]
    """Of the fragments that differ, in order of fragment."""
    commits: int
    """Commits that are the same in both."""
    problems: tuple[str, ...] = ()
    """Why they cannot be compared, if they cannot."""

    @property
    def equal(self) -> bool:
        """Whether both runs hold the same merges, to the last bit."""
        return not self.partings and not self.problems

    @property
    def first(self) -> Parting | None:
        """The parting that came first, by the ticks of the first run."""
        return min(self.partings, key=lambda parting: _earliest(parting.ticks), default=None)


def diff_runs(here: Path, there: Path) -> RunDiff:
    """Compare two runs. Raises `StoreError` if one of them cannot be read."""
    a, b = open_past(here), open_past(there)
    if why := _incomparable(a, b):
        return RunDiff((), 0, (why,))
    partings, commits = [], 0
    for p in a.chains:
        parting, num_same = _compare(a, b, p)
        commits += num_same
        if parting is not None:
            partings.append(parting)
    return RunDiff(tuple(partings), commits)


def _incomparable(a: Past, b: Past) -> str:
    if a.view.manifest is None or b.view.manifest is None:
        return "" if a.view.manifest is b.view.manifest else "one of them has no model yet"
    if difference := a.view.manifest.first_difference(b.view.manifest):
        return f"the models differ: {difference}"
    if [one.version for one in a.first] != [one.version for one in b.first]:
        return "their oldest records were cut away at different versions (durability.keep = recent)"
    return ""


def _compare(a: Past, b: Past, p: int) -> tuple[Parting | None, int]:
    """The first difference of a fragment, and the number of equal commits before it."""
    first = a.first[p]
    if first.digest != b.first[p].digest:
        said = "initial weights" if first.version == 0 else f"values of version {first.version}"
        why = f"the {said} differ: {_two(first.digest, b.first[p].digest)}"
        return Parting(p, first.version, (None, None), (why,)), 0
    for number, (mine, other) in enumerate(zip_longest(a.chains[p], b.chains[p])):
        if words := _differences(mine, other):
            ticks = (mine.t if mine else None, other.t if other else None)
            return Parting(p, first.version + number + 1, ticks, words), number
    return None, len(a.chains[p])


def _differences(a: RoundRecord | None, b: RoundRecord | None) -> tuple[str, ...]:
    if a is None or b is None:
        return (f"only the {'second' if a is None else 'first'} run has it",)
    words = []
    mine, others = {part.name: part for part in a.contributors}, {part.name: part for part in b.contributors}
    if mine.keys() != others.keys():
        words.append(f"contributors {', '.join(mine)} against {', '.join(others)}")
    for name in sorted(mine.keys() & others.keys()):
        words += _part_differences(mine[name], others[name])
    if a.momentum_factor != b.momentum_factor:
        words.append(f"momentum times {a.momentum_factor:g} against {b.momentum_factor:g}")
    if a.delta_digest != b.delta_digest:
        words.append(f"merged deltas {_two(a.delta_digest, b.delta_digest)}")
    if a.digest != b.digest:
        words.append(f"values {_two(a.digest, b.digest)}")
    return tuple(words)


def _part_differences(a: Contributor, b: Contributor) -> list[str]:
    words = []
    if a.weight != b.weight:
        words.append(f"weight of {a.name} {a.weight:g} against {b.weight:g}")
    if (a.start, a.end) != (b.start, b.end):
        words.append(f"tokens of {a.name} {a.start:,} to {a.end:,} against {b.start:,} to {b.end:,}")
    if a.steps != b.steps:
        words.append(f"steps of {a.name} {a.steps} against {b.steps}")
    if a.base_version != b.base_version:
        words.append(f"base of {a.name} version {a.base_version} against {b.base_version}")
    return words


def _two(a: str, b: str) -> str:
    return f"{a[:SHORT]} against {b[:SHORT]}"


def _earliest(ticks: tuple[int | None, int | None]) -> int:
    return min((t for t in ticks if t is not None), default=-1)
