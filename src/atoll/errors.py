"""Every exception Atoll raises on purpose, in one tree.

An error here is the caller's to mend, and says three things: what happened with its values,
what follows from it, what to do now. Failures of the world (a dead learner, a full disk, a late
message) are events of the protocol, never exceptions.

    AtollError
    ├── ConfigError        a setting that cannot work
    ├── ModelError         a model that cannot be partitioned, or not the run's model
    ├── CodecError         a body that does not fit its codec or its fragment
    ├── TapeError          a tape that is damaged or does not replay
    ├── JoinError          a learner that could not join, or was refused at the door
    ├── WireError          bytes that are not the protocol
    ├── StoreError         a run directory that cannot be used
    ├── RecipeError        a recipe, a model or data that cannot be had
    └── ProtocolError      an event that a machine must never be given: a bug in a shell
"""

from __future__ import annotations

__all__ = [
    "AtollError",
    "CodecError",
    "ConfigError",
    "JoinError",
    "ModelError",
    "ProtocolError",
    "RecipeError",
    "StoreError",
    "TapeError",
    "WireError",
]


class AtollError(Exception):
    """Base of all: catch this to catch whatever Atoll raises on purpose."""

    def __init__(self, what: str, so_what: str = "", now_what: str = "") -> None:
        self.what = what
        self.so_what = so_what
        self.now_what = now_what
        super().__init__("\n".join(part for part in (what, so_what, now_what) if part))


class ConfigError(AtollError):
    """A setting that cannot work, refused at load."""


class ModelError(AtollError):
    """A model that cannot be partitioned, or that is not the model of the run."""


class CodecError(AtollError):
    """A body whose size or content does not fit its codec."""


class TapeError(AtollError):
    """A tape that is damaged, out of order, or does not replay to the same decisions."""


class JoinError(AtollError):
    """A learner that could not reach its run, or that the syncer refused at the door."""


class WireError(AtollError):
    """Bytes from the other side that are not the protocol; the connection they came on is of no more use."""


class StoreError(AtollError):
    """A run directory that cannot be used: taken, damaged, or of another run."""


class RecipeError(AtollError):
    """A recipe, a model or data that does not exist, cannot be reached or cannot be read."""


class ProtocolError(AtollError):
    """A shell broke the contract of a machine, for example an answer to a command never given."""
