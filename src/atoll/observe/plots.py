"""Pictures of simulated fleets and links: what a table says, at a glance.

Three pictures, each with a title that states what is to be seen in these very figures:
`plot_goodput` (goodput against chips, and where the time goes), `plot_utilisation` (compute utilisation
against bandwidth) and `plot_timeline` (a week of a fleet). The ending of the path, .svg or .png, decides
how it is written. Nothing is computed here that a table does not say too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.errors import ConfigError
from atoll.observe.plot_style import (
    BLUES,
    ORDINARY,
    PALE,
    VERMILION,
    bare,
    heading,
    percent,
    picture,
    spread,
    swatches,
)
from atoll.observe.plot_timeline import plot_timeline
from atoll.sim.fleet.model import Pauses
from atoll.sim.fleet.presets import TABLE1
from atoll.sim.fleet.result import SHARES, FleetResult
from atoll.sim.units import YEAR, say_count, say_duration, say_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_goodput", "plot_timeline", "plot_utilisation"]

Curves = Mapping[str, Sequence[tuple[float, float]]]
"""Label -> points (bits per second, compute utilisation)."""
Series = tuple[int, bool]
"""Learners, and whether they are elastic: one line of the picture."""

SHARE_COLOURS = dict(
    zip(SHARES, ("#56b4e9", "#c3c9cf", "#e69f00", "#f0e442", "#d55e00", "#cc79a7", "#009e73"), strict=True)
)
LEAST_SHARE = 0.035
"""Narrower parts of a bar carry no figure."""
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)))
TARGET = 0.9
"""The utilisation at which links are compared."""


def plot_goodput(results: Sequence[FleetResult], path: Path) -> None:
    """Goodput against chips, a line for each number of learners, and where the time goes at most chips.

    Lines of learners that are not elastic are broken. Where a fleet is one of the paper's Table 1, the
    published value is an open mark. With a single number of chips there is no line, only where time goes.
    """
    if not results:
        raise ConfigError("There is no result to draw.", "The picture would be empty.", "Simulate a fleet.")
    sizes = sorted({result.fleet.chips for result in results})
    bars = sorted((r for r in results if r.fleet.chips == sizes[-1]), key=_series, reverse=True)
    span = say_duration(results[0].horizon_s)
    about = f"Simulated: {span}, {results[0].repetitions} repetitions, seed {results[0].seed}."
    with picture(path, max(4.6 if len(sizes) > 1 else 2.4, 1.5 + 0.42 * len(bars))) as figure:
        bottom, top = 0.52 / figure.get_figheight(), 1 - 0.98 / figure.get_figheight()
        left = 0.15
        if len(sizes) > 1:
            left = 0.675
            _draw_lines(figure.add_axes((0.055, bottom, 0.36, top - bottom)), results, sizes)
            if any(_published(result) is not None for result in results):
                about += " Open marks: published, Table 1 of arXiv:2604.21428."
        _draw_shares(figure.add_axes((left, bottom, 0.99 - left, top - bottom)), bars)
        heading(figure, _finding(bars), about)


def plot_utilisation(curves: Curves, path: Path) -> None:
    """Compute utilisation against bandwidth: a line for each label, its points (bits per second, CU)."""
    drawn = {name: sorted(points) for name, points in curves.items() if points}
    if not drawn:
        raise ConfigError("There is no curve to draw.", "The picture would be empty.", "Give a method.")
    with picture(path, 5.0) as figure:
        label_lines = 2 + max(name.count(", ") for name in drawn)
        axes = figure.add_axes((0.06, 0.095, 0.895, 0.74 - 0.03 * label_lines))
        bare(axes, grid="xy")
        axes.set_xscale("log")
        rates = [rate for points in drawn.values() for rate, _ in points]
        axes.set_xlim(min(rates), max(rates))
        axes.set_ylim(0, 1.02)
        axes.xaxis.set_major_formatter(lambda rate, _: say_rate(rate))
        axes.xaxis.set_minor_formatter(lambda rate, _: "")
        axes.set_yticks([0, 0.25, 0.5, 0.75, TARGET, 1.0])
        axes.yaxis.set_major_formatter(lambda share, _: percent(share))
        axes.set_xlabel("bandwidth of a site's link", labelpad=2)
        _draw_curves(axes, drawn)
        heading(
            figure,
            _thinnest(drawn),
            f"Simulated: share of the time that computes. Dots: what it takes to reach {percent(TARGET)}.",
        )


def _series(result: FleetResult) -> Series:
    return result.fleet.num_learners, all(island.pauses.elastic for island in result.fleet.islands)


def _name(series: Series) -> str:
    learners, elastic = series
    who = "Data-Parallel" if learners == 1 else f"{learners} learners"
    if elastic:
        return f"{who},\nelastic" if learners == 1 else who
    return f"{who},\nnot elastic"


def _colours(series: Sequence[Series]) -> dict[Series, str]:
    """Vermilion for one learner; more learners, darker blue."""
    many = sorted({learners for learners, _ in series if learners > 1})
    darkest = len(BLUES) - 1
    shade = {
        learners: BLUES[darkest - round((len(many) - 1 - rank) * darkest / max(len(many) - 1, 1))]
        for rank, learners in enumerate(many)
    }
    return {key: shade.get(key[0], VERMILION) for key in series}


def _published(result: FleetResult) -> float | None:
    """What the paper's Table 1 says about this very fleet, if it does.

    With other pauses than those fitted to that table, a fleet is another one.
    """
    fleet, (learners, elastic) = result.fleet, _series(result)
    usual = Pauses(elastic=elastic)
    is_papers = not fleet.shocks and all(
        island.mtbi_s == YEAR and island.trace is None and island.pauses == usual for island in fleet.islands
    )
    for cell in TABLE1 if is_papers else ():
        if (cell.chips, cell.learners, cell.elastic) == (fleet.chips, learners, elastic):
            return cell.goodput_percent / 100
    return None


def _finding(bars: Sequence[FleetResult]) -> str:
    """The best beside the worst of its kind (elastic or not), at the largest number of chips."""
    best = max(bars, key=lambda result: result.goodput)
    worst = min((bar for bar in bars if _series(bar)[1] == _series(best)[1]), key=lambda bar: bar.goodput)

    def phrase(result: FleetResult) -> str:
        return f"{percent(result.goodput)} with {_name(_series(result))}".replace(",\n", ", ")

    finding = f"On {say_count(best.fleet.chips)} chips, time well spent: {phrase(best)}"
    return finding if best is worst else f"{finding}; {phrase(worst)}"


def _draw_lines(axes: Axes, results: Sequence[FleetResult], sizes: Sequence[int]) -> None:
    groups: dict[Series, list[FleetResult]] = {}
    for result in sorted(results, key=lambda r: r.fleet.chips):
        groups.setdefault(_series(result), []).append(result)
    colours = _colours(list(groups))
    bare(axes)
    axes.set_xscale("log")
    for key, line in groups.items():
        points = [(result.fleet.chips, result.goodput) for result in line]
        style = "-" if key[1] else (0, (4, 1.6))
        axes.plot(*zip(*points, strict=True), color=colours[key], linestyle=style, marker="o", ms=3.2)
        marks = [(result.fleet.chips, value) for result in line if (value := _published(result)) is not None]
        for mark in marks:
            axes.plot(*mark, marker="o", ms=8, mfc="none", mec=colours[key], mew=1.1)
    axes.set_xticks(sizes, [say_count(size) for size in sizes])
    axes.set_xticks([], minor=True)
    axes.set_xlim(sizes[0] / 1.15, sizes[-1] * 1.12)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(lambda share, _: percent(share))
    axes.set_xlabel("chips", labelpad=1)
    axes.set_title("Goodput: share of chip time in useful steps")
    _name_lines(axes, groups, colours)


def _name_lines(
    axes: Axes, groups: Mapping[Series, list[FleetResult]], colours: Mapping[Series, str]
) -> None:
    """Beside the end of each line what it came to and whose it is."""
    ends = [line[-1].goodput for line in groups.values()]
    gap = 0.06 if sum("\n" in _name(key) for key in groups) <= 2 else 0.095  # room for two lines
    for key, end, place in zip(groups, ends, spread(ends, gap, 0.02, 1.0), strict=True):
        for column, text in ((1.115, percent(end)), (1.15, _name(key))):
            axes.text(
                column,
                place,
                text,
                transform=axes.get_yaxis_transform(),
                color=colours[key],
                ha="right" if column < 1.12 else "left",
                va="center",
                fontsize=9,
                linespacing=1.05,
            )


def _draw_shares(axes: Axes, bars: Sequence[FleetResult]) -> None:
    bare(axes, grid="")
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xticks([])
    left = [0.0] * len(bars)
    rows = range(len(bars))
    shown = [name for name in SHARES if any(bar.shares.get(name, 0.0) >= 0.0005 for bar in bars)]
    for name in shown:
        widths = [bar.shares.get(name, 0.0) for bar in bars]
        axes.barh(rows, widths, left=left, height=0.68, color=SHARE_COLOURS[name])
        for row, width in zip(rows, widths, strict=True):
            if width >= LEAST_SHARE:
                axes.text(left[row] + width / 2, row, f"{100 * width:.0f}", ha="center", va="center", size=8)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(rows, [_name(_series(bar)) for bar in bars])
    axes.set_xlim(0, 1)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_title(f"Where the time goes on {say_count(bars[0].fleet.chips)} chips, in %")
    swatches(axes, {name: SHARE_COLOURS[name] for name in shown}, (1.0, 0.0), "upper right")


def _crossing(points: Sequence[tuple[float, float]], level: float) -> float | None:
    """The bandwidth at which a rising curve comes to a level, between points in log bandwidth.

    None where it never does, or was there from the beginning.
    """
    for (low, below), (high, above) in pairwise(points):
        if below < level <= above:
            part = (level - below) / (above - below)
            return math.exp(math.log(low) + part * (math.log(high) - math.log(low)))
    return None


def _thinnest(drawn: Curves) -> str:
    """Who needs most for the target, and who least, in one sentence."""
    known = sorted(
        (rate, name) for name, points in drawn.items() if (rate := _crossing(points, TARGET)) is not None
    )
    never = [name for name, points in drawn.items() if points[0][1] >= TARGET]
    if not known:
        return f"{never[0]} never waits" if never else f"Nothing reaches {percent(TARGET)} on these links"
    finding = f"Computing {percent(TARGET)} of the time takes {say_rate(known[-1][0])} with {known[-1][1]}"
    if never:
        return f"{finding}; {never[0].split(',')[0]} never waits"
    return finding if len(known) == 1 else f"{finding}, {say_rate(known[0][0])} with {known[0][1]}"


def _draw_curves(axes: Axes, drawn: Curves) -> None:
    """The lines; above each its name and what it needs, joined to the dot where it reaches the target.

    A curve that is above the target from its first point on is dotted where it begins, unless it begins at
    the edge of the picture. Labels that agree up to a comma (one method with 16 and with 4 bits) share a
    colour.
    """
    edge = min(points[0][0] for points in drawn.values())
    dots: dict[str, tuple[float, float]] = {}
    for name, points in drawn.items():
        rate, share = points[0]
        if share >= TARGET and rate > edge:
            dots[name] = (rate, share)
        elif (need := _crossing(points, TARGET)) is not None:
            dots[name] = (need, TARGET)
    colours = _family_colours(sorted(drawn, key=lambda name: (dots.get(name, (math.inf, 0.0)), name)))
    for name, (colour, style) in colours.items():
        axes.plot(*zip(*drawn[name], strict=True), color=colour, linestyle=DASHES[style % len(DASHES)])
    low, high = (math.log(end) for end in axes.get_xlim())
    wanted = [(math.log(rate) - low) / (high - low) for rate, _ in dots.values()]
    for (name, dot), place in zip(dots.items(), spread(wanted, 0.108, 0.03, 0.97), strict=True):
        colour, _ = colours[name]
        axes.plot(*dot, marker="o", ms=5, color=colour)
        axes.annotate(
            name.replace(", ", "\n") + f"\n{'≥ ' if dot[1] > TARGET else ''}{say_rate(dot[0])}",
            dot,
            (place, 1.06),
            textcoords="axes fraction",
            ha="center",
            color=colour,
            fontsize=8.5,
            arrowprops={"arrowstyle": "-", "color": PALE, "linewidth": 1, "shrinkB": 4, "shrinkA": 0},
        )
    rest = {name: points for name, points in drawn.items() if name not in dots}
    _name_the_rest(axes, rest, {name: colours[name][0] for name in rest})


def _family_colours(names: Sequence[str]) -> dict[str, tuple[str, int]]:
    """A colour for each family of names, and the rank of each name within its own."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.split(",")[0], []).append(name)
    return {
        name: (ORDINARY[number % len(ORDINARY)], rank)
        for number, members in enumerate(families.values())
        for rank, name in enumerate(members)
    }


def _name_the_rest(axes: Axes, drawn: Curves, colours: Mapping[str, str]) -> None:
    """Curves that never come to the target, at their right end; those always above it, below their left."""
    for rank, (name, points) in enumerate(drawn.items()):
        waits = points[0][1] < TARGET
        axes.annotate(
            name if waits else f"{name}: never waits",
            points[-1] if waits else points[0],
            (-6 if waits else 6, -8 - 12 * rank),
            textcoords="offset points",
            ha="right" if waits else "left",
            va="center",
            color=colours[name],
            fontsize=8.5,
        )
