"""What a machine wants done. The shell performs them in order; those that can be slow or fail are
answered by an event (named in the docstring), the others never fail.

`Note`s command nothing: each is a decision with its reason, for tape, log and page alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from atoll.core.messages import FromLearner, FromSyncer, Moments, Publish
from atoll.core.records import Contributor, Record

__all__ = [
    "Adopt",
    "Command",
    "Commit",
    "CopyMoments",
    "Discard",
    "Drop",
    "Encode",
    "EndMoments",
    "Fate",
    "Hold",
    "Inspect",
    "Install",
    "Load",
    "Merge",
    "Note",
    "Opened",
    "PutDelta",
    "Release",
    "Resend",
    "ResetMoments",
    "SeedSnapshot",
    "Send",
    "SetTimer",
    "Settle",
    "Snapshot",
    "Stage",
    "TakeMoments",
    "TakeSnapshot",
    "Tell",
    "Ticked",
    "Unstage",
]

Fate = Literal["merged", "overwritten", "late", "stale", "rejected", "cancelled"]


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire `key` at a time (TimerFired). A second timer of the same key replaces the first."""

    key: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class Note:
    """A decision with its reason. `kind` is one of a few words; `who` a learner or ""."""

    kind: str
    fragment: int
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """A note: t moved. `skipped`: the ticks in between fire no round."""

    from_tick: int
    to_tick: int
    skipped: bool


@dataclass(frozen=True, slots=True)
class Opened:
    """A note: a round began. `due` is the tick that called for it, -1 for a drain round."""

    fragment: int
    round: int
    t: int
    due: int
    asked: tuple[str, ...]
    num_live: int
    """Learners whose heartbeat was in time, healed or not."""


# Learner


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message to the syncer; bulk content of a Body comes from the encoded offer."""

    message: FromLearner


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Copy one fragment as it is now, at the boundary (training thread, 1/P of the model)."""

    fragment: int
    epoch: int
    round: int


@dataclass(frozen=True, slots=True)
class Encode:
    """Pack the snapshot into a body, off the training thread (Encoded)."""

    fragment: int
    epoch: int
    round: int


@dataclass(frozen=True, slots=True)
class Resend:
    """Send the kept body of an offer again."""

    message: FromLearner


@dataclass(frozen=True, slots=True)
class Stage:
    """Decode a publish beside the model, off the training thread (Staged)."""

    publish: Publish


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take a staged version in, now (training thread). `merged`: the pending offer is in it.

    `unresolved`: an offer is still pending and its snapshot must move along with the base.
    `reset`: overwrite, whatever the mode: the offer was rejected, so the local values are not to
    be built upon (a NaN would survive every blend and rebase).
    """

    fragment: int
    version: int
    digest: str
    merged: bool
    unresolved: bool
    reset: bool


@dataclass(frozen=True, slots=True)
class Unstage:
    """Forget what is staged for a fragment."""

    fragment: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the pending offer of a fragment; its residual advances only if it was merged."""

    fragment: int
    merged: bool


@dataclass(frozen=True, slots=True)
class SeedSnapshot:
    """Copy all fragments as version 0, base and content of the seed (SeedReady)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Settle:
    """An account entry: the tokens [start, end) of this incarnation met this fate."""

    fragment: int
    start: int
    end: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class CopyMoments:
    """Copy one fragment of the optimizer state, now (training thread), for a peer (MomentsCopied)."""

    fragment: int


@dataclass(frozen=True, slots=True)
class TakeMoments:
    """Take a peer's optimizer state for one fragment: the content of the message being handled."""

    message: Moments


@dataclass(frozen=True, slots=True)
class EndMoments:
    """No more of a peer's optimizer state will come; `ok` if all of it is here (MomentsRestored)."""

    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ResetMoments:
    """Forget the optimizer state at the next boundary: it was made from what was rejected."""

    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep the user's loop inside `step()` until Release; never in `decoupled`."""

    fragment: int
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Let the user's loop go on."""

    reason: str


# Syncer


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a learner; bulk content of a Publish comes from the served state."""

    name: str
    incarnation: int
    message: FromSyncer


@dataclass(frozen=True, slots=True)
class Load:
    """Read and check the store (Loaded)."""


@dataclass(frozen=True, slots=True)
class Inspect:
    """Decode each held body once, measure it, keep nothing (Inspected)."""

    fragment: int
    round: int
    offers: tuple[tuple[str, int], ...]
    """(name, incarnation), in order of name."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge the bodies in this order with these weights, take the outer step aside (Merged)."""

    fragment: int
    round: int
    version: int
    contributors: tuple[Contributor, ...]
    momentum_factor: float
    """What mu is multiplied by in this step (`core.momentum`)."""


@dataclass(frozen=True, slots=True)
class PutDelta:
    """Write the merged delta under its digest: temporary name, fsync, rename, fsync (DeltaPut)."""

    fragment: int
    round: int
    delta_digest: str
    sync: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """Put a record into the store, whole or not at all (Committed)."""

    ticket: int
    record: Record
    sync: bool


@dataclass(frozen=True, slots=True)
class Install:
    """Make the merged state of a fragment the served one."""

    fragment: int
    round: int
    version: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Forget what is held of a round: bodies, merged state."""

    fragment: int
    round: int


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Write parameters, momentum and remainders as they stand, without pausing (SnapshotTaken)."""

    merges: int


Command: TypeAlias = (
    SetTimer
    | Note
    | Ticked
    | Opened
    | Tell
    | Snapshot
    | Encode
    | Resend
    | Stage
    | Adopt
    | Unstage
    | Drop
    | SeedSnapshot
    | Settle
    | CopyMoments
    | TakeMoments
    | EndMoments
    | ResetMoments
    | Hold
    | Release
    | Send
    | Load
    | Inspect
    | Merge
    | PutDelta
    | Commit
    | Install
    | Discard
    | TakeSnapshot
)
