"""A file is put in place whole, or what was there before stays."""

from __future__ import annotations

import errno
import sqlite3

import pytest

from atoll.errors import StoreError
from atoll.runtime.store.files import NO_SPACE, Files, reason_of, write_all
from tests.unit.runtime.store.driver import ERRORS, Crash, FailingFiles


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_appears_whole_under_its_name_and_nothing_else_stays(folder, sync):
    Files().write_durably(folder / "a", [b"one ", memoryview(b"two")], sync=sync)
    assert (folder / "a").read_bytes() == b"one two"
    assert [path.name for path in folder.iterdir()] == ["a"]


def test_a_synced_file_is_forced_to_disk_before_its_name_and_its_name_before_the_return(folder):
    files = FailingFiles()
    files.write_durably(folder / "a", [b"one"], sync=True)
    kinds = [operation.rsplit(" ", 1)[0] for operation in files.operations]
    assert kinds == ["create", "write", "fsync", "rename", "fsync folder"]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_a_failure_leaves_the_old_content_and_no_leftovers(folder, n, error):
    files = FailingFiles()
    (folder / "a").write_bytes(b"old")
    files.arm(n, error)
    with pytest.raises(OSError):
        files.write_durably(folder / "a", [b"one", b"two"], sync=True)
    assert (folder / "a").read_bytes() == b"old"
    assert [path.name for path in folder.iterdir()] == ["a"]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_a_crash_leaves_the_old_content_and_leftovers_are_deleted_later(folder, n):
    files = FailingFiles()
    (folder / "a").write_bytes(b"old")
    files.arm(n, None)
    with pytest.raises(Crash):
        files.write_durably(folder / "a", [b"one", b"two"], sync=True)
    assert (folder / "a").read_bytes() == b"old"
    Files().discard_unfinished(folder)
    assert [path.name for path in folder.iterdir()] == ["a"]


def test_a_file_that_takes_few_bytes_at_a_time_gets_all_of_them():
    class Reluctant:
        taken = b""

        def write(self, part):
            self.taken += bytes(part[:3])
            return min(3, len(part))

    file = Reluctant()
    write_all(file, b"0123456789")  # type: ignore[arg-type]
    assert file.taken == b"0123456789"


def test_discarding_takes_files_folders_and_nothing_at_all(folder):
    (folder / "sub" / "deeper").mkdir(parents=True)
    (folder / "file").write_bytes(b"x")
    for name in ("sub", "file", "missing"):
        Files().discard(folder / name)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "whatever"), NO_SPACE),
        (OSError(errno.EDQUOT, "whatever"), NO_SPACE),
        (OSError(errno.EIO, "whatever", "deltas/x"), "input/output error (deltas/x)"),
        (OSError("odd"), "odd"),
        (sqlite3.OperationalError("database or disk is full"), NO_SPACE),
        (sqlite3.OperationalError("disk I/O error"), "run.db: disk I/O error"),
        (ValueError("it ends too early"), "it ends too early"),
        (StoreError("run.db is damaged.", "so what", "now what"), "run.db is damaged."),
    ],
)
def test_a_failure_has_its_reason_in_words(error, reason):
    assert reason_of(error) == reason
