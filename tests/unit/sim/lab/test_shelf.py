"""Finished cells are found again, and nothing else is."""

from __future__ import annotations

import json
import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atoll.errors import StoreError
from atoll.sim.lab.cell import PYTHON, VERSIONS, Cell, Fleet
from atoll.sim.lab.shelf import Shelf, check_writable, write_whole
from tests.unit.sim.lab.fakes import cell_at
from tests.unit.sim.lab.made_up import made_up

CELL = cell_at("decoupled", 4, 1, fleet=Fleet(speeds=(1.0, 0.5)))
VERSION = VERSIONS[CELL.task]


def file_of(path: Path, cell: Cell) -> Path:
    return path / cell.key[:2] / f"{cell.key}.json"


def shelf_at(path: Path, **options: bool) -> tuple[Shelf, list[str]]:
    said: list[str] = []
    return Shelf(path, say=said.append, **options), said


def test_what_was_put_is_found_again_value_by_value(tmp_path):
    row = made_up(CELL, 0.1 + 0.2, curve=((1 / 3, 2.5), (1.0, 0.1 + 0.2)))
    Shelf(tmp_path / "new").put(row)
    shelf, said = shelf_at(tmp_path / "new")
    assert shelf.find(CELL) == row
    assert shelf.rows() == [row]
    assert said == []


def test_a_loss_that_ran_away_is_kept_as_it_is(tmp_path):
    Shelf(tmp_path).put(made_up(CELL, math.inf))
    found = Shelf(tmp_path).find(CELL)
    assert found is not None
    assert found.heldout_loss == math.inf


def test_an_empty_or_missing_directory_holds_nothing(tmp_path):
    shelf, said = shelf_at(tmp_path / "missing")
    assert shelf.find(CELL) is None
    assert shelf.rows() == []
    assert said == []


def test_other_settings_are_another_cell(tmp_path):
    shelf = Shelf(tmp_path)
    shelf.put(made_up(CELL))
    assert shelf.find(replace(CELL, seed=2)) is None
    assert shelf.find(replace(CELL, fleet=Fleet(speeds=(1.0, 0.25)))) is None


def test_one_data_parallel_run_answers_for_every_number_of_learners(tmp_path):
    shelf = Shelf(tmp_path)
    shelf.put(made_up(cell_at("data-parallel", 2, 1)))
    asked = cell_at("data-parallel", 8, 1)
    found = shelf.find(asked)
    assert found is not None
    assert found.cell == asked
    assert [row.cell.learners for row in shelf.rows()] == [1]


def test_a_person_finds_a_row_by_eye(tmp_path):
    Shelf(tmp_path).put(made_up(CELL))
    lines = file_of(tmp_path, CELL).read_text().splitlines()
    names = [line.split('"')[1] for line in lines if line.startswith(' "')]
    assert names == sorted(names)
    assert ' "heldout_loss": 2.0,' in lines
    assert '  "method": "decoupled",' in lines


DAMAGE = {
    "torn": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "no object": lambda text: "[1, 2]",
    "no number": lambda text: text.replace(f'"version": {VERSION}', '"version": "x"'),
    "older": lambda text: text.replace(f'"version": {VERSION}', f'"version": {VERSION - 1}'),
    "a field less": lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "merges"}),
    "unknown settings": lambda text: text.replace('"mu"', '"nu"'),
    "impossible settings": lambda text: text.replace('"learners": 4', '"learners": 3'),
    "other settings": lambda text: text.replace('"seed": 1', '"seed": 7'),
    "other library": lambda text: text.replace(f'"python": "{PYTHON}"', '"python": "2.7"'),
    "unknown library": lambda text: text.replace(f'"python": "{PYTHON}"', '"python": ""'),
    "no loss": lambda text: text.replace('"heldout_loss": 2.0', '"heldout_loss": "oops"'),
    "no text": lambda text: "\udcff",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_file_that_cannot_be_believed_is_left_out_with_one_sentence_and_written_anew(tmp_path, kind):
    Shelf(tmp_path).put(made_up(CELL))
    file = file_of(tmp_path, CELL)
    damaged = DAMAGE[kind](file.read_text())
    file.write_bytes(damaged.encode("utf-8", "surrogateescape"))
    shelf, said = shelf_at(tmp_path)
    assert shelf.find(CELL) is None
    assert shelf.rows() == []
    assert len(said) == 1
    assert str(file) in said[0]
    assert "left out" in said[0]
    shelf.put(made_up(CELL))
    assert shelf.find(CELL) == made_up(CELL)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a time that is text": ({"cpu_s": "x"}, "`float`, got `str` - at `$.cpu_s`"),
    "a time that is not finite": ({"cpu_s": None}, "cpu_s nan"),
    "no time": ({"cpu_s": 0}, "cpu_s 0.0"),
    "a time before the beginning": ({"wall_s": -1.0}, "wall_s -1.0"),
    "endless virtual time": ({"virtual_s": math.inf}, "virtual_s inf"),
    "a ratio that is text": ({"goodput": "x"}, "`float`, got `str` - at `$.goodput`"),
    "a ratio that is true": ({"goodput": True}, "`float`, got `bool` - at `$.goodput`"),
    "a count that is no whole number": ({"merges": 1.5}, "`int`, got `float` - at `$.merges`"),
    "a count that is null": ({"steps": None}, "`int`, got `float` - at `$.steps`"),
    "a digest that is a number": ({"digest": 7}, "`str`, got `int` - at `$.digest`"),
    "a loss below nothing": ({"heldout_loss": -5.0}, "a loss of -5.0"),
    "a point below nothing": ({"curve": [[1.0, -2.0]]}, "a loss of -2.0"),
    "a point that is none": ({"curve": [[1.0, "x"]]}, "could not convert string to float: 'x'"),
    "no curve": ({"curve": None}, "TypeError"),
    "a number beyond all": ({"curve": [[10**400, 2.0]]}, "OverflowError"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_value_that_its_field_cannot_hold_is_told_with_its_file_and_name(tmp_path, kind):
    changes, words = WRONG[kind]
    values = {**made_up(CELL).to_json(), **changes}
    file, result = file_of(tmp_path, CELL), tmp_path / "result.json"
    file.parent.mkdir()
    file.write_text(json.dumps(values))
    shelf, said = shelf_at(tmp_path)
    assert shelf.find(CELL) is None
    assert shelf.rows() == []
    (sentence,) = said
    assert f"{file} is left out" in sentence
    assert words in sentence
    result.write_text(json.dumps({"rows": [made_up(replace(CELL, seed=2)).to_json(), values]}))
    with pytest.raises(StoreError, match=re.escape(words)) as error:
        Shelf(tmp_path / "new").take(result)
    assert f"{result} cannot be taken in: row {CELL.key}: " in error.value.what
    assert not (tmp_path / "new").exists()


def test_a_row_that_is_none_is_told_by_its_number(tmp_path):
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"rows": [made_up(CELL).to_json(), 5]}))
    with pytest.raises(StoreError, match="cannot be taken in: row 2: AttributeError"):
        Shelf(tmp_path / "shelf").take(file)


def test_settings_of_a_wrong_type_are_told_although_their_key_fits(tmp_path):
    settings: dict[str, Any] = {"adopt": 7}
    cell = replace(CELL, **settings)
    Shelf(tmp_path).put(made_up(cell))
    shelf, said = shelf_at(tmp_path)
    assert shelf.rows() == []
    assert "`str`, got `int` - at `$.cell.adopt`" in said[0]


def test_null_stands_for_a_figure_that_was_not_finite(tmp_path):
    file = tmp_path / "result.json"
    nulls = {"heldout_loss": None, "longest_stop_s": None, "curve": [[1.0, None]]}
    file.write_text(json.dumps({"rows": [{**made_up(CELL).to_json(), **nulls}]}))
    shelf = Shelf(tmp_path / "shelf")
    assert shelf.take(file) == (1, 0)
    (row,) = shelf.rows()
    assert all(map(math.isnan, (row.heldout_loss, row.longest_stop_s, row.curve[0][1])))


def test_whole_numbers_are_numbers_too(tmp_path):
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"rows": [{**made_up(CELL).to_json(), "heldout_loss": 2, "cpu_s": 3}]}))
    shelf = Shelf(tmp_path / "shelf")
    assert shelf.take(file) == (1, 0)
    assert shelf.rows() == [made_up(CELL, 2.0, cpu_s=3.0)]


def test_rows_of_one_task_outlive_a_new_version_of_another(tmp_path, monkeypatch):
    images = replace(CELL, task="vision")
    shelf, said = shelf_at(tmp_path)
    for cell in (CELL, images):
        shelf.put(made_up(cell))
    monkeypatch.setattr("atoll.sim.lab.cell.VERSIONS", {**VERSIONS, "vision": VERSIONS["vision"] + 1})
    assert shelf.find(CELL) is not None
    assert shelf.find(images) is None
    assert said == []


def test_of_rows_that_are_out_of_date_one_sentence_is_said(tmp_path, monkeypatch):
    shelf, said = shelf_at(tmp_path)
    for seed in range(1, 4):
        shelf.put(made_up(replace(CELL, seed=seed)))
    monkeypatch.setattr("atoll.sim.lab.shelf.VERSIONS", {**VERSIONS, "text": VERSION + 1})
    assert shelf.rows() == []
    assert len(said) == 1
    assert f"of version {VERSION} of the lab's text" in said[0]


def test_rows_of_another_python_or_version_are_not_taken_and_are_counted(tmp_path):
    rows = [made_up(CELL), made_up(replace(CELL, seed=2), python="2.7")]
    older = {**made_up(replace(CELL, seed=3)).to_json(), "version": VERSION - 1}
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"rows": [*(row.to_json() for row in rows), older]}))
    shelf = Shelf(tmp_path / "shelf")
    assert shelf.take(file) == (1, 2)
    assert shelf.take(file) == (0, 2)
    assert shelf.rows() == rows[:1]


def test_two_writers_of_one_cell_leave_one_whole_file(tmp_path):
    rows = [made_up(CELL, wall_s=float(number)) for number in range(2)]
    together = threading.Barrier(2)

    def write(shelf: Shelf, row) -> None:
        together.wait()
        for _ in range(50):
            shelf.put(row)

    shelf, said = shelf_at(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, Shelf(tmp_path), row) for row in rows]
        seen = [shelf.find(CELL) for _ in range(50)]
    assert [writer.result() for writer in writers] == [None, None]
    assert all(row is None or row in rows for row in seen)
    assert shelf.find(CELL) in rows
    assert said == []
    assert [file.name for file in file_of(tmp_path, CELL).parent.iterdir()] == [f"{CELL.key}.json"]


def test_again_finds_only_what_was_put_since(tmp_path):
    Shelf(tmp_path).put(made_up(CELL, 2.0))
    shelf = Shelf(tmp_path, again=True)
    assert shelf.find(CELL) is None
    shelf.put(made_up(CELL, 3.0))
    assert shelf.find(CELL) == made_up(CELL, 3.0)
    assert Shelf(tmp_path).find(CELL) == made_up(CELL, 3.0)


def test_a_row_is_named_by_the_first_letters_of_its_key(tmp_path):
    shelf = Shelf(tmp_path)
    rows = [made_up(replace(CELL, seed=seed)) for seed in range(1, 40)]
    for row in rows:
        shelf.put(row)
    assert shelf.named(rows[3].cell.key) == rows[3]
    assert shelf.named(rows[3].cell.key[:12]) == rows[3]
    with pytest.raises(StoreError, match="39 rows"):
        shelf.named("")
    with pytest.raises(StoreError, match="no row"):
        shelf.named("zz")


def test_a_place_that_cannot_be_written_says_what_would_be_lost(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Finished cells would be lost"):
        Shelf(tmp_path / "file").put(made_up(CELL))


def test_results_that_find_no_more_room_say_how_many_of_their_rows_are_kept(tmp_path):
    rows = [made_up(replace(CELL, seed=seed)) for seed in (1, 2)]
    file, shelf = tmp_path / "result.json", Shelf(tmp_path / "shelf")
    file.write_text(json.dumps({"rows": [row.to_json() for row in rows]}))
    first, second = (file_of(shelf.path, row.cell) for row in rows)
    shelf.path.mkdir()
    second.parent.write_text("")  # no room for a folder
    with pytest.raises(StoreError, match="File exists") as error:
        shelf.take(file)
    assert str(second) in error.value.what
    assert error.value.so_what == f"1 of 2 new rows of {file} are kept by now, the others are not."
    assert first.exists()
    second.parent.unlink()
    assert shelf.take(file) == (1, 0)


@pytest.mark.parametrize("again", [False, True])
def test_a_directory_in_the_place_of_a_row_is_refused_before_its_cell_is_trained(tmp_path, again):
    file, other = file_of(tmp_path, CELL), replace(CELL, seed=2)
    file.mkdir(parents=True)
    shelf, said = shelf_at(tmp_path, again=again)
    with pytest.raises(StoreError, match="is a directory, where the row of a cell belongs") as error:
        shelf.find(CELL)
    assert str(file) in error.value.what
    assert "Remove that directory" in error.value.now_what
    shelf.put(made_up(other))
    assert shelf.rows() == [made_up(other)]  # which need not wait for that
    assert said == [f"{file} is left out: a directory, to be removed before its cell is trained."]


@pytest.mark.parametrize("place", ["taken", "taken/shelf"])
def test_what_cannot_be_a_shelf_is_refused_by_whoever_reads_it(tmp_path, place):
    taken, result = tmp_path / "taken", tmp_path / "result.json"
    taken.write_text("")
    result.write_text(json.dumps({"rows": [made_up(CELL).to_json()]}))
    shelf, said = shelf_at(tmp_path / place)
    for read in (shelf.rows, lambda: shelf.named(CELL.key), lambda: shelf.take(result)):
        with pytest.raises(StoreError, match=f"{place} cannot be read as a directory: Not a directory."):
            read()
    assert said == []


def test_a_shelf_is_tried_before_anything_is_trained_for_it(tmp_path):
    Shelf(tmp_path / "new/shelf").check()
    assert list((tmp_path / "new/shelf").iterdir()) == []
    (tmp_path / "taken").write_text("")
    with pytest.raises(StoreError, match="taken cannot be written"):
        Shelf(tmp_path / "taken").check()


def test_a_write_that_fails_leaves_what_was_there_and_nothing_beside_it(tmp_path):
    file, taken = tmp_path / "one.json", tmp_path / "two.json"
    write_whole(file, "first\n")
    with pytest.raises(UnicodeEncodeError):
        write_whole(file, "second \ud800\n")
    taken.mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(taken, "first\n")
    assert file.read_text() == "first\n"
    assert sorted(tmp_path.iterdir()) == [file, taken]


def test_a_place_is_tried_without_a_trace(tmp_path):
    file, taken = tmp_path / "one.json", tmp_path / "two.json"
    file.write_text("first\n")
    taken.mkdir()
    check_writable(file)
    with pytest.raises(IsADirectoryError):
        check_writable(taken)
    assert file.read_text() == "first\n"
    assert sorted(tmp_path.iterdir()) == [file, taken]
