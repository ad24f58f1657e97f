"""Optimizer state from a healthy learner to one that came back without: asked for, passed on, paced.

The recipient asks for one fragment after the other, and repeats itself until it comes. The syncer picks a
donor, asks it, and passes on what it sends; nothing is kept here but who owes what to whom. A donor is
healed, has had an offer accepted in this life, has no strike against it, and is not in need itself. It owes
one fragment at a time, and rests three times as long as its last donation took, so that at most a quarter of
its uplink goes into this, whatever that uplink is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from atoll.core import messages as msg
from atoll.core.desk import Desk
from atoll.core.members import Session
from atoll.core.strikes import Strikes

__all__ = ["Donations"]

REST = 3
"""Times as long as a donation took that its donor is left alone."""
PATIENCE = 8
"""Times `retry_ns` that a donor has to deliver, before another one is asked."""


class _Promise(NamedTuple):
    """A donation that was asked for and is not here yet."""

    donor: str
    fragment: int
    asked_ns: int


@dataclass(slots=True)
class Donations:
    """Who was asked for what, and who may be asked again when."""

    desk: Desk
    strikes: Strikes
    promises: dict[str, _Promise] = field(default_factory=dict)
    """By the recipient's name."""
    rested_ns: dict[str, int] = field(default_factory=dict)
    """By the donor's name: when it may be asked again."""

    def ask(self, session: Session, fragment: int, now_ns: int) -> None:
        """A learner asks for a fragment."""
        last = self.promises.get(session.name)
        self._forget_broken(now_ns)
        promise = self.promises.get(session.name)
        if promise and promise.fragment == fragment:
            return
        silent = last.donor if last and last.fragment == fragment else ""
        donors = self._donors(session, now_ns)
        if not donors:
            why = "no healthy learner is there that could donate" if self.desk.params.donates else "off"
            self.desk.send(session, msg.NoMoments(self.desk.epoch, session.incarnation, why))
            return
        busy = {other.donor for who, other in self.promises.items() if who != session.name}
        free = [s for s in donors if self.rested_ns.get(s.name, 0) <= now_ns and s.name not in busy]
        if not free:
            return  # it asks again
        donor = min(free, key=lambda s: (s.name == silent, self.rested_ns.get(s.name, 0), s.name))
        self.promises[session.name] = _Promise(donor.name, fragment, now_ns)
        self.desk.send(
            donor,
            msg.DonateAsk(self.desk.epoch, donor.incarnation, fragment, session.name, session.incarnation),
        )

    def _donors(self, recipient: Session, now_ns: int) -> list[Session]:
        if not self.desk.params.donates:
            return []
        strikes = self.strikes
        return [
            s
            for s in self.desk.connected(now_ns)
            if s.healed and s.has_offered and s.name != recipient.name and s.name not in self.promises
            if s.name not in strikes.until_ns and not strikes.counts.get(s.name)
        ]

    def _forget_broken(self, now_ns: int) -> None:
        """Promises that were not kept, also those to learners who ask no more: they may donate again."""
        since_ns = now_ns - PATIENCE * self.desk.params.retry_ns
        kept = {who: promise for who, promise in self.promises.items() if promise.asked_ns > since_ns}
        self.promises = kept

    def donated(self, donor: Session, donation: msg.Donation, now_ns: int) -> None:
        """A donation arrived: pass it on, if its recipient still waits for it."""
        promise = self.promises.get(donation.recipient)
        recipient = self.desk.sessions.get(donation.recipient)
        if promise is None or (promise.donor, promise.fragment) != (donor.name, donation.fragment):
            return
        del self.promises[donation.recipient]
        self.rested_ns[donor.name] = now_ns + REST * (now_ns - promise.asked_ns)
        if recipient is None or recipient.incarnation != donation.recipient_incarnation:
            return
        self.desk.send(
            recipient,
            msg.Moments(
                self.desk.epoch,
                recipient.incarnation,
                donation.fragment,
                donor.name,
                donation.digest,
                donation.num_bytes,
            ),
        )
