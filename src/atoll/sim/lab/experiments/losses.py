"""Held-out losses of the arms of an experiment: as text, for choosing the best, and as bars.

A run may end in no finite number, which is a result too: such an arm counts as infinitely bad where the best
is chosen, and its bar is missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from atoll.sim.lab.cell import Row
from atoll.sim.lab.experiments.common import mean_of, series_of
from atoll.sim.lab.paired import Difference, mean_sd
from atoll.sim.lab.report import Picture

__all__ = ["bars", "beyond", "mean_loss", "rank_of", "shown_loss"]


def mean_loss(rows: Sequence[Row]) -> float:
    """The mean over seeds; infinite if a run did not end in a finite number."""
    mean = mean_of(rows, lambda row: row.heldout_loss)
    return mean if math.isfinite(mean) else math.inf


def rank_of(difference: Difference) -> float:
    """For sorting, best first: the mean difference; what did not end in a finite number comes last."""
    return difference.mean if math.isfinite(difference.mean) else math.inf


def shown_loss(rows: Sequence[Row]) -> str:
    """Mean and deviation over seeds, as tables show them."""
    return mean_sd([row.heldout_loss for row in rows]) if math.isfinite(mean_loss(rows)) else "not finite"


def beyond(tried: Mapping[int, Row], most: int) -> tuple[int, ...]:
    """The next step beyond the best, if that is the lowest or the highest of those tried and fewer than
    `most` were."""
    low, high = min(tried), max(tried)
    best = min(tried, key=lambda step: mean_loss([tried[step]]))
    if len(tried) >= most or low < best < high:
        return ()
    return (low - 1,) if best == low else (high + 1,)


def bars(
    title: str,
    *,
    names: Sequence[str],
    groups: Mapping[str, Sequence[Difference]],
    x_label: str,
    y_label: str,
) -> Picture:
    """Bars of differences with their intervals: a group of series for every name."""
    return Picture(
        title=title,
        kind="bars",
        x_label=x_label,
        y_label=y_label,
        series=tuple(series_of(name, found) for name, found in groups.items()),
        names=tuple(names),
        zero_line=True,
    )
