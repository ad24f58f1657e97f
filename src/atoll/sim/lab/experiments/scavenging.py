"""scavenging: borrowed learners join for the first half of the work and are gone for the second.

With e times the compute extra for half of the work, that half takes 1 / (1 + e) of its time: in all
1/2 + 1/(2(1 + e)) of the time without. Every extra learner brings a batch of its own, so while they are
there more tokens are trained in a step and the run has fewer steps. Tokens in all are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from atoll.sim.lab.cell import Fleet, Row
from atoll.sim.lab.experiments.common import OLDER, Arm, ask, mean_of, series_of
from atoll.sim.lab.paired import Difference, as_check, claim_below, interval, interval_of, mean_sd, paired
from atoll.sim.lab.report import Claim, Picture, Report, Request, Series, Stages, Table
from atoll.sim.lab.tuned import cell_for

__all__ = ["SCAVENGING", "Scavenging", "closed_form"]

LEARNERS = 4
EXTRA = (1, 2, 4, 12)
"""Borrowed learners: +25, 50, 100 and 300 % of the compute."""
TIME_PERCENT = 2.0
"""The time is at most so far from the closed form."""
LIMIT_PERCENT = 0.5

Rows = Mapping[int, Sequence[Row]]
"""By borrowed learners, 0 among them."""


@dataclass(frozen=True, slots=True)
class Scavenging:
    """What borrowed compute saves in time and costs in loss."""

    name: str = "scavenging"
    about: str = "4 learners, and 25 to 300 % more of them for half of the work: time and loss"

    def stages(self, request: Request) -> Stages:
        """One stage: all arms at all seeds."""
        arms: dict[int, Arm] = {
            extra: partial(cell_for, "decoupled", LEARNERS, size=request.size, fleet=Fleet(extra=extra))
            for extra in (0, *EXTRA)
        }
        rows = yield from ask(arms, request.seeds)
        return _report(rows)


SCAVENGING = Scavenging()


def closed_form(extra: float) -> float:
    """Time with so much extra compute (1: twice as much) for half of the work; without, it is 1."""
    return 0.5 + 0.5 / (1 + extra)


def _report(rows: Rows) -> Report:
    times = {extra: _times(rows, extra) for extra in EXTRA}
    losses = {extra: paired(rows[extra], rows[0]) for extra in EXTRA}
    return Report(
        tables=(_table(rows),),
        pictures=(_time_picture(times), _loss_picture(losses)),
        claims=_claims(times, losses),
        notes=(
            "A borrowed learner brings its own batch: the more of them, the fewer steps for the same tokens.",
        ),
        figures={
            **{f"time_{_percent(extra)}_percent": times[extra].mean for extra in EXTRA},
            **{f"loss_{_percent(extra)}_percent": losses[extra].mean for extra in EXTRA},
        },
    )


def _percent(extra: int) -> int:
    return 100 * extra // LEARNERS


def _expected(extra: int) -> float:
    return 100 * closed_form(extra / LEARNERS)


def _times(rows: Rows, extra: int) -> Difference:
    """In percent of the time without, seed by seed."""
    pairs = zip(rows[extra], rows[0], strict=True)
    return interval_of([100 * ours.virtual_s / plain.virtual_s for ours, plain in pairs])


def _table(rows: Rows) -> Table:
    lines = []
    for extra in (0, *EXTRA):
        found = rows[extra]
        lines.append((
            f"+{_percent(extra)} %" if extra else "none",
            f"{_expected(extra):.1f}",
            mean_sd(_times(rows, extra).values, 1),
            mean_sd([row.heldout_loss for row in found]),
            interval(paired(found, rows[0])) if extra else "-",
            f"{100 * mean_of(found, lambda row: row.goodput):.1f}",
            f"{mean_of(found, lambda row: row.merges):.0f}",
        ))  # fmt: skip
    return Table(
        title=f"Borrowed learners for half of the work, M = {LEARNERS}",
        columns=(
            "borrowed", "closed form, % of the time", "time %", "held-out loss", "against none", "goodput %",
            "merges",
        ),
        rows=tuple(lines),
        notes=("Closed form: 1/2 + 1/(2(1 + e)) of the time without, e the extra compute.",),
    )  # fmt: skip


def _claims(times: Mapping[int, Difference], losses: Mapping[int, Difference]) -> tuple[Claim, ...]:
    near = (
        claim_below(
            f"+{_percent(extra)} % for half of the work: time within {TIME_PERCENT:g} % of the closed form.",
            interval_of([100 * abs(value / _expected(extra) - 1) for value in times[extra].values]),
            TIME_PERCENT,
        )
        for extra in EXTRA
    )
    good = (
        claim_below(
            f"+{_percent(extra)} % for half of the work: loss within +{LIMIT_PERCENT} % of none, {OLDER}.",
            losses[extra],
            LIMIT_PERCENT,
        )
        for extra in EXTRA
    )
    return (*map(as_check, near), *good)  # borrowed learners leave when the closed form says


def _time_picture(times: Mapping[int, Difference]) -> Picture:
    x = tuple(float(_percent(extra)) for extra in EXTRA)
    return Picture(
        title="Time with borrowed learners",
        x_label="extra compute for half of the work, %",
        y_label="time, % of none",
        series=(
            series_of("run of the lab", [times[extra] for extra in EXTRA], x),
            Series(name="closed form", x=x, y=tuple(map(_expected, EXTRA)), is_reference=True),
        ),
    )


def _loss_picture(losses: Mapping[int, Difference]) -> Picture:
    return Picture(
        title="Held-out loss with borrowed learners",
        x_label="extra compute for half of the work, %",
        y_label="against none, %",
        series=(
            series_of(f"M = {LEARNERS}", [losses[extra] for extra in EXTRA], tuple(map(_percent, EXTRA))),
        ),
        zero_line=True,
    )
