"""grace: how long the syncer should wait for the late where steps differ much from each other.

A learner answers at the end of the step it is in. If all steps took the same time, nobody could answer later
than one step after the first; with the paper's window of at most one step all are in. Where single steps last
up to half as long again, or half of the learners take four times as long, some answer later, and what they
trained is overwritten. A longer window takes them in, and lets the others train a little longer on what will
be overwritten. tau, the steps that a round may take, has to leave room for it: the window is a share of what
is left of tau steps. Where nothing is left, because links are thin or steps are short, the window would be
nothing, and a round would close with its first offer: tau 1 stands for that in the calm fleet, and a least
window for the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atoll.sim.lab.cell import Fleet, Row
from atoll.sim.lab.experiments.common import Arm, Place, ask, mean_of
from atoll.sim.lab.experiments.losses import bars, shown_loss
from atoll.sim.lab.paired import Difference, claim_below, interval, paired, percent
from atoll.sim.lab.report import Claim, Report, Request, Stages, Table

__all__ = ["FLEETS", "GRACE", "WINDOWS", "Grace", "Window"]


@dataclass(frozen=True, slots=True)
class Window:
    """How long a round may take and wait."""

    overlap_steps: int
    most_steps: float
    least_steps: float = 0.0

    @property
    def name(self) -> str:
        """As tables and pictures say it."""
        bound = "always" if self.least_steps == self.most_steps else "at most"
        return (
            f"tau {self.overlap_steps}, {bound} {self.most_steps:g} step{'' if self.most_steps == 1 else 's'}"
        )

    @property
    def settings(self) -> dict[str, float]:
        """Of a cell."""
        return {
            "overlap_steps": self.overlap_steps,
            "grace_min_steps": self.least_steps,
            "grace_max_steps": self.most_steps,
        }


USUAL = Window(2, 1.0)
"""The paper's, and our default."""
LONG = Window(3, 2.0)
WINDOWS = (USUAL, Window(3, 1.0), Window(3, 1.5), LONG)
CLOSE, LEAST = Window(1, 1.0), Window(1, 1.0, 1.0)
"""Without much slack, and what a least window makes of that; in the calm fleet only."""
STREAMING = "Streaming"

CALM = "calm, M = 4"
FLEETS: Mapping[str, tuple[int, Fleet]] = {
    CALM: (4, Fleet()),
    "steps vary by 50 %, M = 4": (4, Fleet(jitter=0.5)),
    "half of 8 learners 4x slower": (8, Fleet(speeds=(1.0,) * 4 + (0.25,) * 4, jitter=0.1)),
}

Key = tuple[str, Window | str]
Rows = Mapping[Key, Sequence[Row]]


@dataclass(frozen=True, slots=True)
class Grace:
    """`atoll lab run grace`."""

    name: str = "grace"
    about: str = "grace windows of one step and longer where steps are alike, vary by half, or differ by 4x"

    def stages(self, request: Request) -> Stages:
        """One stage: every window and Streaming on every fleet."""
        arms: dict[Key, Arm] = {}
        for fleet, (learners, found) in FLEETS.items():
            decoupled = Place("decoupled", learners, settings_of="defaults")
            for window in windows_of(fleet):
                arms[fleet, window] = decoupled.arm(request.size, fleet=found, **window.settings)
            streaming = Place("streaming", learners, settings_of="defaults")
            arms[fleet, STREAMING] = streaming.arm(request.size, fleet=found)
        rows = yield from ask(arms, request.seeds)
        return _report(rows)


GRACE = Grace()


def windows_of(fleet: str) -> tuple[Window, ...]:
    """Those that are tried on a fleet."""
    return (*WINDOWS, CLOSE, LEAST) if fleet == CALM else WINDOWS


def _against(rows: Rows, fleet: str, arm: Window | str) -> Difference:
    return paired(rows[fleet, arm], rows[fleet, USUAL])


def _report(rows: Rows) -> Report:
    shown = [window for window in WINDOWS if window != USUAL]
    picture = bars(
        "Longer grace windows",
        names=list(FLEETS),
        groups={window.name: [_against(rows, fleet, window) for fleet in FLEETS] for window in shown},
        x_label="fleet",
        y_label=f"held-out loss against {USUAL.name}, %",
    )
    return Report(
        tables=tuple(_table(rows, fleet) for fleet in FLEETS),
        pictures=(picture,),
        claims=(*(_claim(rows, fleet) for fleet in FLEETS), _least_claim(rows)),
        notes=("All by our defaults but for tau and the window. Streaming waits for everybody.",),
        figures={f"{fleet}, percent": _against(rows, fleet, LONG).mean for fleet in FLEETS},
    )


def _table(rows: Rows, fleet: str) -> Table:
    arms: tuple[Window | str, ...] = (*windows_of(fleet), STREAMING)
    return Table(
        title=f"Grace windows: {fleet}",
        columns=(
            "window", "participation", "tokens merged", "steps in flight", "goodput", "held-out loss",
            f"against {USUAL.name}",
        ),
        rows=tuple(_line(rows, fleet, arm) for arm in arms),
        notes=("Steps in flight: between a snapshot and the adoption of what became of it, on average.",),
    )  # fmt: skip


def _line(rows: Rows, fleet: str, arm: Window | str) -> tuple[str, ...]:
    found = rows[fleet, arm]
    return (
        arm if isinstance(arm, str) else arm.name,
        percent(mean_of(found, lambda row: row.participation)),
        percent(mean_of(found, lambda row: row.merged_share)),
        f"{mean_of(found, lambda row: row.staleness_steps):.2f}",
        percent(mean_of(found, lambda row: row.goodput)),
        shown_loss(found),
        "-" if arm == USUAL else interval(_against(rows, fleet, arm)),
    )


def _claim(rows: Rows, fleet: str) -> Claim:
    """In a calm fleet it must cost nothing; elsewhere it must gain."""
    against, is_calm = _against(rows, fleet, LONG), fleet == CALM
    what = "costs less than 0.5 %" if is_calm else "is better"
    return claim_below(f"{fleet}: {LONG.name} {what}.", against, 0.5 if is_calm else 0.0)


def _least_claim(rows: Rows) -> Claim:
    """What a round gains by waiting although nothing is left of tau."""
    against = paired(rows[CALM, LEAST], rows[CALM, CLOSE])
    return claim_below(f"{CALM}: {LEAST.name}, is better than {CLOSE.name}.", against, 0.0)
