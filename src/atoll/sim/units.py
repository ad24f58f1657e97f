"""Amounts as people write them: 1.2M chips, 1y, 150ms, 2.5Gbit/s, 12B parameters.

One reader and one writer for each kind of amount, shared by the command line and by fleet files. What
cannot be read is refused with the ways to write it; what can be read and cannot be meant (a negative
number of chips, a mean time of zero, more chips than there are grains of sand) is refused with the bound.
"""

from __future__ import annotations

import math
import re

from atoll.errors import ConfigError

__all__ = [
    "DAY",
    "HOUR",
    "MINUTE",
    "YEAR",
    "read_count",
    "read_counts",
    "read_duration",
    "read_number",
    "read_rate",
    "say_count",
    "say_duration",
    "say_rate",
]

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0
YEAR = 365.25 * DAY

MOST_COUNTED = 10**15
"""Of anything: chips, parameters, tokens."""
LONGEST_S = 1e12
"""Some thirty thousand years. Whoever means longer means for ever, and writes inf."""

_COUNTS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_SPANS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "m": MINUTE, "min": MINUTE, "h": HOUR}
_SPANS |= {"d": DAY, "w": 7 * DAY, "mo": YEAR / 12, "y": YEAR}
_RATES = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9, "Tbit/s": 1e12}
_RATE_WORDS = {"bps": "bit/s", "kbps": "kbit/s", "Mbps": "Mbit/s", "Gbps": "Gbit/s", "Tbps": "Tbit/s"}
_AMOUNT = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?inf)\s*([A-Za-z/]*)\s*")


def read_number(
    text: str | float, name: str, *, least: float = 0.0, above: bool = False, most: float = math.inf
) -> float:
    """A plain number, at least (or above) a bound, and at most another."""
    value = _bounded(_amount(text, name, {"": 1.0}, "0.5, 12, 1e9"), name, least, above)
    if value > most:
        raise ConfigError(f"{name} is {value:g}.", "Nothing real is that large.", f"Give at most {most:g}.")
    return value


def read_count(text: str | float, name: str, *, least: int = 1, most: int = MOST_COUNTED) -> int:
    """A whole number of things: 800, 150k, 1.2M, 12B."""
    value = _bounded(_amount(text, name, _COUNTS, "800, 150k, 1.2M, 12B"), name, least, above=False)
    if value > most:
        raise ConfigError(f"{name} is {value:g}.", "Nobody has that many.", f"It must be at most {most:g}.")
    if abs(value - round(value)) > 1e-6 + 1e-14 * value:
        raise ConfigError(f"{name} is {text}.", "It counts whole things.", "Write for example 800 or 150k.")
    return round(value)


def read_counts(text: str, name: str, *, least: int = 1, most: int = MOST_COUNTED) -> tuple[int, ...]:
    """Several of them: 150k,1.2M. Each once, in the order given."""
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(f"{name} is empty.", "There is nothing to compute.", "Write for example 1,2,4,8.")
    return tuple(dict.fromkeys(read_count(part, name, least=least, most=most) for part in parts))


def read_duration(text: str | float, name: str, *, zero: bool = False) -> float:
    """Seconds: 90, 150ms, 12 min, 6h, 30d, 1y, inf. Above zero unless zero is allowed."""
    value = _bounded(_amount(text, name, _SPANS, "150ms, 17.5s, 12min, 6h, 30d, 1y"), name, 0.0, not zero)
    if value > LONGEST_S and "inf" not in str(text):
        raise ConfigError(
            f"{name} is {text}.",
            f"Nobody waits for longer than {LONGEST_S:g} s.",
            "Give less; where something never happens, write inf.",
        )
    return value


def read_rate(text: str | float, name: str) -> float:
    """Bits per second: 2.5Gbit/s, 100 Mbps; a plain number is in bit/s."""
    units = {"": 1.0, **_RATES, **{word: _RATES[unit] for word, unit in _RATE_WORDS.items()}}
    return _bounded(_amount(text, name, units, "50Mbit/s, 2.5Gbit/s"), name, 0.0, above=True)


def say_count(value: float) -> str:
    """To four digits, the way people write a count: 150k, 1.2M, 12B."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 0.99995:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"


def say_duration(seconds: float) -> str:
    """In the unit a person would choose, to three digits: 150 ms, 17.5 s, 3.2 h, 41 d, 1 y."""
    if math.isinf(seconds):
        return "for ever"
    scales = ((YEAR, "y"), (DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
    for size, unit in scales:
        if abs(seconds) >= size * 0.9995:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def say_rate(bits_per_s: float) -> str:
    """To three digits: 829 Mbit/s, 1.71 Gbit/s."""
    for unit in ("Tbit/s", "Gbit/s", "Mbit/s", "kbit/s"):
        if abs(bits_per_s) >= _RATES[unit] * 0.9995:
            return f"{bits_per_s / _RATES[unit]:.3g} {unit}"
    return f"{bits_per_s:.3g} bit/s"


def _amount(text: object, name: str, units: dict[str, float], examples: str) -> float:
    """A number times its unit. Anything may stand in a file, so anything may come here."""
    if isinstance(text, bool) or not isinstance(text, int | float | str):
        raise _unreadable(str(text), name, examples)
    if isinstance(text, int):
        text = str(text)  # one too long for a float reads as infinite
    if isinstance(text, float):
        return text
    found = _AMOUNT.fullmatch(text)
    if found is None or found[2] not in units:
        raise _unreadable(text, name, examples)
    return float(found[1].replace("_", "")) * units[found[2]]


def _bounded(value: float, name: str, least: float, above: bool) -> float:
    if math.isnan(value) or value < least or (above and value == least):
        bound = f"above {least:g}" if above else f"at least {least:g}"
        raise ConfigError(f"{name} is {value:g}.", "Nothing real has that size.", f"It must be {bound}.")
    return value


def _unreadable(text: str, name: str, examples: str) -> ConfigError:
    return ConfigError(f"{name} is {text!r}.", "It cannot be read.", f"Write it like one of: {examples}.")
