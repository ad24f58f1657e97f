"""Which offers may be merged. Each refusal is a verdict with its reason.

The header is judged when it arrives: the base must be known and not older than what this
incarnation already has in the fragment (else its progress would be merged twice), the counters
plausible. The body is judged once it is decoded: finite, and not far larger than usual.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from atoll.core.events import Inspection
from atoll.core.members import Session, is_known_base
from atoll.core.messages import FromLearner, Header, Message, Report, Verdict
from atoll.core.params import RunParams
from atoll.core.records import Contribution, StoredFragment

__all__ = ["NormGate", "Refusal", "is_well_formed", "screen"]

LARGEST_COUNT = 2**53
"""No clock, token or step count of a real learner is larger; arithmetic on counts stays exact below."""
NORM_HISTORY = 64
MIN_NORMS = 8
MIN_CROWD = 3
MAX_BLOCKED = 3
UNREPORTED_CYCLES, UNREPORTED_STEPS = 8, 1000
"""Steps that an offer may be ahead of the newest report: reports are skipped when they pile up."""


class Refusal(NamedTuple):
    """Why an offer is not merged."""

    verdict: Verdict
    reason: str


def screen(
    header: Header,
    session: Session,
    fragments: list[StoredFragment],
    contribution: Contribution | None,
    params: RunParams,
) -> Refusal | None:
    """Judge a header; None means that the offer may count towards the quorum."""
    current = fragments[header.fragment]
    if not is_known_base(header.base_version, header.base_digest, current):
        return Refusal("stale", f"base {header.base_version} is not current {current.version} or before")
    if contribution and header.base_version < contribution.version:
        return Refusal(
            "stale",
            f"base {header.base_version} is older than version {contribution.version}, "
            "which contains this learner's progress already",
        )
    if not session.has_offered:
        for p, (version, fragment) in enumerate(zip(header.bases, fragments, strict=True)):
            if not 0 <= fragment.version - version <= 1:
                return Refusal("stale", f"not healed: fragment {p} at {version}, current {fragment.version}")
    if contribution and header.start < contribution.upto:
        return Refusal("stale", f"tokens {header.start} to {contribution.upto} are merged already")
    tokens = header.end - header.start
    if header.steps < 1 or tokens < 1 or header.start < 0:
        return Refusal("rejected", f"implausible counters: {tokens} tokens in {header.steps} steps")
    if header.fragment < len(session.holdings):
        known = session.holdings[header.fragment].steps
        if header.steps > known + UNREPORTED_CYCLES * params.interval_steps + UNREPORTED_STEPS:
            return Refusal("rejected", f"implausible counters: {header.steps} steps, {known} reported")
    if params.max_step_tokens and tokens > params.max_step_tokens * header.steps:
        return Refusal(
            "rejected", f"{tokens} tokens in {header.steps} steps, at most {params.max_step_tokens} a step"
        )
    return None


def is_well_formed(message: Message, num_fragments: int) -> bool:
    """Whether a message is a learner's and fits the run: a stranger's mistake must not hurt us."""
    if not isinstance(message, FromLearner):
        return False
    if isinstance(message, Report):
        counts = (message.clock, message.tokens, message.step_ns, message.held_ns, message.held_on + 1)
        fits = len(message.holdings) == num_fragments and message.held_on < num_fragments
        return fits and min(counts) >= 0 and max(counts) <= LARGEST_COUNT
    if isinstance(message, Header):
        largest = max(abs(message.start), abs(message.end), message.steps)
        if len(message.bases) != num_fragments or largest > LARGEST_COUNT:
            return False
    return 0 <= getattr(message, "fragment", 0) < num_fragments


@dataclass(slots=True)
class NormGate:
    """Rejects a delta far larger than the running median of those merged before it, or scales it down.

    Norms are taken over the square root of the steps behind them, as progress is between a random walk and a
    straight line: an offer after a long outage is larger and no worse for it. If all learners agree for
    `MAX_BLOCKED` rounds in a row that deltas are larger now, the world has changed and not one learner: the
    history is forgotten. Without that, a gate that rejects everything would do so for ever. While there is
    too little history, the offers of a round are held against each other, if there are at least three.
    """

    factor: float
    clips: bool = False
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=NORM_HISTORY))
    crowd: float = 0.0
    """Median norm of the offers of the round that is judged; 0 if they are too few."""
    blocked: set[str] = field(default_factory=set)
    """Who was rejected for its norm since the last merge."""
    num_blocked: int = 0
    """Rounds since then in which nobody passed."""

    def see(self, offers: Sequence[tuple[Inspection, int]]) -> None:
        """The offers of a round, each with its steps, before they are judged one by one."""
        norms = sorted(
            result.norm / math.sqrt(steps) for result, steps in offers if math.isfinite(result.norm)
        )
        self.crowd = norms[(len(norms) - 1) // 2] if len(norms) >= MIN_CROWD else 0.0

    def judge(self, result: Inspection, steps: int) -> Refusal | None:
        """Judge one decoded body, made in so many steps."""
        if not result.finite or not math.isfinite(result.norm):
            return Refusal("rejected", "the delta is not finite")
        if self.clips or not self.factor:
            return None
        median, norm = self.median, result.norm / math.sqrt(steps)
        if median > 0 and norm > self.factor * median:
            self.blocked.add(result.name)
            return Refusal("rejected", f"norm {norm:.3g} is over {self.factor:g} x median {median:.3g}")
        return None

    def scale(self, result: Inspection, steps: int) -> float:
        """What to multiply an offer by, so that it is not too large."""
        if not self.clips:
            return 1.0
        allowed = self.factor * self.median * math.sqrt(steps)
        return allowed / result.norm if 0 < allowed < result.norm else 1.0

    def passed(self, result: Inspection, steps: int, scale: float = 1.0) -> None:
        """An offer is merged: later ones are judged by it."""
        self.norms.append(scale * result.norm / math.sqrt(steps))
        self.blocked.clear()
        self.num_blocked = 0

    def nobody_passed(self, present: set[str]) -> bool:
        """A round ended without an offer that passed; True if the history was forgotten for it."""
        self.num_blocked += 1
        if self.num_blocked < MAX_BLOCKED or not present or not present <= self.blocked:
            return False
        self.norms.clear()
        self.blocked.clear()
        self.num_blocked = 0
        return True

    @property
    def median(self) -> float:
        """Of the norms merged lately; while there are too few, of this round's; 0 if these are too few."""
        if len(self.norms) < MIN_NORMS:
            return self.crowd
        return sorted(self.norms)[len(self.norms) // 2]
