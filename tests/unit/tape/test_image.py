"""A machine made from an image goes on exactly as the one that the image was made of."""

from __future__ import annotations

import dataclasses
import random
import typing
from collections import deque
from collections.abc import Iterator
from enum import Enum
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from atoll.core import events as ev
from atoll.core.learner import LearnerMachine
from atoll.core.params import RunParams
from atoll.core.syncer import SyncerMachine
from atoll.errors import TapeError
from atoll.sim.world import World, draw_scenario
from atoll.tape.entries import SYNCER
from atoll.tape.image import Machine, image_of, machine_from

MACHINES = (SyncerMachine, LearnerMachine)


# Every field


def sample(annotation: Any, counter: list[int]) -> Any:
    """A value of a type, different from every other sample; containers hold two."""
    counter[0] += 1
    number = counter[0]
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in (int, float, str, bool):
        return {int: number, float: number + 0.25, str: f"s{number}", bool: True}[annotation]
    if origin is Literal:
        return args[-1]
    if origin in (Union, UnionType):
        return sample(args[number % len([a for a in args if a is not type(None)])], counter)
    if origin is tuple and args[-1] is not ...:
        return tuple(sample(arg, counter) for arg in args)
    if origin is dict:
        return {sample(args[0], counter): sample(args[1], counter) for _ in range(2)}
    if origin in (tuple, list, set, deque):
        values = [sample(args[0], counter) for _ in range(2)]
        return deque(values, maxlen=2) if origin is deque else origin(values)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return list(annotation)[-1]
    return filled(annotation, counter)


def filled(cls: type[Any], counter: list[int]) -> Any:
    """An instance of a dataclass or named tuple, every field of which has a value."""
    hints = get_type_hints(cls)
    if hasattr(cls, "_fields"):
        return cls(*(sample(hints[name], counter) for name in cls._fields))
    value = object.__new__(cls)
    for field in dataclasses.fields(cls):
        object.__setattr__(value, field.name, sample(hints[field.name], counter))
    return value


@pytest.mark.parametrize("cls", MACHINES)
def test_every_field_comes_back_whatever_it_holds(cls: type[Any]):
    machine = filled(cls, [0])
    again = machine_from(image_of(machine))
    assert again == machine
    assert type_tree(again) == type_tree(machine)
    assert image_of(again) == image_of(machine)


def type_tree(value: Any) -> Any:
    """Types all the way down: 1 == 1.0 == True, and a tuple may equal a named one."""
    if dataclasses.is_dataclass(value):
        return type(value), [type_tree(getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, dict):
        return type(value), [(type_tree(k), type_tree(v)) for k, v in value.items()]
    if isinstance(value, tuple | list | deque):
        return type(value), getattr(value, "maxlen", None), [type_tree(v) for v in value]
    return type(value)


def test_what_the_parts_of_the_syncer_share_they_share_again():
    machine = machine_from(image_of(SyncerMachine(RunParams(num_fragments=2))))
    assert isinstance(machine, SyncerMachine)
    assert machine.desk is machine.rounds.desk is machine.seeding.desk
    assert machine.params is machine.desk.params is machine.desk.schedule.params


def test_things_that_merely_look_alike_stay_apart():
    machine = SyncerMachine(RunParams(num_fragments=2))
    again = machine_from(image_of(machine))
    assert isinstance(again, SyncerMachine)
    assert again.rounds.gates[0] == again.rounds.gates[1]
    assert again.rounds.gates[0] is not again.rounds.gates[1]
    assert again.rounds.gates[0].norms.maxlen == machine.rounds.gates[0].norms.maxlen


def test_one_thing_twice_in_a_row_is_still_one_thing():
    machine = SyncerMachine(RunParams(num_fragments=2))
    machine.rounds.gates = [machine.rounds.gates[0]] * 2
    again = machine_from(image_of(machine))
    assert isinstance(again, SyncerMachine)
    assert again.rounds.gates[0] is again.rounds.gates[1]


# Going on


@pytest.fixture(scope="module", params=[7, 11, 23])
def world(request: pytest.FixtureRequest) -> World:
    """A simulated run with faults: machines die, come back and are fenced."""
    world = World(draw_scenario(request.param, tensors=False))
    world.run()
    return world


def events_of(world: World) -> Iterator[tuple[str, ev.Event]]:
    for _, actor, item in world.tape:
        if type(item).__module__ == ev.__name__:
            yield actor, typing.cast(ev.Event, item)


def test_machines_replaced_at_any_time_decide_the_same_to_the_end(world: World):
    params, draw = world.scenario.params, random.Random(world.scenario.seed)
    originals: dict[str, Machine] = {}
    replaced: dict[str, Machine] = {}
    num_images = 0
    for actor, event in events_of(world):
        if isinstance(event, ev.Booted | ev.Started):
            cls = SyncerMachine if actor == SYNCER else LearnerMachine
            originals[actor], replaced[actor] = cls(params), cls(params)
        elif draw.random() < 0.05:
            replaced[actor] = machine_from(image_of(replaced[actor]))
            num_images += 1
        assert replaced[actor].handle(event) == originals[actor].handle(event)
    assert num_images > 20
    assert replaced == originals


# Refusals


def test_what_an_image_cannot_hold_is_refused_when_it_is_made():
    machine = LearnerMachine(RunParams())
    machine.name = object()  # type: ignore[assignment]  # that is the point
    with pytest.raises(TypeError, match="an image cannot hold a object"):
        image_of(machine)


def altered(change: Any) -> bytes:
    """The image of a learner, with its outermost list changed."""
    written = msgspec.msgpack.decode(image_of(LearnerMachine(RunParams())))
    change(written)
    return msgspec.msgpack.encode(written)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xc1", "MessagePack"),
        (msgspec.msgpack.encode(["data", "os.system", {}]), "os.system"),
        (msgspec.msgpack.encode(["run", "ls"]), "run"),
        (msgspec.msgpack.encode(["tuple", 1]), "holds no machine"),
        (msgspec.msgpack.encode([]), "ValueError"),
        (altered(lambda written: written[2].pop("clock")), "had the fields"),
        (altered(lambda written: written[2].update(speed=3)), "had the fields"),
    ],
)
def test_an_image_that_is_none_or_of_another_version_is_refused(content: bytes, reason: str):
    with pytest.raises(TapeError, match=reason) as caught:
        machine_from(content)
    assert caught.value.what.startswith("An image on the tape cannot be read: ")
