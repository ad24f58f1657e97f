"""outer: eta and mu by H, and the defaults that follow from it.

Momentum mu makes a fragment move eta / (1 - mu) times its merged delta in the long run. When fragments travel
rarely, a delta is long, well averaged, and worth such an extrapolation; when they travel every few steps it
is mostly the noise of those steps, and a large outer rate throws the model about: rivals lose ten percent
that way. So one pair of settings is not expected to suit both H = 4 and H = 96.

The first stage tries a grid at one seed; the second gives all seeds to the best three of each H, to our
defaults, and to plain averaging (the mean of the learners' values: no RDA, eta 1, mu 0). What was dropped
after one seed stays in the table as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from atoll.config import default_outer
from atoll.sim.lab.cell import Row, Size
from atoll.sim.lab.experiments.common import Arm, ask
from atoll.sim.lab.experiments.losses import bars, mean_loss, rank_of, shown_loss
from atoll.sim.lab.paired import Difference, claim_below, interval, paired, spread
from atoll.sim.lab.report import Claim, Picture, Report, Request, Stages, Table
from atoll.sim.lab.tuned import cell_for

__all__ = ["INTERVALS", "OUTER", "Outer", "Setting", "grid"]

LEARNERS = 4
INTERVALS = (4, 24, 96)
BEST = 3
"""How many of each H are given all seeds."""

TRIED: tuple[tuple[float, float], ...] = (
    (0.4, 0.0), (0.7, 0.0), (1.0, 0.0), (0.4, 0.5), (0.7, 0.5), (0.4, 0.8), (0.2, 0.9), (0.4, 0.9),
    (0.7, 0.9),
)  # fmt: skip


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
        return self.merge_rule == "mean"

    @property
    def is_default(self) -> bool:
        """Whether it is what we do at this H."""
        return self == default_at(self.interval_steps)

    @property
    def name(self) -> str:
        """As tables and pictures say it."""
        if self.is_plain:
            return "plain averaging"
        return f"eta {self.eta:g}, mu {self.mu:g}" + (" (default)" if self.is_default else "")

    def arm(self, size: Size) -> Arm:
        """Its cells, by seed."""
        return partial(
            cell_for, "decoupled", LEARNERS, size=size, interval_steps=self.interval_steps,
            eta=self.eta, mu=self.mu,
            merge_rule=self.merge_rule,
        )  # fmt: skip


def default_at(interval_steps: int) -> Setting:
    """Our setting at this H."""
    return Setting(interval_steps, *default_outer(interval_steps))


def plain_at(interval_steps: int) -> Setting:
    """The mean of the learners' values at this H."""
    return Setting(interval_steps, 1.0, 0.0, "mean")


def grid(interval_steps: int) -> tuple[Setting, ...]:
    """What is tried at this H: the grid, our default if it is not in it, and plain averaging."""
    tried = [Setting(interval_steps, eta, mu) for eta, mu in TRIED]
    return tuple(dict.fromkeys([*tried, default_at(interval_steps), plain_at(interval_steps)]))


@dataclass(frozen=True, slots=True)
class Outer:
    """Fixed eta and mu at three H, against our defaults and plain averaging."""

    name: str = "outer"
    about: str = "eta and mu at H = 4, 24, 96, against our defaults by H and against plain averaging"

    def stages(self, request: Request) -> Stages:
        """The grid at one seed, then the best with all."""
        rows: dict[Setting, tuple[Row, ...]] = {}
        tried = [setting for steps in INTERVALS for setting in grid(steps)]
        rows |= yield from ask({setting: setting.arm(request.size) for setting in tried}, 1)
        if request.seeds > 1:
            final = [setting for steps in INTERVALS for setting in _finalists(rows, steps)]
            rows |= yield from ask({setting: setting.arm(request.size) for setting in final}, request.seeds)
        return _report(rows, request.seeds)


OUTER = Outer()


def _finalists(rows: Mapping[Setting, Sequence[Row]], steps: int) -> list[Setting]:
    """The best of the grid, our default and plain averaging, in the order of the grid."""
    ranked = sorted((one for one in grid(steps) if not one.is_plain), key=lambda one: mean_loss(rows[one]))
    kept = {*ranked[:BEST], default_at(steps), plain_at(steps)}
    return [setting for setting in grid(steps) if setting in kept]


def _report(rows: Mapping[Setting, Sequence[Row]], seeds: int) -> Report:
    best = {steps: _best_other(rows, steps, seeds) for steps in INTERVALS}
    return Report(
        tables=tuple(_table(rows, steps) for steps in INTERVALS),
        pictures=tuple(_picture(rows, steps, seeds) for steps in INTERVALS),
        claims=_claims(rows, best[24]),
        notes=(
            f"Settings with one seed were not among the best {BEST} of their H, and were not repeated.",
            "Plain averaging merges by the mean with eta 1 and mu 0; all other settings merge by RDA.",
            "Each H is trained on the same tokens: a smaller H sends more bytes.",
        ),
        figures={
            f"default_against_best_h{steps}_percent": paired(rows[default_at(steps)], rows[one]).mean
            for steps, one in best.items()
        },
    )


def _best_other(rows: Mapping[Setting, Sequence[Row]], steps: int, seeds: int) -> Setting:
    """The best setting beside our default, of those with all seeds; hindsight favours it."""
    others = [one for one in grid(steps) if len(rows[one]) == seeds and not one.is_default]
    return min(others, key=lambda one: mean_loss(rows[one]))


def _table(rows: Mapping[Setting, Sequence[Row]], steps: int) -> Table:
    default = default_at(steps)
    settings = sorted(grid(steps), key=lambda one: rank_of(_against(rows, one, default)))
    return Table(
        title=f"Outer settings at H = {steps}, M = {LEARNERS}, best first",
        columns=("outer", "seeds", "held-out loss", "against the default"),
        rows=tuple(
            (
                one.name,
                str(len(rows[one])),
                shown_loss(rows[one]),
                "-" if one.is_default else interval(_against(rows, one, default)),
            )
            for one in settings
        ),
    )


def _picture(rows: Mapping[Setting, Sequence[Row]], steps: int, seeds: int) -> Picture:
    default = default_at(steps)
    shown = [one for one in grid(steps) if len(rows[one]) == seeds and not one.is_default]
    return bars(
        f"Outer settings at H = {steps}, against our default ({default.eta:g}, {default.mu:g})",
        names=[one.name for one in shown],
        groups={f"M = {LEARNERS}": [_against(rows, one, default) for one in shown]},
        x_label="outer",
        y_label="held-out loss against the default, %",
    )


def _against(rows: Mapping[Setting, Sequence[Row]], one: Setting, default: Setting) -> Difference:
    """Paired over the seeds that the setting has."""
    return paired(rows[one], rows[default][: len(rows[one])])


def _claims(rows: Mapping[Setting, Sequence[Row]], best: Setting) -> tuple[Claim, ...]:
    often, usual = default_at(4), default_at(24)
    mean, sd = spread([row.heldout_loss for row in rows[usual]])
    limit = round(100 * sd / mean, 3) if math.isfinite(sd) else 0.0
    return (
        claim_below(
            f"Our default at H = 4 ({often.eta:g}, {often.mu:g}) is no worse than plain averaging at H = 4.",
            paired(rows[often], rows[plain_at(4)]),
            0.0,
        ),
        claim_below(
            f"Our default at H = 24 ({usual.eta:g}, {usual.mu:g}) is no worse than the best other of "
            f"the sweep ({best.name}) by more than the spread over seeds ({limit:.2f} %).",
            paired(rows[usual], rows[best]),
            limit,
        ),
    )
