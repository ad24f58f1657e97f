"""Ideas that may bring local training nearer to Data-Parallel, and the cells that try them.

Each idea is a few changes of the plain settings (constant momentum, merged by the mean). One that makes a
round dearer, or rounds rarer, gets another H, so that the whole run sends about as many bytes as with the
plain settings: offers that carry moments too travel more rarely, four-bit offers four times as often. What
was really sent stands in the tables of `closing`; some ideas do with half the bytes. eta and mu stay the
plain ones where an idea does not name others.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from atoll.sim.lab.cell import Cell, Ideas, Size
from atoll.sim.lab.tuned import cell_for, fragments_of, tuned

__all__ = ["IDEAS", "PLAIN", "Idea", "Mix", "cell_with", "lock_step_cell", "plain_cell", "suits_lock_step"]

EARLY_SHARE, EARLY_FACTOR = 0.25, 3
"""A quarter of the run at a third of H pays for the rest at three times H: 3/4 + 1/4 of the bytes."""

Changes = tuple[tuple[str, Any], ...]
"""Settings of a cell, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Idea:
    """A few changes of the plain settings."""

    name: str
    kind: str
    """Ideas of one kind are ways to do the same thing; only one of them goes into a combination."""
    also: tuple[str, ...] = ()
    """Other kinds that have no effect beside it, or are part of it."""
    changes: Changes = ()
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


Mix = tuple[Idea, ...]
"""Ideas at work together; the empty one is the plain settings."""
PLAIN: Mix = ()

REBASE = (("adopt", "rebase"),)
WARM_UP, COOL_DOWN = (("momentum_warmup", 0.1),), (("momentum_cooldown", 0.2),)
SCHEDULE = (*WARM_UP, *COOL_DOWN)
EIGHT_BITS = (("codec_up", "int8"), ("codec_down", "int8"))
FOUR_BITS = (("codec_up", "int4"), ("codec_down", "int4"))
TWO_BITS = (("codec_up", "int2"), ("codec_down", "int2"))
VALUE_BITS = {"bf16": 16, "int8": 8, "int4": 4, "int2": 2}
"""Without scales: int4 sends 3 % more than this and int2 6 %, for the sake of an H that is whole."""
MOMENT_BITS = 32
"""Two moments in bf16."""
PLAIN_MERGES = (("eta", 1.0), ("mu", 0.0))
"""Plain averaging: the model is the mean of the learners'."""


def _eta(value: float) -> Changes:
    return (("eta", value),)


def _mu(value: float) -> Changes:
    return (("mu", value),)


def _rounds(name: str, *changes: Changes, **more: Any) -> Idea:
    """Bodies of fewer bits, sent more often; those that are plain averages have no outer settings beside."""
    also = ("outer",) if PLAIN_MERGES in changes else ()
    return Idea(name=name, kind="rounds", also=also, changes=_together(changes), **more)


def _often(name: str, *changes: Changes, **more: Any) -> Idea:
    """The same with momentum that warms up and cools down: they gain only together, so they are one idea."""
    together = _together((*changes, SCHEDULE))
    return Idea(name=name, kind="often", also=("rounds", "outer"), changes=together, **more)


def _outer(name: str, *changes: Changes, **more: Any) -> Idea:
    """Another outer optimizer."""
    return Idea(name=name, kind="outer", changes=_together(changes), **more)


def _together(changes: tuple[Changes, ...]) -> Changes:
    return tuple(change for part in changes for change in part)


IDEAS: tuple[Idea, ...] = (
    _rounds("int4 at a quarter of H", FOUR_BITS),
    _rounds("int4 at a quarter of H, plain averages", FOUR_BITS, PLAIN_MERGES),
    _rounds("int4 at a quarter of H, plain averages, rebase", FOUR_BITS, PLAIN_MERGES, REBASE),
    _rounds("int2 at an eighth of H, plain averages, rebase", TWO_BITS, PLAIN_MERGES, REBASE),
    _rounds("int8 at half of H, mu 0.8", EIGHT_BITS, _mu(0.8)),
    _rounds("int4 at half of H, mu 0.8, half the bytes", FOUR_BITS, _mu(0.8), bytes_share=0.5),
    _rounds("int4 at a quarter of H, mu 0.7", FOUR_BITS, _mu(0.7)),
    Idea(name="plain averages", kind="rounds", also=("outer",), changes=PLAIN_MERGES),
    Idea(name="rebase", kind="adopt", changes=REBASE),
    Idea(name="tau 1, and so half the grace", kind="overlap", changes=(("overlap_steps", 1),)),
    Idea(name="batch x 2", kind="batch", batch_factor=2),
    Idea(name="often early, rarely later", kind="early", is_early=True),
    Idea(name="averaged AdamW moments", kind="moments", ideas=Ideas(mean_moments=True)),
    Idea(name="mean of the last 10 %", kind="average", ideas=Ideas(average_last=0.1)),
    Idea(name="beta2 0.99", kind="beta2", ideas=Ideas(beta2=0.99)),
    _outer("plain averages in the last 10 %", ideas=Ideas(plain_last=0.1)),
    _outer("momentum warm-up", WARM_UP),
    _outer("momentum cool-down", COOL_DOWN),
    _outer("momentum warm-up and cool-down", SCHEDULE),
    _outer("momentum warm-up and cool-down, our rate", SCHEDULE, has_our_rate=True),
    _often("int8 at half of H, mu 0.8, warm-up and cool-down", EIGHT_BITS, _mu(0.8)),
    _often(
        "int4 at half of H, mu 0.8, warm-up and cool-down, half the bytes",
        FOUR_BITS, _mu(0.8), bytes_share=0.5,
    ),
    _often("int4 at a quarter of H, mu 0.7, warm-up and cool-down", FOUR_BITS, _mu(0.7)),
    _often(
        "int8 at half of H, mu 0.8, warm-up and cool-down, our rate",
        EIGHT_BITS, _mu(0.8), has_our_rate=True,
    ),
    _often(
        "int4 at a quarter of H, mu 0.7, warm-up and cool-down, our rate",
        FOUR_BITS, _mu(0.7), has_our_rate=True,
    ),
    _often(
        "int8 at half of H, eta 0.5, warm-up and cool-down, our rate",
        EIGHT_BITS, _eta(0.5), has_our_rate=True,
    ),
    _often(
        "int4 at half of H, eta 0.5, warm-up and cool-down, our rate, half the bytes",
        FOUR_BITS, _eta(0.5), has_our_rate=True, bytes_share=0.5,
    ),
    _often(
        "int4 at a quarter of H, eta 0.5, mu 0.8, warm-up and cool-down, our rate",
        FOUR_BITS, _eta(0.5), _mu(0.8), has_our_rate=True,
    ),
    _outer("eta 0.5, warm-up and cool-down, our rate", _eta(0.5), SCHEDULE, has_our_rate=True),
    _outer("eta to 1, momentum cool-down", COOL_DOWN, ideas=Ideas(eta_end=1.0)),
    _outer("eta x 1.5", eta_factor=1.5),
)  # fmt: skip
"""In the order of the table."""


def plain_cell(learners: int, seed: int, size: Size = "tiny") -> Cell:
    """What every idea is compared with: the paper's H, overlap, adoption and codec, as tuned."""
    return cell_for(
        "decoupled", learners, seed, size=size, interval_steps=24, overlap_steps=2,
        adopt="overwrite", codec_up="bf16", codec_down="bf16",
    )  # fmt: skip


def cell_with(plain: Cell, mix: Mix) -> Cell:
    """The plain cell with all these ideas at work, at the H that keeps the bytes equal."""
    batch_factor = math.prod(idea.batch_factor for idea in mix)
    rate = plain.learning_rate
    if any(idea.has_our_rate for idea in mix):
        rate = tuned(plain.task, plain.size, "defaults", plain.learners).learning_rate
    changed = replace(
        plain,
        **dict(change for idea in mix for change in idea.changes),
        batch=plain.batch * batch_factor,
        learning_rate=rate * math.sqrt(batch_factor),
        ideas=_ideas_of(mix),
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


def lock_step_cell(mix: Mix, seed: int, size: Size = "tiny") -> Cell:
    """Data-Parallel with the same ideas; each has to suit it."""
    return cell_for("data-parallel", 1, seed, size=size, ideas=_ideas_of(mix))


def suits_lock_step(idea: Idea) -> bool:
    """Whether Data-Parallel can take it too."""
    lock_step = lock_step_cell((idea,), 0)
    return idea.ideas != Ideas() and lock_step.plain().ideas == idea.ideas


def _bits(cell: Cell) -> int:
    """Sent for each value of a fragment, one way."""
    return VALUE_BITS[cell.codec_up] + (MOMENT_BITS if cell.ideas.mean_moments else 0)


def _ideas_of(mix: Mix) -> Ideas:
    """The fields of `Ideas` that somebody in the mix has set."""
    usual = asdict(Ideas())
    own = {key: value for idea in mix for key, value in asdict(idea.ideas).items() if value != usual[key]}
    return replace(Ideas(), **own)
