"""Where version 0 comes from: the first learner that delivers all of its weights, once.

The first connected learner is asked; if it stays silent, the next one too. Whose seed is complete
first, wins. Only an empty run takes initial weights, and there is only one commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from atoll.core import messages as msg
from atoll.core.desk import Desk
from atoll.core.records import SeedRecord

__all__ = ["Seeding"]


@dataclass(slots=True)
class Seeding:
    """Initial weights on their way in."""

    desk: Desk
    parts: dict[tuple[str, int], dict[int, str]] = field(default_factory=dict)
    """(name, incarnation) -> fragment -> digest."""
    asked_ns: dict[str, int] = field(default_factory=dict)
    is_committing: bool = False

    def ask(self, now_ns: int) -> None:
        """Ask one more learner than before, and those again that have been silent for long."""
        if self.is_committing:
            return
        for session in self.desk.connected(now_ns):
            asked_ns = self.asked_ns.get(session.name)
            if asked_ns is not None and now_ns - asked_ns < self.desk.params.retry_ns:
                return
            self.asked_ns[session.name] = now_ns
            have = self.parts.get((session.name, session.incarnation), {})
            missing = tuple(p for p in range(self.desk.params.num_fragments) if p not in have)
            self.desk.send(session, msg.SeedAsk(self.desk.epoch, session.incarnation, missing))
            if asked_ns is None:
                return

    def body(self, body: msg.SeedBody) -> None:
        """One fragment has arrived; the last one commits the seed."""
        if self.desk.state.fragments or self.is_committing:
            return
        parts = self.parts.setdefault((body.name, body.incarnation), {})
        parts[body.fragment] = body.digest
        if len(parts) == self.desk.params.num_fragments:
            self.is_committing = True
            digests = tuple(parts[p] for p in range(len(parts)))
            record = SeedRecord(self.desk.epoch, body.name, body.incarnation, digests)
            self.desk.commit(record)
