"""Numbers, sizes and times as a person reads them; the one home of their shapes.

Every function takes None as well, because before the first report most of a status is unknown, and
then says `-`. Ratios come as fractions and are shown as percentages. Text that came from elsewhere
(names, reasons) goes through `plain`: a status may have crossed the network, and an escape code in
a learner's name must not reach a terminal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = [
    "UNKNOWN",
    "count",
    "data_size",
    "decimal",
    "duration",
    "finite",
    "loss",
    "millis",
    "percent",
    "plain",
    "short_count",
    "si",
]

UNKNOWN = "-"
SI_UNITS = ("", "k", "M", "G", "T", "P", "E")
BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
MAX_PLAIN_CHARS = 240


def count(value: float | None) -> str:
    """A whole number with thousands marked: 12,345."""
    return UNKNOWN if value is None else _odd(value) or f"{value:,.0f}"


def short_count(value: float | None) -> str:
    """A count that must stay within six characters: 12,345 and then 123k."""
    return count(value) if value is None or abs(value) < 99_999.5 else si(value)


def loss(value: float | None) -> str:
    """A loss with three decimals, 2.314; one that has run away is only a size, 1.23k."""
    return decimal(value) if value is None or abs(value) < 99.9995 else si(value)


def decimal(value: float | None, digits: int = 3) -> str:
    """A number with a fixed count of decimals: 2.314."""
    return UNKNOWN if value is None else _odd(value) or f"{value:,.{digits}f}"


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction as a percentage: 0.962 is 96.2 %."""
    return UNKNOWN if value is None else _odd(value) or f"{100 * value:.{digits}f} %"


def millis(value: float | None) -> str:
    """Milliseconds without their unit, with as many decimals as mean something: 0.12, 99.1, 1,234."""
    if value is None or _odd(value):
        return UNKNOWN if value is None else _odd(value)
    return f"{value:,.{2 if abs(value) < 9.995 else 1 if abs(value) < 999.5 else 0}f}"


def si(value: float | None) -> str:
    """A number in three digits and a unit: 328, 41.2k, 1.31M."""
    if value is None or _odd(value):
        return UNKNOWN if value is None else _odd(value)
    number, unit = _scaled(value, SI_UNITS)
    return number + unit


def data_size(num_bytes: float | None) -> str:
    """Bytes in decimal units: 12.4 MB."""
    if num_bytes is None or _odd(num_bytes):
        return UNKNOWN if num_bytes is None else _odd(num_bytes)
    return " ".join(_scaled(num_bytes, BYTE_UNITS))


def duration(seconds: float | None) -> str:
    """A length of time in its two largest units: 48 s, 1 min 12 s, 3 h 05 min, 2 d 03 h."""
    if seconds is None or _odd(seconds):
        return UNKNOWN if seconds is None else _odd(seconds)
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def plain(text: object) -> str:
    """One line of printable characters, cut where nobody reads on."""
    line = "".join(char if char.isprintable() else " " for char in str(text))
    return line if len(line) <= MAX_PLAIN_CHARS else line[: MAX_PLAIN_CHARS - 3] + "..."


def _odd(value: float) -> str:
    """How to write what is no number: `nan`, `inf`, `-inf`. Empty for every other value."""
    return "" if math.isfinite(value) else str(float(value))


def _scaled(value: float, units: tuple[str, ...]) -> tuple[str, str]:
    """At most three digits and their unit. Counts below a thousand stay whole."""
    size, unit = abs(value), 0
    while size >= 999.5 and unit < len(units) - 1:
        size, unit = size / 1000, unit + 1
    is_whole = unit == 0 and float(value).is_integer()
    digits = 0 if is_whole or size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{'-' if value < 0 else ''}{size:.{digits}f}", units[unit]


def finite(value: Any) -> Any:
    """The same value without NaN and infinity, which JSON does not have: null stands there."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
