"""How the gap to Data-Parallel shrinks with the model, laid beside the published curve.

Data-Parallel, the mean of its last tenth, and Decoupled by our defaults at M = 2, 4, 8 are trained at every
size up to the one asked for; small ones are cheap and get more seeds. For each M three things are claimed:

- **Below the curve**: at every size the gap is at or below the published one, extended to that size. The
  size that comes nearest to it is told.
- **Below the authors' smallest model**: at the largest size the gap is at or below what the authors measured
  at 35M parameters, to Data-Parallel with the mean of its last tenth, the harder baseline.
- **Shrinking as fast**: the authors' gap shrinks as N^-b. Ours is taken as a share of that law, and a line is
  fitted to the shares by the logarithm of the size (`fit_trend`, all seeds, the same noise in every gap):
  the share must not grow. That asks for no logarithm of a gap, so one below zero counts as it is.

Where M learners with an example each make a larger batch than the law of batches wants, which happens at the
smallest sizes, the gap is larger for that reason alone, and the line would fall too steeply: those points are
shown and not fitted. What is common to the seeds of a size (a rate that was chosen once, a batch rounded to a
power of two) is not in their spread: the line through the means of the sizes stands beside the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atoll.sim.lab.cell import SIZES, Row, Size
from atoll.sim.lab.experiments.common import Place, ask, series_of, shown_number
from atoll.sim.lab.experiments.losses import shown_loss
from atoll.sim.lab.experiments.parity import AVERAGE_LAST
from atoll.sim.lab.experiments.published import AUTHORS, EXPONENTS, EXTENSION, RULE, extended_gap, law
from atoll.sim.lab.paired import (
    Difference,
    Trend,
    claim_at_least,
    claim_below,
    fit_trend,
    interval,
    paired,
    percent,
)
from atoll.sim.lab.report import Claim, Picture, Report, Request, Series, Stages, Table
from atoll.sim.lab.tuned import is_floored

__all__ = ["COUNTS", "SCALING", "Scaling"]

COUNTS = (2, 4, 8)
BASE = Place("data-parallel")
AVERAGED = Place("data-parallel", average_last=AVERAGE_LAST)
CHEAP: tuple[Size, ...] = ("0.05M", "tiny")
MORE_SEEDS = 2
"""For sizes that are cheap."""


def ours(learners: int) -> Place:
    """Decoupled by our defaults."""
    return Place("decoupled", learners, settings_of="defaults")


PLACES = (BASE, AVERAGED, *map(ours, COUNTS))


@dataclass(frozen=True, slots=True)
class Scaling:
    """`atoll lab run scaling`; the size is the largest one that is trained."""

    name: str = "scaling"
    about: str = (
        "the gap of Decoupled to Data-Parallel at M=2, 4, 8 against model size, up to the asked-for one"
    )

    def stages(self, request: Request) -> Stages:
        """One stage: five methods at every size, small ones first."""
        sizes = SIZES[: SIZES.index(request.size) + 1]
        arms = {(size, place): place.arm(size) for size in sizes for place in PLACES}
        cheap = [arm for arm in arms if arm[0] in CHEAP]
        more = request.seeds + MORE_SEEDS if request.seeds > 1 else 1
        rows = yield from ask(arms, request.seeds, cheap, more)
        return _report([_Point(size, {place: rows[size, place] for place in PLACES}) for size in sizes])


SCALING = Scaling()


@dataclass(frozen=True, slots=True)
class _Point:
    """What was found at one size."""

    size: Size
    rows: Mapping[Place, Sequence[Row]]

    @property
    def parameters(self) -> int:
        return self.rows[BASE][0].parameters

    @property
    def seeds(self) -> int:
        return len(self.rows[BASE])

    def gap(self, learners: int, base: Place = BASE) -> Difference:
        return paired(self.rows[ours(learners)], self.rows[base])

    def is_floored(self, learners: int) -> bool:
        return is_floored("text", self.size, learners)

    def extended(self, learners: int) -> float:
        found = extended_gap(self.parameters, learners)
        assert found is not None, "every M of this experiment has published figures"
        return found


@dataclass(frozen=True, slots=True)
class _Line:
    """The share of the published law, by doublings of the size; zero is the largest size."""

    points: Sequence[_Point]
    learners: int
    largest: int
    """Parameters."""

    def by_seed(self) -> Trend | None:
        """Through the gaps of all seeds; None if there is no second size, or a gap is not finite."""
        return self._fit([(point, gap) for point in self.points for gap in point.gap(self.learners).values])

    def by_size(self) -> Trend | None:
        """Through the means of the sizes."""
        return self._fit([(point, point.gap(self.learners).mean) for point in self.points])

    def _fit(self, gaps: Sequence[tuple[_Point, float]]) -> Trend | None:
        x = [self.doublings(point.parameters) for point, _ in gaps]
        if len(set(x)) < 2 or not all(math.isfinite(gap) for _, gap in gaps):
            return None
        laws = [law(point.parameters, self.learners) for point, _ in gaps]
        return fit_trend(x, [gap for _, gap in gaps], laws)

    def doublings(self, parameters: float) -> float:
        return math.log2(parameters / self.largest)


def _report(points: Sequence[_Point]) -> Report:
    largest = points[-1]
    everything = {m: _Line(points, m, largest.parameters) for m in COUNTS}
    lines = {
        m: replace(line, points=[point for point in points if not point.is_floored(m)])
        for m, line in everything.items()
    }
    claims = [_nearest(points, m) for m in COUNTS]
    claims += [_against_authors(largest, m) for m in COUNTS]
    claims += [_shrinks(lines[m], m, largest.seeds) for m in COUNTS]
    return Report(
        tables=(_gaps_table(points), _lines_table([*lines.values(), *everything.values()], largest.size)),
        pictures=(_picture(points, lines),),
        claims=tuple(claims),
        notes=(RULE,),
        figures={f"gap at M={m}, {point.size}": point.gap(m).mean for m in COUNTS for point in points},
    )


def _nearest(points: Sequence[_Point], learners: int) -> Claim:
    """At every size below the curve: the claim of the size where least is between them."""
    nearest = min(points, key=lambda point: _room(point, learners))
    text = (
        f"decoupled, our defaults M={learners}: at every size the gap to Data-Parallel is at or below the "
        f"published curve extended here (ours); nearest to it at {nearest.size}."
    )
    return claim_below(text, nearest.gap(learners), round(nearest.extended(learners), 2))


def _room(point: _Point, learners: int) -> float:
    """From the upper end of the gap to the curve; what did not end in a finite number has least."""
    gap = point.gap(learners)
    return point.extended(learners) - (gap.high if math.isfinite(gap.mean) else math.inf)


def _against_authors(largest: _Point, learners: int) -> Claim:
    """Against the smallest model of the authors, by the harder baseline."""
    parameters, theirs = AUTHORS[learners][0]
    text = (
        f"decoupled, our defaults M={learners}, {largest.size}: the gap to Data-Parallel with the mean of "
        f"its last {percent(AVERAGE_LAST, 0)} is at or below what the authors measured at "
        f"{parameters / 1e6:.0f}M parameters."
    )
    return claim_below(text, largest.gap(learners, AVERAGED), theirs)


def _shrinks(line: _Line, learners: int, seeds: int) -> Claim:
    """Whether the gap shrinks at least as fast as the published one: its share of the law does not grow."""
    text = (
        f"decoupled, our defaults M={learners}: the gap shrinks with size at least as fast as the published "
        f"one (N^-{EXPONENTS[learners]} by our reading): as a share of that law it falls by."
    )
    fit, unit = line.by_seed(), "points a doubling"
    if fit is None:
        return Claim(
            text=text, value=math.nan, low=-math.inf, high=math.inf, limit=0.0, seeds=seeds,
            verdict="not resolved", advice="Two sizes with finite losses are needed.", unit=unit,
        )  # fmt: skip
    low, high = (-100 * end for end in (fit.slope_high, fit.slope_low))
    if seeds == 1:
        low, high = -math.inf, math.inf
    claim = claim_at_least(text, -100 * fit.slope, low, high, 0.0, seeds, unit)
    is_open = claim.verdict == "not resolved" and seeds > 1
    return replace(claim, advice="More seeds or more sizes would tell." if is_open else claim.advice)


def _gaps_table(points: Sequence[_Point]) -> Table:
    rows = [_gap_row(point, place) for place in PLACES for point in points]
    return Table(
        title="scaling: the gap to Data-Parallel by size",
        columns=(
            "method", "M", "size", "parameters", "batch", "seeds", "held-out loss", "gap to Data-Parallel",
            f"gap to its mean of the last {percent(AVERAGE_LAST, 0)}", EXTENSION, "share of the law",
        ),
        rows=tuple(rows),
        notes=(
            "Loss: mean ± standard deviation over seeds. Gaps are paired by seed: mean and 95 % interval.",
            "*: M learners with an example each take a larger batch than suits the size; not in the lines "
            "below.",
            "Share of the law: the gap, in that of the power law of the same M alone, which the extension "
            "follows where that of a larger M is not below it.",
        ),
    )  # fmt: skip


def _gap_row(point: _Point, place: Place) -> tuple[str, ...]:
    rows, m = point.rows[place], place.learners
    is_ours = place.method == "decoupled"
    mark = " *" if is_ours and point.is_floored(m) else ""
    gap = paired(rows, point.rows[BASE])
    return (
        place.label,
        f"{m}" if is_ours else "-",
        point.size,
        f"{point.parameters:,}",
        f"{rows[0].cell.batch}{mark}",
        f"{len(rows)}",
        shown_loss(rows),
        "-" if place == BASE else interval(gap),
        interval(point.gap(m, AVERAGED)) if is_ours else "-",
        shown_number(point.extended(m)) if is_ours else "-",
        shown_number(100 * gap.mean / law(point.parameters, m), 0) if is_ours else "-",
    )


def _lines_table(lines: Sequence[_Line], size: Size) -> Table:
    rows = dict.fromkeys(_line_row(line) for line in lines if line.points)
    return Table(
        title="scaling: the gap as a share of the published law, by doublings of the model",
        columns=("M", "sizes", f"share at {size}", "change a doubling", "through the means of the sizes"),
        rows=tuple(sorted(rows, key=lambda row: int(row[0]))),
        notes=(
            "Change a doubling: slope of a line through the gaps of all seeds, in points of the share, with "
            "its 95 % interval; below zero our gap shrinks faster than the published one. The last column "
            "has the line through one mean of each size, whose interval holds what seeds of a size share.",
        ),
    )


def _line_row(line: _Line) -> tuple[str, ...]:
    fit, by_size = line.by_seed(), line.by_size()
    return (
        f"{line.learners}",
        ", ".join(point.size for point in line.points),
        "-" if fit is None else shown_number(100 * fit.at_zero, 0),
        _shown_slope(fit),
        _shown_slope(by_size),
    )


def _shown_slope(fit: Trend | None) -> str:
    if fit is None:
        return "-"
    if not math.isfinite(fit.slope_high):
        return f"{100 * fit.slope:+.1f}"
    return f"{100 * fit.slope:+.1f} ({100 * fit.slope_low:+.1f}..{100 * fit.slope_high:+.1f})"


def _drawn(line: _Line, name: str, log_y: bool) -> Series | None:
    """The line as gaps; on a logarithmic scale only where it is above zero."""
    fit = line.by_seed()
    if fit is None:
        return None
    sizes = [float(point.parameters) for point in line.points]
    found = [(x, fit.at(line.doublings(x), law(x, line.learners))) for x in sizes]
    shown = [(x, y) for x, y in found if y > 0 or not log_y]
    return Series(name=name, x=tuple(x for x, _ in shown), y=tuple(y for _, y in shown))


def _picture(points: Sequence[_Point], lines: Mapping[int, _Line]) -> Picture:
    """Logarithmic if every gap of ours has a logarithm; the authors' points below zero are then left out."""
    sizes = tuple(float(point.parameters) for point in points)
    gaps = {m: [point.gap(m) for point in points] for m in COUNTS}
    log_y = all(gap.mean > 0 for found in gaps.values() for gap in found)
    series = [series_of(f"decoupled M={m}", found, sizes) for m, found in gaps.items()]
    series += [drawn for m, line in lines.items() if (drawn := _drawn(line, f"line M={m}", log_y))]
    for m in COUNTS:
        shown = [(x, y) for x, y in AUTHORS[m] if y > 0 or not log_y]
        x, y = tuple(x for x, _ in shown), tuple(y for _, y in shown)
        series.append(Series(name=f"published M={m}", x=x, y=y, is_reference=True))
        extended = tuple(point.extended(m) for point in points)
        name = f"extended (ours) M={m}"
        series.append(Series(name=name, x=(*sizes, x[0]), y=(*extended, y[0]), is_reference=True))
    return Picture(
        title="The gap to Data-Parallel against model size", x_label="parameters",
        y_label="gap to Data-Parallel (%)", series=tuple(series), log_x=True, log_y=log_y,
        zero_line=not log_y,
    )  # fmt: skip
