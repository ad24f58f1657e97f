"""What the parts of the syncer share: the durable state, the sessions, the outgoing commands."""

from __future__ import annotations

from dataclasses import dataclass, field

from atoll.core import commands as do
from atoll.core import messages as msg
from atoll.core.grace import median_ns
from atoll.core.members import Session
from atoll.core.params import RunParams
from atoll.core.records import Record, StoredState
from atoll.core.schedule import Schedule

__all__ = ["Desk", "Pending"]


@dataclass(slots=True)
class Pending:
    """A record on its way into the store."""

    record: Record
    sync: bool


@dataclass(slots=True)
class Desk:
    """The syncer's working state. Only `state` survives a crash."""

    params: RunParams
    schedule: Schedule
    state: StoredState = field(default_factory=StoredState)
    sessions: dict[str, Session] = field(default_factory=dict)
    pending: dict[int, Pending] = field(default_factory=dict)
    num_tickets: int = 0
    out: list[do.Command] = field(default_factory=list)

    @property
    def epoch(self) -> int:
        """This life of the syncer."""
        return self.state.epoch

    def connected(self, now_ns: int) -> list[Session]:
        """Sessions whose both directions work, in order of arrival."""
        since_ns = now_ns - self.params.alive_ns  # `Session.is_connected`, without a call for each
        return [
            s
            for s in self.sessions.values()
            if s.heard_ns >= since_ns and s.echo_ns >= since_ns and not s.left
        ]

    def may_offer(self, session: Session, p: int) -> bool:
        """Not while the version that contains its last offer is still on its way to it."""
        held = self.state.contributions.get((session.name, p))
        return held is None or session.holdings[p].version >= held.version

    def step_ns(self) -> int:
        """xi_step: the median step time of the learners."""
        return median_ns([s.step_ns for s in self.sessions.values() if s.step_ns and not s.left])

    def cycle_ns(self, counted: list[Session]) -> int:
        """About the time until a fragment is due again: H steps at the pace of t.

        t follows the K-th largest clock, so its pace is that of the K-th fastest of the learners
        that count; under the waiting algorithms, of the slowest."""
        steps = sorted(s.step_ns for s in counted)
        pace_ns = steps[-1 if self.params.waits else self.params.min_quorum - 1]
        return max(self.params.interval_steps * pace_ns, 2 * pace_ns + 4 * self.params.retry_ns)

    def send(self, session: Session, message: msg.FromSyncer) -> None:
        """Queue a message to a learner."""
        self.out.append(do.Send(session.name, session.incarnation, message))

    def note(self, kind: str, reason: str, *, fragment: int = -1, who: str = "") -> None:
        """Put a decision and its reason on the tape."""
        self.out.append(do.Note(kind, fragment, who, reason))

    def commit(self, record: Record, *, sync: bool = True) -> None:
        """Ask for a record to be stored; the answer comes back by ticket."""
        self.num_tickets += 1
        self.pending[self.num_tickets] = Pending(record, sync)
        self.out.append(do.Commit(self.num_tickets, record, sync))
