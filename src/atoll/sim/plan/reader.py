"""One table of a fleet file: its values by key, each read, bounded, or refused with what to write instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from atoll.config.rules import did_you_mean, show
from atoll.errors import ConfigError
from atoll.sim.plan.keys import EITHER, KEYS

__all__ = ["NO_EFFECT", "Reader"]

MAY_BE_ENDLESS = ("mtbi", "returns", "every", "outage_every")
"""What may never happen: a failure, a return, a shock, an outage."""
NO_EFFECT = "It would have no effect, and the plan would not be for the fleet described."
MOST = 1e15
"""Of anything that has no bound of its own, in the unit that it is computed in: more is a slip of the pen."""

Amount = TypeVar("Amount", int, float)


class Reader:
    """The values of one table, by key; refusals name the table as the file does."""

    def __init__(self, kind: str, table: object, label: str) -> None:
        if not isinstance(table, Mapping):
            raise ConfigError(f"{label} is not a table.", NO_EFFECT, f"Write it below [{kind}].")
        name = table.get("name")
        self.label = f"{kind} {name}" if isinstance(name, str) and name else label
        self.table = table
        for key in table:
            if key not in KEYS[kind]:
                known = list(KEYS[kind])
                now_what = f"{did_you_mean(key, known)}The keys of {kind} are {', '.join(known)}."
                raise ConfigError(f"{self.label} has a key {key}, which nobody knows.", NO_EFFECT, now_what)
        for key, other in EITHER.items():
            if key in table and other in table:
                raise ConfigError(
                    f"{self.label} gives both {other} and {key}.",
                    "They say the same, and could contradict each other.",
                    "Keep one of them; the other follows from it.",
                )

    def has(self, key: str) -> bool:
        return key in self.table

    def need(self, key: str, read: Callable[..., Amount], **limits: Any) -> Amount:
        if key not in self.table:
            other = next((mine for mine, theirs in EITHER.items() if theirs == key), None)
            either = f" (or {other})" if other else ""
            kind = self.label.split()[0]
            example = KEYS[kind][key]
            raise ConfigError(
                f"{self.label} has no {key}{either}.",
                "A plan cannot be made without it.",
                f"Write for example {key} = {example[0]}: {example[1]}.",
            )
        value = self.table[key]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ConfigError(
                f"{self.label}: {key} is {show(value)}.",
                "It is neither a number nor an amount in quotes.",
                f"Write for example {key} = {KEYS[self.label.split()[0]][key][0]}.",
            )
        amount = read(value, f"{self.label}: {key}", **limits)
        if not math.isfinite(amount) and key not in MAY_BE_ENDLESS:
            raise ConfigError(
                f"{self.label}: {key} is {show(value)}.",
                "Nothing can be computed from an endless amount.",
                f"Write for example {key} = {KEYS[self.label.split()[0]][key][0]}.",
            )
        if MOST < amount < math.inf and "most" not in limits:
            raise ConfigError(
                f"{self.label}: {key} is {amount:g}.",
                "Nothing real has that size.",
                f"Write for example {key} = {KEYS[self.label.split()[0]][key][0]}.",
            )
        return amount

    def get(self, key: str, read: Callable[..., Amount], default: Amount, **limits: Any) -> Amount:
        return self.need(key, read, **limits) if key in self.table else default

    def flag(self, key: str, default: bool) -> bool:
        value = self.table.get(key, default)
        if not isinstance(value, bool):
            raise ConfigError(
                f"{self.label}: {key} is {show(value)}.",
                "It is a question with two answers.",
                f"Write {key} = true or {key} = false, without quotes.",
            )
        return value

    def word(self, key: str, default: str | None = None) -> str:
        value = self.table.get(key, default)
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(
                f"{self.label} has no {key}." if value is None else f"{self.label}: {key} is {show(value)}.",
                "The answer could not say which one it means.",
                f"Write it in quotes, for example {key} = {KEYS[self.label.split()[0]][key][0]}.",
            )
        return value
