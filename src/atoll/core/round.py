"""One round: the state that `rounds` moves from phase to phase."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.gates import Refusal

__all__ = ["FIXED", "NO_OFFER", "Phase", "Round"]


class Phase(Enum):
    """Where a round is. From MERGE on, its contributors can no longer change."""

    GATHER = "gather"
    BODIES = "bodies"
    INSPECT = "inspect"
    MERGE = "merge"
    PUT = "put"
    COMMIT = "commit"
    ENDED = "ended"


NO_OFFER = Refusal("none", "")
FIXED = (Phase.INSPECT, Phase.MERGE, Phase.PUT, Phase.COMMIT)


@dataclass(slots=True)
class Round:
    """One synchronisation of one fragment."""

    number: int
    """Counts the rounds on this fragment in this epoch: epoch, fragment and number name a round."""
    fragment: int
    opened_ns: int
    deadline_ns: int
    asked: dict[str, int]
    """Name -> incarnation."""
    is_drain: bool
    phase: Phase = Phase.GATHER
    headers: dict[str, msg.Header] = field(default_factory=dict)
    offered_at_ns: dict[str, int] = field(default_factory=dict)
    asked_at_ns: dict[str, int] = field(default_factory=dict)
    abstained: set[str] = field(default_factory=set)
    refused: dict[str, Refusal] = field(default_factory=dict)
    bodies: dict[str, str] = field(default_factory=dict)
    """Name -> digest of the body that arrived."""
    closed_ns: int = 0
    momentum_factor: float = 1.0
    """Fixed when the merge is asked for."""
    merged: ev.Merged | None = None

    def drop(self, name: str, refusal: Refusal) -> None:
        """Take an offer out, with its verdict."""
        self.headers.pop(name, None)
        self.offered_at_ns.pop(name, None)
        self.bodies.pop(name, None)
        self.refused[name] = refusal
