"""A tape comes back as it was written, notices every change, and replays."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest

from atoll.core import commands, events, messages, records
from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.errors import TapeError
from atoll.sim.world import World, draw_scenario
from atoll.tape.entries import Entry, Fault, Image, Milestone, Stored, Truth
from atoll.tape.replay import replay
from atoll.tape.tape import Tape, dump, load, pack, unpack

SEED = 7


@pytest.fixture(scope="module")
def world() -> World:
    """A simulated run with faults."""
    world = World(draw_scenario(SEED, tensors=False))
    world.run()
    return world


# One of each


def sample(annotation: Any, counter: list[int]) -> Any:
    """A value of a type, different from every other sample."""
    counter[0] += 1
    number = counter[0]
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation in (int, float, str, bool):
        return {int: number, float: number + 0.25, str: f"s{number}", bool: number % 2 == 0}[annotation]
    if origin is Literal:
        return args[number % len(args)]
    if origin is tuple and args[-1] is ...:
        return tuple(sample(args[0], counter) for _ in range(2))
    if origin is tuple:
        return tuple(sample(arg, counter) for arg in args)
    if origin is list:
        return [sample(args[0], counter) for _ in range(2)]
    if origin is dict:
        return {sample(args[0], counter): sample(args[1], counter) for _ in range(2)}
    if args:
        return sample(args[0], counter)
    return instance(annotation, counter)


def instance(cls: type[Any], counter: list[int] | None = None, **values: Any) -> Any:
    """A dataclass or named tuple whose fields are all filled, and all different."""
    counter = counter if counter is not None else [0]
    hints = typing.get_type_hints(cls)
    names = cls._fields if hasattr(cls, "_fields") else [f.name for f in dataclasses.fields(cls)]
    return cls(**({name: sample(hints[name], counter) for name in names} | values))


MESSAGES = get_args(msg.Message)
RECORDS = get_args(records.Record)
ITEMS = [
    *(instance(cls) for cls in get_args(ev.Event) if cls is not ev.Received),
    *(instance(ev.Received, message=instance(cls)) for cls in MESSAGES),
    *(instance(cls) for cls in get_args(do.Command) if cls not in (do.Tell, do.Resend, do.Send, do.Commit)),
    *(instance(do.Tell, message=instance(cls)) for cls in get_args(msg.FromLearner)),
    *(instance(do.Resend, message=instance(cls)) for cls in (msg.Body, msg.SeedBody)),
    *(instance(do.Send, message=instance(cls)) for cls in get_args(msg.FromSyncer)),
    *(instance(do.Commit, record=instance(cls)) for cls in RECORDS),
    *(instance(Stored, record=instance(cls)) for cls in RECORDS),
    *(instance(cls) for cls in (Truth, Fault, Milestone)),
    Image(50, b"\x00state\xff"),
]


def label(item: Any) -> str:
    inner = getattr(item, "message", None) or getattr(item, "record", None)
    return f"{type(item).__name__}-{type(inner).__name__}" if inner else type(item).__name__


@pytest.mark.parametrize("item", ITEMS, ids=label)
def test_every_kind_of_line_comes_back_as_it_was_written(item):
    entry = Entry(12, "anna#1", item)
    again = unpack(pack(entry))
    assert again == entry
    assert type(again.item) is type(item)
    assert pack(again) == pack(entry)


def test_no_kind_of_line_is_forgotten_above():
    kinds = {type(item) for item in ITEMS}
    carried = {type(item.message) for item in ITEMS if hasattr(item, "message")}
    stored = {type(item.record) for item in ITEMS if hasattr(item, "record")}
    assert kinds == {*get_args(ev.Event), *get_args(do.Command), Stored, Truth, Fault, Milestone, Image}
    assert carried == set(MESSAGES)
    assert stored == set(RECORDS)


def test_the_names_by_which_types_are_found_are_unique():
    owners: dict[str, set[type]] = {}
    for module in (commands, events, messages, records):
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type):
                owners.setdefault(name, set()).add(value)
    assert [name for name, classes in owners.items() if len(classes) > 1] == []


def test_a_simulated_tape_comes_back_whole(world):
    again = load(dump(world.tape))
    assert len(again) == len(world.tape) > 1000
    assert again.digest() == world.tape.digest()
    assert dump(again) == dump(world.tape)


def test_the_same_seed_writes_the_same_tape_and_another_seed_another(world):
    twin, other = (World(draw_scenario(seed, tensors=False)) for seed in (SEED, SEED + 1))
    twin.run()
    other.run()
    assert twin.tape.digest() == world.tape.digest() != other.tape.digest()


# Damage


def lines_of(*names: str) -> list[Any]:
    tape = Tape()
    for number, name in enumerate(names):
        tape.add(number, "world", Milestone(name))
    lines: list[Any] = msgspec.msgpack.decode(dump(tape))
    return lines


def refusal(lines: list[Any]) -> TapeError:
    with pytest.raises(TapeError) as caught:
        load(msgspec.msgpack.encode(lines))
    return caught.value


def test_a_tape_that_nobody_touched_is_believed():
    lines = lines_of("faults", "healed", "end")
    tape = load(msgspec.msgpack.encode(lines))
    assert [entry.item for entry in tape] == [Milestone(n) for n in ("faults", "healed", "end")]


def test_a_changed_line_is_detected_and_named():
    lines = lines_of("faults", "healed", "end")
    lines[1][0] = pack(Entry(1, "world", Milestone("heeled")))
    error = refusal(lines)
    assert error.what == "Line 1 of the tape does not fit the digest chain."
    assert error.so_what == "This line, or one before it, was changed after it was written."
    assert error.now_what == "Trust the 1 lines before it only, or restore the tape from a copy."


def test_a_missing_line_is_detected():
    lines = lines_of("faults", "healed", "end")
    del lines[1]
    assert refusal(lines).what.startswith("Line 1 ")


def test_swapped_lines_are_detected():
    lines = lines_of("faults", "healed", "end")
    lines[0], lines[1] = lines[1], lines[0]
    assert refusal(lines).what.startswith("Line 0 ")


def test_a_line_that_was_inserted_is_detected():
    lines = lines_of("faults", "healed", "end")
    lines.insert(2, lines[1])
    assert refusal(lines).what.startswith("Line 2 ")


@pytest.mark.parametrize("content", [b"", b"\xc1", dump(Tape([Entry(0, "world", Milestone("end"))]))[:-3]])
def test_a_torn_tape_says_that_nothing_on_it_can_be_trusted(content):
    with pytest.raises(TapeError) as caught:
        load(content)
    assert caught.value.what.startswith("The tape is torn, or is no tape: ")
    assert caught.value.now_what == "Restore the tape from a copy."


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not msgpack",
        msgspec.msgpack.encode((0, "world", "NoSuchType", "", {})),
        msgspec.msgpack.encode((0, "world", "Milestone", "", {})),
        msgspec.msgpack.encode((0, "world", "Milestone", "", {"name": 7})),
        msgspec.msgpack.encode((0, "world", "Received", "Want", {"at_ns": 1, "message": {"name": "a"}})),
        msgspec.msgpack.encode((0, "world", "Received", "NoSuchMessage", {"at_ns": 1, "message": {}})),
    ],
)
def test_a_line_that_cannot_be_read_is_an_error_that_teaches(line):
    with pytest.raises(TapeError) as caught:
        unpack(line)
    assert caught.value.what.startswith("A line of the tape cannot be read: ")
    assert caught.value.so_what
    assert caught.value.now_what


def test_the_digest_covers_events_and_testimony_and_leaves_commands_to_the_replay():
    event = Entry(0, "syncer", ev.Booted(0))
    command = Entry(0, "syncer", do.Load())
    assert Tape([event, command]).digest() == Tape([event]).digest()
    assert Tape([event]).digest() != Tape([Entry(1, "syncer", ev.Booted(0))]).digest()
    assert Tape([event]).digest() != Tape([Entry(0, "other", ev.Booted(0))]).digest()


# Replay


def test_replay_of_a_simulated_tape_gives_every_command_again(world):
    result = replay(world.tape, world.scenario.params)
    assert result.ok, result.problems
    kinds = [type(entry.item).__module__ for entry in world.tape]
    assert result.num_events == kinds.count("atoll.core.events") > 0
    assert result.num_commands == kinds.count("atoll.core.commands") > 0


def test_replay_of_what_was_written_and_read_gives_every_command_again(world):
    assert replay(load(dump(world.tape)), world.scenario.params).ok


def test_replay_under_other_params_is_noticed(world):
    params = dataclasses.replace(world.scenario.params, heartbeat_ns=1, retry_ns=1, interval_steps=40)
    assert not replay(world.tape, params).ok


def edited(world: World, number: int, item: Any) -> Tape:
    entries = list(world.tape)
    entries[number] = entries[number]._replace(item=item)
    return Tape(entries)


def test_replay_notices_a_changed_event(world):
    number, entry = next(
        (n, e)
        for n, e in enumerate(world.tape)
        if isinstance(e.item, ev.Stepped) and n > len(world.tape) // 2
    )
    result = replay(
        edited(world, number, dataclasses.replace(entry.item, tokens=999_999)), world.scenario.params
    )
    assert not result.ok
    (problem,) = result.problems
    assert int(problem.split(":")[0].removeprefix("line ")) > number
    assert entry.actor in problem


def test_replay_notices_a_changed_command(world):
    number, entry = next((n, e) for n, e in enumerate(world.tape) if isinstance(e.item, do.Opened))
    changed = dataclasses.replace(entry.item, round=999)
    result = replay(edited(world, number, changed), world.scenario.params)
    assert result.problems == [f"line {number}: syncer commanded {changed}, now it commands {entry.item}"]


def test_replay_notices_a_command_that_is_missing(world):
    number = next(n for n, e in enumerate(world.tape) if isinstance(e.item, do.Opened))
    entries = list(world.tape)
    del entries[number]
    assert not replay(Tape(entries), world.scenario.params).ok


def test_a_machine_that_was_killed_in_the_middle_of_its_commands_replays():
    hello = do.Tell(msg.Hello("a", "k", 1, 0, 0))
    first = [Entry(0, "a#1", ev.Started(0, "a", "k", 1)), Entry(0, "a#1", hello)]
    params = draw_scenario(SEED, tensors=False).params
    assert replay(first[:1], params).ok
    assert replay(first, params).ok
    result = replay([first[0], Entry(1, "a#1", ev.Stepped(1, 1, 1, 0))], params)
    assert result.problems == [f"line 1: a#1 now also commands {hello}"]
