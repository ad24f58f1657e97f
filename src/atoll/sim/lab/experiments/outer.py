"""outer: eta and mu by H, and the defaults that follow from it.

Momentum mu makes a fragment move eta / (1 - mu) times its merged delta in the long run. When fragments travel
rarely, a delta is long, well averaged, and worth such an extrapolation; when they travel every few steps it
is mostly the noise of those steps, and a large outer rate throws the model about: rivals lose ten percent
that way. So one pair of settings is not expected to suit both H = 4 and H = 96.

A setting that moves the model further in a round wants smaller steps in between, so each is tried at the
tuned learning rate times 0.71 and 1.41; at H = 24, which the rate was tuned for, at that rate too, for all
settings alike. The first stage tries the grid at the seed for tuning, which no claim
uses; there each setting gets its rate, and the best three of each H are chosen. The second stage gives these,
our defaults and plain averaging (the mean of the learners' values: no RDA, eta 1, mu 0) all seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from atoll.config import SyncConfig, default_outer
from atoll.sim.lab.cell import Row, Size
from atoll.sim.lab.experiments.common import Arm, ask
from atoll.sim.lab.experiments.losses import bars, mean_loss, rank_of, shown_loss
from atoll.sim.lab.paired import Difference, claim_below, interval, paired, spread
from atoll.sim.lab.report import Claim, Picture, Report, Request, Stages, Table
from atoll.sim.lab.tuned import TUNING_SEED, cell_for, tuned

__all__ = ["INTERVALS", "OUTER", "RATE_FACTORS", "Outer", "Setting", "grid"]

LEARNERS = 4
INTERVALS = (4, 24, 96)
BEST = 3
"""How many of each H are given all seeds."""

RULES = {"rda": "RDA", "mean": "mean"}
ROOT = 2**0.5
RATE_FACTORS = {4: (1 / ROOT, ROOT), 24: (1 / ROOT, 1.0, ROOT), 96: (1 / ROOT, ROOT)}
"""By H: of the learning rate that was tuned at H = 24."""
TRIED: tuple[tuple[str, float, float], ...] = (
    ("rda", 0.4, 0.0), ("rda", 0.7, 0.0), ("rda", 0.4, 0.5), ("rda", 0.4, 0.8), ("rda", 0.4, 0.9),
    ("rda", 0.7, 0.9), ("mean", 1.0, 0.0), ("mean", 1.0, 0.5), ("mean", 0.7, 0.8), ("mean", 0.7, 0.9),
)  # fmt: skip
"""Merge rule, eta, mu."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One outer optimizer at one H."""

    interval_steps: int
    eta: float
    mu: float
    merge_rule: str = "rda"

    @property
    def is_plain(self) -> bool:
        """Whether it is plain averaging."""
        return self == plain_at(self.interval_steps)

    @property
    def is_default(self) -> bool:
        """Whether it is what we do at this H."""
        return self == default_at(self.interval_steps)

    @property
    def name(self) -> str:
        """As tables and pictures say it."""
        name = (
            "plain averaging"
            if self.is_plain
            else f"{RULES[self.merge_rule]}, eta {self.eta:g}, mu {self.mu:g}"
        )
        return name + (" (default)" if self.is_default else "")

    def arm(self, size: Size, factor: float) -> Arm:
        """Its cells, by seed, at so many times the tuned learning rate."""
        rate = float(f"{factor * tuned('text', size, 'decoupled', LEARNERS).learning_rate:.3g}")
        return partial(
            cell_for, "decoupled", LEARNERS, size=size, interval_steps=self.interval_steps,
            eta=self.eta, mu=self.mu, merge_rule=self.merge_rule, learning_rate=rate,
        )  # fmt: skip


Screened = Mapping[tuple[Setting, float], Row]
"""At the seed for tuning, by setting and factor of the learning rate."""


def default_at(interval_steps: int) -> Setting:
    """Our setting at this H."""
    return Setting(interval_steps, *default_outer(interval_steps), SyncConfig().merge_rule)


def plain_at(interval_steps: int) -> Setting:
    """The mean of the learners' values at this H."""
    return Setting(interval_steps, 1.0, 0.0, "mean")


def grid(interval_steps: int) -> tuple[Setting, ...]:
    """What is tried at this H: the grid, our default if it is not in it, and plain averaging."""
    tried = [Setting(interval_steps, eta, mu, rule) for rule, eta, mu in TRIED]
    return tuple(dict.fromkeys([*tried, default_at(interval_steps), plain_at(interval_steps)]))


@dataclass(frozen=True, slots=True)
class Outer:
    """Fixed eta and mu at three H, against our defaults and plain averaging."""

    name: str = "outer"
    about: str = "eta and mu at H = 4, 24, 96, against our defaults by H and against plain averaging"

    def stages(self, request: Request) -> Stages:
        """The grid at the seed for tuning, then the best of it at all others."""
        tried = [
            (setting, by) for steps in INTERVALS for setting in grid(steps) for by in RATE_FACTORS[steps]
        ]
        rows = yield [setting.arm(request.size, by)(TUNING_SEED) for setting, by in tried]
        screened = dict(zip(tried, rows, strict=True))
        chosen = {setting: _best_factor(screened, setting) for setting, _ in tried}
        final = [setting for steps in INTERVALS for setting in _finalists(screened, chosen, steps)]
        arms = {setting: setting.arm(request.size, chosen[setting]) for setting in final}
        return _report(_Found(screened, chosen, (yield from ask(arms, request.seeds))))


OUTER = Outer()


@dataclass(frozen=True, slots=True)
class _Found:
    """What came of both stages."""

    screened: Screened
    chosen: Mapping[Setting, float]
    """The learning rate of each setting, as a factor of the tuned one."""
    rows: Mapping[Setting, Sequence[Row]]
    """Of those that were given all seeds."""

    def against_default(self, one: Setting) -> Difference:
        return paired(self.rows[one], self.rows[default_at(one.interval_steps)])

    def final(self, steps: int) -> list[Setting]:
        return [one for one in self.rows if one.interval_steps == steps]


def _loss(screened: Screened, setting: Setting, factor: float) -> float:
    return mean_loss([screened[setting, factor]])


def _best_factor(screened: Screened, setting: Setting) -> float:
    factors = RATE_FACTORS[setting.interval_steps]
    return min(factors, key=lambda factor: _loss(screened, setting, factor))


def _finalists(screened: Screened, chosen: Mapping[Setting, float], steps: int) -> list[Setting]:
    """The best of the grid, our default and plain averaging, in the order of the grid."""
    ranked = sorted(grid(steps), key=lambda one: _loss(screened, one, chosen[one]))
    kept = {*ranked[:BEST], default_at(steps), plain_at(steps)}
    return [setting for setting in grid(steps) if setting in kept]


def _report(found: _Found) -> Report:
    best = {steps: _best_other(found, steps) for steps in INTERVALS}
    return Report(
        tables=tuple(_table(found, steps) for steps in INTERVALS),
        pictures=tuple(_picture(found, steps) for steps in INTERVALS),
        claims=_claims(found, best[24]),
        notes=(
            f"Seed {TUNING_SEED} chose the learning rate of each setting and who was given all seeds: the "
            f"best {BEST} of each H, the default and plain averaging. It is in no mean and in no claim.",
            "Plain averaging merges by the mean with eta 1 and mu 0.",
            "Each H is trained on the same tokens: a smaller H sends more bytes.",
        ),
        figures={
            f"default_against_best_h{steps}_percent": -found.against_default(one).mean
            for steps, one in best.items()
        },
    )


def _best_other(found: _Found, steps: int) -> Setting:
    """The best setting beside our default at the seed for tuning, so that no claim's seeds chose it."""
    others = [one for one in found.final(steps) if not one.is_default]
    return min(others, key=lambda one: _loss(found.screened, one, found.chosen[one]))


def _table(found: _Found, steps: int) -> Table:
    def rank(one: Setting) -> tuple[bool, float]:
        if one in found.rows:
            return False, rank_of(found.against_default(one))
        return True, _loss(found.screened, one, found.chosen[one])

    return Table(
        title=f"Outer settings at H = {steps}, M = {LEARNERS}, best first",
        columns=(
            "outer", "learning rate x", *(f"seed 0, rate x {by:.2f}" for by in RATE_FACTORS[steps]), "seeds",
            "held-out loss", "against the default",
        ),
        rows=tuple(_line(found, one) for one in sorted(grid(steps), key=rank)),
    )  # fmt: skip


def _line(found: _Found, one: Setting) -> tuple[str, ...]:
    rows = found.rows.get(one, ())
    return (
        one.name,
        f"{found.chosen[one]:.2f}",
        *(shown_loss([found.screened[one, by]]).split(" ±")[0] for by in RATE_FACTORS[one.interval_steps]),
        f"{len(rows)}",
        shown_loss(rows) if rows else "-",
        "-" if one.is_default or not rows else interval(found.against_default(one)),
    )


def _picture(found: _Found, steps: int) -> Picture:
    default = default_at(steps)
    shown = [one for one in found.final(steps) if not one.is_default]
    return bars(
        f"Outer settings at H = {steps}, against our default ({default.name.removesuffix(' (default)')})",
        names=[one.name for one in shown],
        groups={f"M = {LEARNERS}": [found.against_default(one) for one in shown]},
        x_label="outer",
        y_label="held-out loss against the default, %",
    )


def _claims(found: _Found, best: Setting) -> tuple[Claim, ...]:
    often, usual = default_at(4), default_at(24)
    mean, sd = spread([row.heldout_loss for row in found.rows[usual]])
    limit = round(100 * sd / mean, 3) if math.isfinite(sd) else 0.0
    usual_against = paired(found.rows[usual], found.rows[best])
    second = claim_below(
        f"Our default at H = 24 ({usual.eta:g}, {usual.mu:g}) is no worse than the best other of "
        f"the grid ({best.name}) by more than the spread over seeds ({limit:.2f} %).",
        usual_against,
        limit,
    )
    if often.is_plain:  # nothing to compare: they are one
        return (second,)
    first = claim_below(
        f"Our default at H = 4 ({often.name}) is no worse than plain averaging at H = 4.",
        paired(found.rows[often], found.rows[plain_at(4)]),
        0.0,
    )
    return (first, second)
