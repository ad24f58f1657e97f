"""Tapes of simulated runs, cut at an image, as a real run's tapes are."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from atoll.core import events as ev
from atoll.core.commands import Command
from atoll.core.learner import LearnerMachine
from atoll.core.params import RunParams
from atoll.core.syncer import SyncerMachine
from atoll.sim.world import World, draw_scenario
from atoll.tape.entries import SYNCER, Entry, Image, Milestone
from atoll.tape.image import Machine, image_of

__all__ = ["bare_tape", "cut_at"]

_NOT_KEPT = (*get_args(Command), Milestone)


def bare_tape(seed: int, *, faults: bool) -> tuple[list[Entry], RunParams]:
    """The lines of a simulated run that a real one would have on disk."""
    world = World(draw_scenario(seed, faults=faults, tensors=False))
    world.run()
    return [entry for entry in world.tape if not isinstance(entry.item, _NOT_KEPT)], world.scenario.params


def cut_at(
    lines: list[Entry],
    params: RunParams,
    wanted: Callable[[int, SyncerMachine], bool],
    *,
    learners_too: bool = False,
) -> list[Entry]:
    """The tape from the first line after which the syncer is as wanted, which becomes its image.

    Learners' tapes are whole, as those of a young life are, or begin with images too.
    """
    machines: dict[str, Machine] = {}
    before: list[Entry] = []
    for number, entry in enumerate(lines):
        if isinstance(entry.item, ev.Booted | ev.Started):
            machines[entry.actor] = (SyncerMachine if entry.actor == SYNCER else LearnerMachine)(params)
        if type(entry.item).__module__ == ev.__name__:
            machines[entry.actor].handle(entry.item)  # type: ignore[arg-type]  # an event
        if "#" in entry.actor and not learners_too:
            before.append(entry)
        syncer = machines.get(SYNCER)
        if isinstance(syncer, SyncerMachine) and entry.actor == SYNCER and wanted(number, syncer):
            merges = syncer.desk.state.merges
            actors = sorted(machines) if learners_too else [SYNCER]
            images = [Entry(entry.at_ns, who, Image(merges, image_of(machines[who]))) for who in actors]
            return [*before, *images, *lines[number + 1 :]]
    raise AssertionError("the syncer was never as wanted")
