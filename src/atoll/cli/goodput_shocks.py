"""Failures that come together, as the command line names them.

`rack`, `power`, `site` and `push` alone stand for numbers of ours. They are illustrations of what such things
look like, not measurements of anybody's fleet: whoever knows their own writes all of it,
`rack:every=30d,share=0.1,down=1h,scope=learner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from atoll.errors import ConfigError
from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.model import Scope, Shock
from atoll.sim.units import DAY, HOUR, MINUTE, YEAR, read_duration, read_number

__all__ = ["ILLUSTRATIONS", "read_shock", "read_shocks"]

ILLUSTRATIONS = {
    "rack": Shock(name="rack", every_s=30 * DAY, share=0.02, returns=Delay(mean_s=HOUR)),
    "power": Shock(name="power", every_s=180 * DAY, share=0.25, returns=Delay(mean_s=4 * HOUR)),
    "site": Shock(name="site", every_s=2 * YEAR, share=1.0, returns=Delay(mean_s=12 * HOUR)),
    "push": Shock(name="push", every_s=90 * DAY, share=1.0, returns=Delay(mean_s=30 * MINUTE), scope="fleet"),
}
"""A rack switch, a power feed, a whole site, each striking one learner; a bad software push strikes all."""

_NEEDED = ("every", "share", "down")
_EXAMPLE = "rack:every=30d,share=0.1,down=1h"


def read_shocks(texts: Sequence[str]) -> tuple[Shock, ...]:
    """All that were asked for; two of one name could not be told apart, and are refused."""
    shocks = tuple(read_shock(text) for text in texts)
    names = [shock.name for shock in shocks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"--shock {twice} was given twice.",
            "The answer could not say which of them costs what.",
            f"Leave one out, or give it another name: {twice}-2:every=30d,share=0.1,down=1h.",
        )
    return shocks


def read_shock(text: str) -> Shock:
    """A shock from its name, or from its name and numbers."""
    name, colon, numbers = text.partition(":")
    if not colon:
        if name not in ILLUSTRATIONS:
            raise ConfigError(
                f"--shock is {text!r}.",
                "It is not known how often that happens, nor what it takes.",
                f"Use one of {', '.join(ILLUSTRATIONS)}, or write it out: {_EXAMPLE}.",
            )
        return ILLUSTRATIONS[name]
    values = _values(text, numbers)
    return Shock(
        name=name.strip() or "shock",
        every_s=read_duration(values["every"], "every of --shock"),
        share=read_number(values["share"], "share of --shock", above=True),
        returns=Delay(mean_s=read_duration(values["down"], "down of --shock", zero=True)),
        scope=cast(Scope, values.get("scope", "learner")),  # Shock refuses other words
    )


def _values(text: str, numbers: str) -> dict[str, str]:
    values = {}
    for part in numbers.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in (*_NEEDED, "scope") or key in values:
            raise ConfigError(
                f"--shock {text}: {part!r} cannot be read.",
                "A shock has every, share and down, and may have a scope, each once.",
                f"Write for example {_EXAMPLE}.",
            )
        values[key] = value
    missing = [key for key in _NEEDED if key not in values]
    if missing:
        raise ConfigError(
            f"--shock {text} has no {' and no '.join(missing)}.",
            "How often it comes, what share of a learner it takes and for how long decide what it costs.",
            f"Write for example {_EXAMPLE}.",
        )
    return values
