"""failures: 1.2M chips that each fail once a year, as 8 learners that step on or as one that stands still.

The schedule is the fleet model's, drawn anew for every seed (`fleets`). A learner that loses a slice stands
still for some seconds, shrinks, and grows again later. In the first of the failing arms its process lives
through that, as the model has it. In the others every pause is a death: what was not offered is lost, and a
new life takes the model from the syncer. AdamW's moments come back as they were at death, as from a disk that
is always up to date, or are lost: real learners are between the two. Elastic Data-Parallel has the same
chips as one island, so every failure stops all of them. All arms train the same number of tokens; Decoupled
has our defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from atoll.sim.fleet.presets import TABLE1
from atoll.sim.lab.cell import Fleet, Row
from atoll.sim.lab.experiments.common import Arm, Place, ask, mean_of, series_of
from atoll.sim.lab.experiments.losses import bars
from atoll.sim.lab.fleets import FAILING_STEP_S
from atoll.sim.lab.paired import as_check, claim_below, interval, interval_of, mean_sd, paired_shared
from atoll.sim.lab.report import FINE, Claim, Picture, Report, Request, Series, Stages, Table, Verdict
from atoll.sim.lab.tuned import cell_for
from atoll.sim.units import YEAR

__all__ = ["FAILURES", "Failures"]

LEARNERS = 8
CHIPS = 1_200_000
CALM = Fleet(step_s=FAILING_STEP_S)
FAILING = replace(CALM, chips=CHIPS, mtbi_s=YEAR)
DYING = replace(FAILING, has_deaths=True)
POINTS = 3.0
"""Goodput is at most so far from the fleet model's."""
LIMIT_PERCENT = 0.5

DP, ELASTIC = "Data-Parallel, no failures", "Data-Parallel, elastic"
STEADY, PAUSES = "Decoupled, no failures", "Decoupled, pauses"
DEATHS, FRESH = "Decoupled, deaths", "Decoupled, deaths, moments lost"
FAILED = (ELASTIC, PAUSES, DEATHS, FRESH)
"""The arms to which failures happen."""

Rows = Mapping[str, Sequence[Row]]


@dataclass(frozen=True, slots=True)
class Failures:
    """Goodput and loss under the failures of a fleet, beside the same runs without them."""

    name: str = "failures"
    about: str = "1.2M chips that fail once a year: DP, elastic DP, and Decoupled with M = 8 (pauses, deaths)"

    def stages(self, request: Request) -> Stages:
        """One stage: all arms, those that the claim of a fraction of a percent is about at more seeds."""
        decoupled = partial(Place("decoupled", LEARNERS, settings_of="defaults").arm, request.size)
        arms: dict[str, Arm] = {
            DP: partial(cell_for, "data-parallel", 1, size=request.size),
            ELASTIC: partial(cell_for, "elastic", 1, size=request.size, fleet=FAILING),
            STEADY: decoupled(fleet=CALM),
            PAUSES: decoupled(fleet=FAILING),
            DEATHS: decoupled(fleet=DYING),
            FRESH: decoupled(fleet=replace(DYING, loses_moments=True)),
        }
        # At M = 8 two runs of one seed end further apart than at M = 4.
        rows = yield from ask(arms, request.seeds, (STEADY, PAUSES), request.fine_seeds(2 * FINE))
        return _report(rows)


FAILURES = Failures()


def published(name: str) -> float | None:
    """What the paper's Table 1 prints for an arm, in percent; None where it has no such row."""
    learners = {ELASTIC: 1, PAUSES: LEARNERS}.get(name)
    found = [one for one in TABLE1 if one.chips == CHIPS and one.learners == learners and one.elastic]
    return found[0].goodput_percent if found else None


def _report(rows: Rows) -> Report:
    losses = {name: paired_shared(rows[name], rows[STEADY]) for name in rows}
    figures = {"decoupled_goodput": PAUSES, "deaths_goodput": DEATHS, "elastic_goodput": ELASTIC}
    return Report(
        tables=(_table(rows),),
        pictures=(_goodputs(rows), _losses(rows)),
        claims=_claims(rows),
        notes=(
            "The fleet model's pauses are fitted by us to the paper's Table 1, which prints no pauses: it "
            "is near the published figures by construction. The runs were fitted to nothing.",
            "Data-Parallel that is not elastic was not trained: it is Data-Parallel in more time. The paper "
            "prints 27 % goodput for it.",
            "Elastic Data-Parallel loses the slices that are out from its batch: some hundredths of a "
            "percent of it. That is less than one example, so at these batches it trains as Data-Parallel "
            "does, to the bit, in more time.",
            "The fleet model knows no deaths: its step in flight is finished, and nothing is lost. A death "
            "loses that step and all that was not offered yet, so its goodput is below the model's.",
        ),
        figures={
            **{key: mean_of(rows[name], lambda row: row.goodput) for key, name in figures.items()},
            "model_goodput": mean_of(rows[PAUSES], lambda row: row.model_goodput),
            "pauses_loss_percent": losses[PAUSES].mean,
            "deaths_loss_percent": losses[DEATHS].mean,
            "fresh_loss_percent": losses[FRESH].mean,
        },
    )


def _table(rows: Rows) -> Table:
    return Table(
        title=f"Failures of {CHIPS / 1e6:.1f}M chips, one a year each; M = {LEARNERS}",
        columns=(
            "run", "seeds", "goodput %", "fleet model %", "published %", "held-out loss",
            "against no failures", "tokens merged %", "longest stop s", "lives", "participation %",
        ),
        rows=tuple(_line(name, rows) for name in rows),
        notes=(
            f"A step takes {FAILING_STEP_S:g} s of virtual time. Longest stop: no learner was in a step, "
            "from when all had begun.",
            "Against no failures: Decoupled against itself, Data-Parallel against itself.",
            "Goodput counts a step as kept once its life has offered anything after it. Tokens merged is "
            "the mean over fragments of what went into the model: a life shorter than H never offers some.",
        ),
    )  # fmt: skip


def _line(name: str, rows: Rows) -> tuple[str, ...]:
    found, theirs = rows[name], published(name)
    base = DP if name in (DP, ELASTIC) else STEADY
    return (
        name,
        f"{len(found)}",
        mean_sd([100 * row.goodput for row in found], 1),
        mean_sd([100 * row.model_goodput for row in found], 1) if name in FAILED else "-",
        "-" if theirs is None else f"{theirs:g}",
        mean_sd([row.heldout_loss for row in found]),
        "-" if name == base else interval(paired_shared(found, rows[base])),
        "-" if base == DP else f"{100 * mean_of(found, lambda row: row.merged_share):.1f}",
        f"{max(row.longest_stop_s for row in found):.1f}",
        f"{mean_of(found, lambda row: row.incarnations):.0f}",
        "-" if base == DP else mean_sd([100 * row.participation for row in found], 1),
    )


def _claims(rows: Rows) -> tuple[Claim, ...]:
    near = [
        claim_below(
            f"{name}: goodput is within {POINTS:g} points of the fleet model's for the same schedule.",
            interval_of([100 * abs(row.goodput - row.model_goodput) for row in rows[name]]),
            POINTS,
            unit="points",
        )
        for name in (PAUSES, DEATHS)
    ]
    near[0] = as_check(near[0])  # the model's own trace, and learners that never wait
    good = (
        claim_below(
            f"{name}: the loss is within +{LIMIT_PERCENT} % of Decoupled without failures at equal tokens.",
            paired_shared(rows[name], rows[STEADY]),
            LIMIT_PERCENT,
        )
        for name in (PAUSES, DEATHS, FRESH)
    )
    return (*near, *good, *(_never_stops(name, rows[name]) for name in (PAUSES, DEATHS)))


def _never_stops(name: str, rows: Sequence[Row]) -> Claim:
    """The longest of all runs, not an estimate: it holds for the runs that were made, be it a single one."""
    longest = max(row.longest_stop_s / FAILING_STEP_S for row in rows)
    verdict: Verdict = "holds" if longest <= 1 else "fails"
    return Claim(
        text=f"{name}: in no run did all learners stand still at once for longer than a step.",
        value=longest,
        low=longest,
        high=longest,
        limit=1.0,
        seeds=len(rows),
        verdict=verdict,
        unit="steps",
    )


def _goodputs(rows: Rows) -> Picture:
    names = tuple(rows)
    at = {name: float(x) for x, name in enumerate(names)}
    printed = {name: value for name in names if (value := published(name)) is not None}
    ours = [interval_of([100 * row.goodput for row in rows[name]]) for name in names]
    return Picture(
        title=f"Goodput on {CHIPS / 1e6:.1f}M failing chips",
        kind="bars",
        x_label="run",
        y_label="goodput, %",
        series=(
            series_of("run of the lab", ours),
            Series(
                name="fleet model, same schedule",
                x=tuple(at[name] for name in FAILED),
                y=tuple(100 * mean_of(rows[name], lambda row: row.model_goodput) for name in FAILED),
            ),
            Series(
                name="published",
                x=tuple(at[name] for name in printed),
                y=tuple(printed.values()),
                is_reference=True,
            ),
        ),
        names=names,
    )


def _losses(rows: Rows) -> Picture:
    names = tuple(name for name in rows if name != STEADY)
    found = [paired_shared(rows[name], rows[STEADY]) for name in names]
    return bars(
        "Held-out loss, failing or not",
        names=names,
        groups={f"M = {LEARNERS}": found},
        x_label="run",
        y_label="against Decoupled without failures, %",
    )
