"""outer: eta and mu by H, and the defaults that follow from it.

Momentum mu makes a fragment move eta / (1 - mu) times its merged delta in the long run. When fragments travel
rarely, a delta is long, well averaged, and worth such an extrapolation; when they travel every few steps it
is mostly the noise of those steps, and a large outer rate throws the model about: rivals lose ten percent
that way. So one pair of settings is not expected to suit both H = 4 and H = 96.

A setting that moves the model further in a round wants smaller steps in between, so each is tried at the
tuned learning rate times 0.71 and 1.41; at H = 24, which the rate was tuned for, at that rate too, for all
settings alike. The first stage tries the grid at the seed for tuning, which no claim uses, and chooses the
best three of each H. These, our defaults and plain averaging (the mean of the learners' values: no RDA,
eta 1, mu 0) are then tried beyond their best rate while that is the lowest or the highest. The last stage
gives them all seeds.

The grid is of fixed settings. Our defaults have a pair by H as well, and on top of it momentum that warms up
and cools down, their own window for the late, and rates around their own. With momentum that has this
schedule other pairs may be best than with one that stays, so at H = 4 a few are tried so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atoll.config import SyncConfig, default_outer
from atoll.sim.lab.cell import Row, Size
from atoll.sim.lab.experiments.common import Arm, Place, ask
from atoll.sim.lab.experiments.losses import bars, beyond, mean_loss, rank_of, shown_loss
from atoll.sim.lab.paired import Difference, claim_below, interval, paired, paired_shared, spread
from atoll.sim.lab.report import Claim, Picture, Report, Request, Stages, Table
from atoll.sim.lab.tuned import RATE_STEP, TUNING_SEED, rounded, tuned

__all__ = ["INTERVALS", "MOST_RATES", "OUTER", "RATE_STEPS", "Outer", "Setting", "grid"]

LEARNERS = 4
INTERVALS = (4, 24, 96)
BEST = 3
"""How many of each H are given all seeds."""

RULES = {"rda": "RDA", "mean": "mean"}
RATE_STEPS = {4: (-1, 1), 24: (-1, 0, 1), 96: (-1, 1)}
"""By H: steps of `RATE_STEP` from the learning rate that was tuned at H = 24."""
MOST_RATES = 6
"""Of one setting."""
TRIED: tuple[tuple[str, float, float], ...] = (
    ("rda", 0.4, 0.0), ("rda", 0.7, 0.0), ("rda", 0.4, 0.5), ("rda", 0.4, 0.8), ("rda", 0.4, 0.9),
    ("rda", 0.7, 0.9), ("mean", 1.0, 0.0), ("mean", 1.0, 0.5), ("mean", 0.7, 0.8), ("mean", 0.7, 0.9),
)  # fmt: skip
"""Merge rule, eta, mu."""
SCHEDULED = {4: ((1.0, 0.0), (1.0, 0.5), (0.7, 0.7), (0.7, 0.8))}
"""By H: eta and mu of momentum that warms up and cools down as in our defaults."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One outer optimizer at one H."""

    interval_steps: int
    eta: float
    mu: float
    merge_rule: str = "rda"
    by_defaults: bool = False
    """Whether all else is as in our defaults: the schedule of momentum, the window, the rate."""

    @property
    def is_default(self) -> bool:
        """Whether it is our defaults."""
        return self == default_at(self.interval_steps)

    @property
    def is_plain(self) -> bool:
        """Whether it is plain averaging."""
        return self == plain_at(self.interval_steps)

    @property
    def name(self) -> str:
        """As tables and pictures say it."""
        if self.is_plain:
            return "plain averaging"
        pair = f"{RULES[self.merge_rule]}, eta {self.eta:g}, mu {self.mu:g}"
        if self.is_default:
            return f"our defaults: {pair}"
        return f"{pair}, else as our defaults" if self.by_defaults else pair

    def arm(self, size: Size, step: int) -> Arm:
        """Its cells, by seed, so many steps from the tuned learning rate."""
        place = Place("decoupled", LEARNERS, settings_of="defaults" if self.by_defaults else None)
        rate = rounded(RATE_STEP**step * tuned("text", size, place.settings, LEARNERS).learning_rate)
        return place.arm(
            size, interval_steps=self.interval_steps, eta=self.eta, mu=self.mu, merge_rule=self.merge_rule,
            learning_rate=rate,
        )  # fmt: skip


Screened = Mapping[Setting, Mapping[int, Row]]
"""At the seed for tuning, by setting and step of the learning rate."""


def default_at(interval_steps: int) -> Setting:
    """Our defaults at this H."""
    pair = default_outer(interval_steps)
    return Setting(interval_steps, *pair, SyncConfig().merge_rule, by_defaults=True)


def plain_at(interval_steps: int) -> Setting:
    """The mean of the learners' values at this H."""
    return Setting(interval_steps, 1.0, 0.0, "mean")


def grid(interval_steps: int) -> tuple[Setting, ...]:
    """What is tried at this H: fixed settings, our defaults' own pair and plain averaging among them, and our
    defaults; where these would have no momentum, pairs with a schedule beside them."""
    tried = [Setting(interval_steps, eta, mu, rule) for rule, eta, mu in TRIED]
    ours = default_at(interval_steps)
    beside = [replace(ours, eta=eta, mu=mu) for eta, mu in SCHEDULED.get(interval_steps, ())]
    own_pair = replace(ours, by_defaults=False)
    return tuple(dict.fromkeys([*tried, own_pair, plain_at(interval_steps), *beside, ours]))


@dataclass(frozen=True, slots=True)
class Outer:
    """Fixed eta and mu at three H, against our defaults and plain averaging."""

    name: str = "outer"
    about: str = "eta and mu at H = 4, 24, 96, against our defaults by H and against plain averaging"

    def stages(self, request: Request) -> Stages:
        """The grid at the seed for tuning, rates beyond for the best of it, then those at all seeds."""
        screened: dict[Setting, dict[int, Row]] = {one: {} for steps in INTERVALS for one in grid(steps)}
        wanted = [(one, step) for one in screened for step in RATE_STEPS[one.interval_steps]]
        final: list[Setting] = []
        while wanted:
            rows = yield [one.arm(request.size, step)(TUNING_SEED) for one, step in wanted]
            for (one, step), row in zip(wanted, rows, strict=True):
                screened[one][step] = row
            final = final or [one for steps in INTERVALS for one in _finalists(screened, steps)]
            wanted = [(one, step) for one in final for step in beyond(screened[one], MOST_RATES)]
        arms = {one: one.arm(request.size, _best_step(screened[one])) for one in final}
        fine = [default_at(4), plain_at(4)]
        return _report(_Found(screened, (yield from ask(arms, request.seeds, fine, request.fine_seeds()))))


OUTER = Outer()


@dataclass(frozen=True, slots=True)
class _Found:
    """What came of all stages."""

    screened: Screened
    rows: Mapping[Setting, Sequence[Row]]
    """Of those that were given all seeds."""

    def against_default(self, one: Setting) -> Difference:
        return paired_shared(self.rows[one], self.rows[default_at(one.interval_steps)])

    def final(self, steps: int) -> list[Setting]:
        return [one for one in self.rows if one.interval_steps == steps]


def _best_step(tried: Mapping[int, Row]) -> int:
    return min(tried, key=lambda step: mean_loss([tried[step]]))


def _best_loss(tried: Mapping[int, Row]) -> float:
    return mean_loss([tried[_best_step(tried)]])


def _finalists(screened: Screened, steps: int) -> list[Setting]:
    """The best of the grid, our default and plain averaging, in the order of the grid."""
    ranked = sorted(grid(steps), key=lambda one: _best_loss(screened[one]))
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
            f"best {BEST} of each H, our defaults and plain averaging. These were tried beyond their best "
            f"rate too while that was the lowest or the highest, at {MOST_RATES} rates at most. The seed is "
            "in no mean and in no claim.",
            "Plain averaging merges by the mean with eta 1 and mu 0. Our defaults have momentum that warms "
            "up and cools down, rounds that wait by worth, and their own learning rate; up to H = 8 their "
            "mu is 0, which leaves plain averaging with another window.",
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
    return min(others, key=lambda one: _best_loss(found.screened[one]))


def _table(found: _Found, steps: int) -> Table:
    def rank(one: Setting) -> tuple[bool, float]:
        if one in found.rows:
            return False, rank_of(found.against_default(one))
        return True, _best_loss(found.screened[one])

    rates = _rates(found, steps)
    return Table(
        title=f"Outer settings at H = {steps}, M = {LEARNERS}, best first",
        columns=(
            "outer", "learning rate x", *(f"seed 0, rate x {RATE_STEP**step:.2f}" for step in rates), "seeds",
            "held-out loss", "against our defaults",
        ),
        rows=tuple(_line(found, one, rates) for one in sorted(grid(steps), key=rank)),
    )  # fmt: skip


def _rates(found: _Found, steps: int) -> list[int]:
    """The steps that some setting was tried at."""
    return sorted({step for one in grid(steps) for step in found.screened[one]})


def _line(found: _Found, one: Setting, rates: Sequence[int]) -> tuple[str, ...]:
    rows, tried = found.rows.get(one, ()), found.screened[one]
    return (
        one.name,
        f"{RATE_STEP ** _best_step(tried):.2f}",
        *(shown_loss([tried[step]]).split(" ±")[0] if step in tried else "-" for step in rates),
        f"{len(rows)}",
        shown_loss(rows) if rows else "-",
        "-" if one.is_default or not rows else interval(found.against_default(one)),
    )


def _picture(found: _Found, steps: int) -> Picture:
    default = default_at(steps)
    shown = [one for one in found.final(steps) if not one.is_default]
    return bars(
        f"Outer settings at H = {steps}, against {default.name}",
        names=[one.name for one in shown],
        groups={f"M = {LEARNERS}": [found.against_default(one) for one in shown]},
        x_label="outer",
        y_label="held-out loss against our defaults, %",
    )


def _claims(found: _Found, best: Setting) -> tuple[Claim, ...]:
    """At H = 4 against plain averaging, at H = 24 against the best of the grid."""
    return tuple(_no_worse(found, one) for one in (plain_at(4), best))


def _no_worse(found: _Found, other: Setting) -> Claim:
    steps = other.interval_steps
    mean, sd = spread([row.heldout_loss for row in found.rows[default_at(steps)]])
    limit = round(100 * sd / mean, 3) if math.isfinite(sd) else 0.0
    what = "plain averaging" if other.is_plain else f"the best fixed setting of the grid ({other.name})"
    return claim_below(
        f"Our defaults at H = {steps} are no worse than {what} by more than the spread over seeds "
        f"({limit:.2f} %).",
        paired(found.rows[default_at(steps)], found.rows[other]),
        limit,
    )
