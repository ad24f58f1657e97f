"""Finished cells on disk: an interrupted experiment goes on, and no cell is trained twice.

A row lies under the key of its cell, in a folder named by the first two letters: `DIR/3f/3fa9....json`. The
file is indented and sorted, so that a person finds a row by eye. It is written under a name of its own and
then renamed: a reader meets a whole file or none, and of two processes that finish the same cell the last one
stays, with the same values.

What is read is believed only if it is whole, of this version of the lab, of this version of Python (whose
library is the text), and about the very settings that its name stands for. Anything else is left out with a
sentence, and written anew when its cell was trained.

A key names the plain settings of a cell (`Cell.plain`), so one Data-Parallel run answers for every number of
learners; the row that `find` returns carries the cell that was asked for.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll.errors import AtollError, StoreError
from atoll.sim.lab.cell import PYTHON, VERSIONS, Cell, Row

__all__ = ["Shelf", "check_writable", "write_whole"]

log = logging.getLogger(__name__)


class Shelf:
    """Rows of finished cells under one directory, which is made when the first row is put."""

    def __init__(self, path: Path, *, again: bool = False, say: Callable[[str], None] = log.warning) -> None:
        """`again`: only what this object has put is found, so everything is trained anew, once."""
        self.path = path
        self.again = again
        self._say = say
        self._told: set[str] = set()
        self._put: set[str] = set()

    def find(self, cell: Cell) -> Row | None:
        """The row of this cell, if it is kept and can be believed."""
        if self.again and cell.key not in self._put:
            return None
        row = self._read(self._file(cell.key))
        return None if row is None else replace(row, cell=cell)

    def put(self, row: Row) -> None:
        """Keep a row; from now on its cell is found."""
        plain = replace(row, cell=row.cell.plain())
        text = json.dumps(plain.to_json(), indent=1, sort_keys=True) + "\n"
        file = self._file(plain.cell.key)
        try:
            write_whole(file, text)
        except OSError as error:
            raise _lost(file, error) from error
        self._put.add(plain.cell.key)

    def take(self, file: Path) -> tuple[int, int]:
        """Keep the rows of a result that `atoll lab run` wrote; says how many were not kept before, and how
        many are of no use here: of another version of their task, or of the library of another Python."""
        rows, outdated = [], 0
        try:
            for values in json.loads(file.read_text(encoding="utf-8"))["rows"]:
                if _why_outdated(values):
                    outdated += 1
                else:
                    rows.append(_row_of(values, values["key"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, AtollError) as error:
            why = error.what if isinstance(error, AtollError) else f"{type(error).__name__}: {error}"
            raise StoreError(
                f"{file} cannot be taken in: {why}",
                "None of its rows was kept.",
                "Give a JSON file that `atoll lab run` of this version has written.",
            ) from error
        new = {row.cell.key: row for row in rows if self.find(row.cell) is None}
        for row in new.values():
            self.put(row)
        return len(new), outdated

    def check(self) -> None:
        """Refuse a directory in which nothing can be put, before anything is trained for it."""
        try:
            check_writable(self.path / "row.json")
        except OSError as error:
            raise _lost(self.path, error) from error

    def rows(self) -> list[Row]:
        """All rows that can be believed, in order of their keys."""
        found = (self._read(file) for file in sorted(self.path.glob("[0-9a-f][0-9a-f]/*.json")))
        return [row for row in found if row is not None]

    def named(self, key: str) -> Row:
        """The row with this key; its first letters do, if they fit one row only."""
        fitting = [row for row in self.rows() if row.cell.key.startswith(key)]
        if len(fitting) == 1:
            return fitting[0]
        how_many = f"{len(fitting)} rows" if fitting else "no row"
        raise StoreError(
            f"{how_many} in {self.path} with a key that begins with {key!r}.",
            "One row is wanted.",
            "Keys stand in the JSON of an experiment and are the names of the files; give more letters."
            if fitting
            else "Keys stand in the JSON of an experiment and are the names of the files; see also --cells.",
        )

    def _file(self, key: str) -> Path:
        return self.path / key[:2] / f"{key}.json"

    def _read(self, file: Path) -> Row | None:
        """The row in a file, if it can be believed; else a sentence, once."""
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            if why := _why_outdated(values):  # there may be hundreds: one sentence is for all
                self._tell(why, f"{file} and all like it are left out", why)
                return None
            return _row_of(values, file.stem)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, AtollError) as error:
            why = error.what if isinstance(error, AtollError) else f"no row ({type(error).__name__})"
            self._tell(str(file), f"{file} is left out", why)
            return None

    def _tell(self, once: str, what: str, why: str) -> None:
        if once not in self._told:
            self._told.add(once)
            self._say(f"{what}, and written anew when its cell is trained: {why}")


def write_whole(file: Path, text: str) -> None:
    """Write under a name of its own, then rename: a reader meets a whole file or the one before. May raise
    OSError."""
    new = _aside(file)
    try:
        new.write_text(text, encoding="utf-8")
        os.replace(new, file)
    finally:
        new.unlink(missing_ok=True)


def check_writable(file: Path) -> None:
    """Raise now the OSError that `write_whole` would raise later, as far as that can be known."""
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    new = _aside(file)
    try:
        new.write_text("Can this be written?\n", encoding="utf-8")
    finally:
        new.unlink(missing_ok=True)


def _aside(file: Path) -> Path:
    """A name that nobody else writes to, beside a file whose directory is made if need be."""
    file.parent.mkdir(parents=True, exist_ok=True)
    return file.with_name(f".{file.name}.{uuid.uuid4().hex}")


def _lost(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{path} cannot be written: {error.strerror}.",
        "Finished cells would be lost.",
        "Make room there, or name another directory with --cells.",
    )


def _why_outdated(values: Mapping[str, Any]) -> str:
    """Why these values are a row of no use any more, however whole they are; empty if they are not."""
    task, python = values["cell"]["task"], values["python"]
    if values["version"] != VERSIONS[task]:
        return f"it is of version {values['version']} of the lab's {task}, and this is {VERSIONS[task]}."
    if python != PYTHON:
        return f"its text was the library of Python {python or '(unknown)'}, and this is {PYTHON}."
    return ""


def _row_of(values: Mapping[str, Any], key: str) -> Row:
    """The row that these values give, if it is about the settings that the key names."""
    row = Row.of(values)
    if not isinstance(row.heldout_loss, float):
        raise StoreError(f"its held-out loss is {row.heldout_loss!r}.")
    if row.cell.key != key:
        raise StoreError("it is not about the settings that its name stands for.")
    return row
