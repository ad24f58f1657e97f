"""A tape without commands gets them back, each behind the event that led to it."""

from __future__ import annotations

from typing import get_args

import pytest

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.commands import Command
from atoll.core.learner import LearnerMachine
from atoll.core.params import RunParams
from atoll.core.syncer import SyncerMachine
from atoll.invariants import check
from atoll.sim.world import World, draw_scenario
from atoll.tape.entries import SYNCER, Entry, Image, Stored
from atoll.tape.image import image_of, machine_from
from atoll.tape.replay import expand

COMMANDS = get_args(Command)


@pytest.fixture(scope="module")
def world() -> World:
    """A simulated run in which nobody is killed in the middle of a command."""
    world = World(draw_scenario(7, faults=False, tensors=False))
    world.run()
    return world


def commands_of(entries, actor):
    return [
        entry.item
        for entry in entries
        if entry.actor == actor
        and isinstance(entry.item, COMMANDS)
        and not isinstance(entry.item, do.SetTimer)
    ]


def test_events_alone_give_every_machine_its_commands_again(world):
    params = world.scenario.params
    bare = [entry for entry in world.tape if not isinstance(entry.item, COMMANDS)]
    whole = list(expand(bare, params))
    actors = sorted({entry.actor for entry in world.tape})
    assert len(actors) >= 3
    for actor in actors:
        assert commands_of(whole, actor) == commands_of(world.tape, actor)


def test_what_is_on_the_tape_stays_in_its_order(world):
    bare = [entry for entry in world.tape if not isinstance(entry.item, COMMANDS)]
    whole = expand(bare, world.scenario.params)
    assert [entry for entry in whole if not isinstance(entry.item, COMMANDS)] == bare


def test_commands_stand_behind_their_event_and_before_what_the_store_says_of_them(world):
    bare = [entry for entry in world.tape if not isinstance(entry.item, COMMANDS)]
    commanded = []
    for entry in expand(bare, world.scenario.params):
        if entry.actor == SYNCER and isinstance(entry.item, do.Commit):
            commanded.append(entry.item.record)
        elif isinstance(entry.item, Stored):
            assert entry.item.record in commanded


def test_an_expanded_tape_passes_every_check(world):
    bare = [entry for entry in world.tape if not isinstance(entry.item, COMMANDS)]
    checker = check(expand(bare, world.scenario.params), world.scenario.params)
    assert not checker.violations
    assert checker.num_checks == check(world.tape, world.scenario.params).num_checks


def test_each_boot_and_each_life_is_a_machine_of_its_own():
    params = RunParams(num_fragments=1, interval_steps=1)
    lines = [Entry(at_ns, "a#1", ev.Started(at_ns, "a", "key", life)) for at_ns, life in ((1, 5), (2, 6))]
    told = [entry.item.message for entry in expand(lines, params) if isinstance(entry.item, do.Tell)]
    assert [hello.life for hello in told if isinstance(hello, msg.Hello)] == [5, 6]


def test_lines_before_a_machine_began_pass_through():
    line = Entry(1, "a#1", ev.TimerFired(1, "pulse"))
    assert list(expand([line], RunParams())) == [line]


# Tapes that begin with an image


def with_images(entries, params):
    """The lines without commands, and an image of every machine in the middle."""
    machines, lines = {}, []
    for number, entry in enumerate(entries):
        lines.append(entry)
        if isinstance(entry.item, ev.Booted | ev.Started):
            machines[entry.actor] = (SyncerMachine if entry.actor == SYNCER else LearnerMachine)(params)
        if type(entry.item).__module__ == ev.__name__:
            machines[entry.actor].handle(entry.item)
        if number == len(entries) // 2:
            images = [Entry(entry.at_ns, actor, Image(0, image_of(m))) for actor, m in machines.items()]
            lines += images
    return lines, lines.index(images[0])


def test_a_tape_that_begins_with_images_goes_on_as_the_whole_one_does(world):
    params = world.scenario.params
    bare = [entry for entry in world.tape if not isinstance(entry.item, COMMANDS)]
    lines, middle = with_images(bare, params)
    whole = list(expand(lines, params))
    cut = list(expand(lines[middle:], params))
    assert len(cut) > len(whole) // 4
    assert cut == whole[len(whole) - len(cut) :]


def test_an_image_on_the_way_changes_nothing(world):
    params = world.scenario.params
    bare = [entry for entry in world.tape if not isinstance(entry.item, COMMANDS)]
    lines, _ = with_images(bare, params)
    whole = [entry for entry in expand(lines, params) if not isinstance(entry.item, Image)]
    assert whole == list(expand(bare, params))


def test_a_machine_that_is_there_does_not_listen_to_an_image():
    params = RunParams(num_fragments=1, interval_steps=1)
    other = LearnerMachine(params)
    other.handle(ev.Started(0, "b", "key", 9))
    lines = [
        Entry(1, "a#1", ev.Started(1, "a", "key", 5)),
        Entry(2, "a#1", Image(0, image_of(other))),
        Entry(3, "a#1", ev.TimerFired(3, "pulse")),
    ]
    told = [entry.item.message.name for entry in expand(lines, params) if isinstance(entry.item, do.Tell)]
    assert told == ["a", "a"]
    image = lines[1].item
    assert isinstance(image, Image)
    assert machine_from(image.content) == other
