"""grace: how long the syncer should wait for the late, and by which rule.

A learner answers at the end of the step it is in. If all steps took the same time, nobody could answer later
than one step after the first, and the paper's window of at most one step would take all in. Where single
steps last up to half as long again, or some learners take several times as long, some answer later, and what
they trained is overwritten. A longer window takes them in, and lets the others train longer on what will be
overwritten. By `slack`, the paper's rule, the window is a share of what is left of tau steps, whoever is
missing; where links are thin or steps are short nothing is left, and a round closes with its first offer: tau
1 stands for that in the calm fleet. By `worth`, ours, a round waits for those who bring more than it costs.

The first stage screens windows on every fleet, at two seeds that only choose. The second compares our
default with the paper's window and with Streaming at all seeds.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.core.grace import GraceRule
from atoll.sim.lab.cell import Cell, Fleet, Row, Size
from atoll.sim.lab.experiments.common import (
    FIRST_SCREEN_SEED,
    SCREEN_SEEDS,
    Arm,
    Place,
    ask,
    mean_of,
)
from atoll.sim.lab.experiments.losses import bars, shown_loss
from atoll.sim.lab.paired import Difference, claim_below, interval, paired_shared, percent
from atoll.sim.lab.report import Claim, Picture, Report, Request, Stages, Table

__all__ = ["FLEETS", "GRACE", "OURS", "PAPER", "WINDOWS", "Grace", "Window"]


@dataclass(frozen=True, slots=True)
class Window:
    """How long a round may take and wait."""

    rule: GraceRule
    overlap_steps: int
    most_steps: float

    @property
    def name(self) -> str:
        """As tables and pictures say it."""
        steps = f"{self.most_steps:g} step{'' if self.most_steps == 1 else 's'}"
        return f"{self.rule}, tau {self.overlap_steps}, at most {steps}"

    @property
    def settings(self) -> dict[str, Any]:
        """Of a cell."""
        return {
            "grace_rule": self.rule,
            "overlap_steps": self.overlap_steps,
            "grace_max_steps": self.most_steps,
        }


PAPER = Window("slack", 2, 1.0)
OURS = Window("worth", 5, 4.0)
WINDOWS = (PAPER, Window("slack", 3, 2.0), Window("slack", 5, 4.0), OURS)
CLOSE = Window("slack", 1, 1.0)
"""Where little is left of tau; in the calm fleet only."""
STREAMING = "Streaming"

CALM = "calm, M = 4"
FLEETS: Mapping[str, tuple[int, Fleet]] = {
    CALM: (4, Fleet()),
    "steps vary by 50 %, M = 4": (4, Fleet(jitter=0.5)),
    "half of 8 learners 4x slower": (8, Fleet(speeds=(1.0,) * 4 + (0.25,) * 4, jitter=0.1)),
    "one of 8 learners 10x slower": (8, Fleet(speeds=(1.0,) * 7 + (0.1,), jitter=0.1)),
}

GAINS = tuple(FLEETS)[1:3]
"""Where many answer late that would be worth waiting for."""

Key = tuple[str, Window | str]
Rows = Mapping[Key, Sequence[Row]]


@dataclass(frozen=True, slots=True)
class Grace:
    """`atoll lab run grace`."""

    name: str = "grace"
    about: str = (
        "grace windows: the paper's, longer ones and ours, where steps are alike, vary, or differ by 4x, 10x"
    )

    def stages(self, request: Request) -> Stages:
        """Screen all windows, then give ours, the paper's and Streaming all seeds."""
        screened = yield from _screen(request.size)
        arms = {
            (fleet, arm): _arm(fleet, arm, request.size) for fleet in FLEETS for arm in compared_on(fleet)
        }
        fine = [(CALM, PAPER), (CALM, OURS)]
        rows = yield from ask(arms, request.seeds, fine, request.fine_seeds())
        return _report(screened, rows)


GRACE = Grace()


def compared_on(fleet: str) -> tuple[Window | str, ...]:
    """What is given all seeds on a fleet."""
    return (PAPER, OURS, *((CLOSE,) if fleet == CALM else ()), STREAMING)


def _screen(size: Size) -> Generator[Sequence[Cell], Sequence[Row], dict[Key, tuple[Row, ...]]]:
    arms: dict[Key, Arm] = {
        (fleet, window): _arm(fleet, window, size) for fleet in FLEETS for window in WINDOWS
    }
    return (yield from ask(arms, SCREEN_SEEDS, first=FIRST_SCREEN_SEED))


def _arm(fleet: str, arm: Window | str, size: Size) -> Arm:
    learners, found = FLEETS[fleet]
    if isinstance(arm, str):
        return Place("streaming", learners, settings_of="defaults").arm(size, fleet=found)
    return Place("decoupled", learners, settings_of="defaults").arm(size, fleet=found, **arm.settings)


def _against(rows: Rows, fleet: str, arm: Window | str) -> Difference:
    return paired_shared(rows[fleet, arm], rows[fleet, PAPER])


def _report(screened: Rows, rows: Rows) -> Report:
    return Report(
        tables=(
            *(_table(rows, fleet, compared_on(fleet), "") for fleet in FLEETS),
            *(_table(screened, fleet, WINDOWS, ", as screened") for fleet in FLEETS),
        ),
        pictures=(
            _picture("Our grace window", rows, (OURS,)),
            _picture("Grace windows, as screened", screened, WINDOWS[1:]),
        ),
        claims=(*(_claim(rows, fleet) for fleet in FLEETS), _close_claim(rows)),
        notes=(
            "All by our defaults but for tau and the window. Streaming waits for everybody.",
            f"The windows were screened at {SCREEN_SEEDS} seeds that no claim uses; our rule was made with "
            "the first of them in view.",
        ),
        figures={f"{fleet}, percent": _against(rows, fleet, OURS).mean for fleet in FLEETS},
    )


def _picture(title: str, rows: Rows, windows: Sequence[Window]) -> Picture:
    return bars(
        title,
        names=list(FLEETS),
        groups={window.name: [_against(rows, fleet, window) for fleet in FLEETS] for window in windows},
        x_label="fleet",
        y_label=f"held-out loss against {PAPER.name}, %",
    )


def _table(rows: Rows, fleet: str, arms: Sequence[Window | str], how: str) -> Table:
    return Table(
        title=f"Grace windows: {fleet}{how}",
        columns=(
            "window", "seeds", "participation", "tokens merged", "steps in flight", "goodput",
            "held-out loss", f"against {PAPER.name}", "against Streaming",
        ),
        rows=tuple(_line(rows, fleet, arm) for arm in arms),
        notes=("Steps in flight: between a snapshot and the adoption of what became of it, on average.",),
    )  # fmt: skip


def _line(rows: Rows, fleet: str, arm: Window | str) -> tuple[str, ...]:
    found = rows[fleet, arm]
    return (
        arm if isinstance(arm, str) else arm.name,
        str(len(found)),
        percent(mean_of(found, lambda row: row.participation)),
        percent(mean_of(found, lambda row: row.merged_share)),
        f"{mean_of(found, lambda row: row.staleness_steps):.2f}",
        percent(mean_of(found, lambda row: row.goodput)),
        shown_loss(found),
        "-" if arm == PAPER else interval(_against(rows, fleet, arm)),
        _against_streaming(rows, fleet, arm),
    )


def _against_streaming(rows: Rows, fleet: str, arm: Window | str) -> str:
    """What waiting for everybody buys in loss; nobody waits so where windows are screened."""
    if arm == STREAMING or (fleet, STREAMING) not in rows:
        return "-"
    return interval(paired_shared(rows[fleet, arm], rows[fleet, STREAMING]))


def _claim(rows: Rows, fleet: str) -> Claim:
    """Where all are in time anyway it must cost nothing, where one is hopeless little; elsewhere it gains."""
    against = _against(rows, fleet, OURS)
    if fleet in GAINS:
        return claim_below(f"{fleet}: our grace window is better than the paper's.", against, 0.0)
    return claim_below(f"{fleet}: our grace window costs less than 0.5 %.", against, 0.5)


def _close_claim(rows: Rows) -> Claim:
    """What our window does where the paper's has nothing left to spend."""
    against = paired_shared(rows[CALM, OURS], rows[CALM, CLOSE])
    return claim_below(
        f"{CALM}: our grace window is better than {CLOSE.name}, which the paper does not use.", against, 0.0
    )
