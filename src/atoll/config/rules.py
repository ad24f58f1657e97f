"""How a setting is held against its rule, and what is said when it does not fit.

A section gives every field one rule. A rule looks at one value, given the setting's full name and
its default (the best example of a good value); it returns the value in its own type, or raises a
`ConfigError` that says what is wrong, what would follow, and what to do now.
"""

from __future__ import annotations

import difflib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias

from atoll.errors import ConfigError

__all__ = [
    "SHORTEST_S",
    "Rule",
    "check",
    "count",
    "did_you_mean",
    "flag",
    "number",
    "one_of",
    "show",
    "toml_value",
    "whole",
]

Rule: TypeAlias = Callable[[str, object, object], object]

SHORTEST_S = 0.001
"""A wait shorter than this is a typing error, and would round to nothing in nanoseconds."""


def check(section: str, config: Any, rules: Mapping[str, Rule]) -> None:
    """Hold every field of a section against its rule; an int given for a float becomes one."""
    for f in fields(config):
        value = rules[f.name](f"{section}.{f.name}", getattr(config, f.name), f.default)
        object.__setattr__(config, f.name, value)


def whole(so_what: str, *, at_least: int, at_most: int | None = None, or_open: bool = False) -> Rule:
    """A whole number within its limits; `or_open` lets it stay unset."""
    wanted = f"at least {at_least}" + ("" if at_most is None else f" and at most {at_most}")

    def rule(name: str, value: object, default: object) -> int | None:
        if or_open and value is None:
            return None
        example = at_least if default is None else default
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong_type(name, value, "a whole number", example)
        if value < at_least or (at_most is not None and value > at_most):
            raise _out_of_range(name, value, wanted, so_what, example)
        return value

    return rule


def number(
    so_what: str,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    at_most: float = math.inf,
    or_zero: bool = False,
    or_open: bool = False,
) -> Rule:
    """A finite number within its limits; `or_zero` also lets it be turned off, `or_open` stay unset."""
    limits = {"at least": at_least, "above": above, "below": below, "at most": at_most}
    wanted = " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit))
    wanted = f"0 or {wanted}" if or_zero else wanted

    def rule(name: str, value: object, default: object) -> float | None:
        if or_open and value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _wrong_type(name, value, "a number", default)
        if not abs(value) <= sys.float_info.max:  # NaN, an infinity, or an int that no float holds
            raise _out_of_range(name, value, "finite", "Nothing could be computed from it.", default)
        fits = at_least <= value <= at_most and above < value < below
        if not fits and not (or_zero and value == 0):
            raise _out_of_range(name, value, wanted, so_what, default)
        return float(value)

    return rule


def flag(name: str, value: object, default: object) -> bool:
    """True or false, and nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise _wrong_type(name, value, "true or false", default)
    return value


def one_of(choices: Sequence[str], so_what: str) -> Rule:
    """One of a few words."""

    def rule(name: str, value: object, default: object) -> str:
        if not isinstance(value, str):
            raise _wrong_type(name, value, "a string", default)
        if value not in choices:
            listed = ", ".join(show(choice) for choice in choices)
            raise ConfigError(
                f"{name} is {show(value)}, which is none of {listed}.",
                so_what,
                did_you_mean(value, choices, quote=True) + f"Set {name} to one of {listed}.",
            )
        return value

    return rule


def did_you_mean(word: str, known: Sequence[str], *, quote: bool = False) -> str:
    """A question with the known word that resembles this one, or nothing."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"Did you mean {show(close[0]) if quote else close[0]}? " if close else ""


def show(value: object) -> str:
    """A value as the user would write it in TOML, so that it is recognised."""
    if isinstance(value, (bool, str)):
        return toml_value(value)
    return "not set" if value is None else repr(value)


def toml_value(value: object) -> str:
    """A setting as TOML that reads back to the same value."""
    # A JSON string is a TOML string, true and false are the same, and repr(float) reads back exactly.
    return json.dumps(value) if isinstance(value, (bool, str)) else repr(value)


def count(number: int, noun: str) -> str:
    """A number with its noun, plural where it must be."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _wrong_type(name: str, value: object, wanted: str, default: object) -> ConfigError:
    return ConfigError(
        f"{name} is {show(value)}, not {wanted}.",
        "Atoll does not guess what was meant, because a wrong guess would run for days.",
        f"Write {wanted}, for example {name} = {show(default)}.",
    )


def _out_of_range(name: str, value: object, wanted: str, so_what: str, default: object) -> ConfigError:
    return ConfigError(
        f"{name} is {show(value)}; it must be {wanted}.",
        so_what,
        f"Set {name} to a value that is {wanted}, for example {show(default)}.",
    )
