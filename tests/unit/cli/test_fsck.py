"""`atoll fsck` as a person or a program meets it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from atoll.cli.main import run
from atoll.core.records import EpochRecord, Rollback, RoundRecord
from atoll.runtime.store import RunStore
from tests.unit.runtime.store.driver import Driver, config


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    made = Driver(RunStore.open(tmp_path / "run", config())).begin()
    for p in (0, 1, 0):
        assert made.round(p) == ""
    made.store.close()
    return made


def damage(driver: Driver) -> str:
    """Spoil the delta of the newest version; returns its name."""
    name: str = driver.records[-1].delta_digest  # type: ignore[union-attr]
    (driver.run_dir / "deltas" / f"{name}.safetensors").write_bytes(b"half")
    return name


def test_it_explains_itself(capsys):
    assert run(["fsck", "--help"]) == 0
    assert "atoll fsck runs/gemma-1" in capsys.readouterr().out


def test_a_whole_run_is_a_table_and_a_sentence(driver, capsys):
    assert run(["fsck", str(driver.run_dir)]) == 0
    page = capsys.readouterr().out
    assert page.splitlines()[-1] == "The run is whole: 3 merges, folded from version 0."
    assert "problem" not in page


def test_damage_is_named_with_what_can_be_saved_and_the_exit_code_is_1(driver, capsys):
    name = damage(driver)
    (driver.run_dir / "deltas" / ".tmp-1-1-x").write_bytes(b"")
    assert run(["fsck", str(driver.run_dir)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert f"- deltas/{name}.safetensors: it ends too early; it leads to version 2 of fragment 0" in "".join(
        lines
    )
    assert "Left over, harmless, deleted in time: deltas/.tmp-1-1-x" in lines
    assert lines[-3:] == [
        "What can be saved:",
        "- fragment 0: version 1 of 2, 1 lost, from the initial weights and 1 delta",
        "- fragment 1: version 1 of 1, from the initial weights and 1 delta",
    ]


def test_a_fragment_of_which_nothing_is_left_is_told(driver, capsys):
    (driver.run_dir / "snapshots" / "seed.safetensors").unlink()
    assert run(["fsck", str(driver.run_dir)]) == 1
    page = capsys.readouterr().out
    assert "- fragment 0: nothing of its 2 versions; nothing that is left can be read" in page


def lose_database(driver: Driver) -> None:
    (driver.run_dir / "run.db").unlink()


def lose_records(driver: Driver) -> None:
    with closing(sqlite3.connect(driver.run_dir / "run.db")) as db, db:
        db.execute("DELETE FROM records WHERE id > 4")


def break_records(driver: Driver) -> None:
    with closing(sqlite3.connect(driver.run_dir / "run.db")) as db, db:
        db.execute("UPDATE records SET body = x'00' WHERE id = 5")


def lose_both_heads(driver: Driver) -> None:
    (driver.run_dir / "head").write_bytes(b"x" * 1024)


@pytest.mark.parametrize("lose", [lose_database, lose_records, break_records, lose_both_heads])
def test_the_remains_of_lost_records_are_not_called_harmless(driver, capsys, lose):
    lose(driver)
    (driver.run_dir / "deltas" / "abc.safetensors").write_bytes(b"")
    assert run(["fsck", str(driver.run_dir)]) == 1
    page = capsys.readouterr().out
    assert "Left over" not in page
    assert ".safetensors" not in page


def test_a_file_that_is_no_database_is_told_once(driver, capsys):
    (driver.run_dir / "run.db").write_bytes(b"no database at all" * 1000)
    assert run(["fsck", str(driver.run_dir)]) == 1
    page = capsys.readouterr().out
    assert page.count("file is not a database") == 1
    assert "- run.db: it cannot be read: file is not a database; no version can be told from it." in page
    assert "\nfold" not in page
    assert page.endswith("What can be saved cannot be told: no version is proven.\n")


def test_files_of_versions_given_up_are_named_as_such(driver, capsys):
    newest = driver.records[-1]
    assert isinstance(newest, RoundRecord)
    before = driver.records[-3]
    assert isinstance(before, RoundRecord)
    back = Rollback(0, 2, 1, before.digest, "", newest.contributors)
    store = RunStore.open(driver.run_dir, config())
    assert store.commit(EpochRecord(2, (back,), 1), sync=True, lines=[]) == ""
    store.close()
    assert run(["fsck", str(driver.run_dir)]) == 0
    assert f"Of versions given up: deltas/{newest.delta_digest}.safetensors\n" in capsys.readouterr().out


@pytest.mark.parametrize("is_damaged", [False, True])
def test_the_last_line_is_an_object(driver, capsys, is_damaged):
    if is_damaged:
        damage(driver)
    assert run(["fsck", str(driver.run_dir), "--json"]) == int(is_damaged)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["ok"], found["commits"], found["verified"]) == (not is_damaged, 3, "fold")
    assert len(found["problems"]) == int(is_damaged)
    assert found["fragments"][0] == {
        "fragment": 0,
        "version": 2,
        "recoverable": 1 if is_damaged else 2,
        "source": "the initial weights and 1 delta" if is_damaged else "the initial weights and 2 deltas",
    }


def test_where_there_is_no_run_the_exit_code_is_2(tmp_path, capsys):
    assert run(["fsck", str(tmp_path)]) == 2
    assert f"There is no run in {tmp_path}." in capsys.readouterr().err
