"""A learner's account of one fragment: which tokens are in its base, in an offer, or open.

The tokens of an incarnation lie on a line. On each fragment that line is divided into intervals,
each with one fate (`Settle`): merged, overwritten at an adoption, or discarded with its offer.
What follows the last adoption is the open interval, which the next offer contains whole. An offer
is pending until a message proves that its round has ended; a version may be adopted over it
meanwhile, then it lies before the open interval.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll.core import messages as msg
from atoll.core.commands import Command, Fate, Settle

__all__ = ["Offer", "Slot", "fate_of"]


@dataclass(slots=True)
class Offer:
    """A snapshot whose round has not ended as far as this learner knows."""

    epoch: int
    round: int
    header: msg.Header
    start: int
    end: int
    end_steps: int
    body: msg.Body | None = None


@dataclass(slots=True)
class Slot:
    """Everything a learner knows of one fragment."""

    version: int = msg.NO_VERSION
    digest: str = ""
    epoch: int = 0
    """Epoch of the message that brought the base; 0 for a seed of one's own."""
    origin: int = 0
    """Token at which the open interval begins, and the step count at that point."""
    origin_steps: int = 0
    offer: Offer | None = None
    ask: msg.Ask | None = None
    answered: tuple[int, int] = (0, 0)
    """(epoch, round) of the last ask that was answered."""
    abstained: msg.Abstain | None = None
    """That answer, if it was not an offer."""
    staging: msg.Publish | None = None
    staged: msg.Publish | None = None
    merged: int = 0
    discarded: int = 0

    def holding(self, steps: int) -> msg.Holding:
        """The account as it stands after so many steps of this life."""
        origin, offer = self.origin, self.offer
        pending = offer.end - offer.start if offer is not None and offer.start < origin else 0
        fresh = steps - self.origin_steps
        # Every report has P of these, so the tuple is made directly: half the price of a call of the class.
        values = (self.version, self.digest, origin, fresh, self.merged, self.discarded, pending)
        return tuple.__new__(msg.Holding, values)

    def settle(self, p: int, start: int, end: int, fate: Fate) -> list[Command]:
        """Give the tokens [start, end) of fragment p their fate."""
        if end <= start:
            return []
        if fate == "merged":
            self.merged += end - start
        else:
            self.discarded += end - start
        return [Settle(p, start, end, fate)]

    def restart(self, p: int, tokens: int, steps: int, fate: Fate | None) -> list[Command]:
        """Overwrite and blend: counters restart, what was not offered is overwritten; the pending offer, if
        there is one, meets its fate, if that is known."""
        settled: list[Command] = []
        start = self.origin
        if self.offer is not None:
            start = max(start, self.offer.end)
            if fate is not None:
                settled += self.settle(p, self.offer.start, self.offer.end, fate)
        settled += self.settle(p, start, tokens, "overwritten")
        self.origin, self.origin_steps = tokens, steps
        return settled

    def keep_progress(self, p: int, fate: Fate | None) -> list[Command]:
        """Rebase: what was merged leaves the open interval, everything else stays in it. An offer that a
        reset has overtaken lies before that interval already, and meets its fate there."""
        offer = self.offer
        if offer is None or fate is None:
            return []
        if offer.start < self.origin:
            return self.settle(p, offer.start, offer.end, fate)
        if fate != "merged":
            return []
        self.origin, self.origin_steps = offer.end, offer.end_steps
        return self.settle(p, offer.start, offer.end, "merged")


def fate_of(offer: Offer | None, publish: msg.Publish) -> Fate | None:
    """What a publish says of the pending offer; None if its round has not ended.

    The end of the last merged interval decides, not the verdict: the message that carried the
    verdict may have been lost.
    """
    if offer is None:
        return None
    if publish.merged_upto >= offer.end:
        return "merged"
    if offer.epoch < publish.epoch:
        return "cancelled"
    if publish.round < offer.round:
        return None
    if publish.round == offer.round and publish.verdict in ("stale", "rejected", "cancelled"):
        return publish.verdict
    return "late"
