"""closing-the-gap: what brings local training nearer to Data-Parallel at equal tokens and about equal bytes.

Each idea is a few changes of the plain settings (constant momentum, merged by the mean). One that makes a
round dearer, or rounds rarer, gets another H, so that the whole run sends about as many bytes as with the
plain settings: offers that carry moments too travel more rarely, four-bit offers four times as often. What
was really sent stands in the table; two ideas do with half the bytes. eta and mu stay the plain ones where an
idea does not name others.

The first stage screens all ideas at two seeds and M = 4, the second the best of them together with the next
three that are different in kind, whose gain is clear, and which have an effect beside it. There the
best of all is chosen, at seeds that nothing else uses, by the share of the gap that it closes: the claims are
about it, and one choice is made for both M, for a default has to serve both. The third stage gives it, the
best four and the combinations all seeds, at M = 4 and at M = 8. What lost stays in the table with what the
screening said.

The share of the gap that an idea closes is 1 - (idea - Data-Parallel with it) / (default - Data-Parallel), of
means over the seeds. Data-Parallel takes whatever of an idea it can take (`Cell.plain`), so that what all
would gain closes no gap. The interval is that of a ratio of paired means: to first order the share varies
from seed to seed by (d - share g) / mean g, with d by how much the gap shrank at a seed and g the gap there;
a seed with a small gap cannot blow it up.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from atoll.sim.lab.cell import Cell, Ideas, Row, Size
from atoll.sim.lab.experiments.common import (
    FIRST_SCREEN_SEED,
    SCREEN_SEEDS,
    Arm,
    ask,
    mean_of,
    megabytes,
)
from atoll.sim.lab.experiments.losses import bars, rank_of, shown_loss
from atoll.sim.lab.paired import Difference, claim_at_least, interval, interval_of, paired, percent, spread
from atoll.sim.lab.report import Claim, Picture, Report, Request, Stages, Table
from atoll.sim.lab.tuned import cell_for, fragments_of, tuned

__all__ = ["CLOSING", "IDEAS", "Closing", "Idea", "Mix", "cell_with", "plain_cell", "share_closed"]

COUNTS = (4, 8)
SCREENED = 4
"""The M at which all ideas are tried."""
BEST = 4
"""Ideas that are given all seeds."""
CLEAR_PERCENT = 0.2
"""An idea whose mean gain is above this may be combined with others."""
HALF_PERCENT = 50.0
EARLY_SHARE, EARLY_FACTOR = 0.25, 3
"""A quarter of the run at a third of H pays for the rest at three times H: 3/4 + 1/4 of the bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Idea:
    """A few changes of the default."""

    name: str
    kind: str
    """Ideas of one kind are ways to do the same thing; only one of them goes into a combination."""
    also: tuple[str, ...] = ()
    """Other kinds that have no effect beside it, or are part of it."""
    changes: tuple[tuple[str, Any], ...] = ()
    """Settings of the cell."""
    ideas: Ideas = field(default_factory=Ideas)
    batch_factor: int = 1
    """Of the batch; the learning rate grows by its root."""
    eta_factor: float = 1.0
    bytes_share: float = 1.0
    """Of the plain settings' bytes; below 1 for an idea that does with fewer."""
    has_our_rate: bool = False
    """Whether the learning rate is that of our defaults at this M, which was tried with their momentum, and
    not that of the plain settings."""
    is_early: bool = False
    """Whether the first quarter of the run has a smaller H, and the rest a larger one."""


REBASE = ("adopt", "rebase")
WARM_UP, COOL_DOWN = ("momentum_warmup", 0.1), ("momentum_cooldown", 0.2)
EIGHT_BITS = (("codec_up", "int8"), ("codec_down", "int8"))
FOUR_BITS = (("codec_up", "int4"), ("codec_down", "int4"))
TWO_BITS = (("codec_up", "int2"), ("codec_down", "int2"))
VALUE_BITS = {"bf16": 16, "int8": 8, "int4": 4, "int2": 2}
"""Without scales: int4 sends 3 % more than this and int2 6 %, for the sake of an H that is whole."""
MOMENT_BITS = 32
"""Two moments in bf16."""

PLAIN_MERGES = (("eta", 1.0), ("mu", 0.0))
"""Plain averaging: the model is the mean of the learners'."""

IDEAS: tuple[Idea, ...] = (
    Idea(name="int4 at a quarter of H", kind="rounds", changes=FOUR_BITS),
    Idea(
        name="int4 at a quarter of H, plain averages",
        kind="rounds",
        also=("outer",),
        changes=(*FOUR_BITS, *PLAIN_MERGES),
    ),
    Idea(
        name="int4 at a quarter of H, plain averages, rebase",
        kind="rounds",
        also=("outer",),
        changes=(*FOUR_BITS, *PLAIN_MERGES, REBASE),
    ),
    Idea(
        name="int2 at an eighth of H, plain averages, rebase",
        kind="rounds",
        also=("outer",),
        changes=(*TWO_BITS, *PLAIN_MERGES, REBASE),
    ),
    Idea(name="int8 at half of H, mu 0.8", kind="rounds", changes=(*EIGHT_BITS, ("mu", 0.8))),
    Idea(
        name="int4 at half of H, mu 0.8, half the bytes",
        kind="rounds",
        changes=(*FOUR_BITS, ("mu", 0.8)),
        bytes_share=0.5,
    ),
    Idea(name="int4 at a quarter of H, mu 0.7", kind="rounds", changes=(*FOUR_BITS, ("mu", 0.7))),
    Idea(name="plain averages", kind="rounds", also=("outer",), changes=PLAIN_MERGES),
    Idea(name="rebase", kind="adopt", changes=(REBASE,)),
    Idea(name="tau 1, and so half the grace", kind="overlap", changes=(("overlap_steps", 1),)),
    Idea(name="batch x 2", kind="batch", batch_factor=2),
    Idea(name="often early, rarely later", kind="early", is_early=True),
    Idea(name="averaged AdamW moments", kind="moments", ideas=Ideas(mean_moments=True)),
    Idea(name="mean of the last 10 %", kind="average", ideas=Ideas(average_last=0.1)),
    Idea(name="beta2 0.99", kind="beta2", ideas=Ideas(beta2=0.99)),
    Idea(name="plain averages in the last 10 %", kind="outer", ideas=Ideas(plain_last=0.1)),
    Idea(name="momentum warm-up", kind="outer", changes=(WARM_UP,)),
    Idea(name="momentum cool-down", kind="outer", changes=(COOL_DOWN,)),
    Idea(name="momentum warm-up and cool-down", kind="outer", changes=(WARM_UP, COOL_DOWN)),
    Idea(
        name="momentum warm-up and cool-down, our rate",
        kind="outer",
        changes=(WARM_UP, COOL_DOWN),
        has_our_rate=True,
    ),
    Idea(
        name="int8 at half of H, mu 0.8, warm-up and cool-down",
        kind="often",
        also=("rounds", "outer"),
        changes=(*EIGHT_BITS, ("mu", 0.8), WARM_UP, COOL_DOWN),
    ),
    Idea(
        name="int4 at half of H, mu 0.8, warm-up and cool-down, half the bytes",
        kind="often",
        also=("rounds", "outer"),
        changes=(*FOUR_BITS, ("mu", 0.8), WARM_UP, COOL_DOWN),
        bytes_share=0.5,
    ),
    Idea(
        name="int4 at a quarter of H, mu 0.7, warm-up and cool-down",
        kind="often",
        also=("rounds", "outer"),
        changes=(*FOUR_BITS, ("mu", 0.7), WARM_UP, COOL_DOWN),
    ),
    Idea(
        name="int8 at half of H, mu 0.8, warm-up and cool-down, our rate",
        kind="often",
        also=("rounds", "outer"),
        changes=(*EIGHT_BITS, ("mu", 0.8), WARM_UP, COOL_DOWN),
        has_our_rate=True,
    ),
    Idea(
        name="int4 at a quarter of H, mu 0.7, warm-up and cool-down, our rate",
        kind="often",
        also=("rounds", "outer"),
        changes=(*FOUR_BITS, ("mu", 0.7), WARM_UP, COOL_DOWN),
        has_our_rate=True,
    ),
    Idea(name="eta to 1, momentum cool-down", kind="outer", changes=(COOL_DOWN,), ideas=Ideas(eta_end=1.0)),
    Idea(name="eta x 1.5", kind="outer", eta_factor=1.5),
)
"""In the order of the table."""

Mix = tuple[Idea, ...]
"""Ideas at work together; the empty one is the plain settings."""
PLAIN: Mix = ()
Key = tuple[int, Mix]
"""M and what is at work."""
Rows = Mapping[Key, Sequence[Row]]


def lock_step_key(mix: Mix) -> Key:
    """Data-Parallel with what it can take of these ideas."""
    return 0, tuple(idea for idea in mix if _suits_lock_step(idea))


LOCK_STEP: Key = (0, PLAIN)
"""Data-Parallel."""


def plain_cell(learners: int, seed: int, size: Size = "tiny") -> Cell:
    """What every idea is compared with: the paper's H, overlap, adoption and codec, as tuned."""
    return cell_for(
        "decoupled", learners, seed, size=size, interval_steps=24, overlap_steps=2,
        adopt="overwrite", codec_up="bf16", codec_down="bf16",
    )  # fmt: skip


def cell_with(plain: Cell, mix: Mix) -> Cell:
    """The default with all these ideas at work, at the H that keeps the bytes equal."""
    batch_factor = math.prod(idea.batch_factor for idea in mix)
    rate = plain.learning_rate
    if any(idea.has_our_rate for idea in mix):
        rate = tuned(plain.task, plain.size, "defaults", plain.learners).learning_rate
    changed = replace(
        plain,
        **dict(change for idea in mix for change in idea.changes),
        batch=plain.batch * batch_factor,
        learning_rate=rate * math.sqrt(batch_factor),
        ideas=replace(Ideas(), **_set_ideas(mix)),
    )
    # Rounds that are dearer must be rarer; of fewer steps a larger share must end in a round.
    share = batch_factor * math.prod(idea.bytes_share for idea in mix)
    mean_interval = plain.interval_steps * _bits(changed) / _bits(plain) / share
    changed = replace(changed, eta=changed.eta * math.prod(idea.eta_factor for idea in mix))
    if not any(idea.is_early for idea in mix):
        steps = max(1, round(mean_interval))
        return replace(changed, interval_steps=steps, num_fragments=fragments_of(steps))
    early = max(1, round(mean_interval / EARLY_FACTOR))
    return replace(
        changed,
        interval_steps=EARLY_FACTOR**2 * early,
        num_fragments=fragments_of(early),
        ideas=replace(changed.ideas, early_interval=early, early_share=EARLY_SHARE),
    )


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
        singles = [PLAIN, *((idea,) for idea in IDEAS)]
        screened = yield from _screen(singles, request.size)
        kept = _finalists(screened)
        screened |= yield from _screen([mix for mix in kept if len(mix) > 1], request.size)
        final = yield from ask(_arms([PLAIN, *kept], COUNTS, request.size), request.seeds)
        winner = max(kept, key=lambda mix: _share_rank(screened, mix))
        return _Found(screened, final, winner).report()


CLOSING = Closing()


def _bits(cell: Cell) -> int:
    """Sent for each value of a fragment, one way."""
    return VALUE_BITS[cell.codec_up] + (MOMENT_BITS if cell.ideas.mean_moments else 0)


def _set_ideas(mix: Mix) -> dict[str, Any]:
    """The fields of `Ideas` that somebody in the mix has set."""
    usual = asdict(Ideas())
    return {key: value for idea in mix for key, value in asdict(idea.ideas).items() if value != usual[key]}


def _suits_lock_step(idea: Idea) -> bool:
    """Whether Data-Parallel can take it too."""
    lock_step = cell_for("data-parallel", 1, 0, ideas=idea.ideas)
    return idea.ideas != Ideas() and lock_step.plain().ideas == idea.ideas


def _arms(mixes: Sequence[Mix], counts: Sequence[int], size: Size) -> dict[Key, Arm]:
    """Every mix at every M, and Data-Parallel with what it can take of each."""

    def cell(count: int, mix: Mix, seed: int) -> Cell:
        if count:
            return cell_with(plain_cell(count, seed, size), mix)
        return cell_for("data-parallel", 1, seed, size=size, ideas=replace(Ideas(), **_set_ideas(mix)))

    keys = [lock_step_key(mix) for mix in mixes] + [(count, mix) for count in counts for mix in mixes]
    return {key: partial(cell, *key) for key in keys}


def _screen(
    mixes: Sequence[Mix], size: Size
) -> Generator[Sequence[Cell], Sequence[Row], dict[Key, tuple[Row, ...]]]:
    """At the seeds that only choose."""
    return (yield from ask(_arms(mixes, (SCREENED,), size), SCREEN_SEEDS, first=FIRST_SCREEN_SEED))


def _finalists(rows: Rows) -> list[Mix]:
    """The best ideas, one of each kind, and the best of all together with each other one of clear gain."""
    means = {idea: rank_of(_change(rows, SCREENED, (idea,))) for idea in IDEAS}
    best: dict[str, Idea] = {}
    for idea in sorted(IDEAS, key=lambda idea: means[idea]):
        best.setdefault(idea.kind, idea)
    kept = list(best.values())[:BEST]
    first, *others = kept
    combined = [(first, idea) for idea in others if means[idea] < -CLEAR_PERCENT and not _clash(first, idea)]
    return [*((idea,) for idea in kept), *combined]


def _clash(one: Idea, other: Idea) -> bool:
    """Whether one of them has no effect beside the other, or is part of it."""
    return one.kind in other.also or other.kind in one.also


def _change(rows: Rows, count: int, mix: Mix) -> Difference:
    """In held-out loss against the plain settings."""
    return paired(rows[count, mix], rows[count, PLAIN])


def _share(rows: Rows, count: int, mix: Mix) -> Difference:
    """Of the gap."""
    return share_closed(rows[count, mix], rows[count, PLAIN], rows[LOCK_STEP], rows[lock_step_key(mix)])


def _share_rank(rows: Rows, mix: Mix) -> float:
    """By how much of the gap an idea closes; one that blew up is last."""
    share = _share(rows, SCREENED, mix).mean
    return share if math.isfinite(share) else -math.inf


@dataclass(frozen=True, slots=True)
class _Found:
    """What came of the stages."""

    screened: Rows
    final: Rows
    winner: Mix
    """The best at the seeds that only choose."""

    def report(self) -> Report:
        return Report(
            tables=(
                *(_table(self.final, count, "") for count in COUNTS),
                _table(self.screened, SCREENED, ", as screened"),
            ),
            pictures=(
                _picture("Ideas against the plain settings", self.final, COUNTS),
                _picture("All ideas, as screened", self.screened, (SCREENED,)),
            ),
            claims=tuple(self.claim(count) for count in COUNTS),
            notes=(
                f"All ideas were screened at M = {SCREENED} and {SCREEN_SEEDS} seeds that no claim uses. "
                f"The best {BEST} of different kinds, and the best of all with each other one of clear gain, "
                "were given all seeds; the claims are about the one that closed most of the gap when "
                "screened.",
                "Every run trains the same tokens. H was chosen so that it also sends the same bytes, or "
                "half of them; the last columns say what it sent. Plain settings: H = 24, bf16, constant "
                "momentum.",
            ),
            figures=self.figures(),
        )

    def claim(self, count: int) -> Claim:
        share = _share(self.final, count, self.winner)
        text = f"The gap to Data-Parallel at M = {count} is halved by: {_name(self.winner)}."
        claim = claim_at_least(text, share.mean, share.low, share.high, HALF_PERCENT, share.seeds)
        gap = paired(self.final[count, PLAIN], self.final[LOCK_STEP]).mean
        if gap > 0 or math.isnan(gap):
            return claim
        return replace(claim, verdict="not resolved", advice="There is no gap to close.")

    def figures(self) -> dict[str, float]:
        rows, mix, figures = self.final, self.winner, {}
        for count in COUNTS:
            figures[f"plain_gap_m{count}_percent"] = paired(rows[count, PLAIN], rows[LOCK_STEP]).mean
            figures[f"best_gap_m{count}_percent"] = paired(rows[count, mix], rows[lock_step_key(mix)]).mean
            figures[f"gap_closed_m{count}_percent"] = _share(rows, count, mix).mean
        return figures


def _table(rows: Rows, count: int, how: str) -> Table:
    ranked = sorted(_mixes(rows, (count,)), key=lambda mix: rank_of(_change(rows, count, mix)))
    lock_step = [mix for number, mix in rows if not number]
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


def _mixes(rows: Rows, counts: Sequence[int]) -> list[Mix]:
    """What was at work at all these M, without the plain settings."""
    return [
        mix for count, mix in rows if count == counts[0] and mix and all((m, mix) in rows for m in counts)
    ]


def _picture(title: str, rows: Rows, counts: Sequence[int]) -> Picture:
    mixes = _mixes(rows, counts)
    ranked = sorted(mixes, key=lambda mix: sum(rank_of(_change(rows, count, mix)) for count in counts))
    return bars(
        f"{title}, at equal tokens, about equal bytes",
        names=[_name(mix) for mix in ranked],
        groups={f"M = {count}": [_change(rows, count, mix) for mix in ranked] for count in counts},
        x_label="idea",
        y_label="held-out loss against plain, %",
    )
