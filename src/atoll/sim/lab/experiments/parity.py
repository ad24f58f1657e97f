"""As good as lock-step training: every method against Data-Parallel, and Decoupled against Streaming.

A `Comparison` trains Data-Parallel once per seed and the other methods at each M, all at tuned settings, with
the same initial weights, data and tokens. Its table shows each method's loss and its paired gap to
Data-Parallel; its claims say whether asynchrony is free and, for text, whether the gap is at or below the
published one. `parity`, `moe` and `vision` are comparisons; they differ in task, methods and M.

What asynchrony costs is Decoupled against synchronous Streaming at the same M and at Decoupled's settings:
nothing else differs but the window for the late, which who waits for everybody has no use for.

Every method stands there by our defaults, whose momentum warms up and cools down, all at the learning rate
that suits Decoupled. At `tiny`, where each was tuned for itself, it stands there at its own settings too,
with momentum that stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atoll.sim.lab.cell import Method, Row, Size, Task
from atoll.sim.lab.experiments.common import Place, ask, mean_of, megabytes, shown_number
from atoll.sim.lab.experiments.losses import bars, shown_loss
from atoll.sim.lab.experiments.published import EXTENSION, RULE, extended_gap
from atoll.sim.lab.paired import (
    Difference,
    claim_below,
    interval,
    interval_of,
    paired,
    paired_shared,
    percent,
)
from atoll.sim.lab.report import FINE, Claim, Report, Request, Stages, Table

__all__ = ["ASYNCHRONY_LIMIT", "AVERAGE_LAST", "PARITY", "Comparison"]

ASYNCHRONY_LIMIT = 0.5
"""Percent of loss that asynchrony may cost."""

AVERAGE_LAST = 0.1
"""Of a run of Data-Parallel: its model is also scored as the mean of its values over this last share."""

Rows = Mapping[Place, Sequence[Row]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Methods against Data-Parallel at the same tokens; `atoll lab run NAME`."""

    name: str
    about: str
    task: Task
    methods: tuple[Method, ...]
    """Those with learners that wait; Data-Parallel and Decoupled are always there."""
    counts: tuple[int, ...]
    """Every M."""
    fine: int = FINE
    """How many times the seeds that the arms get by which asynchrony is measured."""

    def stages(self, request: Request) -> Stages:
        """One stage: Data-Parallel once, the others at every M; what asynchrony is measured by is fine."""
        places = [self.data_parallel, self.averaged]
        places += [place for m in self.counts for place in self.places(m, request.size)]
        fine = [by_defaults(m) for m in self.counts for by_defaults in (self.decoupled, self.streaming)]
        arms = {place: place.arm(request.size) for place in places}
        rows = yield from ask(arms, request.seeds, fine, request.fine_seeds(self.fine))
        return _Findings(self, rows).report(f"{self.task}, {request.size}")

    @property
    def data_parallel(self) -> Place:
        """What all are compared with."""
        return Place("data-parallel", task=self.task)

    @property
    def averaged(self) -> Place:
        """Data-Parallel with a calmer end, as the schedule of momentum gives it to the others."""
        return Place("data-parallel", task=self.task, average_last=AVERAGE_LAST)

    def places(self, learners: int, size: Size) -> list[Place]:
        """At one M: every method by our defaults, and at `tiny` before that at its own settings."""
        methods: tuple[Method, ...] = (*self.methods, "decoupled")
        own = [Place(method, learners, self.task) for method in methods] if size == "tiny" else []
        return [*own, *(self.by_defaults(method, learners) for method in methods)]

    def by_defaults(self, method: Method, learners: int) -> Place:
        """A method at the settings that Decoupled has by our defaults."""
        return Place(method, learners, self.task, "defaults")

    def decoupled(self, learners: int) -> Place:
        """What it is all about."""
        return self.by_defaults("decoupled", learners)

    def streaming(self, learners: int) -> Place:
        """What asynchrony is measured against."""
        return self.by_defaults("streaming", learners)


PARITY = Comparison(
    name="parity",
    about="Data-Parallel, DiLoCo, Streaming and Decoupled at M=2, 4, 8: held-out loss at the same tokens",
    task="text",
    methods=("diloco", "streaming"),
    counts=(2, 4, 8),
)


@dataclass(frozen=True, slots=True)
class _Findings:
    """The rows of a comparison, and what follows from them."""

    comparison: Comparison
    rows: Rows

    def report(self, where: str) -> Report:
        shown = self.comparison
        gaps = {place: self.gap(place) for place in self.rows if place != shown.data_parallel}
        figures = {f"gap of {place.name}": gap.mean for place, gap in gaps.items()}
        figures |= {f"asynchrony at M={m}": self.asynchrony(m).mean for m in shown.counts}
        groups: dict[str, list[Difference]] = {}
        for place, gap in gaps.items():
            if place.method != "data-parallel":
                groups.setdefault(place.label, []).append(gap)
        picture = bars(
            f"Held-out loss above Data-Parallel ({where})", names=[f"M={m}" for m in shown.counts],
            groups=groups, x_label="learners", y_label="gap to Data-Parallel (%)",
        )  # fmt: skip
        return Report(
            tables=(self.table(where),), pictures=(picture,), claims=tuple(self.claims()),
            notes=(self.calm(), *([RULE] if self.has_curve else [])), figures=figures,
        )  # fmt: skip

    @property
    def has_curve(self) -> bool:
        """The published figures are those of dense language models."""
        return self.comparison.task == "text"

    @property
    def has_own(self) -> bool:
        """Whether methods stand there at their own settings too."""
        return any(place.learners > 1 and place.settings_of is None for place in self.rows)

    def gap(self, place: Place) -> Difference:
        return paired_shared(self.rows[place], self.rows[self.comparison.data_parallel])

    def gap_to_averaged(self, place: Place) -> str:
        if place.method == "data-parallel":
            return "-"
        return interval(paired_shared(self.rows[place], self.rows[self.comparison.averaged]))

    def asynchrony(self, learners: int) -> Difference:
        shown = self.comparison
        return paired(self.rows[shown.decoupled(learners)], self.rows[shown.streaming(learners)])

    def against_streaming(self, place: Place) -> str:
        """Decoupled beside Streaming, both by our defaults or each at its own settings."""
        other = replace(place, method="streaming")
        if place.method != "decoupled" or other not in self.rows:
            return "-"
        return interval(paired(self.rows[place], self.rows[other]))

    def asynchrony_over_all(self) -> Difference:
        """The mean over every M, seed by seed."""
        by_count = [self.asynchrony(m).values for m in self.comparison.counts]
        means = [sum(values) / len(values) for values in zip(*by_count, strict=True)]
        return replace(interval_of(means), is_change=True)

    def calm(self) -> str:
        """What the claims about asynchrony do not show."""
        shown = self.comparison
        sides = {"Streaming": [shown.streaming(m) for m in shown.counts]}
        sides["Decoupled"] = [shown.decoupled(m) for m in shown.counts]
        figures = []
        for name, places in sides.items():
            rows = [row for place in places for row in self.rows[place]]
            merged = percent(mean_of(rows, lambda row: row.participation))
            age = mean_of(rows, lambda row: row.staleness_steps)
            figures.append(f"{name}: {merged} of the learners in a round, adopted after {age:.1f} steps")
        return (
            "This fleet is calm: learners are equally fast and nothing fails, so Decoupled and Streaming do "
            f"nearly the same ({'; '.join(figures)}). That asynchrony is free here says that the protocol "
            "itself costs nothing; mixed-hardware makes the claim where asynchrony matters."
        )

    def extended(self, place: Place) -> float | None:
        return extended_gap(self.rows[place][0].parameters, place.learners) if self.has_curve else None

    def claims(self) -> list[Claim]:
        task, counts = self.comparison.task, self.comparison.counts
        found = [
            claim_below(
                f"{task}, M={m}: asynchrony is free, Decoupled is within +{ASYNCHRONY_LIMIT} % of Streaming "
                "at the same settings.",
                self.asynchrony(m), ASYNCHRONY_LIMIT,
            )
            for m in counts
        ]  # fmt: skip
        if len(counts) > 1:
            where = f"{task}, the mean over M={', '.join(map(str, counts))}"
            text = f"{where}: Decoupled is within +{ASYNCHRONY_LIMIT} % of Streaming at the same settings."
            found.append(claim_below(text, self.asynchrony_over_all(), ASYNCHRONY_LIMIT))
        for m in counts:
            place = self.comparison.decoupled(m)
            limit = self.extended(place)
            if limit is not None:
                text = (
                    f"{place.name}: the gap to Data-Parallel is at or below the published curve extended "
                    "here (ours)."
                )
                found.append(claim_below(text, self.gap(place), round(limit, 2)))
        return found

    def table(self, where: str) -> Table:
        rows = self.rows[self.comparison.data_parallel]
        columns = (
            "method", "M", "batch", "seeds", "held-out loss", "accuracy", "gap to Data-Parallel",
            f"gap to its mean of the last {percent(AVERAGE_LAST, 0)}", EXTENSION,
            "against Streaming", "goodput", "stall", "MB moved",
        )  # fmt: skip
        lines = [self.line(place) for place in self.rows]
        kept = [at for at in range(len(columns)) if any(line[at] != "-" for line in lines)]
        unit = "images" if self.comparison.task == "vision" else "tokens"
        return Table(
            title=f"{self.comparison.name}: {where}, {rows[0].cell.tokens:,} {unit}",
            columns=tuple(columns[at] for at in kept),
            rows=tuple(tuple(line[at] for at in kept) for line in lines),
            notes=(
                "Loss: mean ± standard deviation over seeds. Gaps: paired by seed, mean and 95 % interval, "
                "over the seeds that both sides have.",
                "By our defaults all methods have the batch, eta, mu and schedule of momentum of Decoupled, "
                "and the learning rate that suits it."
                + (" Else a method has its own, with constant momentum." if self.has_own else ""),
                "Against Streaming: by our defaults at the same settings"
                + (", else each at its own." if self.has_own else "."),
                "Momentum that falls at the end makes the end of a run calmer, and Data-Parallel has none: "
                "the mean of its values over its last tenth does the same for it.",
            ),
        )

    def line(self, place: Place) -> tuple[str, ...]:
        rows = self.rows[place]
        has_learners = place.method != "data-parallel"
        return (
            place.label,
            f"{place.learners}" if has_learners else "-",
            f"{rows[0].cell.batch}",
            f"{len(rows)}",
            shown_loss(rows),
            percent(mean_of(rows, lambda row: row.accuracy)),
            "-" if place == self.comparison.data_parallel else interval(self.gap(place)),
            self.gap_to_averaged(place),
            shown_number(self.extended(place)) if has_learners else "-",
            self.against_streaming(place),
            percent(mean_of(rows, lambda row: row.goodput)),
            percent(mean_of(rows, lambda row: row.stall_fraction)),
            megabytes(rows),
        )
