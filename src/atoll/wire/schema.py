"""Schemas: the annotations of a message's dataclass, with bounds added.

A schema is the type of a fixed tuple, one bounded type per field in order, which msgspec checks while it
decodes: no field too many or too few, no type converted, no claim of a length believed before it is
compared with its bound. The bounds follow from the name and the type of a field, so that a message
needs no second description.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from types import GenericAlias
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from msgspec import Meta

__all__ = [
    "MAX_CONFIG",
    "MAX_COUNT",
    "MAX_ITEMS",
    "MAX_PIECE",
    "MAX_TEXT",
    "MIN_COUNT",
    "schema_of",
    "values_of",
]

MAX_ITEMS = 65_536
"""Of any tuple: more fragments than any run has."""
MAX_TEXT = 4_096
"""Characters of a reason, and of every other string but the configuration."""
MAX_CONFIG = 1024**2
MIN_COUNT, MAX_COUNT = -(2**31), 2**53
"""Arithmetic on counts stays exact, in floats too."""
MAX_MANIFEST = 48 * 1024**2
MAX_PIECE = 16 * 1024**2
"""Bytes of content in one piece."""

_COUNT = Meta(ge=MIN_COUNT, le=MAX_COUNT)
_LIFE = Meta(ge=0, le=2**32 - 1)  # what the header of a frame has room for
_WIDE = Meta(ge=MIN_COUNT, le=2**63 - 1)  # times in nanoseconds, and numbers that were drawn
_KEY = Meta(min_length=32, max_length=32)

_BOUNDS: dict[tuple[type, str], Meta] = {
    (int, "epoch"): _LIFE,
    (int, "incarnation"): _LIFE,
    (int, "recipient_incarnation"): _LIFE,
    (int, "life"): _WIDE,
    (int, "seed"): _WIDE,
    (int, "num_bytes"): Meta(ge=0, le=MAX_COUNT),
    (int, "piece_bytes"): Meta(ge=1, le=MAX_PIECE),
    (int, "data_connections"): Meta(ge=1, le=64),
    (int, "shards"): Meta(ge=1, le=MAX_COUNT),
    (str, "config"): Meta(max_length=MAX_CONFIG),
    (bytes, "challenge"): _KEY,
    (bytes, "secret"): _KEY,
    (bytes, "key"): _KEY,
    (bytes, "signature"): Meta(min_length=64, max_length=64),
}
_DEFAULTS = {int: _COUNT, str: Meta(max_length=MAX_TEXT), bytes: Meta(max_length=MAX_MANIFEST)}


def schema_of(message: type) -> Any:
    """The type of the array in which a message travels."""
    return _row(get_type_hints(message))


def values_of(message: type) -> Callable[[Any], tuple[Any, ...]]:
    """A function from a message to the array in which it travels; reasons too long are cut short."""
    names = [field.name for field in fields(message)]
    if not names:
        return lambda message: ()
    get = attrgetter(*names) if len(names) > 1 else lambda message: (getattr(message, names[0]),)
    for spoken in ("reason", "note"):
        if spoken in names:
            return _cutting(get, names.index(spoken))
    return get


def _cutting(get: Callable[[Any], tuple[Any, ...]], at: int) -> Callable[[Any], tuple[Any, ...]]:
    """Sentences are written by many hands: none may be long enough to close the connection."""

    def values(message: Any) -> tuple[Any, ...]:
        row = get(message)
        if len(row[at]) > MAX_TEXT:
            row = (*row[:at], row[at][: MAX_TEXT - 3] + "...", *row[at + 1 :])
        return row

    return values


def _row(hints: dict[str, Any]) -> Any:
    return GenericAlias(tuple, tuple(_bounded(name, hint) for name, hint in hints.items()))


def _bounded(name: str, hint: Any) -> Any:
    if hint in _DEFAULTS:
        wide = hint is int and name.endswith("_ns")
        return Annotated[hint, _WIDE if wide else _BOUNDS.get((hint, name), _DEFAULTS[hint])]
    if get_origin(hint) is tuple:
        items = GenericAlias(tuple, (_bounded(name, get_args(hint)[0]), ...))
        return Annotated[items, Meta(max_length=MAX_ITEMS)]
    if hasattr(hint, "_fields"):
        return _bounded_named_tuple(hint)
    return hint


def _bounded_named_tuple(cls: Any) -> Any:
    """A subclass that differs in its annotations alone: msgspec fills it as fast as the class itself."""
    hints = {name: _bounded(name, hint) for name, hint in get_type_hints(cls).items()}
    return type(
        cls.__name__, (cls,), {"__slots__": (), "__annotations__": hints, "__module__": cls.__module__}
    )
