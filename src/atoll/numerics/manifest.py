"""The manifest: which values a run exchanges, and in which fragment each of them travels.

A *storage* is a trainable tensor, listed once however many names it goes by. A *unit* is a range of
one storage's values in row-major order, merged as one vector by its rule. A *fragment* is a list of
units; its values, one unit after the other, are what an offer or a publish of that fragment carries.
Learners and syncer must hold the same manifest: compare digests, and ask `first_difference` for a
sentence when they differ. Frozen parameters and buffers stay local and are only named.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, Literal, cast

from atoll.errors import ModelError

__all__ = ["Fragment", "Manifest", "Rule", "Storage", "Unit"]

Rule = Literal["mean", "rda"]


@dataclass(frozen=True, slots=True)
class Storage:
    """One trainable tensor, under its first name."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As torch prints it without its prefix: float32, bfloat16, ..."""
    aliases: tuple[str, ...] = ()
    """The other names of a tied tensor."""

    @property
    def numel(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Unit:
    """Values [start, stop) of a storage in row-major order, merged as one vector."""

    storage: str
    start: int
    stop: int
    rule: Rule

    @property
    def numel(self) -> int:
        """Number of values."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Fragment:
    """The units that travel together, in the order of their values."""

    index: int
    units: tuple[Unit, ...]

    @property
    def numel(self) -> int:
        """Number of values of an offer on this fragment."""
        return sum(unit.numel for unit in self.units)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything two sides must agree on before they exchange values."""

    storages: tuple[Storage, ...]
    fragments: tuple[Fragment, ...]
    frozen: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()

    @property
    def numel(self) -> int:
        """N: number of values exchanged."""
        return sum(storage.numel for storage in self.storages)

    @property
    def digest(self) -> str:
        """Hex digest of storages and fragments. What stays local, frozen or buffer, does not count."""
        plain = self.to_dict()
        agreed = {"storages": plain["storages"], "fragments": plain["fragments"]}
        text = json.dumps(agreed, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def first_difference(self, other: Manifest) -> str | None:
        """Name the first tensor on which two manifests disagree, with both sides; None if they agree."""
        theirs = {storage.name: storage for storage in other.storages}
        for storage in self.storages:
            found = theirs.pop(storage.name, None)
            if found is None:
                return f"{_describe(storage)} is missing on the other side"
            if storage != found:
                return f"{_describe(storage)} is {_describe(found)} on the other side"
        for extra in theirs.values():
            return f"{_describe(extra)} exists only on the other side"
        for mine, found_name in zip(self.storages, (s.name for s in other.storages), strict=True):
            if mine.name != found_name:
                return f"{mine.name} stands where the other side has {found_name}"
        return self._first_difference_in_cut(other)

    def _first_difference_in_cut(self, other: Manifest) -> str | None:
        if len(self.fragments) != len(other.fragments):
            return f"{len(self.fragments)} fragments here, {len(other.fragments)} on the other side"
        for mine, theirs in zip(self.fragments, other.fragments, strict=True):
            for k in range(max(len(mine.units), len(theirs.units))):
                here = mine.units[k] if k < len(mine.units) else None
                there = theirs.units[k] if k < len(theirs.units) else None
                if here != there:
                    where = f"fragment {mine.index}, unit {k}"
                    return f"{where}: {_range(here)} here, {_range(there)} on the other side"
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, strings and integers, for the wire and for files."""
        return {
            "storages": [
                {"name": s.name, "shape": list(s.shape), "dtype": s.dtype, "aliases": list(s.aliases)}
                for s in self.storages
            ],
            "fragments": [[[u.storage, u.start, u.stop, u.rule] for u in f.units] for f in self.fragments],
            "frozen": list(self.frozen),
            "buffers": list(self.buffers),
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Manifest:
        """Rebuild a manifest and check that its units cover every storage exactly once."""
        try:
            manifest = cls(
                storages=tuple(
                    Storage(str(s["name"]), tuple(map(int, s["shape"])), str(s["dtype"]), tuple(s["aliases"]))
                    for s in plain["storages"]
                ),
                fragments=tuple(
                    Fragment(index, tuple(_unit(fields) for fields in units))
                    for index, units in enumerate(plain["fragments"])
                ),
                frozen=tuple(plain["frozen"]),
                buffers=tuple(plain["buffers"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _unreadable(f"{type(error).__name__}: {error}") from error
        manifest._check_cover()
        return manifest

    def _check_cover(self) -> None:
        """Every value of every storage in exactly one unit, or `ModelError`."""
        ends = dict.fromkeys((storage.name for storage in self.storages), 0)
        units = [unit for fragment in self.fragments for unit in fragment.units]
        for unit in sorted(units, key=lambda unit: (unit.storage, unit.start)):
            if ends.get(unit.storage) != unit.start or unit.stop <= unit.start:
                raise _unreadable(f"{_range(unit)} overlaps, leaves a gap, or names no tensor")
            ends[unit.storage] = unit.stop
        for storage in self.storages:
            if ends[storage.name] != storage.numel:
                raise _unreadable(f"{_describe(storage)} is covered up to {ends[storage.name]} only")


def _unit(fields: Any) -> Unit:
    storage, start, stop, rule = fields
    if rule not in ("mean", "rda"):
        raise ValueError(f"unknown rule {rule!r}")
    return Unit(str(storage), int(start), int(stop), cast(Rule, rule))


def _unreadable(why: str) -> ModelError:
    return ModelError(
        f"This is not the manifest of a model: {why}.",
        "Values could not be told apart, so nothing may be exchanged.",
        "Check that both sides run the same version of Atoll.",
    )


def _describe(storage: Storage) -> str:
    tied = f", tied to {', '.join(storage.aliases)}" if storage.aliases else ""
    return f"{storage.name} ({storage.dtype}, shape {list(storage.shape)}{tied})"


def _range(unit: Unit | None) -> str:
    return "nothing" if unit is None else f"{unit.storage}[{unit.start}:{unit.stop}] ({unit.rule})"
