"""Fleets for the tests of the planner: an island is a few words, the rest is usual."""

from __future__ import annotations

from atoll.sim.plan.fleet_file import FleetSpec, parse_fleet


def island(name: str, **changes: object) -> str:
    """An [[island]] of 128 chips behind 3 Gbit/s, with changes; a string stays in quotes."""
    keys: dict[str, object] = {"chips": 128, "flops": "200T", "up": "3Gbit/s", "rtt": "30ms", "slice": 8}
    keys |= {"price": 2.0, **changes}
    keys = {key: value for key, value in keys.items() if value is not None}
    lines = [f"{key} = {_value(value)}" for key, value in keys.items()]
    return "\n".join(["[[island]]", f'name = "{name}"', *lines]) + "\n"


def text(*islands: str, more: str = "", **model: object) -> str:
    """A fleet file: a model of 7B parameters, with changes, and these islands."""
    keys: dict[str, object] = {"params": "7B", "batch": "4M", **model}
    keys = {key: value for key, value in keys.items() if value is not None}
    head = "\n".join(["[model]", *(f"{key} = {_value(value)}" for key, value in keys.items())])
    return "\n".join([head, *islands, more])


def fleet(*islands: str, more: str = "", **model: object) -> FleetSpec:
    """The same, read."""
    return parse_fleet(text(*islands, more=more, **model))


def four(**changes: object) -> FleetSpec:
    """Four equal islands."""
    return fleet(*(island(name, **changes) for name in ("a", "b", "c", "d")))


def _value(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
