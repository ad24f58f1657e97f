"""What an experiment tells: tables, pictures and claims, as plain values that others draw and print."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from atoll.sim.lab.cell import Cell, Row, Size

__all__ = [
    "FINE",
    "Claim",
    "Experiment",
    "Picture",
    "Report",
    "Request",
    "Series",
    "Stages",
    "Table",
    "Verdict",
]

Verdict = Literal["holds", "fails", "not resolved"]
Stages = Generator[Sequence[Cell], Sequence[Row], "Report"]
"""Yields the cells it needs next, is sent their rows in the same order, and returns its report. Stages that
follow from earlier rows (a learning rate chosen, then seeds at it) come one after the other."""
FINE = 4
"""How many times the seeds that fine claims are given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What a person asked for."""

    size: Size = "tiny"
    seeds: int = 5
    """Paired repetitions: seeds 1 to this."""

    def fine_seeds(self, times: int = FINE) -> int:
        """Of the arms that claims of a fraction of a percent rest on: so many times the seeds.

        Two runs of one seed at `tiny` that differ in little more than rounding end 0.5 % apart at M = 4 and
        1 % at M = 8: then five pairs tell 0.6 or 1.2 %, twenty 0.23 or 0.47 %. Larger models cost too much
        for that, and one seed is a first look.
        """
        return times * self.seeds if self.size == "tiny" and self.seeds > 1 else self.seeds


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Rows of cells that are text or numbers already rounded for people."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One line or one group of points: x, y, and the half width of y's 95 % interval if there is one."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    error: tuple[float, ...] = ()
    is_reference: bool = False
    """Somebody else's figures, drawn as such."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A chart: lines over numbers, or bars over names."""

    title: str
    kind: Literal["lines", "bars"] = "lines"
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    names: tuple[str, ...] = ()
    """Of the x positions 0, 1, ..., for bars."""
    log_x: bool = False
    log_y: bool = False
    zero_line: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One sentence, the figure it rests on with its 95 % interval, and whether that carries it."""

    text: str
    value: float
    low: float
    high: float
    limit: float
    seeds: int
    verdict: Verdict
    advice: str = ""
    """If not resolved: how many seeds it would take."""
    unit: str = "%"
    is_change: bool = False
    """Whether the figure says by how much one thing is above another: it carries its sign, and so do its
    interval and its limit. Counts, goodput and shares carry none."""
    is_check: bool = False
    """Whether it is true nearly by construction: that it holds says little, were it to fail the lab would be
    broken. Checks are shown and not counted among the claims."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What an experiment ends in."""

    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    """Single numbers that others quote, by name."""


class Experiment(Protocol):
    """One question, asked of the lab."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str:
        """One line: what is compared with what."""

    def stages(self, request: Request) -> Stages:
        """Ask for cells until the report can be made."""
