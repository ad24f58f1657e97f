"""adopt: what a published fragment does to the progress a learner made meanwhile.

A learner trains on between its snapshot and the adoption of what became of it. `overwrite` drops those steps,
`blend` keeps a share of the learner's own value, `rebase` puts the steps on top of the published value. At
the default H they are a small part of a fragment's steps; when fragments travel four times as often at the
same overlap, which is what four-bit bodies allow for the same bytes, they are four times as large a part. So
`overwrite` and `rebase` are compared there too, both at the outer settings of that H (`outer.default_outer`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from atoll.config import default_outer
from atoll.sim.lab.cell import Row, Size
from atoll.sim.lab.experiments.common import OLDER, Arm, ask, mean_of
from atoll.sim.lab.experiments.losses import bars, mean_loss, shown_loss
from atoll.sim.lab.paired import claim_below, interval, paired, percent
from atoll.sim.lab.report import Claim, Picture, Report, Request, Stages, Table
from atoll.sim.lab.tuned import cell_for

__all__ = ["ADOPT", "MODES", "Adopt", "Mode"]

LEARNERS = 4
USUAL, OFTEN = 24, 6
LIMIT_PERCENT = 0.3
DEFAULT = "overwrite"
"""What runs do unless told otherwise; the claims are about it."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to adopt, at one H."""

    interval_steps: int
    adopt: str
    alpha: float = 0.0
    """The share of its own value that a learner keeps; `blend` only."""

    @property
    def name(self) -> str:
        """As tables and pictures say it."""
        how = f"{self.adopt} {self.alpha:g}" if self.alpha else self.adopt
        return f"{how}, H = {self.interval_steps}"

    def arm(self, size: Size) -> Arm:
        """Its cells, by seed: as tuned at the usual H, else with the outer settings of that H."""
        arm = partial(cell_for, "decoupled", LEARNERS, size=size, adopt=self.adopt)
        if self.alpha:
            arm = partial(arm, blend_alpha=self.alpha)
        if self.interval_steps == USUAL:
            return arm
        eta, mu = default_outer(self.interval_steps)
        return partial(arm, interval_steps=self.interval_steps, eta=eta, mu=mu)

    @property
    def plain(self) -> Mode:
        """What it is compared with: the paper's way at the same H."""
        return Mode(self.interval_steps, "overwrite")


MODES: tuple[Mode, ...] = (
    Mode(USUAL, "overwrite"),
    Mode(USUAL, "blend", 0.25),
    Mode(USUAL, "blend", 0.5),
    Mode(USUAL, "rebase"),
    Mode(OFTEN, "overwrite"),
    Mode(OFTEN, "rebase"),
)
"""The arms, in the order of the table."""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Ways to adopt against `overwrite`."""

    name: str = "adopt"
    about: str = "overwrite, blend and rebase at H = 24; overwrite and rebase at H = 6"

    def stages(self, request: Request) -> Stages:
        """One stage: all arms at all seeds."""
        rows = yield from ask({mode: mode.arm(request.size) for mode in MODES}, request.seeds)
        return Report(
            tables=(_table(rows),),
            pictures=(_picture(rows),),
            claims=tuple(_claim(rows, steps) for steps in (USUAL, OFTEN)),
            figures={
                f"rebase_against_overwrite_h{steps}_percent": _rebase(rows, steps) for steps in (USUAL, OFTEN)
            },
        )


ADOPT = Adopt()


def _table(rows: Mapping[Mode, Sequence[Row]]) -> Table:
    return Table(
        title=f"How learners adopt, M = {LEARNERS}",
        columns=("adopt", "steps in flight", "tokens merged", "held-out loss", "against overwrite at that H"),
        rows=tuple(
            (
                mode.name,
                f"{mean_of(rows[mode], lambda row: row.staleness_steps):.1f}",
                percent(mean_of(rows[mode], lambda row: row.merged_share)),
                shown_loss(rows[mode]),
                "-" if mode == mode.plain else interval(paired(rows[mode], rows[mode.plain])),
            )
            for mode in MODES
        ),
        notes=("Steps in flight: between a snapshot and the adoption of what became of it, on average.",),
    )


def _picture(rows: Mapping[Mode, Sequence[Row]]) -> Picture:
    shown = [mode for mode in MODES if mode != mode.plain]
    return bars(
        "Other ways to adopt, against overwrite at the same H",
        names=[mode.name for mode in shown],
        groups={f"M = {LEARNERS}": [paired(rows[mode], rows[mode.plain]) for mode in shown]},
        x_label="adopt",
        y_label="held-out loss against overwrite, %",
    )


def _claim(rows: Mapping[Mode, Sequence[Row]], steps: int) -> Claim:
    default = Mode(steps, DEFAULT)
    others = [mode for mode in MODES if mode.interval_steps == steps and mode != default]
    best = min(others, key=lambda mode: mean_loss(rows[mode]))
    return claim_below(
        f"The default, {default.name}, is within +{LIMIT_PERCENT} % of the best other way ({best.name}), "
        f"{OLDER}.",
        paired(rows[default], rows[best]),
        LIMIT_PERCENT,
    )


def _rebase(rows: Mapping[Mode, Sequence[Row]], steps: int) -> float:
    return paired(rows[Mode(steps, "rebase")], rows[Mode(steps, "overwrite")]).mean
