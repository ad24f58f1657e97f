"""What learners and the syncer say to each other.

The network may lose, repeat, delay and reorder every one of these, so each is harmless when it
comes twice or late: requests are answered again in the same words, and reports carry state, not
changes. Messages with `num_bytes` are bulk: the shell carries their content on other connections
and hands the machine only what it must decide on. Every message of a learner carries its
incarnation and the epoch it believes in; every message of the syncer carries its epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

__all__ = [
    "FULL",
    "NO_VERSION",
    "Abstain",
    "Ask",
    "Beat",
    "Body",
    "Cancelled",
    "DonateAsk",
    "Donation",
    "Fenced",
    "FromLearner",
    "FromSyncer",
    "Header",
    "Hello",
    "Holding",
    "Leave",
    "Message",
    "Moments",
    "MomentsAsk",
    "NoMoments",
    "Publish",
    "Quarantined",
    "Refused",
    "Report",
    "Restored",
    "SeedAsk",
    "SeedBody",
    "Verdict",
    "Want",
    "Welcome",
    "WhoIs",
]

NO_VERSION = -1
"""A learner's base on a fragment that it never received."""
FULL = -2
"""`Publish.base_version` of a message that carries the whole fragment and needs no base."""

Verdict = Literal["merged", "late", "stale", "rejected", "cancelled", "none"]


class Holding(NamedTuple):
    """What a learner holds of one fragment: its base, and an exact account of its tokens.

    `origin` tokens of this incarnation lie before the open interval; each of them was merged,
    discarded, or is pending: origin = merged + discarded + pending.
    """

    version: int
    digest: str
    origin: int
    steps: int
    merged: int
    discarded: int
    pending: int
    """Tokens of a pending offer over which a version was adopted."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Asks to be admitted, or to go on after a cut or a restart of the syncer."""

    name: str
    key: str
    """Public identity to which the name is bound."""
    life: int
    """Drawn once per process; makes a repeated hello the same hello."""
    incarnation: int
    """0 for a new life, else the incarnation that this life was given."""
    epoch: int


@dataclass(frozen=True, slots=True)
class Report:
    """The state of a learner after a step: tiny, never behind bulk data, also the heartbeat."""

    name: str
    incarnation: int
    epoch: int
    sequence: int
    """Counts the reports of a life, so that an overtaken one is not believed."""
    clock: int
    tokens: int
    step_ns: int
    held_ns: int
    """How long `step()` was held by Atoll at this boundary."""
    held_on: int
    """Fragment whose round this learner waits for, -1 if it does not wait."""
    echo_ns: int
    """`sent_ns` of the newest beat heard: proof that the other direction works too."""
    holdings: tuple[Holding, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """An offer: base and counters at once; the body, with its own digest, follows."""

    name: str
    incarnation: int
    epoch: int
    round: int
    fragment: int
    base_version: int
    base_digest: str
    start: int
    """First token of the interval that the delta contains, counted since this life began."""
    end: int
    steps: int
    bases: tuple[int, ...]
    """Version of every fragment at the snapshot."""


@dataclass(frozen=True, slots=True)
class Abstain:
    """The answer to an ask by a learner that has nothing to offer, with the reason."""

    name: str
    incarnation: int
    epoch: int
    round: int
    fragment: int
    reason: str


@dataclass(frozen=True, slots=True)
class Body:
    """The delta of an offer, encoded. Differs: its digest travels here and not in the header,

    because the header answers at once and the digest exists only after encoding."""

    name: str
    incarnation: int
    epoch: int
    round: int
    fragment: int
    digest: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class SeedBody:
    """One fragment of the initial weights, whole, from the learner that was asked to seed."""

    name: str
    incarnation: int
    epoch: int
    fragment: int
    digest: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Want:
    """A learner that cannot use what it was sent asks for the whole fragment."""

    name: str
    incarnation: int
    epoch: int
    fragment: int


@dataclass(frozen=True, slots=True)
class MomentsAsk:
    """A learner that came back without optimizer state asks for one fragment of a healthy peer's."""

    name: str
    incarnation: int
    epoch: int
    fragment: int


@dataclass(frozen=True, slots=True)
class Donation:
    """One fragment of a learner's optimizer state, for another learner."""

    name: str
    incarnation: int
    epoch: int
    fragment: int
    recipient: str
    recipient_incarnation: int
    digest: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Restored:
    """Where a life found its optimizer state: `own` disk, a `peer`, or nowhere (`fresh`)."""

    name: str
    incarnation: int
    epoch: int
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """A graceful goodbye: offers already made still count."""

    name: str
    incarnation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """Admission, or re-admission of the same life."""

    epoch: int
    life: int
    incarnation: int
    t: int
    shard: int
    finished: bool
    rewound: int = 0
    """The last epoch in which an operator went back to an earlier tick: whoever knows only epochs before it
    takes its clock from t again."""


@dataclass(frozen=True, slots=True)
class Refused:
    """No admission, with the sentence that the user will read."""

    epoch: int
    life: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """A newer incarnation of this name was admitted: stop offering."""

    epoch: int
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class WhoIs:
    """The syncer does not know this sender in its epoch: say hello."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Beat:
    """The syncer's heartbeat and the progress of the run."""

    epoch: int
    incarnation: int
    t: int
    sent_ns: int
    merged_tokens: int
    finished: bool
    final: tuple[int, ...]
    """Once finished: the last version of every fragment; until then empty."""


@dataclass(frozen=True, slots=True)
class SeedAsk:
    """You are the first: send the weights from which everybody starts."""

    epoch: int
    incarnation: int
    missing: tuple[int, ...]
    """Fragments that have not arrived from you yet."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A round on a fragment is open: offer."""

    epoch: int
    incarnation: int
    round: int
    fragment: int
    t: int
    version: int
    contributed: int
    """Newest version of the fragment to which this incarnation contributed, or NO_VERSION."""
    want_body: bool
    """The header is here and its body is not: send the body again."""


@dataclass(frozen=True, slots=True)
class Publish:
    """A version of a fragment, as an update of `base_version` or, if FULL, whole."""

    epoch: int
    incarnation: int
    fragment: int
    round: int
    """Every round on this fragment up to this number (of this epoch) has ended."""
    version: int
    digest: str
    base_version: int
    base_digest: str
    verdict: Verdict
    """What became of this learner's offer in `round`."""
    reason: str
    merged_upto: int
    """End of the last token interval of this incarnation that is in this version."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A round ended without a merge: progress, base and counters stay."""

    epoch: int
    incarnation: int
    round: int
    fragment: int
    reason: str


@dataclass(frozen=True, slots=True)
class DonateAsk:
    """A peer lacks its optimizer state: send one fragment of yours."""

    epoch: int
    incarnation: int
    fragment: int
    recipient: str
    recipient_incarnation: int


@dataclass(frozen=True, slots=True)
class Moments:
    """One fragment of a peer's optimizer state, passed on."""

    epoch: int
    incarnation: int
    fragment: int
    donor: str
    digest: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class NoMoments:
    """Nobody can donate: start fresh."""

    epoch: int
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Too many offers were rejected: this learner is not asked for a while."""

    epoch: int
    incarnation: int
    reason: str
    heals: bool
    """What it holds is not to be built upon: heal anew."""


FromLearner: TypeAlias = (
    Hello | Report | Header | Abstain | Body | SeedBody | Want | MomentsAsk | Donation | Restored | Leave
)
FromSyncer: TypeAlias = (
    Welcome
    | Refused
    | Fenced
    | WhoIs
    | Beat
    | SeedAsk
    | Ask
    | Publish
    | Cancelled
    | DonateAsk
    | Moments
    | NoMoments
    | Quarantined
)
Message: TypeAlias = FromLearner | FromSyncer
