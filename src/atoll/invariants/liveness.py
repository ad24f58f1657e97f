"""Who could have merged, and for how long: the excuses that I10 and I13 accept.

A learner is ready while it is healed, steps (or is held by a waiting algorithm) and hears the
syncer, as its reports tell. A grace window is overdue if the syncer had an event after its end and
left it open; a syncer that was paused is not to blame for the pause.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from atoll.core.messages import Message, Report
from atoll.core.params import RunParams
from atoll.invariants.books import Chain

__all__ = ["NEVER", "Liveness"]

NEVER = -1


@dataclass(slots=True)
class Seen:
    """What the checker knows of one learner from its reports."""

    incarnation: int = 0
    clock: int = -1
    good_since_ns: int = -1
    """Since when it is healed, stepping and hearing, without a gap; -1: it is not."""
    moved_ns: int = 0
    heard_ns: int = 0
    echo_ns: int = 0
    healed: bool = False
    step_ns: int = 0


@dataclass(slots=True)
class Liveness:
    """What the reports and headers of a tape say about readiness."""

    params: RunParams
    seen: dict[str, Seen] = field(default_factory=dict)
    step_ns: dict[str, int] = field(default_factory=dict)
    offered_at: dict[int, dict[str, int]] = field(default_factory=dict)
    """Fragment -> learner -> time of its header, for the rounds that gather; NEVER if it was refused."""
    turn_ns: int = 0
    """Time of the syncer's last event."""
    slack_ns: int = 0
    """How late a timer may fire that is no fault of the syncer's: on a real machine it may be busy, and what
    waits in its sockets comes first."""

    def restart(self) -> None:
        """A new life of the syncer knows nobody."""
        self.seen.clear()
        self.offered_at.clear()

    def hear(self, message: Message, now_ns: int) -> None:
        """Any word of a learner shows that it can be heard."""
        seen = self.seen.get(getattr(message, "name", ""))
        if seen is not None and getattr(message, "incarnation", 0) == seen.incarnation:
            seen.heard_ns = now_ns

    def report(self, report: Report, versions: list[Chain], now_ns: int) -> None:
        """Since when is this learner ready?"""
        self.step_ns[report.name] = max(report.step_ns, self.step_ns.get(report.name, 0))
        seen = self.seen.setdefault(report.name, Seen())
        if seen.incarnation != report.incarnation:
            self.seen[report.name] = seen = Seen(report.incarnation)
            seen.echo_ns = now_ns
        if report.clock > seen.clock or report.held_on >= 0:
            seen.clock, seen.moved_ns = report.clock, now_ns
        seen.heard_ns, seen.step_ns = now_ns, report.step_ns
        seen.echo_ns = max(seen.echo_ns, report.echo_ns)
        seen.healed = bool(versions) and all(
            0 <= chain.last.version - holding.version <= 1
            and (base := chain.at(holding.version)) is not None
            and holding.digest == base.digest
            for holding, chain in zip(report.holdings, versions, strict=True)
        )
        self._judge(seen, now_ns)

    def _judge(self, seen: Seen, now_ns: int) -> None:
        oldest = min(seen.heard_ns, seen.echo_ns)
        stands = now_ns - seen.moved_ns > max(self.params.alive_ns, 3 * seen.step_ns)
        if not seen.healed or stands or now_ns - oldest > self.params.alive_ns:
            seen.good_since_ns = -1
        elif seen.good_since_ns < 0:
            seen.good_since_ns = now_ns

    def ready_since(self, now_ns: int) -> int | None:
        """Since when the same K learners have been ready without a gap; None if they are not."""
        for seen in self.seen.values():
            self._judge(seen, now_ns)
        good = sorted(seen.good_since_ns for seen in self.seen.values() if seen.good_since_ns >= 0)
        quorum = self.params.min_quorum
        return good[quorum - 1] if len(good) >= quorum else None

    def cut_off(self, names: tuple[str, ...], now_ns: int) -> list[str]:
        """Which of these have not been heard, or have not heard, for longer than they may."""
        since_ns = now_ns - self.params.alive_ns
        known = [(name, self.seen[name]) for name in names if name in self.seen]
        return [name for name, seen in known if min(seen.heard_ns, seen.echo_ns) < since_ns]

    def overdue_grace(self, now_ns: int) -> Iterator[tuple[int, int]]:
        """Fragments whose window should have been closed at the syncer's last turn, and for how long."""
        if now_ns == self.turn_ns:
            return
        before, self.turn_ns = self.turn_ns, now_ns
        quorum = self.params.min_quorum
        for p, times in self.offered_at.items():
            counted = sorted(at_ns for at_ns in times.values() if at_ns != NEVER)
            if len(counted) >= quorum:
                quorum_ns = counted[quorum - 1]
                window_ns = self.params.grace_max_steps * max(self.step_ns.values(), default=0)
                if before > quorum_ns + window_ns + self.slack_ns:
                    yield p, now_ns - quorum_ns
