"""A week of a fleet as a picture: one row for each learner, and the sum of all below.

A learner of 150,000 chips is interrupted every few minutes, so a week has tens of thousands of changes:
more than a picture has columns. Each column therefore shows a mean: how many of its chips a learner had
at work, and in red, if it stood still for most of that time. What is lost by that is told in figures at
the right (how often each stood still) and by a second look at one hour, in which every pause is seen.
The hour is where the whole fleet was at its lowest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from atoll.errors import ConfigError
from atoll.observe.plot_style import BLUES, GREY, INK, VERMILION, bare, heading, percent, picture, swatches
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.units import DAY, HOUR, MINUTE, say_count, say_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Raster", "plot_timeline", "rasterise"]

Floats = NDArray[np.float64]

NUM_COLUMNS = 720
MAX_NAMED_ROWS = 40
"""With more learners than that, rows carry no names."""
ROW_INCHES, MAX_ROWS_INCHES = 0.165, 5.0
HOUR_FROM_S = 6 * HOUR
"""Shorter spans show every pause as they are, and need no second look."""
SHADES = ("#08306b", "#0b559f", "#4a98c9", "#a9d0e8", "#e3f0f8")
"""No chip at work, to all of them."""
MEANINGS = {
    "all chips at work": SHADES[-1],
    "half": SHADES[2],
    "none": SHADES[0],
    "stands still most of the column": VERMILION,
}
TICKS = ((5 * DAY, DAY, "day"), (10 * HOUR, 6 * HOUR, "h"), (2 * HOUR, HOUR, "h"), (0.0, 10 * MINUTE, "min"))
"""From this span on, a tick so often, counted in this unit."""
UNITS = {"day": DAY, "h": HOUR, "min": MINUTE}


@dataclass(frozen=True, slots=True)
class Raster:
    """A fleet in columns of time: rows are learners in the order given."""

    start_s: float
    stop_s: float
    share: Floats
    """[learner, column]: mean share of its chips at work."""
    stopped: Floats
    """[learner, column]: part of the column in which it stood still."""
    fleet: Floats
    """[column]: mean share of all chips at work."""
    num_stops: tuple[int, ...]
    """How often each learner came to stand still."""


def rasterise(
    traces: Mapping[str, CapacityTrace],
    full: Mapping[str, float],
    start_s: float,
    stop_s: float,
    num_columns: int = NUM_COLUMNS,
) -> Raster:
    """Exact means over equal columns: integrals of step functions, not samples of them."""
    edges = np.linspace(start_s, stop_s, num_columns + 1)
    chips, stopped, stops = [], [], []
    for trace in traces.values():
        times, values = np.array(trace.times_s), np.array(trace.chips)
        chips.append(_column_means(times, values, edges))
        still = (values == 0).astype(np.float64)
        stopped.append(_column_means(times, still, edges))
        begins = (np.diff(still, prepend=0.0) > 0) & (times >= start_s) & (times < stop_s)
        stops.append(int(begins.sum()))
    most = np.array([full[name] for name in traces])
    at_work = np.array(chips)
    return Raster(
        start_s,
        stop_s,
        at_work / most[:, None],
        np.array(stopped),
        at_work.sum(axis=0) / most.sum(),
        tuple(stops),
    )


def plot_timeline(
    traces: Mapping[str, CapacityTrace], until_s: float, path: Path, full: Mapping[str, float]
) -> None:
    """Draws learners' chips at work from 0 until a time; `full`: how many each has when all is well."""
    _check(traces, until_s, full)
    whole = rasterise(traces, full, 0.0, until_s)
    rows_inches = min(max(ROW_INCHES * len(traces), 0.5), MAX_ROWS_INCHES)
    closer = _lowest_hour(traces, full, whole) if until_s >= HOUR_FROM_S else None
    height = 2.42 + rows_inches + (rows_inches + 0.68 if closer else 0.0)
    with picture(path, height) as figure:

        def panel(top_inches: float, inches: float) -> Axes:
            return figure.add_axes((0.105, 1 - (top_inches + inches) / height, 0.745, inches / height))

        rows = panel(1.0, rows_inches)
        _draw_rows(rows, whole, list(traces))
        swatches(rows, MEANINGS, (0.0, 1.0), "lower left")
        _draw_figures(rows, whole)
        line = panel(1.0 + rows_inches + 0.12, 0.85)
        _draw_fleet(line, whole, closer)
        if closer:
            again = panel(1.0 + rows_inches + 0.12 + 0.85 + 0.68, rows_inches)
            _draw_rows(again, closer, list(traces))
            _time_axis(again, closer)
            again.set_title(
                f"One hour of it, after {say_duration(closer.start_s)}: every pause is seen", pad=4
            )
        heading(
            figure,
            _finding(whole, until_s),
            f"Simulated: {len(traces)} learners, {say_count(sum(full[name] for name in traces))} chips. "
            f"A column is {say_duration(until_s / NUM_COLUMNS)}: mean share of a learner's chips at work.",
        )


def _check(traces: Mapping[str, CapacityTrace], until_s: float, full: Mapping[str, float]) -> None:
    if not traces or not until_s > 0:
        raise ConfigError(
            f"A timeline of {len(traces)} learners until {until_s} s has nothing to show.",
            "The picture would be empty.",
            "Ask the simulation for traces, and give a time above 0.",
        )
    if lacking := [name for name in traces if not full.get(name, 0.0) > 0]:
        raise ConfigError(
            f"It is not said how many chips {lacking[0]} has when all is well.",
            "Its share at work cannot be told.",
            "Give a number above 0 for every learner of the traces.",
        )


def _column_means(times: Floats, values: Floats, edges: Floats) -> Floats:
    """Means of a step function between edges; before its first time it has its first value."""
    begin = min(float(times[0]), float(edges[0]))
    end = max(float(times[-1]), float(edges[-1]))
    knots = np.concatenate(([begin], times, [end]))
    held = np.concatenate(([values[0]], values))
    area = np.concatenate(([0.0], np.cumsum(held * np.diff(knots))))
    return np.asarray(np.diff(np.interp(edges, knots, area)) / np.diff(edges))


def _lowest_hour(
    traces: Mapping[str, CapacityTrace], full: Mapping[str, float], whole: Raster
) -> Raster | None:
    """The hour around the column in which the fleet had fewest chips at work."""
    width_s = (whole.stop_s - whole.start_s) / whole.fleet.size
    middle_s = (int(np.argmin(whole.fleet)) + 0.5) * width_s
    start_s = min(max(0.0, middle_s - HOUR / 2), whole.stop_s - HOUR)
    return rasterise(traces, full, start_s, start_s + HOUR)


def _finding(whole: Raster, until_s: float) -> str:
    span = "A week" if until_s == 7 * DAY else say_duration(until_s)
    column = say_duration(until_s / whole.fleet.size)
    mean, low = percent(whole.fleet.mean()), percent(whole.fleet.min())
    return f"{span}: {mean} of the chips at work, {low} in the worst {column}"


def _draw_rows(axes: Axes, raster: Raster, names: list[str]) -> None:
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    shades = LinearSegmentedColormap.from_list("share", SHADES)
    pixels = shades(np.clip(raster.share, 0.0, 1.0))[:, :, :3]
    pixels[raster.stopped >= 0.5] = to_rgb(VERMILION)
    axes.imshow(
        pixels,
        aspect="auto",
        interpolation="nearest",
        extent=(raster.start_s, raster.stop_s, len(names) - 0.5, -0.5),
    )
    bare(axes, grid="")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xticks([])
    for edge in range(1, len(names)):
        axes.axhline(edge - 0.5, color="white", linewidth=min(1.2, 40 / len(names)))
    if len(names) <= MAX_NAMED_ROWS:
        axes.set_yticks(range(len(names)), names, fontsize=8)
    else:
        axes.set_yticks([0, len(names) - 1], [names[0], names[-1]], fontsize=8)


def _draw_figures(axes: Axes, whole: Raster) -> None:
    """Beside each row its mean and how often it stood still."""
    learners = len(whole.num_stops)
    if learners > MAX_NAMED_ROWS:
        return
    transform = axes.get_yaxis_transform()
    for column, title in ((1.065, "at work"), (1.18, "pauses")):
        axes.annotate(
            title,
            (column, 1.0),
            (0, 5),
            "axes fraction",
            "offset points",
            ha="right",
            color=GREY,
            fontsize=8.5,
        )
    for row in range(learners):
        mean = percent(whole.share[row].mean())
        axes.text(1.065, row, mean, transform=transform, ha="right", va="center", fontsize=8, color=INK)
        stops = f"{whole.num_stops[row]:,}"
        axes.text(1.18, row, stops, transform=transform, ha="right", va="center", fontsize=8, color=INK)


def _draw_fleet(axes: Axes, whole: Raster, closer: Raster | None) -> None:
    """The share of all chips at work, as a filled line, with the hour that is shown again below."""
    edges = np.linspace(whole.start_s, whole.stop_s, whole.fleet.size + 1)
    bare(axes)
    axes.stairs(whole.fleet, edges, fill=True, color="#cfe4f2")
    axes.stairs(whole.fleet, edges, color=BLUES[3], linewidth=0.9, baseline=None)
    if closer:
        axes.axvspan(closer.start_s, closer.stop_s, color=VERMILION, alpha=0.35, linewidth=0)
        fits = closer.start_s < whole.stop_s * 0.8
        axes.annotate(
            "the hour below",
            (closer.stop_s if fits else closer.start_s, 0.06),
            (4 if fits else -4, 0),
            "data",
            "offset points",
            color=VERMILION,
            fontsize=8,
            ha="left" if fits else "right",
        )
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.5, 1.0], ["0 %", "50 %", "100 %"])
    axes.text(-0.127, 0.5, "fleet", transform=axes.transAxes, va="center", fontsize=8.5, color=INK)
    axes.spines["left"].set_visible(False)
    _time_axis(axes, whole)


def _time_axis(axes: Axes, raster: Raster) -> None:
    span_s = raster.stop_s - raster.start_s
    every_s, unit = next((every, unit) for least, every, unit in TICKS if span_s >= least)
    every_s *= max(1, round(span_s / every_s / 12))
    ticks = np.arange(0.0, span_s + every_s / 1000, every_s)
    axes.set_xlim(raster.start_s, raster.stop_s)
    axes.set_xticks(raster.start_s + ticks, [f"{tick / UNITS[unit]:g}" for tick in ticks])
    axes.set_xlabel({"day": "days", "h": "hours", "min": "minutes"}[unit], labelpad=1)
