"""non-iid: each learner sees another part of the library, and the model is judged on all of it.

Learners that read different parts pull the model in different directions between two merges. Data-Parallel
mixes all parts in every batch and does not notice; it is trained once. Streaming and Decoupled are trained on
mixed data and on parts, at the same settings, so that the price of parts is a paired difference, and so is
what asynchrony adds to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from atoll.sim.lab.cell import Method, Row, Size
from atoll.sim.lab.experiments.common import OLDER, Arm, Place, ask
from atoll.sim.lab.experiments.losses import bars
from atoll.sim.lab.paired import Difference, claim_below, interval, mean_sd, paired
from atoll.sim.lab.report import Claim, Picture, Report, Request, Stages, Table

__all__ = ["NON_IID", "NonIid", "Setting"]

COUNTS = (4, 8)
METHODS: tuple[Method, ...] = ("streaming", "decoupled")
LIMIT_PERCENT = 0.5
NAMES: Mapping[Method, str] = {
    "data-parallel": "Data-Parallel",
    "streaming": "Streaming",
    "decoupled": "Decoupled",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One arm."""

    method: Method
    learners: int
    own_parts: bool

    def arm(self, size: Size) -> Arm:
        """Its cells, by seed; Streaming takes the settings of Decoupled."""
        place = Place(
            self.method, self.learners, settings_of="decoupled" if self.method == "streaming" else None
        )
        return partial(place.cell, size, own_parts=self.own_parts)


DP = Setting("data-parallel", 1, own_parts=False)
SETTINGS = (
    DP,
    *(
        Setting(method, learners, own_parts)
        for learners in COUNTS
        for method in METHODS
        for own_parts in (False, True)
    ),
)
Rows = Mapping[Setting, Sequence[Row]]


@dataclass(frozen=True, slots=True)
class NonIid:
    """Learners on parts of the data, against learners on all of it."""

    name: str = "non-iid"
    about: str = "each learner sees another part of the library: DP, Streaming and Decoupled at M = 4, 8"

    def stages(self, request: Request) -> Stages:
        """One stage: all arms at all seeds."""
        rows = yield from ask({one: one.arm(request.size) for one in SETTINGS}, request.seeds)
        return _report(rows)


NON_IID = NonIid()


def _price(rows: Rows, method: Method, learners: int) -> Difference:
    """Parts against mixed data, all else equal."""
    return paired(rows[Setting(method, learners, True)], rows[Setting(method, learners, False)])


def _report(rows: Rows) -> Report:
    return Report(
        tables=(_table(rows),),
        pictures=(_picture(rows),),
        claims=tuple(_claim(rows, learners) for learners in COUNTS),
        notes=("The held-out set is drawn from all parts; Data-Parallel mixes them in every batch.",),
        figures={
            f"parts_{method}_m{learners}_percent": _price(rows, method, learners).mean
            for learners in COUNTS
            for method in METHODS
        },
    )


def _table(rows: Rows) -> Table:
    return Table(
        title="Each learner on its own part of the library",
        columns=("method", "M", "data", "held-out loss", "against Data-Parallel", "price of parts"),
        rows=tuple(
            (
                NAMES[one.method],
                "-" if one == DP else str(one.learners),
                "own parts" if one.own_parts else "mixed",
                mean_sd([row.heldout_loss for row in rows[one]]),
                "-" if one == DP else interval(paired(rows[one], rows[DP])),
                interval(_price(rows, one.method, one.learners)) if one.own_parts else "-",
            )
            for one in SETTINGS
        ),
        notes=("Price of parts: own parts against mixed data, same method and M.",),
    )


def _claim(rows: Rows, learners: int) -> Claim:
    return claim_below(
        f"On own parts at M = {learners}, Decoupled is within +{LIMIT_PERCENT} % of Streaming at the same "
        f"settings, {OLDER}.",
        paired(rows[Setting("decoupled", learners, True)], rows[Setting("streaming", learners, True)]),
        LIMIT_PERCENT,
    )


def _picture(rows: Rows) -> Picture:
    return bars(
        "Each learner on its own part of the library",
        names=tuple(f"M = {learners}" for learners in COUNTS),
        groups={
            f"{NAMES[method]}, {'own parts' if own_parts else 'mixed'}": [
                paired(rows[Setting(method, learners, own_parts)], rows[DP]) for learners in COUNTS
            ]
            for method in METHODS
            for own_parts in (False, True)
        },
        x_label="learners",
        y_label="held-out loss against Data-Parallel, %",
    )
