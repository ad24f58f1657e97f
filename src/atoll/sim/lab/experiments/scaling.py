"""How the gap to Data-Parallel shrinks with the model, laid beside the published curve.

Data-Parallel and Decoupled by our defaults at M = 2, 4, 8 are trained at every size up to the one asked for.
For each M a power law gap = a N^-b is fitted to the gaps of all seeds (`fit_power`: on the linear scale, so
that a gap below zero counts). Two things are claimed: b is at least the published exponent, and every gap is
at or below the published curve extended to that size.

Where M learners with an example each make a larger batch than the law of batches wants, which happens at the
smallest sizes, the gap is larger for that reason alone, and the fit would be too steep: those points are
shown and not fitted. What is common to the seeds of a size (a rate that was chosen once, a batch rounded to a
power of two) is not in their spread, so the exponent's interval is the wider of two: that of all seeds, and
that of the means of the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atoll.sim.lab.cell import SIZES, Row, Size
from atoll.sim.lab.experiments.common import Place, ask, half_widths, seeds_of, shown_number
from atoll.sim.lab.experiments.losses import shown_loss
from atoll.sim.lab.experiments.parity import gap_claim
from atoll.sim.lab.experiments.published import AUTHORS, EXPONENTS, EXTENSION, RULE, extended_gap
from atoll.sim.lab.paired import Difference, Power, claim_at_least, fit_power, interval, paired
from atoll.sim.lab.report import Claim, Picture, Report, Request, Series, Stages, Table
from atoll.sim.lab.tuned import is_floored

__all__ = ["COUNTS", "SCALING", "Scaling"]

COUNTS = (2, 4, 8)
BASE = Place("data-parallel")


def ours(learners: int) -> Place:
    """Decoupled by our defaults."""
    return Place("decoupled", learners, settings_of="defaults")


@dataclass(frozen=True, slots=True)
class Scaling:
    """`atoll lab run scaling`; the size is the largest one that is trained."""

    name: str = "scaling"
    about: str = (
        "the gap of Decoupled to Data-Parallel at M=2, 4, 8 against model size, up to the asked-for one"
    )

    def stages(self, request: Request) -> Stages:
        """One stage: four methods at every size, small ones first."""
        sizes = SIZES[: SIZES.index(request.size) + 1]
        places = [BASE, *map(ours, COUNTS)]
        arms = {(size, place): place.arm(size) for size in sizes for place in places}
        rows = yield from ask(arms, request.seeds)
        points = [_Point(size, {place: rows[size, place] for place in places}) for size in sizes]
        return _report(points)


SCALING = Scaling()


@dataclass(frozen=True, slots=True)
class _Point:
    """What was found at one size."""

    size: Size
    rows: Mapping[Place, Sequence[Row]]

    @property
    def parameters(self) -> int:
        return self.rows[BASE][0].parameters

    def gap(self, learners: int) -> Difference:
        return paired(self.rows[ours(learners)], self.rows[BASE])

    def is_floored(self, learners: int) -> bool:
        return is_floored("text", self.size, learners)

    def extended(self, learners: int) -> float:
        found = extended_gap(self.parameters, learners)
        assert found is not None, "every M of this experiment has published figures"
        return found


def _report(points: Sequence[_Point]) -> Report:
    fits = {m: _fit(points, m) for m in COUNTS}
    claims = [_steepness(fits[m], m, len(points[0].rows[BASE])) for m in COUNTS]
    claims += [
        gap_claim(f"decoupled M={m}, {point.size}", point.gap(m), point.extended(m))
        for m in COUNTS
        for point in points
    ]
    figures = {f"gap at M={m}, {point.size}": point.gap(m).mean for m in COUNTS for point in points}
    figures |= {f"exponent at M={m}": -fit.exponent for m, fit in fits.items() if fit}
    return Report(
        tables=(_gaps_table(points), _fits_table(fits)),
        pictures=(_picture(points, fits),),
        claims=tuple(claims),
        notes=(RULE,),
        figures=figures,
    )


def _fit(points: Sequence[_Point], learners: int) -> Power | None:
    """None if there is no second size, or a run that did not end in a finite loss."""
    fitted = [point for point in points if not point.is_floored(learners)]
    pairs = [(float(point.parameters), gap) for point in fitted for gap in point.gap(learners).values]
    if len({x for x, _ in pairs}) < 2 or not all(math.isfinite(gap) for _, gap in pairs):
        return None
    by_seed = fit_power([x for x, _ in pairs], [y for _, y in pairs])
    by_size = fit_power(
        [float(point.parameters) for point in fitted], [point.gap(learners).mean for point in fitted]
    )
    return replace(
        by_seed,
        exponent_low=min(by_seed.exponent_low, by_size.exponent_low),
        exponent_high=max(by_seed.exponent_high, by_size.exponent_high),
    )


def _steepness(fit: Power | None, learners: int, seeds: int) -> Claim:
    """Whether the gap shrinks at least as fast as the published one."""
    limit = EXPONENTS[learners]
    text = (
        f"decoupled M={learners}: the gap shrinks with size at least as fast as the published one "
        f"(N^-{limit} by our reading)."
    )
    if fit is None or fit.scale <= 0:
        why = "Two sizes with finite losses are needed." if fit is None else "The gap is not above zero."
        return Claim(
            text=text, value=math.nan, low=-math.inf, high=math.inf, limit=limit, seeds=seeds,
            verdict="not resolved", advice=f"{why} There is no shrinking to measure.", unit="",
        )  # fmt: skip
    claim = claim_at_least(text, -fit.exponent, -fit.exponent_high, -fit.exponent_low, limit, seeds, unit="")
    is_open = claim.verdict == "not resolved" and seeds > 1
    return replace(claim, advice="More sizes would tell, not more seeds." if is_open else claim.advice)


def _gaps_table(points: Sequence[_Point]) -> Table:
    columns = ["size", "parameters", "Data-Parallel"]
    for m in COUNTS:
        columns += [f"M={m}: gap", f"M={m}: {EXTENSION}"]
    lines = []
    for point in points:
        line = [point.size, f"{point.parameters:,}", shown_loss(point.rows[BASE])]
        for m in COUNTS:
            mark = " *" if point.is_floored(m) else ""
            line += [interval(point.gap(m)) + mark, shown_number(point.extended(m))]
        lines.append(tuple(line))
    return Table(
        title=f"scaling: the gap of Decoupled to Data-Parallel, {seeds_of(points[0].rows[BASE])}",
        columns=tuple(columns),
        rows=tuple(lines),
        notes=(
            "Gaps are paired by seed: mean and 95 % interval.",
            "*: M learners with an example each take a larger batch than suits the size. Not in the fit.",
        ),
    )


def _fits_table(fits: Mapping[int, Power | None]) -> Table:
    lines = []
    for m, fit in fits.items():
        shown = ("-", "-")
        if fit is not None:
            shown = (f"{-fit.exponent:.2f}", f"{-fit.exponent_high:.2f}..{-fit.exponent_low:.2f}")
        lines.append((f"{m}", *shown, f"{EXPONENTS[m]}"))
    return Table(
        title="scaling: the gap as N to the minus this",
        columns=("M", "fitted", "95 % interval", "published"),
        rows=tuple(lines),
        notes=(
            "Published: as the authors' gap shrinks from 35M parameters up, by our reading of their table.",
        ),
    )


def _picture(points: Sequence[_Point], fits: Mapping[int, Power | None]) -> Picture:
    """Logarithmic if every gap of ours has a logarithm; the authors' points below zero are then left out."""
    sizes = tuple(float(point.parameters) for point in points)
    gaps = {m: [point.gap(m) for point in points] for m in COUNTS}
    log_y = all(gap.mean > 0 for found in gaps.values() for gap in found)
    series = []
    for m, found in gaps.items():
        means = tuple(gap.mean for gap in found)
        series.append(Series(name=f"decoupled M={m}", x=sizes, y=means, error=half_widths(found)))
    for m, fit in fits.items():
        if fit is not None:
            series.append(Series(name=f"fit M={m}", x=sizes, y=tuple(map(fit.at, sizes))))
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
