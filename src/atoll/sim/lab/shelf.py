"""Finished cells on disk: an interrupted experiment goes on, and no cell is trained twice.

A row lies under the key of its cell, in a folder named by the first two letters: `DIR/3f/3fa9....json`. The
file is indented and sorted, so that a person finds a row by eye. It is written under a name of its own and
then renamed: a reader meets a whole file or none, and of two processes that finish the same cell the last one
stays, with the same values.

What is read is believed only if it is whole, of this version of the lab, of this version of Python (whose
library is the text), about the very settings that its name stands for, and if every value is what its field
can hold. Anything else is left out with a sentence, and written anew when its cell was trained.

A key names the plain settings of a cell (`Cell.plain`), so one Data-Parallel run answers for every number of
learners; the row that `find` returns carries the cell that was asked for.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from atoll.errors import AtollError, StoreError
from atoll.sim.lab.cell import PYTHON, VERSIONS, Cell, Row

__all__ = ["Shelf", "check_writable", "write_whole"]

log = logging.getLogger(__name__)

ANEW = "left out, and written anew when its cell is trained"
UNBELIEVABLE = (
    OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, AtollError,
)  # fmt: skip
"""What a file that somebody else has written may raise on its way to a row."""


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
        """The row of this cell, if it is kept and can be believed; refuses a cell whose row has no place."""
        file = self._file(cell.key)
        if os.path.isdir(file):
            raise StoreError(
                f"{file} is a directory, where the row of a cell belongs.",
                "The row could not be kept.",
                "Remove that directory, or name another one for the cells with --cells.",
            )
        if self.again and cell.key not in self._put:
            return None
        row = self._read(file)
        return None if row is None else replace(row, cell=cell)

    def put(self, row: Row) -> None:
        """Keep a row; from now on its cell is found."""
        try:
            self._write(row)
        except OSError as error:
            raise _unwritable(self._file(row.cell.key), error, "Finished cells would be lost.") from error

    def take(self, file: Path) -> tuple[int, int]:
        """Keep the rows of a result that `atoll lab run` wrote; says how many were not kept before, and how
        many are of no use here: of another version of their task, or of the library of another Python."""
        rows, outdated, which = [], 0, ""
        try:
            for number, values in enumerate(json.loads(file.read_text(encoding="utf-8"))["rows"], 1):
                which = f"row {number}: "
                which = f"row {values.get('key', number)}: "
                if _why_outdated(values):
                    outdated += 1
                else:
                    rows.append(_row_of(values, values["key"]))
        except UNBELIEVABLE as error:
            raise StoreError(
                f"{file} cannot be taken in: {which}{_why(error)}",
                "None of its rows was kept.",
                "Give a JSON file that `atoll lab run` of this version has written.",
            ) from error
        self._check_readable()
        new = {row.cell.key: row for row in rows if self.find(row.cell) is None}
        for num_kept, (key, row) in enumerate(new.items()):
            try:
                self._write(row)
            except OSError as error:
                so_what = f"{num_kept} of {len(new)} new rows of {file} are kept by now, the others are not."
                raise _unwritable(self._file(key), error, so_what) from error
        return len(new), outdated

    def check(self) -> None:
        """Refuse a directory in which nothing can be put, before anything is trained for it."""
        try:
            check_writable(self.path / "row.json")
        except OSError as error:
            raise _unwritable(self.path, error, "Finished cells would be lost.") from error

    def rows(self) -> list[Row]:
        """All rows that can be believed, in order of their keys; refuses a path that is no directory."""
        self._check_readable()
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

    def _check_readable(self) -> None:
        """Refuse what cannot be a shelf, and make nothing; a shelf that is not there yet is an empty one."""
        try:
            os.scandir(self.path).close()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be read as a directory: {error.strerror}.",
                "Finished cells can neither be found there nor be kept there.",
                "Name another directory with --cells.",
            ) from error

    def _write(self, row: Row) -> None:
        """May raise OSError."""
        plain = replace(row, cell=row.cell.plain())
        key = plain.cell.key
        write_whole(self._file(key), json.dumps(plain.to_json(), indent=1, sort_keys=True) + "\n")
        self._put.add(key)

    def _read(self, file: Path) -> Row | None:
        """The row in a file, if it can be believed; else a sentence, once."""
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            if why := _why_outdated(values):  # there may be hundreds: one sentence is for all
                self._tell(why, f"{file} and all like it are {ANEW}: {why}")
                return None
            return _row_of(values, file.stem)
        except FileNotFoundError:
            return None
        except IsADirectoryError:
            why = "a directory, to be removed before its cell is trained."
            self._tell(str(file), f"{file} is left out: {why}")
            return None
        except UNBELIEVABLE as error:
            self._tell(str(file), f"{file} is {ANEW}: {_why(error)}")
            return None

    def _tell(self, once: str, sentence: str) -> None:
        if once not in self._told:
            self._told.add(once)
            self._say(sentence)


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


def _unwritable(path: Path, error: OSError, so_what: str) -> StoreError:
    return StoreError(
        f"{path} cannot be written: {error.strerror}.",
        so_what,
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


def _why(error: Exception) -> str:
    """In words, or as Python says it."""
    return error.what if isinstance(error, AtollError) else f"{type(error).__name__}: {error}"


def _row_of(values: Mapping[str, Any], key: str) -> Row:
    """The row that these values give, if it can be one and is about the settings that the key names."""
    try:
        row = msgspec.convert(asdict(Row.of(values)), Row)
    except msgspec.ValidationError as error:
        raise StoreError(f"a value is of the wrong type: {error}.") from error
    if not (0 < row.cpu_s < math.inf and 0 < row.virtual_s < math.inf and 0 <= row.wall_s < math.inf):
        times = f"cpu_s {row.cpu_s}, virtual_s {row.virtual_s} and wall_s {row.wall_s}"
        raise StoreError(f"its times are {times}, and no cell takes that.")
    for loss in (row.heldout_loss, *(loss for _, loss in row.curve)):
        if loss < 0:  # one that ran away is NaN or infinite, and may be
            raise StoreError(f"it has a loss of {loss}, and no loss is negative.")
    if row.cell.key != key:
        raise StoreError("it is not about the settings that its name stands for.")
    return row
