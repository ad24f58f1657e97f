"""merge-rule: the mean, RDA, and RDA on embeddings too.

The deltas of M learners are nearly orthogonal, so their mean is shorter than each of them, by up to the root
of M; RDA keeps the length. One outer rate can therefore not suit both, and the rate of our defaults was tuned
with RDA. To be fair the mean is also given the rate that undoes the shrinking of orthogonal deltas,
eta x sqrt(M), and the one half-way, eta x M^(1/4); RDA is compared with the best of its three, chosen in
hindsight on the very seeds that are compared, which favours the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from atoll.sim.lab.cell import Row, Size
from atoll.sim.lab.experiments.common import Arm, ask
from atoll.sim.lab.experiments.losses import bars, mean_loss, shown_loss
from atoll.sim.lab.paired import Difference, claim_below, interval, paired
from atoll.sim.lab.report import Claim, Picture, Report, Request, Stages, Table
from atoll.sim.lab.tuned import cell_for, tuned

__all__ = ["MERGE_RULE", "MergeRule", "Rule", "rules"]

COUNTS = (4, 8)
LIMIT_PERCENT = 0.5
RULE_NAMES = {"rda": "RDA, mean on embeddings", "rda-everywhere": "RDA on embeddings too", "mean": "mean"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to merge, at one outer rate, for M learners."""

    learners: int
    merge_rule: str
    power: float = 0.0
    """The outer rate is the tuned one times M to this power."""

    @property
    def name(self) -> str:
        """As tables and pictures say it; the same for every M."""
        at = {0.0: "eta", 0.25: "eta x M^(1/4)", 0.5: "eta x M^(1/2)"}[self.power]
        return f"{RULE_NAMES[self.merge_rule]}, {at}"

    def eta(self, size: Size) -> float:
        """The outer rate, to three digits."""
        scaled = tuned("text", size, "decoupled", self.learners).eta * self.learners**self.power
        return float(f"{scaled:.3g}")


def rules(learners: int) -> tuple[Rule, ...]:
    """The arms at one number of learners, in the order of the table; the default first."""
    return (
        Rule(learners, "rda"),
        Rule(learners, "rda-everywhere"),
        *(Rule(learners, "mean", power) for power in (0.0, 0.25, 0.5)),
    )


@dataclass(frozen=True, slots=True)
class MergeRule:
    """The default merge against its alternatives, at M = 4 and 8."""

    name: str = "merge-rule"
    about: str = (
        "mean, RDA, and RDA on embeddings too, the mean also at the outer rates that suit it; M = 4, 8"
    )

    def stages(self, request: Request) -> Stages:
        """One stage: all arms at all seeds."""
        arms: dict[Rule, Arm] = {
            rule: partial(
                cell_for, "decoupled", rule.learners, size=request.size,
                merge_rule=rule.merge_rule, eta=rule.eta(request.size),
            )
            for learners in COUNTS
            for rule in rules(learners)
        }  # fmt: skip
        rows = yield from ask(arms, request.seeds)
        return _report(rows)


MERGE_RULE = MergeRule()


def _report(rows: Mapping[Rule, Sequence[Row]]) -> Report:
    best = {learners: _best_mean(rows, learners) for learners in COUNTS}
    fair = {learners: paired(rows[Rule(learners, "rda")], rows[best[learners]]) for learners in COUNTS}
    return Report(
        tables=tuple(_table(rows, learners, best[learners]) for learners in COUNTS),
        pictures=(_picture(rows),),
        claims=tuple(_claim(rows, learners, best[learners]) for learners in COUNTS),
        notes=(
            "The mean of nearly orthogonal deltas is shorter, by up to the root of M, and eta was tuned with "
            "RDA: to be fair the mean is tried at two larger rates too, and RDA is held against its best.",
        ),
        figures={f"rda_against_best_mean_m{count}_percent": fair[count].mean for count in COUNTS},
    )


def _best_mean(rows: Mapping[Rule, Sequence[Row]], learners: int) -> Rule:
    means = [rule for rule in rules(learners) if rule.merge_rule == "mean"]
    return min(means, key=lambda rule: mean_loss(rows[rule]))


def _table(rows: Mapping[Rule, Sequence[Row]], learners: int, best: Rule) -> Table:
    default = Rule(learners, "rda")
    return Table(
        title=f"How offers become one, M = {learners}",
        columns=("rule", "eta", "held-out loss", "against RDA"),
        rows=tuple(
            (
                rule.name + (" (best mean)" if rule == best else ""),
                f"{rows[rule][0].cell.eta:g}",
                shown_loss(rows[rule]),
                "-" if rule == default else interval(paired(rows[rule], rows[default])),
            )
            for rule in rules(learners)
        ),
    )


def _picture(rows: Mapping[Rule, Sequence[Row]]) -> Picture:
    def against(learners: int) -> list[Difference]:
        default, *others = rules(learners)
        return [paired(rows[rule], rows[default]) for rule in others]

    return bars(
        "Other ways to merge, against RDA",
        names=[rule.name for rule in rules(COUNTS[0])[1:]],
        groups={f"M = {learners}": against(learners) for learners in COUNTS},
        x_label="rule",
        y_label="held-out loss against RDA, %",
    )


def _claim(rows: Mapping[Rule, Sequence[Row]], learners: int, best: Rule) -> Claim:
    return claim_below(
        f"RDA at M = {learners} is within +{LIMIT_PERCENT} % of the mean at the best of its three rates.",
        paired(rows[Rule(learners, "rda")], rows[best]),
        LIMIT_PERCENT,
    )
