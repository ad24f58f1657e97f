"""Replay: give a machine its past events again and see whether it decides the same.

A tape may hold many lives: each boot of the syncer and each life of a learner is a machine of its
own, begun by its first event and ended by the next one's. Commands must come back one for one. A
tape that was cut begins with the image of a machine, which goes on from there.

A tape on disk holds no commands: they follow from the events, so `expand` makes them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from atoll.core import events as ev
from atoll.core.commands import Command, SetTimer
from atoll.core.events import Event
from atoll.core.learner import LearnerMachine
from atoll.core.params import RunParams
from atoll.core.syncer import SyncerMachine
from atoll.tape.entries import Entry, Image, Item
from atoll.tape.image import Machine, machine_from

__all__ = ["Replay", "expand", "replay"]


@dataclass(slots=True)
class Replay:
    """How far a tape was replayed, and the first place where it was not."""

    num_events: int = 0
    num_commands: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every machine decided as it did then."""
        return not self.problems


def replay(entries: Iterable[Entry], params: RunParams) -> Replay:
    """Run every machine on the tape again and compare its commands.

    A machine that was killed while its commands were being performed leaves only the first few
    of them on the tape: a prefix is enough there, for its last event alone.
    """
    result = Replay()
    machines: dict[str, Machine] = {}
    expected: dict[str, list[Command]] = {}
    for number, (_, actor, item) in enumerate(entries):
        machine = _machine(item, machines.get(actor), params)
        if machine is None:
            continue
        if machine is not machines.get(actor):
            machines[actor], expected[actor] = machine, []
        if _is_event(item):
            if expected[actor]:
                result.problems.append(f"line {number}: {actor} now also commands {expected[actor][0]}")
                return result
            event: Event = item  # type: ignore[assignment]  # told by its module
            expected[actor] = [c for c in machine.handle(event) if not isinstance(c, SetTimer)]
            result.num_events += 1
        elif type(item).__module__ == "atoll.core.commands":
            wanted = expected[actor].pop(0) if expected[actor] else None
            result.num_commands += 1
            if wanted != item:
                result.problems.append(f"line {number}: {actor} commanded {item}, now it commands {wanted}")
                return result
    return result


def expand(entries: Iterable[Entry], params: RunParams) -> Iterator[Entry]:
    """The same tape with every machine's commands behind the events that lead to them.

    A machine's life begins with its first event, or with its image if the tape was cut. What stands before
    that, or is no event, passes through as it is.
    """
    machines: dict[str, Machine] = {}
    for entry in entries:
        yield entry
        at_ns, actor, item = entry
        machine = _machine(item, machines.get(actor), params)
        if machine is None:
            continue
        machines[actor] = machine
        if _is_event(item):
            event: Event = item  # type: ignore[assignment]  # told by its module
            for command in machine.handle(event):
                yield Entry(at_ns, actor, command)


def _machine(item: Item, current: Machine | None, params: RunParams) -> Machine | None:
    """The machine that a line is for: a new one, one that goes on from an image, or the one before."""
    match item:
        case ev.Booted():
            return SyncerMachine(params)
        case ev.Started():
            return LearnerMachine(params)
        case Image() if current is None:
            return machine_from(item.content)
    return current


def _is_event(item: Item) -> bool:
    return type(item).__module__ == ev.__name__
