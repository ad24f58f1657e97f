"""bits: what coarse bodies cost in quality, and what error feedback gives back.

Every arm is the same run but for its codecs, and is compared with bf16 both ways. "Up only" writes offers in
the codec and publishes in bf16; "both ways" writes both in it. Error feedback is the learners': what rounding
dropped from one offer is added to the next. The syncer always keeps the remainder of what it publishes, for
without it a learner's base could not be named by one digest; so "without" means the offers alone.

8 bits and E3M0 are asked for in fewer ways than 4 and 2 bits, to keep the experiment to 15 runs a seed: up
only matters least at 8 bits, and E3M0 up only without feedback is nearest to Streaming DiLoCo's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from atoll.sim.lab.cell import Row
from atoll.sim.lab.experiments.common import OLDER, Arm, ask, mean_of
from atoll.sim.lab.experiments.losses import bars, shown_loss
from atoll.sim.lab.paired import claim_at_least, claim_below, interval, paired, paired_shared
from atoll.sim.lab.report import Claim, Report, Request, Stages, Table
from atoll.sim.lab.tuned import cell_for

__all__ = ["BITS", "Bits", "Wire", "WIRES"]

LEARNERS = 4
LIMIT_PERCENT = 0.3


@dataclass(frozen=True, slots=True)
class Wire:
    """How the bodies of one arm are written."""

    up: str
    down: str
    feedback: bool = True

    @property
    def name(self) -> str:
        """As tables and pictures say it."""
        if self.up in ("f32", "bf16"):
            return self.up
        ways = "both ways" if self.up == self.down else "up only"
        return f"{self.up} {ways}" + ("" if self.feedback else ", no feedback")


BF16 = Wire("bf16", "bf16")
F32 = Wire("f32", "f32")
INT4 = Wire("int4", "int4")
INT2 = Wire("int2", "int2")
BARE_INT2 = Wire("int2", "int2", feedback=False)

WIRES: tuple[Wire, ...] = (
    F32,
    BF16,
    Wire("int8", "int8"),
    Wire("int8", "int8", feedback=False),
    INT4,
    Wire("int4", "int4", feedback=False),
    Wire("int4", "bf16"),
    Wire("int4", "bf16", feedback=False),
    Wire("fp4", "fp4"),
    Wire("fp4", "fp4", feedback=False),
    Wire("fp4", "bf16", feedback=False),
    INT2,
    BARE_INT2,
    Wire("int2", "bf16"),
    Wire("int2", "bf16", feedback=False),
)
"""The arms, in the order of the table."""
FINE = (BF16, INT4, INT2, BARE_INT2)
"""Those that the claims are about."""


@dataclass(frozen=True, slots=True)
class Bits:
    """Codecs of 32 to 2 bits against bf16 both ways."""

    name: str = "bits"
    about: str = (
        "f32, bf16, int8, int4, fp4 and 2 bits, up only and both ways, with and without error feedback"
    )

    def stages(self, request: Request) -> Stages:
        """One stage: all arms, those of the claims at more seeds."""
        arms: dict[Wire, Arm] = {
            wire: partial(
                cell_for, "decoupled", LEARNERS, size=request.size,
                codec_up=wire.up, codec_down=wire.down, error_feedback=wire.feedback,
            )
            for wire in WIRES
        }  # fmt: skip
        rows = yield from ask(arms, request.seeds, FINE, request.fine_seeds())
        return _report(rows)


BITS = Bits()


def _report(rows: Mapping[Wire, Sequence[Row]]) -> Report:
    against = {wire: paired_shared(rows[wire], rows[BF16]) for wire in WIRES}
    gain = paired(rows[INT2], rows[BARE_INT2])
    table = Table(
        title=f"Bits of a value on the wire, M = {LEARNERS}",
        columns=("bodies", "bits up", "bits down", "seeds", "held-out loss", "against bf16"),
        rows=tuple(
            (
                wire.name,
                f"{mean_of(rows[wire], _bits_up):.4g}",
                f"{mean_of(rows[wire], _bits_down):.4g}",
                f"{len(rows[wire])}",
                shown_loss(rows[wire]),
                "-" if wire == BF16 else interval(against[wire]),
            )
            for wire in WIRES
        ),
        notes=(
            "Bits are measured: bytes of all bodies, scales included, by the values of the fragments merged; "
            "what was offered and not merged, and the model that learners begin with, count as well.",
            "No feedback: learners forget what rounding dropped; the syncer always keeps its remainder.",
        ),
    )
    shown = [wire for wire in WIRES if wire != BF16]
    picture = bars(
        "What coarse bodies cost",
        names=[wire.name for wire in shown],
        groups={f"M = {LEARNERS}": [against[wire] for wire in shown]},
        x_label="bodies",
        y_label="held-out loss against bf16, %",
    )
    return Report(
        tables=(table,),
        pictures=(picture,),
        claims=_claims(rows),
        notes=(f"2 bits both ways with error feedback against without: {interval(gain)}.",),
        figures={
            "int4_both_ways_percent": against[INT4].mean,
            "int2_without_feedback_percent": against[BARE_INT2].mean,
            "int2_with_feedback_percent": against[INT2].mean,
            "int2_feedback_gain_percent": gain.mean,
        },
    )


def _claims(rows: Mapping[Wire, Sequence[Row]]) -> tuple[Claim, ...]:
    bare = paired(rows[BARE_INT2], rows[BF16])
    return (
        claim_below(
            f"int4 both ways is within +{LIMIT_PERCENT} % of bf16, {OLDER}.",
            paired(rows[INT4], rows[BF16]),
            LIMIT_PERCENT,
        ),
        claim_at_least(
            f"2 bits without error feedback are clearly worse than bf16, by more than {LIMIT_PERCENT} %, "
            f"{OLDER}.",
            bare.mean, bare.low, bare.high, LIMIT_PERCENT, bare.seeds, is_change=True,
        ),
        claim_below(
            f"2 bits are better with error feedback than without, {OLDER}.",
            paired(rows[INT2], rows[BARE_INT2]), 0.0,
        ),
    )  # fmt: skip


def _bits_up(row: Row) -> float:
    """Bits of a value in the offers; what was offered and not merged counts as overhead."""
    return 8 * row.bytes_up / (_values(row) * row.participants)


def _bits_down(row: Row) -> float:
    """Bits of a value in the publishes, which go to every learner."""
    return 8 * row.bytes_down / (_values(row) * row.cell.learners)


def _values(row: Row) -> float:
    """Of all merged fragments, each merge counted once; fragments are balanced."""
    return row.merges * row.parameters / row.cell.num_fragments
