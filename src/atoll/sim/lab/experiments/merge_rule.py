"""merge-rule: the mean, RDA, and RDA on embeddings too.

The deltas of M learners are nearly orthogonal, so their mean is shorter than each of them, by up to the root
of M; RDA keeps the length. So the two want other outer settings and other learning rates, and comparing them
at those of one of them would decide the matter beforehand. Each rule is therefore tried at three outer
settings and three learning rates, at the seed for tuning, which no claim uses. Its best is given all seeds;
so is RDA on embeddings too, at the settings of RDA.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from atoll.sim.lab.cell import Row, Size
from atoll.sim.lab.experiments.common import OLDER, Arm, ask
from atoll.sim.lab.experiments.losses import bars, mean_loss, shown_loss
from atoll.sim.lab.paired import Difference, claim_below, interval, paired
from atoll.sim.lab.report import Claim, Picture, Report, Request, Stages, Table
from atoll.sim.lab.tuned import TUNING_SEED, cell_for, transferred

__all__ = ["MERGE_RULE", "MergeRule", "Rule", "tried"]

TINY: Size = "tiny"
COUNTS = (4, 8)
LIMIT_PERCENT = 0.5
RULE_NAMES = {"rda": "RDA, mean on embeddings", "rda-everywhere": "RDA on embeddings too", "mean": "mean"}
OUTER: Mapping[str, tuple[tuple[float, float], ...]] = {
    "rda": ((0.4, 0.8), (0.4, 0.9), (0.2, 0.9)),
    "mean": ((0.7, 0.8), (0.4, 0.9), (0.7, 0.9)),
}
"""By rule: eta and mu that are tried; those of the mean make up for its shorter deltas."""
RATES: Mapping[int, tuple[float, ...]] = {4: (2.83e-3, 4e-3, 5.66e-3), 8: (8e-3, 1.13e-2, 1.6e-2)}
"""By M: the learning rates at `tiny`; other sizes as rates are moved there."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to merge, with the outer settings and the learning rate that go with it."""

    learners: int
    merge_rule: str
    eta: float
    mu: float
    rate: float
    """At `tiny`."""

    @property
    def name(self) -> str:
        """As tables and pictures say it; the same for every M."""
        return RULE_NAMES[self.merge_rule]

    def arm(self, size: Size) -> Arm:
        """Its cells, by seed."""
        here, at_tiny = (transferred("text", s, "decoupled", self.learners) for s in (size, TINY))
        rate = self.rate * here.learning_rate / at_tiny.learning_rate
        return partial(
            cell_for, "decoupled", self.learners, size=size, merge_rule=self.merge_rule, eta=self.eta,
            mu=self.mu, learning_rate=float(f"{rate:.3g}"),
        )  # fmt: skip


def tried(learners: int, merge_rule: str) -> tuple[Rule, ...]:
    """What a rule is tried with at one number of learners."""
    return tuple(
        Rule(learners, merge_rule, eta, mu, rate) for eta, mu in OUTER[merge_rule] for rate in RATES[learners]
    )


@dataclass(frozen=True, slots=True)
class MergeRule:
    """The default merge against its alternatives, at M = 4 and 8."""

    name: str = "merge-rule"
    about: str = "mean, RDA, and RDA on embeddings too, each at the settings that suit it; M = 4, 8"

    def stages(self, request: Request) -> Stages:
        """Both rules at the seed for tuning, then the best of each at all others."""
        every = [rule for m in COUNTS for name in OUTER for rule in tried(m, name)]
        rows = yield [rule.arm(request.size)(TUNING_SEED) for rule in every]
        screened = dict(zip(every, rows, strict=True))
        best = {(m, name): _best(screened, m, name) for m in COUNTS for name in OUTER}
        for m in COUNTS:
            best[m, "rda-everywhere"] = replace(best[m, "rda"], merge_rule="rda-everywhere")
        final = yield from ask({key: rule.arm(request.size) for key, rule in best.items()}, request.seeds)
        return _report(screened, best, final)


MERGE_RULE = MergeRule()

Key = tuple[int, str]
"""M and the rule."""
Rows = Mapping[Key, Sequence[Row]]


def _best(screened: Mapping[Rule, Row], learners: int, merge_rule: str) -> Rule:
    return min(tried(learners, merge_rule), key=lambda rule: mean_loss([screened[rule]]))


def _report(screened: Mapping[Rule, Row], best: Mapping[Key, Rule], rows: Rows) -> Report:
    return Report(
        tables=(*(_table(best, rows, m) for m in COUNTS), *(_screening(screened, m) for m in COUNTS)),
        pictures=(_picture(rows),),
        claims=tuple(_claim(rows, m) for m in COUNTS),
        notes=(
            f"Seed {TUNING_SEED} chose eta, mu and learning rate of each rule, and is in no mean and no "
            "claim. RDA on embeddings too takes the settings of RDA.",
        ),
        figures={
            f"mean_against_rda_m{m}_percent": paired(rows[m, "mean"], rows[m, "rda"]).mean for m in COUNTS
        },
    )


def _table(best: Mapping[Key, Rule], rows: Rows, learners: int) -> Table:
    keys = [(learners, name) for name in RULE_NAMES]
    default = rows[learners, "rda"]
    return Table(
        title=f"How offers become one, M = {learners}, each rule at its best",
        columns=("rule", "eta", "mu", "learning rate", "held-out loss", "against RDA"),
        rows=tuple(
            (
                best[key].name,
                f"{best[key].eta:g}",
                f"{best[key].mu:g}",
                f"{rows[key][0].cell.learning_rate:.3g}",
                shown_loss(rows[key]),
                "-" if key[1] == "rda" else interval(paired(rows[key], default)),
            )
            for key in keys
        ),
    )


def _screening(screened: Mapping[Rule, Row], learners: int) -> Table:
    rules = [rule for name in OUTER for rule in tried(learners, name)]
    return Table(
        title=f"What was tried at seed {TUNING_SEED}, M = {learners}",
        columns=("rule", "eta", "mu", "learning rate", "held-out loss"),
        rows=tuple(
            (
                rule.name,
                f"{rule.eta:g}",
                f"{rule.mu:g}",
                f"{screened[rule].cell.learning_rate:.3g}",
                shown_loss([screened[rule]]),
            )
            for rule in rules
        ),
    )


def _picture(rows: Rows) -> Picture:
    others = [name for name in RULE_NAMES if name != "rda"]

    def against(learners: int) -> list[Difference]:
        return [paired(rows[learners, name], rows[learners, "rda"]) for name in others]

    return bars(
        "Other ways to merge, against RDA, each at its best",
        names=[RULE_NAMES[name] for name in others],
        groups={f"M = {m}": against(m) for m in COUNTS},
        x_label="rule",
        y_label="held-out loss against RDA, %",
    )


def _claim(rows: Rows, learners: int) -> Claim:
    return claim_below(
        f"The mean, our default, is at M = {learners} within +{LIMIT_PERCENT} % of RDA, each at its "
        f"best, {OLDER}.",
        paired(rows[learners, "mean"], rows[learners, "rda"]),
        LIMIT_PERCENT,
    )
