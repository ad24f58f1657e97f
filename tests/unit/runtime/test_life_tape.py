"""A learner's tape is without a gap, whatever its disk refuses meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from atoll.runtime import life_tape
from atoll.runtime.life_tape import LifeTape
from atoll.runtime.tape_file import TapeFile
from atoll.tape.entries import Entry, Image, Milestone


class Life:
    """What happens, line by line, and the tape of it."""

    def __init__(self, path: Path, max_bytes: int = 1 << 20) -> None:
        self.path = path
        self.new: list[Entry] = []
        self.all: list[Entry] = []
        self.tape = LifeTape(TapeFile(path), max_bytes, self.take)

    def live(self, num_lines: int) -> None:
        lines = [Entry(len(self.all) + n, "a#1", Milestone("faults")) for n in range(num_lines)]
        self.new += lines
        self.all += lines

    def take(self, *, with_image: bool = False) -> list[Entry]:
        lines, self.new = self.new, []
        if with_image:
            image = Entry(len(self.all), "a#1", Image(0, b"the machine"))
            lines.append(image)
            self.all.append(image)
        return lines

    def from_the_last_image(self) -> list[Entry]:
        at = max(n for n, entry in enumerate(self.all) if isinstance(entry.item, Image))
        return self.all[at:]

    def rename(self, old: str, new: str) -> None:
        """A table that is not there is a disk that refuses; nothing that is in it gets lost."""
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute(f"ALTER TABLE {old} RENAME TO {new}")

    def refuse(self) -> None:
        self.rename("blocks", "elsewhere")

    def relent(self) -> None:
        self.rename("elsewhere", "blocks")

    def written(self) -> list[Entry]:
        return list(self.tape.file.read())


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    made = Life(tmp_path / "tape.db")
    yield made
    made.tape.close()


def test_what_was_refused_is_written_later_once_and_in_order(life):
    life.live(3)
    assert life.tape.save() == ""
    life.refuse()
    for _ in range(3):
        life.live(2)
        assert "no such table" in life.tape.save()
    life.relent()
    life.live(1)
    assert life.tape.save() == ""
    assert life.written() == life.all
    assert life.tape.save() == ""
    assert life.written() == life.all


def test_when_too_many_lines_wait_the_tape_begins_anew_as_soon_as_it_can(life, monkeypatch):
    monkeypatch.setattr(life_tape, "MAX_LINES", 10)
    life.live(3)
    life.tape.save()
    life.refuse()
    for _ in range(5):
        life.live(4)
        assert life.tape.save()
    life.relent()
    life.live(2)
    assert life.tape.save() == ""
    life.live(2)
    assert life.tape.save() == ""
    assert len(life.written()) == 3
    assert life.written() == life.from_the_last_image()


def test_no_more_lines_wait_than_are_allowed_for(life, monkeypatch):
    monkeypatch.setattr(life_tape, "MAX_LINES", 10)
    life.refuse()
    for _ in range(50):
        life.live(4)
        assert life.tape.save()
        assert len(life.tape._lines) <= 10 + 1
    life.relent()


def test_a_tape_that_is_too_long_begins_anew_also_if_that_is_refused_first(tmp_path):
    life = Life(tmp_path / "tape.db", max_bytes=0)
    life.live(3)
    assert life.tape.save() == ""
    life.rename("tape_cut", "elsewhere")
    life.live(3)
    assert "no such table" in life.tape.save()
    life.rename("elsewhere", "tape_cut")
    life.live(3)
    assert life.tape.save() == ""
    assert life.written() == life.from_the_last_image()
    assert len(life.written()) == 1
    life.tape.close()


def test_a_tape_that_lacks_its_end_says_so_when_it_is_closed(life, caplog):
    life.live(1)
    life.tape.save()
    life.tape.close()
    assert caplog.messages == []
    life.tape = LifeTape(TapeFile(life.path), 1 << 20, life.take)
    life.refuse()
    life.live(1)
    life.tape.save()
    life.tape.close()
    assert caplog.messages == ["the tape could not be written to the end"]
