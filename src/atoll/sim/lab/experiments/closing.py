"""closing-the-gap: what brings local training nearer to Data-Parallel at equal tokens and about equal bytes.

What is tried stands in `ideas`.

All of it is done for M = 4 and for M = 8, each for itself: what is worth most where each learner has one
window a step need not be what is worth most where learners are few. The first stage screens all ideas at two
seeds, the second the best of them together with the next three that are different in kind, whose gain is
clear, and which have an effect beside it. There the best of all is chosen, at seeds that nothing else uses,
by the share of the gap that it closes: the claim is about it. The third stage gives it, the best four and the
combinations all seeds. What lost stays in the table with what the screening said.

The share of the gap that an idea closes is 1 - (idea - Data-Parallel with it) / (default - Data-Parallel), of
means over the seeds. Data-Parallel takes whatever of an idea it can take (`Cell.plain`), so that what all
would gain closes no gap. The interval is that of a ratio of paired means: to first order the share varies
from seed to seed by (d - share g) / mean g, with d by how much the gap shrank at a seed and g the gap there;
a seed with a small gap cannot blow it up.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from atoll.sim.lab.cell import Cell, Row, Size
from atoll.sim.lab.experiments.common import (
    FIRST_SCREEN_SEED,
    SCREEN_SEEDS,
    Arm,
    ask,
    mean_of,
    megabytes,
)
from atoll.sim.lab.experiments.ideas import (
    IDEAS,
    PLAIN,
    Idea,
    Mix,
    cell_with,
    lock_step_cell,
    plain_cell,
    suits_lock_step,
)
from atoll.sim.lab.experiments.losses import bars, rank_of, shown_loss
from atoll.sim.lab.paired import Difference, claim_at_least, interval, interval_of, paired, percent, spread
from atoll.sim.lab.report import Claim, Picture, Report, Request, Stages, Table

__all__ = ["CLOSING", "Closing", "share_closed"]

COUNTS = (4, 8)
BEST = 4
"""Ideas that are given all seeds."""
CLEAR_PERCENT = 0.2
"""An idea whose mean gain is above this may be combined with others."""
HALF_PERCENT = 50.0

Key = tuple[int, Mix]
"""M and what is at work."""
Rows = Mapping[Key, Sequence[Row]]
Mixes = Mapping[int, Sequence[Mix]]
"""By M: what is tried there."""


def lock_step_key(mix: Mix) -> Key:
    """Data-Parallel with what it can take of these ideas."""
    return 0, tuple(idea for idea in mix if suits_lock_step(idea))


LOCK_STEP: Key = (0, PLAIN)
"""Data-Parallel."""


def share_closed(
    rows: Sequence[Row], plain: Sequence[Row], lock_step: Sequence[Row], lock_step_with: Sequence[Row]
) -> Difference:
    """How much of the gap between `plain` and Data-Parallel is closed, in percent; NaN if there is no gap."""
    quads = zip(rows, plain, lock_step, lock_step_with, strict=True)
    losses = [tuple(row.heldout_loss for row in quad) for quad in quads]
    gaps = [ours - theirs for _, ours, theirs, _ in losses]
    gains = [gap - (one - theirs) for gap, (one, _, _, theirs) in zip(gaps, losses, strict=True)]
    gap = spread(gaps)[0]
    if not gap > 0:
        return interval_of([math.nan] * len(gaps))
    share = spread(gains)[0] / gap
    return interval_of([100 * (share + (d - share * g) / gap) for d, g in zip(gains, gaps, strict=True)])


@dataclass(frozen=True, slots=True)
class Closing:
    """Ideas against the plain settings, at M = 4 and 8."""

    name: str = "closing-the-gap"
    about: str = (
        "ideas that may close the gap to Data-Parallel, at equal tokens and about equal bytes; M = 4, 8"
    )

    def stages(self, request: Request) -> Stages:
        """Screen all ideas, then their combinations, then give the best of them all seeds."""
        singles: Mixes = dict.fromkeys(COUNTS, (PLAIN, *((idea,) for idea in IDEAS)))
        screened = yield from _screen(singles, request.size)
        kept = {count: _finalists(screened, count) for count in COUNTS}
        combined = {count: tuple(mix for mix in mixes if len(mix) > 1) for count, mixes in kept.items()}
        screened |= yield from _screen(combined, request.size)
        arms = _arms({count: (PLAIN, *mixes) for count, mixes in kept.items()}, request.size)
        winners = {count: _winner(screened, count, mixes) for count, mixes in kept.items()}
        return _Found(screened, (yield from ask(arms, request.seeds)), winners).report()


CLOSING = Closing()


def _arms(mixes: Mixes, size: Size) -> dict[Key, Arm]:
    """Every mix at its M, and Data-Parallel with what it can take of each."""

    def cell(count: int, mix: Mix, seed: int) -> Cell:
        if count:
            return cell_with(plain_cell(count, seed, size), mix)
        return lock_step_cell(mix, seed, size)

    keys = [(count, mix) for count in mixes for mix in mixes[count]]
    return {key: partial(cell, *key) for key in (*(lock_step_key(mix) for _, mix in keys), *keys)}


def _screen(mixes: Mixes, size: Size) -> Generator[Sequence[Cell], Sequence[Row], dict[Key, tuple[Row, ...]]]:
    """At the seeds that only choose."""
    return (yield from ask(_arms(mixes, size), SCREEN_SEEDS, first=FIRST_SCREEN_SEED))


def _finalists(rows: Rows, count: int) -> tuple[Mix, ...]:
    """The best ideas, one of each kind, and the best of all together with each other one of clear gain."""
    means = {idea: rank_of(_change(rows, count, (idea,))) for idea in IDEAS}
    best: dict[str, Idea] = {}
    for idea in sorted(IDEAS, key=lambda idea: means[idea]):
        best.setdefault(idea.kind, idea)
    kept = list(best.values())[:BEST]
    first, *others = kept
    combined = [(first, idea) for idea in others if means[idea] < -CLEAR_PERCENT and not _clash(first, idea)]
    return (*((idea,) for idea in kept), *combined)


def _clash(one: Idea, other: Idea) -> bool:
    """Whether one of them has no effect beside the other, or is part of it."""
    return one.kind in other.also or other.kind in one.also


def _change(rows: Rows, count: int, mix: Mix) -> Difference:
    """In held-out loss against the plain settings."""
    return paired(rows[count, mix], rows[count, PLAIN])


def _share(rows: Rows, count: int, mix: Mix) -> Difference:
    """Of the gap."""
    return share_closed(rows[count, mix], rows[count, PLAIN], rows[LOCK_STEP], rows[lock_step_key(mix)])


def _winner(rows: Rows, count: int, mixes: Sequence[Mix]) -> Mix:
    """What closes most of the gap; what blew up is last."""
    shares = {mix: _share(rows, count, mix).mean for mix in mixes}
    return max(mixes, key=lambda mix: shares[mix] if math.isfinite(shares[mix]) else -math.inf)


@dataclass(frozen=True, slots=True)
class _Found:
    """What came of the stages."""

    screened: Rows
    final: Rows
    winners: Mapping[int, Mix]
    """By M: the best at the seeds that only choose."""

    def report(self) -> Report:
        return Report(
            tables=(
                *(_table(self.final, count, "") for count in COUNTS),
                *(_table(self.screened, count, ", as screened") for count in COUNTS),
            ),
            pictures=(
                *(_picture("Ideas against the plain settings", self.final, count) for count in COUNTS),
                *(_picture("All ideas, as screened", self.screened, count) for count in COUNTS),
            ),
            claims=tuple(self.claim(count) for count in COUNTS),
            notes=(
                f"At each M all ideas were screened at {SCREEN_SEEDS} seeds that no claim uses. "
                f"The best {BEST} of different kinds, and the best of all with each other one of clear gain, "
                "were given all seeds; the claims are about the one that closed most of the gap when "
                "screened there.",
                "Every run trains the same tokens. H was chosen so that it also sends the same bytes, or "
                "half of them; the last columns say what it sent. Plain settings: H = 24, bf16, constant "
                "momentum.",
            ),
            figures=self.figures(),
        )

    def claim(self, count: int) -> Claim:
        share = _share(self.final, count, self.winners[count])
        text = f"The gap to Data-Parallel at M = {count} is halved by: {_name(self.winners[count])}."
        claim = claim_at_least(text, share.mean, share.low, share.high, HALF_PERCENT, share.seeds)
        gap = paired(self.final[count, PLAIN], self.final[LOCK_STEP]).mean
        if gap > 0 or math.isnan(gap):
            return claim
        return replace(claim, verdict="not resolved", advice="There is no gap to close.")

    def figures(self) -> dict[str, float]:
        rows, figures = self.final, {}
        for count, mix in self.winners.items():
            figures[f"plain_gap_m{count}_percent"] = paired(rows[count, PLAIN], rows[LOCK_STEP]).mean
            figures[f"best_gap_m{count}_percent"] = paired(rows[count, mix], rows[lock_step_key(mix)]).mean
            figures[f"gap_closed_m{count}_percent"] = _share(rows, count, mix).mean
        return figures


def _table(rows: Rows, count: int, how: str) -> Table:
    ranked = _ranked(rows, count)
    lock_step = dict.fromkeys([PLAIN, *(lock_step_key(mix)[1] for mix in ranked)])
    return Table(
        title=f"Closing the gap to Data-Parallel, M = {count}{how}, best first",
        columns=(
            "idea", "H", "seeds", "held-out loss", "against plain", "gap closed", "MB", "bytes",
        ),
        rows=(
            *(_lock_step_line(rows, count, mix) for mix in lock_step),
            *(_line(rows, count, mix) for mix in (PLAIN, *ranked)),
        ),
        notes=(
            "Bytes: all bodies of the run, up and down, against those of the plain settings.",
            "Gap closed: where Data-Parallel can take an idea too, the gap is that to Data-Parallel with it.",
        ),
    )  # fmt: skip


def _lock_step_line(rows: Rows, count: int, mix: Mix) -> tuple[str, ...]:
    found = rows[0, mix]
    name = f"Data-Parallel, {_name(mix)}" if mix else "Data-Parallel"
    change = interval(paired(found, rows[count, PLAIN]))
    return (name, "-", str(len(found)), shown_loss(found), change, "-", "-", "-")


def _line(rows: Rows, count: int, mix: Mix) -> tuple[str, ...]:
    found = rows[count, mix]
    share = _share(rows, count, mix)
    return (
        _name(mix),
        _intervals(found[0].cell),
        str(len(found)),
        shown_loss(found),
        interval(_change(rows, count, mix)) if mix else "-",
        "-" if math.isnan(share.mean) or not mix else interval(share, digits=0),
        megabytes(found),
        percent(_bytes(found) / _bytes(rows[count, PLAIN]), 0),
    )


def _name(mix: Mix) -> str:
    return " + ".join(idea.name for idea in mix) if mix else "plain settings"


def _intervals(cell: Cell) -> str:
    """H, or H early and later."""
    early = cell.ideas.early_interval
    return f"{early}, then {cell.interval_steps}" if early else str(cell.interval_steps)


def _bytes(rows: Sequence[Row]) -> float:
    return mean_of(rows, lambda row: row.bytes_up + row.bytes_down)


def _ranked(rows: Rows, count: int) -> list[Mix]:
    """What was at work at this M, best first, without the plain settings."""
    mixes = [mix for learners, mix in rows if learners == count and mix]
    return sorted(mixes, key=lambda mix: rank_of(_change(rows, count, mix)))


def _picture(title: str, rows: Rows, count: int) -> Picture:
    ranked = _ranked(rows, count)
    return bars(
        f"{title}, M = {count}, at equal tokens, about equal bytes",
        names=[_name(mix) for mix in ranked],
        groups={f"M = {count}": [_change(rows, count, mix) for mix in ranked]},
        x_label="idea",
        y_label="held-out loss against plain, %",
    )
