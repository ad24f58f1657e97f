"""What is kept so that a fleet can go on, and that only one process looks after it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from atoll.errors import StoreError
from atoll.runtime.fleet_file import FleetFile, fleet_lock, wait_for_orphans, write_safely


def test_a_fleet_is_read_as_it_was_written(tmp_path: Path):
    FleetFile((1.0, 0.5), 12.5).write(tmp_path)
    assert FleetFile.read(tmp_path) == FleetFile((1.0, 0.5), 12.5)
    assert [path.name for path in tmp_path.iterdir()] == ["fleet.json"]


@pytest.mark.parametrize("content", [None, "", '{"speeds": [1.0', "[]", '{"speeds": ["fast"], "began_s": 0}'])
def test_a_fleet_that_cannot_be_read_is_refused(tmp_path: Path, content: str | None):
    if content is not None:
        (tmp_path / "fleet.json").write_text(content)
    with pytest.raises(StoreError, match="cannot be read"):
        FleetFile.read(tmp_path)


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path):
    path = tmp_path / "small.json"
    write_safely(path, "old")
    (tmp_path / "small.json.part").mkdir()
    with pytest.raises(OSError, match=r"small\.json\.part"):
        write_safely(path, "new")
    assert path.read_text() == "old"


def test_a_fleet_that_is_looked_after_is_refused_to_others(tmp_path: Path):
    refused = pytest.raises(StoreError, match=f"still running: process {os.getpid()} ")
    with fleet_lock(tmp_path), refused as refusal, fleet_lock(tmp_path):
        pass
    assert "atoll status" in str(refusal.value)
    with fleet_lock(tmp_path):
        pass


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path):
    with pytest.raises(StoreError, match="cannot be used: No such file"), fleet_lock(tmp_path / "none"):
        pass


def test_orphans_are_waited_for_as_long_as_they_hold_something(tmp_path: Path):
    wait_for_orphans(tmp_path)
    (tmp_path / "learners" / "learner-0").mkdir(parents=True)
    path = tmp_path / "learners" / "learner-0" / "lock"
    with open(path, "w") as file:
        wait_for_orphans(tmp_path)
        fcntl.flock(file, fcntl.LOCK_EX)
        wait_for_orphans(tmp_path, patience_s=0.0)  # it ends although the lock is held
    wait_for_orphans(tmp_path)
