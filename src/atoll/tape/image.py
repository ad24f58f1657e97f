"""The whole state of a machine as bytes, so that a tape may begin in the middle.

Nothing here knows what a machine holds. The state is walked from the machine down: plain values stand as
they are, everything else as a list that begins with a tag. Of a dataclass every field is written, whatever it
is called, so a field that the core gets tomorrow cannot be forgotten; a value of a kind that is not known
here is refused, and so is an image whose fields are not those of today. What can be reached in two ways, such
as the desk that the parts of the syncer share, is written once and shared again.

Reading makes objects of the core's own dataclasses, named tuples and enums, and of nothing else.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, NoReturn, TypeAlias

import msgspec

import atoll.core
from atoll.core.learner import LearnerMachine
from atoll.core.syncer import SyncerMachine
from atoll.errors import TapeError

__all__ = ["Machine", "image_of", "machine_from"]

Machine: TypeAlias = LearnerMachine | SyncerMachine

_PLAIN = frozenset((type(None), bool, int, float, str, bytes))


def image_of(machine: Machine) -> bytes:
    """Everything that the machine knows, its params included."""
    return msgspec.msgpack.encode(_Writer().write(machine))


def machine_from(content: bytes) -> Machine:
    """A machine that goes on exactly as the one that the image was made of."""
    try:
        machine = _Reader().read(msgspec.msgpack.decode(content))
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, AttributeError) as error:
        _refuse(f"{type(error).__name__}: {error}")
    if not isinstance(machine, LearnerMachine | SyncerMachine):
        _refuse("it holds no machine")
    return machine


@dataclass(slots=True)
class _Writer:
    """Turns values into what MessagePack can hold."""

    numbers: dict[int, int] = field(default_factory=dict)
    """Identity of an object that may be met again -> when it was met first."""

    def write(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is tuple:
            return ["tuple", *self._all(value)]
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return ["named", _name_of(kind), *self._all(value)]
        if isinstance(value, Enum):
            return ["enum", _name_of(kind), value.name]
        if id(value) in self.numbers:
            return ["again", self.numbers[id(value)]]
        self.numbers[id(value)] = len(self.numbers)
        return self._write_new(kind, value)

    def _all(self, values: Iterable[Any]) -> list[Any]:
        # Asked here as well, because most values are plain and a syncer's loop waits for its image.
        return [value if type(value) in _PLAIN else self.write(value) for value in values]

    def _write_new(self, kind: type, value: Any) -> list[Any]:
        if is_dataclass(kind):
            return [
                "data",
                _name_of(kind),
                {f.name: self.write(getattr(value, f.name)) for f in fields(kind)},
            ]
        if kind is list:
            return ["list", *self._all(value)]
        if kind is dict:
            return ["dict", *map(self._all, value.items())]
        if kind is set:
            return ["set", *self._all(sorted(value, key=repr))]
        if kind is deque:
            return ["deque", value.maxlen, *self._all(value)]
        raise TypeError(
            f"an image cannot hold a {kind.__name__}: teach atoll.tape.image to write and read it"
        )


@dataclass(slots=True)
class _Reader:
    """Makes the values that a writer wrote; what may be met again is numbered in the same order."""

    made: list[Any] = field(default_factory=list)

    def read(self, written: Any) -> Any:
        if not isinstance(written, list):
            return written
        tag, *rest = written
        return _READERS[tag](self, rest)

    def _all(self, written: list[Any]) -> list[Any]:
        return [self.read(value) for value in written]

    def _tuple(self, rest: list[Any]) -> tuple[Any, ...]:
        return tuple(self._all(rest))

    def _named(self, rest: list[Any]) -> Any:
        return _class(rest[0])(*self._all(rest[1:]))

    def _enum(self, rest: list[Any]) -> Enum:
        member: Enum = _class(rest[0])[rest[1]]
        return member

    def _again(self, rest: list[Any]) -> Any:
        return self.made[rest[0]]

    def _data(self, rest: list[Any]) -> Any:
        name, values = rest
        cls = _class(name)
        today = [f.name for f in fields(cls)]
        if today != list(values):
            raise ValueError(f"{name} had the fields {list(values)}, today it has {today}")
        value = object.__new__(cls)
        self.made.append(value)
        for key, written in values.items():
            object.__setattr__(value, key, self.read(written))  # also where the class is frozen
        return value

    def _list(self, rest: list[Any]) -> list[Any]:
        value: list[Any] = []
        self.made.append(value)
        value.extend(self._all(rest))
        return value

    def _dict(self, rest: list[Any]) -> dict[Any, Any]:
        value: dict[Any, Any] = {}
        self.made.append(value)
        for key, item in rest:
            key = self.read(key)
            value[key] = self.read(item)
        return value

    def _set(self, rest: list[Any]) -> set[Any]:
        value: set[Any] = set()
        self.made.append(value)
        value.update(self._all(rest))
        return value

    def _deque(self, rest: list[Any]) -> deque[Any]:
        value: deque[Any] = deque(maxlen=rest[0])
        self.made.append(value)
        value.extend(self._all(rest[1:]))
        return value


_READERS: dict[str, Callable[[_Reader, list[Any]], Any]] = {
    "tuple": _Reader._tuple,
    "named": _Reader._named,
    "enum": _Reader._enum,
    "again": _Reader._again,
    "data": _Reader._data,
    "list": _Reader._list,
    "dict": _Reader._dict,
    "set": _Reader._set,
    "deque": _Reader._deque,
}


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _class(name: str) -> type[Any]:
    return _classes()[name]


@cache
def _classes() -> dict[str, type]:
    """The dataclasses, named tuples and enums of the core, by name."""
    modules = [
        importlib.import_module(f"atoll.core.{m.name}") for m in pkgutil.iter_modules(atoll.core.__path__)
    ]
    return {
        _name_of(value): value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and _is_record(value)
    }


def _is_record(cls: type) -> bool:
    return is_dataclass(cls) or issubclass(cls, Enum) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


def _refuse(reason: str) -> NoReturn:
    raise TapeError(
        f"An image on the tape cannot be read: {reason}.",
        "The machine cannot go on from there, and what came before was cut.",
        "Read the tape with the version of Atoll that wrote it, or restore it from a copy.",
    )
