"""Capacity over time, learner by learner: what a simulation records, a spot market grants, a lab replays.

A trace is a step function: from each time on, the learner has that many chips at work; before the first
time it has what the first row says. The same CSV is written and read: `time_s,learner,chips`.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from atoll.errors import ConfigError

__all__ = ["CapacityTrace", "read_traces", "write_traces"]

HEADER = ("time_s", "learner", "chips")


@dataclass(frozen=True, slots=True)
class CapacityTrace:
    """One learner's chips at work: `chips[i]` from `times_s[i]` on."""

    times_s: tuple[float, ...]
    chips: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.times_s or len(self.times_s) != len(self.chips):
            raise ConfigError(
                f"A trace has {len(self.times_s)} times and {len(self.chips)} capacities.",
                "It says nothing, or not what holds when.",
                "Give one capacity for each time, and at least one.",
            )
        if any(not math.isfinite(time) for time in self.times_s) or list(self.times_s) != sorted(
            set(self.times_s)
        ):
            raise ConfigError(
                "The times of a trace do not rise.",
                "Which capacity holds when is not defined.",
                "Sort its rows by time, one row for each.",
            )
        if any(not (math.isfinite(value) and value >= 0) for value in self.chips):
            raise ConfigError(
                "A trace has a capacity that is negative or not a number.",
                "A learner has chips or has none.",
                "Give 0 or more in every row.",
            )

    def at(self, time_s: float) -> float:
        """Chips at work at one moment."""
        return self.chips[max(0, bisect_right(self.times_s, time_s) - 1)]

    def mean(self, until_s: float) -> float:
        """Mean chips at work from time 0 until a time."""
        edges = [0.0, *(time for time in self.times_s if 0 < time < until_s), until_s]
        total = sum(self.at(start) * (end - start) for start, end in pairwise(edges))
        return total / until_s


def write_traces(path: Path, traces: Mapping[str, CapacityTrace]) -> None:
    """All learners in one CSV, in order of time."""
    rows = sorted(
        (time, name, chips)
        for name, trace in traces.items()
        for time, chips in zip(trace.times_s, trace.chips, strict=True)
    )
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows((repr(time), name, repr(chips)) for time, name, chips in rows)


def read_traces(path: Path) -> dict[str, CapacityTrace]:
    """The traces of a CSV by learner's name; a row that cannot be read is named by its line."""
    columns: dict[str, tuple[list[float], list[float]]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            if tuple(cell.strip() for cell in next(reader, [])) != HEADER:
                raise ConfigError(
                    f"{path} does not begin with {','.join(HEADER)}.",
                    "Its columns cannot be told apart.",
                    "Write that line first, then one row for each change of a learner's chips.",
                )
            for row in reader:
                if row:
                    time, name, chips = _row(path, reader.line_num, row)
                    times, values = columns.setdefault(name, ([], []))
                    times.append(time)
                    values.append(chips)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"The trace {path} cannot be read: {error}.",
            "There is no fleet without it.",
            "Check the path; a trace is a CSV in UTF-8.",
        ) from error
    if not columns:
        raise ConfigError(
            f"{path} has no rows.", "It grants no chips to anybody.", "Add rows below the header."
        )
    return {name: CapacityTrace(tuple(times), tuple(chips)) for name, (times, chips) in columns.items()}


def _row(path: Path, line: int, row: list[str]) -> tuple[float, str, float]:
    try:
        time, name, chips = row
        return float(time), name.strip(), float(chips)
    except ValueError as error:
        raise ConfigError(
            f"Line {line} of {path} is {','.join(row)!r}.",
            "It is not a time, a learner and a number of chips.",
            "Write for example 3600,spot-a,512.",
        ) from error
