"""What can happen to a machine. Every event carries its time; every slow or fallible act that a
machine commanded comes back as one of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from atoll.core.messages import Message
from atoll.core.records import Contributor, StoredState

__all__ = [
    "Booted",
    "Committed",
    "DeltaPut",
    "Encoded",
    "Event",
    "FinishRequested",
    "Inspected",
    "Inspection",
    "LeaveRequested",
    "Loaded",
    "Merged",
    "MomentsCopied",
    "MomentsRestored",
    "MomentsWanted",
    "Received",
    "SeedReady",
    "SnapshotTaken",
    "Staged",
    "Started",
    "Stepped",
    "TimerFired",
]


@dataclass(frozen=True, slots=True)
class Received:
    """A message arrived, whole and (for bulk) with its content held by the shell."""

    at_ns: int
    message: Message


@dataclass(frozen=True, slots=True)
class TimerFired:
    """A timer that the machine set is due. An outdated one is harmless."""

    at_ns: int
    key: str


# Learner


@dataclass(frozen=True, slots=True)
class Started:
    """A learner process began its life."""

    at_ns: int
    name: str
    key: str
    life: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """The user's loop finished an optimizer step and stands at a boundary."""

    at_ns: int
    tokens: int
    step_ns: int
    held_ns: int
    steps: int = 1
    """Steps since the last boundary that was told: more than 1 if the shell was too busy to be told of
    some, 0 at a boundary that no step led to."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The body of an offer is packed and ready to be sent."""

    at_ns: int
    fragment: int
    epoch: int
    round: int
    digest: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Staged:
    """A published fragment is decoded beside the model; `ok` says that its digest agrees."""

    at_ns: int
    fragment: int
    version: int
    digest: str
    ok: bool


@dataclass(frozen=True, slots=True)
class SeedReady:
    """The initial weights are copied; one digest and size per fragment."""

    at_ns: int
    epoch: int
    digests: tuple[str, ...]
    num_bytes: tuple[int, ...]
    finite: bool


@dataclass(frozen=True, slots=True)
class MomentsWanted:
    """This life has no optimizer state for these fragments and would take a peer's."""

    at_ns: int
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MomentsCopied:
    """One fragment of the optimizer state is packed for a peer; 0 bytes if there is none."""

    at_ns: int
    fragment: int
    digest: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MomentsRestored:
    """Where this life found its optimizer state, and why there: own, peer, fresh or none."""

    at_ns: int
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """The process is asked to go (SIGTERM, end of the user's program)."""

    at_ns: int


# Syncer


@dataclass(frozen=True, slots=True)
class Booted:
    """A syncer process began; it holds the lock of its directory."""

    at_ns: int
    accepts_loss: bool = False
    """An operator agreed to go on although the store has lost versions that it promised to keep."""
    budget: tuple[int, int, int] | None = None
    """Ticks, tokens, drain in nanoseconds: of this start, which may differ from the first one's."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The store was read and checked."""

    at_ns: int
    state: StoredState


@dataclass(frozen=True, slots=True)
class Inspection:
    """What decoding one body showed: the norm of its delta, or that it is not finite."""

    name: str
    finite: bool
    norm: float


@dataclass(frozen=True, slots=True)
class Inspected:
    """All bodies of a round were decoded once and measured."""

    at_ns: int
    fragment: int
    round: int
    results: tuple[Inspection, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """The merge and the outer step were computed beside the state, not yet applied."""

    at_ns: int
    fragment: int
    round: int
    delta_digest: str
    digest: str
    finite: bool
    contributors: tuple[Contributor, ...]


@dataclass(frozen=True, slots=True)
class DeltaPut:
    """A merged delta is a durable file (or could not be written)."""

    at_ns: int
    fragment: int
    round: int
    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Committed:
    """A record is in the store, or is certainly not."""

    at_ns: int
    ticket: int
    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """The whole state was written and verified, or not."""

    at_ns: int
    merges: int
    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class FinishRequested:
    """An operator ends the run before its budget."""

    at_ns: int
    reason: str


Event: TypeAlias = (
    Received
    | TimerFired
    | Started
    | Stepped
    | Encoded
    | Staged
    | SeedReady
    | MomentsWanted
    | MomentsCopied
    | MomentsRestored
    | LeaveRequested
    | Booted
    | Loaded
    | Inspected
    | Merged
    | DeltaPut
    | Committed
    | SnapshotTaken
    | FinishRequested
)
