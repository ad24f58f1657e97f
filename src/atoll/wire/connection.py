"""What the two ends of a connection say about the connection itself.

A client opens with `Open`; the syncer answers `Accepted` with the run's settings and a challenge, or
`Rejected` and closes. A learner then shows its model and signs the challenge (`Model`), is told how to
send (`Ready`), and attaches its data connections with the secret it was given (`Attach`). Only then
does the protocol proper begin, with `atoll.core.messages.Hello`. Readers and admins ask for `Status` or
an end of the run instead. `Telemetry` and `BufferValues` decide nothing: they are for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = [
    "Accepted",
    "Attach",
    "Attached",
    "BufferValues",
    "Connection",
    "Done",
    "FinishAsk",
    "Model",
    "Open",
    "Ready",
    "Rejected",
    "Role",
    "Status",
    "StatusAsk",
    "Telemetry",
]

Role = Literal["learner", "reader", "admin"]


@dataclass(frozen=True, slots=True)
class Open:
    """Client to syncer, the first message on a control connection."""

    protocol: int
    """`frames.VERSION` of the client."""
    run: str
    role: Role
    token: str
    name: str
    """Of the learner; empty for the other roles."""
    version: str
    """Of the client's software, for logs."""

    def __repr__(self) -> str:
        return f"Open({self.role} {self.name!r} of run {self.run!r}, protocol {self.protocol}, token hidden)"


@dataclass(frozen=True, slots=True)
class Accepted:
    """Syncer to client: the token is good."""

    protocol: int
    run: str
    config: str
    """The settings of the run, as TOML."""
    challenge: bytes
    """32 random bytes to be signed."""
    session: str
    """Names this control connection, for `Attach`."""


@dataclass(frozen=True, slots=True)
class Model:
    """Learner to syncer: which model it brings, and who it is."""

    manifest: bytes
    """JSON of the manifest."""
    digest: str
    key: bytes
    """Ed25519 public key, 32 bytes."""
    signature: bytes
    """Over b"atoll identity", the challenge and the learner's name in UTF-8, one after the other."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Syncer to learner: the model is the run's; attach the data connections, then say hello."""

    secret: bytes
    """32 random bytes that prove a data connection to be this learner's."""
    data_connections: int
    piece_bytes: int
    shards: int
    """Into how many shards the data are cut."""
    seed: int

    def __repr__(self) -> str:
        return f"Ready({self.data_connections} data connections, secret hidden)"


@dataclass(frozen=True, slots=True)
class Rejected:
    """Syncer to anyone, before it closes, with the sentence that the user will read."""

    reason: str
    retry: bool
    """False: coming back will not help."""


@dataclass(frozen=True, slots=True)
class Attach:
    """Learner to syncer, the first message on a data connection."""

    session: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Attach(session {self.session!r}, secret hidden)"


@dataclass(frozen=True, slots=True)
class Attached:
    """Syncer to learner: this data connection is yours."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Learner to syncer, about once a second: how the training goes. Counts are of this life."""

    name: str
    incarnation: int
    loss: float | None
    step: int
    tokens: int
    tokens_per_s: float
    held_ns: int
    """How long `step()` held the loop, in total."""
    step_ns: int
    """Of the newest steps, on average."""
    held_max_ns: int
    cpu_ns: int
    """CPU time of the process, in total."""
    wall_ns: int
    overwritten: int
    """Tokens overwritten at adoptions."""
    offered: int
    memory_bytes: int
    """What Atoll holds beside the model."""
    device: str
    note: str


@dataclass(frozen=True, slots=True)
class BufferValues:
    """Learner to syncer, bulk: its float buffers as f32, little-endian, one after the other."""

    name: str
    incarnation: int
    tokens: int
    """The weight of these values in the mean."""
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    num_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class StatusAsk:
    """Client of any role to syncer: how is the run?"""


@dataclass(frozen=True, slots=True)
class Status:
    """Syncer to client: the run as JSON."""

    body: bytes


@dataclass(frozen=True, slots=True)
class FinishAsk:
    """Admin to syncer: end the run with its last rounds."""

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """Syncer to admin: it is being done, or why not."""

    reason: str


Connection: TypeAlias = (
    Open
    | Accepted
    | Model
    | Ready
    | Rejected
    | Attach
    | Attached
    | Telemetry
    | BufferValues
    | StatusAsk
    | Status
    | FinishAsk
    | Done
)
