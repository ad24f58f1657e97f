"""What stands on a tape: events, the commands they led to, and what only a witness can tell.

A machine's own tape holds its events and commands. A simulated run has one tape for all machines,
and on it the disk and the simulated models testify too: `Stored` is written at the commit point
itself, `Truth` says what a merge really contained, `Fault` what was done to the run. An `Image` is the whole
state of a machine: a tape that was cut begins with one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from atoll.core import commands, events, messages, records
from atoll.core.commands import Command
from atoll.core.events import Event
from atoll.core.records import Record

__all__ = [
    "SYNCER",
    "Content",
    "Entry",
    "Fault",
    "Image",
    "Item",
    "Milestone",
    "Stored",
    "Truth",
    "item_type",
]

SYNCER = "syncer"
"""The syncer's name on a tape; learners stand there as name#life."""


class Content(NamedTuple):
    """What one body really contained, whatever its header said."""

    name: str
    incarnation: int
    start: int
    end: int
    base_digest: str
    finite: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """A record passed its commit point."""

    record: Record
    synced: bool


@dataclass(frozen=True, slots=True)
class Truth:
    """The contents of the bodies that a merge was computed from."""

    fragment: int
    version: int
    contents: tuple[Content, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something was done to the run."""

    kind: str
    target: str
    detail: str


@dataclass(frozen=True, slots=True)
class Milestone:
    """A part of a simulated run began: `faults`, `healed`, `finish`, `end`."""

    name: str


@dataclass(frozen=True, slots=True)
class Clock:
    """Which clock the times from here on are of: monotonic ones begin anew when a machine is started."""

    boot: str
    """Names one start of one machine."""
    wall_ns: int
    """What to add for the time of day."""


@dataclass(frozen=True, slots=True)
class Image:
    """The state of its actor's machine after all lines above; `tape.image` makes and reads the content."""

    merges: int
    """Merges in the syncer's state; 0 on a learner's tape."""
    content: bytes


Item: TypeAlias = Event | Command | Stored | Truth | Fault | Milestone | Clock | Image


class Entry(NamedTuple):
    """One line of a tape."""

    at_ns: int
    actor: str
    item: Item


_TYPES: dict[str, type] = {
    name: value
    for module in (commands, events, messages, records)
    for name, value in vars(module).items()
    if isinstance(value, type)
} | {cls.__name__: cls for cls in (Stored, Truth, Fault, Milestone, Content, Clock, Image)}


def item_type(name: str) -> type[Any]:
    """The class of an item, message or record, by its name."""
    return _TYPES[name]
