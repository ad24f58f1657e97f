"""The files beside docs/results.md: JSON laid out so that diffs read, and pictures drawn from it.

An experiment at one size is one JSON file, NAME-SIZE.json, as `atoll lab run` wrote it but for its layout;
its pictures are NAME-SIZE.png, NAME-SIZE-2.png and so on. JSON has no infinity: null stands there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.observe.lab_pictures import draw
from atoll.sim.lab.report import Picture, Series

__all__ = ["Result", "laid_out", "laid_out_rows", "picture_files", "redraw", "stem_of", "write_results"]

Result = Mapping[str, Any]
"""What an experiment ended in, as its JSON has it."""

CURVE_DIGITS = 4


def stem_of(result: Result) -> str:
    """Names the files of a result: parity-tiny."""
    return f"{result['experiment']}-{result['size']}"


def picture_files(result: Result) -> list[str]:
    """The names of its pictures, in their order."""
    numbers = range(1, len(result["pictures"]) + 1)
    return [f"{stem_of(result)}{'' if number == 1 else f'-{number}'}.png" for number in numbers]


def write_results(result: Result, path: Path) -> None:
    """Write what an experiment ended in, laid out for diffs."""
    path.write_text(laid_out(result), encoding="utf-8")


def laid_out(result: Result) -> str:
    """JSON with one key on a line, and one item on a line within lists: one line for a training run.

    Points of curves are rounded, and pictures are named as they are here. Done twice it changes nothing more.
    """
    rows = _with_short_curves(result["rows"])
    named = zip(picture_files(result), result["pictures"], strict=True)
    pictures = [{**picture, "file": file} for file, picture in named]
    return _laid({**result, "pictures": pictures, "rows": rows})


def laid_out_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows alone in the same manner, which `atoll lab take` reads too."""
    return _laid({"rows": _with_short_curves(rows)})


def _laid(laid: Mapping[str, Any]) -> str:
    lines = [f"{json.dumps(key)}: {_item(value)}" for key, value in laid.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def redraw(result: Result, folder: Path) -> list[Path]:
    """Draw the pictures of a result; returns those that changed."""
    changed = []
    for file, values in zip(picture_files(result), result["pictures"], strict=True):
        path = folder / file
        before = path.read_bytes() if path.exists() else b""
        draw(_picture(values), path)
        if path.read_bytes() != before:
            changed.append(path)
    return changed


def _picture(values: Mapping[str, Any]) -> Picture:
    def numbers(found: Sequence[float | None]) -> tuple[float, ...]:
        return tuple(math.nan if number is None else number for number in found)

    series = tuple(
        Series(**one | {axis: numbers(one[axis]) for axis in ("x", "y", "error")}) for one in values["series"]
    )
    known = {name: value for name, value in values.items() if name != "file"}
    return Picture(**known | {"series": series, "names": tuple(values["names"])})


def _with_short_curves(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "curve": _rounded(row["curve"])} for row in rows]


def _item(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return _compact(value)
    return "[\n" + ",\n".join(_compact(item) for item in value) + "\n]"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _rounded(curve: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
    return [[None if one is None else round(one, CURVE_DIGITS) for one in point] for point in curve]
