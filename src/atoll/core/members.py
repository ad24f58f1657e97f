"""Who is here: one session per learner that said hello to this life of the syncer.

A session counts as connected while both directions work: its reports arrive, and they echo a
recent beat. It is healed while every base it reports is the current version of the fragment or
the one before, digests included; then, and only then, its offers are asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from atoll.core.grace import MovingAverage
from atoll.core.messages import Holding, Report
from atoll.core.records import StoredFragment

__all__ = ["NAME", "Sent", "Session", "is_known_base"]

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
"""What a learner may be called."""
MAX_BACKOFF = 4


class Sent(NamedTuple):
    """A version on its way to a learner."""

    version: int
    at_ns: int
    tries: int


@dataclass(slots=True)
class Session:
    """What the syncer knows of one connected life of a learner."""

    name: str
    incarnation: int
    heard_ns: int
    echo_ns: int
    averaging: float
    sequence: int = -1
    clock: int = 0
    moved_ns: int = 0
    """When a report last told of a step: about when the step began that it is in now."""
    tokens: int = 0
    step_ns: int = 0
    held_on: int = -1
    holdings: tuple[Holding, ...] = ()
    healed: bool = False
    has_offered: bool = False
    left: bool = False
    lost: bool = False
    moments: str = ""
    """Where this life found its optimizer state, once it has said so."""
    sent: dict[int, Sent] = field(default_factory=dict)
    transit: MovingAverage = field(init=False)
    """Time from sending a version to the report that shows it."""
    ns_per_byte: MovingAverage = field(init=False)
    """Upward, from header to body."""
    pace: MovingAverage = field(init=False)
    """How long its steps take."""
    round_trip: MovingAverage = field(init=False)
    """From a beat to the report that echoes it, as from an ask to its header: both ways, and on average half
    a step."""

    def __post_init__(self) -> None:
        self.transit = MovingAverage(self.averaging)
        self.ns_per_byte = MovingAverage(self.averaging)
        self.pace = MovingAverage(self.averaging)
        self.round_trip = MovingAverage(self.averaging)

    def take(self, report: Report, now_ns: int) -> None:
        """Believe the newest report."""
        if report.clock != self.clock or not self.moved_ns:
            self.moved_ns = now_ns
            if report.step_ns:
                self.pace.add(report.step_ns)
        self.sequence, self.clock, self.tokens = report.sequence, report.clock, report.tokens
        self.step_ns, self.held_on, self.holdings = report.step_ns, report.held_on, report.holdings
        if report.echo_ns > self.echo_ns:
            self.round_trip.add(max(0, now_ns - report.echo_ns))
            self.echo_ns = report.echo_ns

    def due_ns(self, asked_ns: int) -> float:
        """When its answer to an ask should be here: at the end of the step that it is in, but not before it
        can have heard the ask, nor more than a step after that."""
        step_ns = self.pace.value
        heard_ns = asked_ns + max(0.0, self.round_trip.value - step_ns / 2)
        return min(max(self.moved_ns + step_ns, heard_ns), heard_ns + step_ns)

    def is_connected(self, now_ns: int, alive_ns: int) -> bool:
        """Whether both directions were proven recently."""
        return not self.left and now_ns - self.heard_ns <= alive_ns and now_ns - self.echo_ns <= alive_ns

    def refresh(self, fragments: list[StoredFragment]) -> None:
        """Derive `healed` from the newest report and the current versions."""
        self.healed = bool(fragments) and len(self.holdings) == len(fragments)
        if self.healed:
            for holding, fragment in zip(self.holdings, fragments, strict=True):
                version, digest = holding.version, holding.digest
                if version == fragment.version and digest == fragment.digest:
                    continue  # the usual case, without a call
                if not is_known_base(version, digest, fragment):
                    self.healed = False
                    return

    def patience_ns(self, tries: int, retry_ns: int) -> int:
        """How long a version may be on its way before it is sent again."""
        usual = max(retry_ns, int(3 * self.transit.value))
        backoff: int = min(1 << min(tries, MAX_BACKOFF), MAX_BACKOFF)
        return usual * backoff + 2 * self.step_ns

    def body_patience_ns(self, num_bytes: int, retry_ns: int) -> int:
        """How long a body may take, from what this learner's link was measured to do."""
        return int(2 * self.ns_per_byte.value * num_bytes) + retry_ns


def is_known_base(version: int, digest: str, fragment: StoredFragment) -> bool:
    """Whether a base is the current version of a fragment or the one before."""
    if version == fragment.version:
        return digest == fragment.digest
    return version >= 0 and version == fragment.version - 1 and digest == fragment.previous_digest
