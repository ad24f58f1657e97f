"""Pictures of the lab: a chart of plain values, drawn so that the names need no looking up.

Lines carry their names at the right, in their own colours. Bars lie, one row for each name, so that long
names stay readable; each ends in its figure. Bars begin at zero: where that would hide what differs (losses
of 1.70 and 1.73), and on a log axis, a dot marks the figure instead. Thin lines are 95 % intervals; a point
without a finite one has none. What somebody else measured is dashed and grey. Nothing is left out: with a
value at or below zero, an axis that was to be logarithmic is linear; a point that is not finite is a cross
at the top, and such a bar says so.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from atoll.errors import ConfigError
from atoll.observe import plot_style as style
from atoll.sim.lab.report import Picture, Series
from atoll.sim.units import say_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.ticker import Locator

__all__ = ["draw"]

LETTER, LINE = 0.08, 0.155
"""Inches that a letter takes in width, on average and with some room, and a line of text in height."""
NAME_LETTERS = 34
"""A longer name is broken into lines."""
BAR, GAP = 0.22, 0.14
"""Inches from bar to bar, and between the bars of two names."""
HEAD, FOOT, LINES_HEIGHT = 0.8, 0.55, 4.4
NARROW = 0.25
"""Figures that differ by less than this share of the largest are dots and not bars."""
NEAR_RIGHT = 0.75
"""Of the width: what ends beyond needs no line that leads to its name."""
MAX_MARKED, MAX_TICKS = 16, 12
DASHES = ((0, (4, 1.6)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)))
MARKS = ("o", "s", "D")


class Look(NamedTuple):
    """How one series is told from the others."""

    colour: str
    dash: str | tuple[int, tuple[float, ...]]
    mark: str


class Bar(NamedTuple):
    """One figure of a picture of bars: where it lies in inches from the top, and what it shows."""

    place: float
    look: Look
    value: float
    error: float
    is_reference: bool

    @property
    def low(self) -> float:
        return self.value - self.error

    @property
    def high(self) -> float:
        return self.value + self.error


def draw(picture: Picture, path: Path) -> None:
    """Write the picture to a .png or .svg file; the same picture gives the same bytes."""
    if not any(series.x for series in picture.series):
        what = f"The picture {picture.title!r} has no points."
        raise ConfigError(what, "It would be empty.", "Give it at least one series with a point.")
    if picture.kind == "lines":
        _draw_lines(picture, path)
    else:
        _draw_bars(picture, path)


def _draw_lines(picture: Picture, path: Path) -> None:
    names = [_wrapped(series.name) for series in picture.series]
    looks = _looks(picture.series)
    with style.picture(path, LINES_HEIGHT) as figure:
        right = 1 - min(0.4, (_inches(names) + 0.25) / figure.get_figwidth())
        height = LINES_HEIGHT - HEAD - FOOT
        axes = figure.add_axes((0.065, FOOT / LINES_HEIGHT, right - 0.065, height / LINES_HEIGHT))
        style.bare(axes)
        for series, look in zip(picture.series, looks, strict=True):
            _draw_line(axes, series, look)
        xs = [x for series in picture.series for x in series.x]
        _scale(axes, "x", xs, log=picture.log_x and min(xs) > 0, pad=0.04)
        _mark_points(axes.xaxis, sorted(set(xs)), axes.get_position().width * figure.get_figwidth())
        is_log = picture.log_y and min(_values(picture), default=0) > 0
        _scale(axes, "y", _reach(picture), log=is_log, pad=0.07)
        if picture.zero_line:
            axes.axhline(0, color=style.GREY, linewidth=0.9, zorder=1)
        axes.set_xlabel(picture.x_label, labelpad=3)
        _name_lines(axes, picture.series, names, looks)
        style.heading(figure, picture.title, _about(picture))


def _draw_line(axes: Axes, series: Series, look: Look) -> None:
    values = [y if math.isfinite(y) else math.nan for y in series.y]
    mark = look.mark if len(values) <= MAX_MARKED and not series.is_reference else ""
    axes.plot(series.x, values, color=look.colour, linestyle=look.dash, marker=mark, ms=4.5)
    sure = [(x, y, error) for x, y, error in zip(series.x, values, _errors(series), strict=True) if error > 0]
    if sure:
        at, middle, half = zip(*sure, strict=True)
        axes.errorbar(
            at, middle, half, fmt="none", ecolor=look.colour, elinewidth=1.1, capsize=2.5, alpha=0.75
        )
    for x, y in zip(series.x, values, strict=True):
        if math.isnan(y):
            across = axes.get_xaxis_transform()
            axes.plot(x, 0.985, marker="x", ms=7, mew=1.8, color=look.colour, transform=across, clip_on=False)


def _name_lines(axes: Axes, series: Sequence[Series], names: Sequence[str], looks: Sequence[Look]) -> None:
    """Each name at the right, no two on each other; a dotted line leads to it from an end far from there."""
    to_axes = (axes.transData + axes.transAxes.inverted()).transform
    ends = []
    for one in series:
        known = [(x, y) for x, y in zip(one.x, one.y, strict=True) if math.isfinite(y)]
        across, height = map(float, to_axes(max(known))) if known else (1.0, 1.0)
        ends.append((across, height))
    tallest = max(name.count("\n") + 1 for name in names)
    gap = tallest * LINE / (LINES_HEIGHT - HEAD - FOOT)
    places = style.spread([height for _, height in ends], gap, 0.0, 1.0)
    for (across, height), place, name, look in zip(ends, places, names, looks, strict=True):
        if across < NEAR_RIGHT:
            lead = ([across, 1.0], [height, place])
            axes.plot(
                *lead, transform=axes.transAxes, color=look.colour, linestyle=":", linewidth=0.9, zorder=1
            )
        axes.text(
            1.015, place, name, transform=axes.transAxes, color=look.colour, va="center", size=9,
            linespacing=1.05,
        )  # fmt: skip


def _draw_bars(picture: Picture, path: Path) -> None:
    names, places, bars, height = _lay_out(picture)
    left = max(_inches([*names, picture.x_label]), 0.3) + 0.2
    key_columns, key_rows = _key_shape(picture.series)
    total = HEAD + key_rows * 0.2 + height + FOOT
    with style.picture(path, total) as figure:
        width = figure.get_figwidth()
        axes = figure.add_axes((left / width, FOOT / total, 0.98 - left / width, height / total))
        style.bare(axes, grid="x")
        axes.spines["left"].set_visible(False)
        finite = [bar for bar in bars if math.isfinite(bar.value)]
        is_log = picture.log_y and min((bar.value for bar in finite), default=0) > 0
        from_zero = not is_log and _begins_at_zero(picture, finite)
        ends = [end for bar in finite for end in (bar.low, bar.value, bar.high)] + [0.0] * from_zero
        _scale(axes, "x", ends, log=is_log, pad=0.1)
        if from_zero and min(ends) >= 0:
            axes.set_xlim(left=0)
        for bar in finite:
            _draw_bar(axes, bar, from_zero)
        _write_figures(axes, bars, from_zero)
        if from_zero:
            axes.axvline(0, color=style.GREY, linewidth=0.9)
        axes.set_ylim(height, 0)
        axes.set_yticks(places, names)
        axes.tick_params(axis="y", labelcolor=style.INK)
        axes.set_xlabel(picture.y_label, labelpad=3)
        figure.text(
            0.012, 1 - (HEAD + key_rows * 0.2 - 0.04) / total, picture.x_label, color=style.GREY, size=9
        )
        if key_rows:
            _key(axes, picture.series, key_columns)
        style.heading(figure, picture.title, _about(picture))


def _lay_out(picture: Picture) -> tuple[list[str], list[float], list[Bar], float]:
    """Names, the middle of each name's bars, the bars, and the height of all; in inches from the top."""
    looks = _looks(picture.series)
    names, places, bars = [], [], []
    top = GAP / 2
    for position in sorted({x for series in picture.series for x in series.x}):
        names.append(_wrapped(picture.names[int(position)]))
        here = [
            (look, series.y[index], _errors(series)[index], series.is_reference)
            for look, series in zip(looks, picture.series, strict=True)
            for index, x in enumerate(series.x)
            if x == position
        ]
        tall = max(len(here) * BAR, (names[-1].count("\n") + 1) * LINE)
        middle = top + tall / 2
        places.append(middle)
        for rank, one in enumerate(here):
            bars.append(Bar(middle + (rank - (len(here) - 1) / 2) * BAR, *one))
        top += tall + GAP
    return names, places, bars, top - GAP / 2


def _begins_at_zero(picture: Picture, bars: Sequence[Bar]) -> bool:
    values = [bar.value for bar in bars] or [0.0]
    return picture.zero_line or min(values) <= 0 or max(values) - min(values) >= NARROW * max(values)


def _draw_bar(axes: Axes, bar: Bar, from_zero: bool) -> None:
    colour = bar.look.colour
    if from_zero and bar.is_reference:
        axes.barh(bar.place, bar.value, BAR * 0.84, facecolor="white", edgecolor=colour, linestyle="--")
    elif from_zero:
        axes.barh(bar.place, bar.value, BAR * 0.84, color=colour, alpha=0.85)
    else:
        face = "white" if bar.is_reference else colour
        axes.plot(bar.value, bar.place, marker=bar.look.mark, ms=6, mfc=face, mec=colour)
    if bar.error > 0:
        ink = style.INK if from_zero else colour
        axes.errorbar(
            bar.value, bar.place, xerr=bar.error, fmt="none", ecolor=ink, elinewidth=1.1, capsize=2.5
        )


def _write_figures(axes: Axes, bars: Sequence[Bar], from_zero: bool) -> None:
    """Beside each bar what it shows, beyond the end of its interval."""
    say = _speaker([bar.value for bar in bars if math.isfinite(bar.value)])
    for bar in bars:
        is_finite = math.isfinite(bar.value)
        is_left = is_finite and from_zero and bar.value < 0
        start = (bar.low if is_left else bar.high) if is_finite else max(0.0, axes.get_xlim()[0])
        axes.annotate(
            say(bar.value) if is_finite else "not finite",
            (start, bar.place),
            (-5 if is_left else 5, 0),
            textcoords="offset points",
            ha="right" if is_left else "left",
            va="center",
            size=8.5,
            color=style.INK if is_finite else bar.look.colour,
        )


def _key_shape(series: Sequence[Series]) -> tuple[int, int]:
    """Columns and rows of the key above the bars; a single series needs none."""
    if len(series) == 1:
        return 1, 0
    columns = max(1, int(style.WIDTH_INCHES * 0.65 / (_inches([one.name for one in series]) + 0.4)))
    return columns, -(-len(series) // columns)


def _key(axes: Axes, series: Sequence[Series], columns: int) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor="white", edgecolor=look.colour, linestyle="--", label=one.name)
        if one.is_reference
        else Patch(facecolor=look.colour, label=one.name)
        for one, look in zip(series, _looks(series), strict=True)
    ]
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=columns,
        frameon=False,
        borderpad=0,
        borderaxespad=0.3,
        handlelength=0.9,
        handleheight=0.9,
        fontsize=8.5,
        labelcolor=style.GREY,
    )


def _looks(series: Sequence[Series]) -> list[Look]:
    looks: list[Look] = []
    for one in series:
        rank = sum(before.is_reference == one.is_reference for before in series[: len(looks)])
        if one.is_reference:
            looks.append(Look(style.GREY, DASHES[rank % len(DASHES)], "o"))
        else:
            colour = style.ORDINARY[rank % len(style.ORDINARY)]
            looks.append(Look(colour, "-", MARKS[rank // len(style.ORDINARY) % len(MARKS)]))
    return looks


def _errors(series: Series) -> list[float]:
    """Half of the interval of each point; 0 where there is none to be drawn."""
    if not series.error:
        return [0.0] * len(series.y)
    pairs = zip(series.y, series.error, strict=True)
    return [error if math.isfinite(error) and math.isfinite(y) else 0.0 for y, error in pairs]


def _values(picture: Picture) -> list[float]:
    return [y for series in picture.series for y in series.y if math.isfinite(y)]


def _reach(picture: Picture) -> list[float]:
    """Everything that the axis of values must show."""
    ends = [0.0] if picture.zero_line else []
    for series in picture.series:
        for y, error in zip(series.y, _errors(series), strict=True):
            ends += [y - error, y, y + error] if math.isfinite(y) else []
    return ends


def _scale(axes: Axes, name: Literal["x", "y"], shown: Sequence[float], *, log: bool, pad: float) -> None:
    """Limits around everything shown, and marks that read as numbers.

    On a log axis an interval that reaches below zero ends at the edge.
    """
    from matplotlib.ticker import NullLocator, ScalarFormatter

    axis = axes.xaxis if name == "x" else axes.yaxis
    ends = [value for value in shown if value > 0 or not log] or [0.0, 1.0]
    low, high = min(ends), max(ends)
    if log:
        (axes.set_xscale if name == "x" else axes.set_yscale)("log", nonpositive="clip")
        axis.set_major_locator(_log_marks(high / low))
        axis.set_minor_locator(NullLocator())
        factor = (high / low) ** pad if high > low else 1.5
        limits = low / factor, high * factor
    else:
        margin = pad * (high - low) or 0.1 * abs(high) or 1.0
        limits = low - margin, high + margin
    (axes.set_xlim if name == "x" else axes.set_ylim)(limits)
    if log or max(map(abs, limits)) >= 1e4:
        axis.set_major_formatter(lambda value, _: say_count(value))
    else:
        axis.set_major_formatter(ScalarFormatter(useOffset=False))


def _log_marks(ratio: float) -> Locator:
    """Where a log axis over this ratio is marked: 1, 2, 5 in each decade, or fewer where there are many."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    if ratio < 4:
        return MaxNLocator(6)
    return LogLocator(subs=(1, 2, 5) if ratio < 500 else (1, 3) if ratio < 20_000 else (1,))


def _mark_points(axis: Axis, points: Sequence[float], inches: float) -> None:
    """Marks at the points themselves, if they are few and far enough apart to be read."""
    low, high = axis.get_view_interval()
    bend: Callable[[float], float] = math.log if axis.get_scale() == "log" else float
    names = [say_count(float(f"{point:.3g}")) for point in points]
    needed = LETTER * max(map(len, names)) + 0.08
    step = inches / (bend(high) - bend(low))
    gaps = [step * (bend(b) - bend(a)) for a, b in pairwise(points)]
    if len(points) <= MAX_TICKS and min(gaps, default=math.inf) >= needed:
        axis.set_ticks(list(points), names)


def _speaker(values: Sequence[float]) -> Callable[[float], str]:
    """Writes figures with as many digits as tell them apart, and with a sign if one is below zero."""
    if max(map(abs, values), default=0.0) >= 1e4:
        return say_count
    span = max(values, default=0.0) - min(values, default=0.0) or max(map(abs, values), default=0.0) or 1.0
    size = math.floor(math.log10(span))
    digits = min(4, 1 - size) if size < 0 else max(0, 2 - size)
    sign = "+" if min(values, default=0.0) < 0 else ""
    return lambda value: f"{value:{sign}.{digits}f}"


def _about(picture: Picture) -> str:
    """What the values are and how to read the marks."""
    parts = [picture.y_label[:1].upper() + picture.y_label[1:]] if picture.kind == "lines" else []
    if any(error > 0 for series in picture.series for error in _errors(series)):
        parts.append("Thin lines: 95 % intervals")
    if picture.kind == "lines" and any(not math.isfinite(y) for series in picture.series for y in series.y):
        parts.append("Crosses: not finite")
    return ". ".join(parts) + "." * bool(parts)


def _wrapped(name: str) -> str:
    return "\n".join(textwrap.wrap(name, NAME_LETTERS)) or " "


def _inches(names: Sequence[str]) -> float:
    return LETTER * max(len(line) for name in names for line in name.split("\n"))
