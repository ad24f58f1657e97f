"""A learner's side of donated optimizer state: asking for what it lacks, giving what a peer lacks.

One fragment is asked for at a time, again and again until it comes, or until nobody can give it. A fragment
to be given is copied at a boundary and packed elsewhere. None of this holds anybody up: a learner in need
trains on with fresh state meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg

__all__ = ["Borrowing", "Self"]

MAX_ASKED = 64
"""Times that one fragment is asked for before it is given up."""


class Self(NamedTuple):
    """Who speaks: the first fields of every message of a learner."""

    name: str
    incarnation: int
    epoch: int


@dataclass(slots=True)
class Borrowing:
    """What is still missing, and what was promised to others."""

    missing: list[int] = field(default_factory=list)
    asked_ns: int = 0
    num_asked: int = 0
    """Times that the fragment at the head was asked for."""
    donors: list[str] = field(default_factory=list)
    asks: dict[int, msg.DonateAsk] = field(default_factory=dict)
    """To be copied at the next boundary, by fragment."""
    copying: dict[int, msg.DonateAsk] = field(default_factory=dict)

    def ask(self, me: Self, now_ns: int, retry_ns: int) -> list[do.Command]:
        """Ask for the next missing fragment, if it is time."""
        if not self.missing or (self.num_asked and now_ns - self.asked_ns < retry_ns):
            return []
        self.asked_ns = now_ns
        self.num_asked += 1
        if self.num_asked > MAX_ASKED:
            return self.give_up("no donation came")
        return [do.Tell(msg.MomentsAsk(*me, self.missing[0]))]

    def received(self, message: msg.Moments) -> list[do.Command]:
        """A fragment came."""
        if not self.missing or message.fragment != self.missing[0]:
            return []
        del self.missing[0]
        self.num_asked = 0
        if message.donor not in self.donors:
            self.donors.append(message.donor)
        taken: list[do.Command] = [do.TakeMoments(message)]
        if not self.missing:
            taken.append(do.EndMoments(True, f"from {', '.join(self.donors)}"))
        return taken

    def give_up(self, reason: str) -> list[do.Command]:
        """Nobody can give what is missing."""
        if not self.missing:
            return []
        self.missing.clear()
        return [do.EndMoments(False, reason)]

    def promise(self, ask: msg.DonateAsk) -> None:
        """Give a fragment at the next boundary; whoever is in need gives nothing."""
        if not self.missing:
            self.asks[ask.fragment] = ask

    def withdraw(self) -> None:
        """Give nothing of what was promised."""
        self.asks.clear()
        self.copying.clear()

    def boundary(self) -> list[do.Command]:
        """Copy one promised fragment, if there is one."""
        if not self.asks:
            return []
        fragment = next(iter(self.asks))
        self.copying[fragment] = self.asks.pop(fragment)
        return [do.CopyMoments(fragment)]

    def copied(self, me: Self, event: ev.MomentsCopied) -> list[do.Command]:
        """A promised fragment is packed: send it, unless there was nothing to pack."""
        ask = self.copying.pop(event.fragment, None)
        if ask is None or ask.epoch != me.epoch or not event.num_bytes:
            return []
        to = (ask.recipient, ask.recipient_incarnation)
        return [do.Tell(msg.Donation(*me, event.fragment, *to, event.digest, event.num_bytes))]
