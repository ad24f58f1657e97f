"""Learners whose offers are rejected again and again: counted, quarantined, let out on probation.

A rejected offer is a strike, a merged one takes a strike away. With `strikes` of them a learner is
quarantined: its offers are not asked for during `quarantine_steps` steps of the fleet. If one of the offers
was not finite, it is also told to heal anew, because a model or an optimizer that made it is not to be
built upon; it is told until a report shows that it forgot what it held, and after its release one strike
starts the next quarantine, twice as long. Offers that are merely too large spoil nothing: a newcomer with
fresh optimizer state makes them for a while, and taking that state away again would never end. A quarantine
never costs the quorum: the gates still stand, so whoever is needed is let out. Nothing of this survives a
restart of the syncer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from atoll.core import messages as msg
from atoll.core.desk import Desk
from atoll.core.members import Session

__all__ = ["Strikes"]

MAX_DOUBLINGS = 6


@dataclass(slots=True)
class Strikes:
    """Counts by name, and who is out until when."""

    desk: Desk
    counts: dict[str, int] = field(default_factory=dict)
    until_ns: dict[str, int] = field(default_factory=dict)
    """Of those in quarantine."""
    num_times: dict[str, int] = field(default_factory=dict)
    due: dict[str, str] = field(default_factory=dict)
    """Those who have had enough strikes, with the reason of the last one."""
    spoiled: set[str] = field(default_factory=set)
    """Who offered what is not finite, since its last quarantine."""
    untold: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Who has not shown yet that it heard of its quarantine -> when it was told last, and why it is in."""

    def strike(self, name: str, reason: str, *, is_finite: bool = True) -> None:
        """An offer was rejected."""
        limit = self.desk.params.strikes
        if not limit or name in self.until_ns:
            return
        if not is_finite:
            self.spoiled.add(name)
        self.counts[name] = self.counts.get(name, 0) + 1
        if self.counts[name] >= limit:
            self.due[name] = reason

    def forgive(self, name: str) -> None:
        """An offer was merged."""
        if self.counts.get(name, 0) > 0:
            self.counts[name] -= 1

    def quarantine(self, name: str, now_ns: int) -> None:
        """Put one in who is due."""
        desk, reason = self.desk, self.due.pop(name)
        times = self.num_times.get(name, 0)
        steps = desk.params.quarantine_steps << min(times, MAX_DOUBLINGS)
        self.until_ns[name] = now_ns + steps * max(1, desk.step_ns())
        why = f"too many offers were rejected, the last one because {reason}"
        desk.note("quarantined", f"{why}; not asked for {steps} steps", who=name)
        heals = name in self.spoiled
        if heals:
            self.spoiled.discard(name)
            self.num_times[name] = times + 1
        session = desk.sessions.get(name)
        if session is not None:
            session.has_offered = False  # its next offer is judged, and its state believed, as a newcomer's
            self._tell(session, now_ns, why, heals=heals)

    def _tell(self, session: Session, now_ns: int, why: str, *, heals: bool) -> None:
        if heals:
            self.untold[session.name] = now_ns, why
        self.desk.send(session, msg.Quarantined(self.desk.epoch, session.incarnation, why, heals))

    def reported(self, session: Session, now_ns: int) -> None:
        """Holding nothing shows that it was told; else it is told again, as a message may be lost."""
        told_ns, why = self.untold.get(session.name, (0, ""))
        if not why:
            return
        if all(holding.version < 0 for holding in session.holdings):
            del self.untold[session.name]
        elif now_ns - told_ns >= self.desk.params.retry_ns:
            self._tell(session, now_ns, why, heals=True)

    def release(self, now_ns: int, is_needed: bool) -> None:
        """Let out whose time is over; all of them, if the quorum needs them."""
        for name in [n for n, until_ns in self.until_ns.items() if is_needed or now_ns >= until_ns]:
            del self.until_ns[name]
            is_on_probation = name in self.num_times
            self.counts[name] = max(0, self.desk.params.strikes - 1) if is_on_probation else 0
            why = "the quorum needs it" if is_needed else "its time is over"
            more = "; one more rejected offer ends that" if is_on_probation else ""
            self.desk.note("released", f"{why}{more}", who=name)
