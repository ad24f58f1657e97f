"""closing-the-gap: what brings local training nearer to Data-Parallel at the same tokens and the same bytes.

Each idea is the plain default (the paper's settings) with a few changes. One that makes a round dearer, or
rounds rarer, gets another H, so that the whole run sends as many bytes as the default does: offers that carry
moments too travel more rarely, four-bit offers four times as often. What was really sent stands in the table.

The first stage screens all ideas at two seeds and M = 4. The second gives all seeds, at M = 4 and at M = 8,
to the best three that are different in kind, and to the combinations of those whose gain is clear. One choice
is made for both M, for a default has to serve both. What lost stays in the table with the seeds it had.

The share of the gap that an idea closes is (default - idea) / (default - Data-Parallel), of means over the
seeds. Its interval is that of a ratio of paired means: to first order the share varies from seed to seed by
(d - share g) / mean g, with d what the idea gained at a seed and g the gap there; a seed with a small gap
cannot blow it up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from atoll.config import default_outer
from atoll.sim.lab.cell import Cell, Ideas, Row, Size
from atoll.sim.lab.experiments.common import Arm, ask, mean_of, megabytes
from atoll.sim.lab.experiments.losses import bars, mean_loss, rank_of, shown_loss
from atoll.sim.lab.paired import Difference, claim_at_least, interval, interval_of, paired, percent, spread
from atoll.sim.lab.report import Claim, Picture, Report, Request, Stages, Table
from atoll.sim.lab.tuned import cell_for, fragments_of

__all__ = ["CLOSING", "IDEAS", "Closing", "Idea", "Mix", "cell_with", "plain_cell", "share_closed"]

COUNTS = (4, 8)
SCREENED = 4
"""The M at which all ideas are tried."""
SCREEN_SEEDS = 2
BEST = 3
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
    changes: tuple[tuple[str, Any], ...] = ()
    """Settings of the cell."""
    ideas: Ideas = field(default_factory=Ideas)
    batch_factor: int = 1
    """Of the batch; the learning rate grows by its root."""
    eta_factor: float = 1.0
    is_early: bool = False
    """Whether the first quarter of the run has a smaller H, and the rest a larger one."""
    is_outer_by_interval: bool = False
    """Whether eta and mu are those of its H (`outer.default_outer`), not those tuned at H = 24."""

    @property
    def suits_lock_step(self) -> bool:
        """Whether Data-Parallel can take it too, and does, so that a gain of everybody's is seen as one."""
        lock_step = cell_for("data-parallel", 1, 0, ideas=self.ideas)
        return self.ideas != Ideas() and lock_step.plain().ideas == self.ideas


FOUR_BITS = (("codec_up", "int4"), ("codec_down", "int4"))
TWO_BITS = (("codec_up", "int2"), ("codec_down", "int2"))
VALUE_BITS = {"bf16": 16, "int4": 4, "int2": 2}
"""Without scales: int4 sends 3 % more than this and int2 6 %, for the sake of an H that is whole."""
MOMENT_BITS = 32
"""Two moments in bf16."""

IDEAS: tuple[Idea, ...] = (
    Idea(name="int4 at a quarter of H", kind="bits", changes=FOUR_BITS),
    Idea(
        name="int4 at a quarter of H, eta and mu by H",
        kind="bits",
        changes=FOUR_BITS,
        is_outer_by_interval=True,
    ),
    Idea(
        name="int2 at an eighth of H, eta and mu by H",
        kind="bits",
        changes=TWO_BITS,
        is_outer_by_interval=True,
    ),
    Idea(name="rebase", kind="adopt", changes=(("adopt", "rebase"),)),
    Idea(name="tau 1", kind="overlap", changes=(("overlap_steps", 1),)),
    Idea(name="batch x 2", kind="batch", batch_factor=2),
    Idea(name="often early, rarely later", kind="early", is_early=True),
    Idea(name="averaged AdamW moments", kind="moments", ideas=Ideas(mean_moments=True)),
    Idea(name="mean of the last 10 %", kind="average", ideas=Ideas(average_last=0.1)),
    Idea(name="beta2 0.99", kind="beta2", ideas=Ideas(beta2=0.99)),
    Idea(name="plain averages in the last 10 %", kind="outer", ideas=Ideas(plain_last=0.1)),
    Idea(name="momentum warm-up", kind="outer", ideas=Ideas(momentum_warmup=0.1)),
    Idea(name="momentum cool-down", kind="outer", ideas=Ideas(momentum_cooldown=0.2)),
    Idea(
        name="momentum warm-up and cool-down",
        kind="outer",
        ideas=Ideas(momentum_warmup=0.1, momentum_cooldown=0.2),
    ),
    Idea(name="eta to 1, momentum cool-down", kind="outer", ideas=Ideas(eta_end=1.0, momentum_cooldown=0.2)),
    Idea(name="eta x 1.5", kind="outer", eta_factor=1.5),
)
"""In the order of the table."""

Mix = tuple[Idea, ...]
"""Ideas at work together; the empty one is the plain default."""
PLAIN: Mix = ()
Key = tuple[int, Mix]
"""M and what is at work."""
LOCK_STEP: Key = (0, PLAIN)
"""Data-Parallel; with an idea that suits it, (0, (idea,))."""
SUITED: tuple[Mix, ...] = tuple((idea,) for idea in IDEAS if idea.suits_lock_step)
Rows = Mapping[Key, Sequence[Row]]


def plain_cell(learners: int, seed: int, size: Size = "tiny") -> Cell:
    """What every idea is compared with: the paper's settings, at the rates that were tuned."""
    return cell_for(
        "decoupled", learners, seed, size=size, interval_steps=24, overlap_steps=2,
        adopt="overwrite", codec_up="bf16", codec_down="bf16", merge_rule="rda",
    )  # fmt: skip


def cell_with(plain: Cell, mix: Mix) -> Cell:
    """The default with all these ideas at work, at the H that keeps the bytes equal."""
    batch_factor = math.prod(idea.batch_factor for idea in mix)
    changed = replace(
        plain,
        **dict(change for idea in mix for change in idea.changes),
        batch=plain.batch * batch_factor,
        learning_rate=plain.learning_rate * math.sqrt(batch_factor),
        ideas=replace(Ideas(), **_set_ideas(mix)),
    )
    # Rounds that are dearer must be rarer; of fewer steps a larger share must end in a round.
    mean_interval = plain.interval_steps * _bits(changed) / _bits(plain) / batch_factor
    if any(idea.is_outer_by_interval for idea in mix):
        eta, mu = default_outer(max(1, round(mean_interval)))
        changed = replace(changed, eta=eta, mu=mu)
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


def share_closed(rows: Sequence[Row], plain: Sequence[Row], lock_step: Sequence[Row]) -> Difference:
    """How much of the gap between `plain` and Data-Parallel is closed, in percent; NaN if there is no gap."""
    triples = zip(rows, plain, lock_step, strict=True)
    losses = [(one.heldout_loss, ours.heldout_loss, theirs.heldout_loss) for one, ours, theirs in triples]
    gains = [ours - one for one, ours, _ in losses]
    gaps = [ours - theirs for _, ours, theirs in losses]
    gap = spread(gaps)[0]
    if not gap > 0:
        return interval_of([math.nan] * len(gaps))
    share = spread(gains)[0] / gap
    return interval_of([100 * (share + (d - share * g) / gap) for d, g in zip(gains, gaps, strict=True)])


@dataclass(frozen=True, slots=True)
class Closing:
    """Ideas against the plain default, at M = 4 and 8."""

    name: str = "closing-the-gap"
    about: str = "ideas that may close the gap to Data-Parallel, at equal tokens and equal bytes; M = 4, 8"

    def stages(self, request: Request) -> Stages:
        """Screen all ideas, then give the best of them and their combinations all seeds."""
        singles = [PLAIN, *((idea,) for idea in IDEAS)]
        screened = yield from ask(_arms(singles, (SCREENED,), request.size), min(SCREEN_SEEDS, request.seeds))
        finalists = _finalists(screened)
        final = yield from ask(_arms([PLAIN, *finalists], COUNTS, request.size), request.seeds)
        return _report({**screened, **final}, finalists)


CLOSING = Closing()


def _bits(cell: Cell) -> int:
    """Sent for each value of a fragment, one way."""
    return VALUE_BITS[cell.codec_up] + (MOMENT_BITS if cell.ideas.mean_moments else 0)


def _set_ideas(mix: Mix) -> dict[str, Any]:
    """The fields of `Ideas` that somebody in the mix has set."""
    usual = asdict(Ideas())
    return {key: value for idea in mix for key, value in asdict(idea.ideas).items() if value != usual[key]}


def _arms(mixes: Sequence[Mix], counts: Sequence[int], size: Size) -> dict[Key, Arm]:
    def cell(learners: int, mix: Mix, seed: int) -> Cell:
        return cell_with(plain_cell(learners, seed, size), mix)

    lock_step = partial(cell_for, "data-parallel", 1, size=size)
    arms: dict[Key, Arm] = {LOCK_STEP: lock_step}
    arms |= {(0, mix): partial(lock_step, ideas=mix[0].ideas) for mix in mixes if mix in SUITED}
    return arms | {(count, mix): partial(cell, count, mix) for count in counts for mix in mixes}


def _finalists(rows: Rows) -> list[Mix]:
    """The best ideas, one of each kind, and those of them with a clear gain together: two, then three."""
    means = {idea: _change(rows, SCREENED, (idea,)).mean for idea in IDEAS}
    best: dict[str, Idea] = {}
    for idea in sorted(IDEAS, key=lambda idea: means[idea] if math.isfinite(means[idea]) else math.inf):
        best.setdefault(idea.kind, idea)
    kept = list(best.values())[:BEST]
    clear = [idea for idea in kept if means[idea] < -CLEAR_PERCENT]
    combined = [tuple(clear[:num]) for num in range(2, len(clear) + 1)]
    return [*((idea,) for idea in kept), *combined]


def _change(rows: Rows, count: int, mix: Mix) -> Difference:
    """In held-out loss against the plain default, over the seeds that the mix has."""
    found = rows[count, mix]
    return paired(found, rows[count, PLAIN][: len(found)])


def _share(rows: Rows, count: int, mix: Mix) -> Difference:
    """Of the gap, over the seeds that the mix has."""
    return _share_of(rows, count, rows[count, mix])


def _share_of(rows: Rows, count: int, found: Sequence[Row]) -> Difference:
    return share_closed(found, rows[count, PLAIN][: len(found)], rows[LOCK_STEP][: len(found)])


def _report(rows: Rows, finalists: Sequence[Mix]) -> Report:
    best = {count: min(finalists, key=lambda mix: mean_loss(rows[count, mix])) for count in COUNTS}
    return Report(
        tables=tuple(_table(rows, count) for count in COUNTS),
        pictures=(_picture(rows, (SCREENED,)), _picture(rows, COUNTS)),
        claims=tuple(_claim(rows, count, best[count]) for count in COUNTS),
        notes=(
            f"All ideas were screened at M = {SCREENED} and {SCREEN_SEEDS} seeds; those with more were the "
            f"best {BEST} of different kinds, and the combinations of those with a clear gain.",
            "Every run trains the same tokens. H was chosen so that it also sends the same bytes; the last "
            "columns say what it sent.",
            "The claims are about the best of the ideas with all seeds, chosen in hindsight on these seeds.",
        ),
        figures=_figures(rows, best),
    )


def _table(rows: Rows, count: int) -> Table:
    ranked = sorted(_mixes(rows, (count,)), key=lambda mix: rank_of(_change(rows, count, mix)))
    return Table(
        title=f"Closing the gap to Data-Parallel, M = {count}, best first",
        columns=(
            "idea", "H", "seeds", "held-out loss", "against the default", "gap closed", "MB", "bytes",
        ),
        rows=(
            *(_lock_step_line(rows, count, mix) for mix in (PLAIN, *SUITED)),
            *(_line(rows, count, mix) for mix in (PLAIN, *ranked)),
        ),
        notes=(
            "Bytes: all bodies of the run, up and down, against those of the plain default.",
            "The gap is that to Data-Parallel as it was tuned. Where Data-Parallel takes an idea too, what "
            "it gains itself is no part of a gap closed: see its own line.",
        ),
    )  # fmt: skip


def _lock_step_line(rows: Rows, count: int, mix: Mix) -> tuple[str, ...]:
    found = rows[0, mix]
    change = interval(paired(found, rows[count, PLAIN][: len(found)]))
    closed = "100 %" if mix == PLAIN else interval(_share_of(rows, count, found), digits=0)
    name = f"Data-Parallel, {_name(mix)}" if mix else "Data-Parallel"
    return (name, "-", str(len(found)), shown_loss(found), change, closed, "-", "-")


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
        percent(_bytes(found) / _bytes(rows[count, PLAIN][: len(found)]), 0),
    )


def _name(mix: Mix) -> str:
    return " + ".join(idea.name for idea in mix) if mix else "plain default"


def _intervals(cell: Cell) -> str:
    """H, or H early and later."""
    early = cell.ideas.early_interval
    return f"{early}, then {cell.interval_steps}" if early else str(cell.interval_steps)


def _bytes(rows: Sequence[Row]) -> float:
    return mean_of(rows, lambda row: row.bytes_up + row.bytes_down)


def _mixes(rows: Rows, counts: Sequence[int]) -> list[Mix]:
    """What was at work at all these M, without the plain default."""
    return [
        mix for count, mix in rows if count == counts[0] and mix and all((m, mix) in rows for m in counts)
    ]


def _picture(rows: Rows, counts: Sequence[int]) -> Picture:
    mixes = _mixes(rows, counts)
    ranked = sorted(mixes, key=lambda mix: sum(rank_of(_change(rows, count, mix)) for count in counts))
    return bars(
        "Ideas against the plain default, at equal tokens and bytes",
        names=[_name(mix) for mix in ranked],
        groups={f"M = {count}": [_change(rows, count, mix) for mix in ranked] for count in counts},
        x_label="idea",
        y_label="held-out loss against the default, %",
    )


def _claim(rows: Rows, count: int, best: Mix) -> Claim:
    share = _share(rows, count, best)
    text = f"The gap to Data-Parallel at M = {count} is halved by: {_name(best)}."
    return claim_at_least(text, share.mean, share.low, share.high, HALF_PERCENT, share.seeds)


def _figures(rows: Rows, best: Mapping[int, Mix]) -> dict[str, float]:
    figures = {}
    for count, mix in best.items():
        figures[f"plain_gap_m{count}_percent"] = paired(rows[count, PLAIN], rows[LOCK_STEP]).mean
        figures[f"best_gap_m{count}_percent"] = paired(rows[count, mix], rows[LOCK_STEP]).mean
        figures[f"gap_closed_m{count}_percent"] = _share(rows, count, mix).mean
    return figures
