"""Every operation on the disk fails once, or is the last one before a crash: nothing acknowledged is lost."""

from __future__ import annotations

import errno
import itertools
import resource
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from atoll.core.records import MemberRecord
from atoll.runtime.store import RunStore, ledger
from atoll.runtime.store.files import NO_SPACE
from tests.unit.runtime.store.driver import ERRORS, Crash, Driver, FailingFiles, config, image, line, reload

MODES = ("merge", "cycle")


@pytest.fixture(scope="module")
def originals(shared_folder: Path) -> dict[str, Driver]:
    """A run in each mode, made once; every test works on a copy."""
    return {mode: make(shared_folder / mode, mode) for mode in MODES}


def make(path: Path, mode) -> Driver:
    """A run with registered snapshots, rounds after them, and in `cycle` some that are not on disk yet."""
    run = config(mode)
    driver = Driver(RunStore.open(path, run), run).begin()
    for _ in range(2):
        assert driver.round(0, sync=mode == "merge") == ""
        assert driver.round(1, sync=mode == "merge") == ""
        assert driver.snapshot() == ""
    assert driver.round(0, sync=mode == "merge") == ""
    driver.store.close()
    return driver


@pytest.fixture
def start(originals: dict[str, Driver], folder: Path) -> Callable[[str, FailingFiles], Driver]:
    """Opens a copy of a run, on a disk that can be made to fail."""
    numbers = itertools.count(1)

    def opened(mode: str, files: FailingFiles) -> Driver:
        original = originals[mode]
        run_dir = image(original.run_dir, folder / f"run-{next(numbers)}")
        store = RunStore.open(run_dir, original.config, files=files)
        store.load()
        return original.twin(store)

    return opened


ACTS: dict[str, Callable[[Driver], str]] = {
    "round": lambda driver: driver.round(1),
    "snapshot": lambda driver: driver.snapshot(),
    "member": lambda driver: driver.commit(MemberRecord(1, "b", "key", 9, 1, 1)),
    "tape": lambda driver: driver.store.write_tape([line("a line")]),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", ERRORS, ids=["no space", "i/o error"])
@pytest.mark.parametrize("act", ACTS)
def test_a_failure_at_any_operation_has_a_reason_and_leaves_the_store_whole(start, folder, act, error, mode):
    for n in itertools.count(1):
        files = FailingFiles()
        driver = start(mode, files)
        files.arm(n, error)
        reason = ACTS[act](driver)
        failed = files.has_failed
        files.arm(0, None)
        if failed and reason:
            assert (reason == NO_SPACE) == (error == errno.ENOSPC)
        driver.assert_whole(reload(image(driver.run_dir, folder / "image"), driver.config))
        driver.assert_whole(driver.store.load())
        if reason:  # the same again works, once the disk does
            assert ACTS[act](driver) == ""
        assert driver.round(0) == ""
        assert driver.snapshot() == ""
        driver.assert_whole(reload(image(driver.run_dir, folder / "image"), driver.config))
        driver.store.close()
        if not failed:
            assert n > 1
            return


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("act", ACTS)
def test_a_crash_at_any_operation_loses_nothing_acknowledged(start, folder, act, mode):
    for n in itertools.count(1):
        files = FailingFiles()
        driver = start(mode, files)
        files.arm(n, None)
        try:
            ACTS[act](driver)
        except Crash:
            found = reload(image(driver.run_dir, folder / "image"), driver.config)
            driver.assert_whole(found)
            driver.store.close()
            continue
        driver.store.close()
        assert n > 1
        return


@pytest.mark.parametrize("error", ERRORS, ids=["no space", "i/o error"])
def test_a_seed_that_could_not_be_written_is_not_committed(folder, error):
    for n in itertools.count(1):
        files = FailingFiles()
        store = RunStore.open(folder / f"run-{n}", config(), files=files)
        driver = Driver(store)
        files.arm(n, error)
        try:
            driver.begin()
        except AssertionError:
            files.arm(0, None)
            assert reload(image(store.run_dir, folder / "image"), driver.config).fragments is None
            store.close()
            continue
        store.close()
        assert n > 1
        return


def test_leftovers_of_a_crash_are_deleted_at_the_next_start(start, folder):
    for n in itertools.count(1):
        files = FailingFiles()
        driver = start("merge", files)
        files.arm(n, None)
        try:
            driver.snapshot()
        except Crash:
            run_dir = image(driver.run_dir, folder / "image")
            reload(run_dir, driver.config)
            assert list(run_dir.rglob(".tmp-*")) == []
            with sqlite3.connect(run_dir / "run.db") as db:
                registered = {name for (name,) in db.execute("SELECT name FROM snapshots")}
            folders = {path.name for path in (run_dir / "snapshots").iterdir() if path.is_dir()}
            assert folders == registered
            driver.store.close()
            continue
        driver.store.close()
        return


def test_a_failed_fsync_is_not_retried_on_the_same_file(start):
    files = FailingFiles()
    driver = start("merge", files)
    names: set[str] = set()
    for fail_at in (4, 4, 0):  # after create, write the header, write the values
        files.arm(fail_at, errno.EIO)
        _, delta, record = driver.merge(1)
        reason = driver.store.put_delta(record.delta_digest, delta, sync=True)
        assert bool(reason) == bool(fail_at)
        names.update(name for name in files.operations if name.startswith("fsync .tmp-"))
    assert len(names) == 3
    driver.store.close()


def test_a_delta_whose_fsync_fails_at_the_end_of_its_cycle_is_written_anew(start, folder):
    files = FailingFiles()
    driver = start("cycle", files)
    waiting = [path.name for path in (driver.run_dir / "deltas").iterdir()]
    files.arm(1, errno.EIO)
    assert driver.commit(MemberRecord(1, "b", "key", 9, 1, 1)) == ""
    assert files.operations[0].startswith("fsync ")
    assert files.operations[0].split()[1] in waiting
    assert any(name.startswith("create .tmp-") for name in files.operations)
    driver.assert_whole(reload(image(driver.run_dir, folder / "image"), driver.config))
    driver.store.close()


def test_a_synced_commit_forces_the_deltas_before_it_to_disk_first(start):
    files = FailingFiles()
    driver = start("cycle", files)
    for p in (1, 0):
        assert driver.round(p, sync=False) == ""
    files.arm(0, None)
    assert driver.commit(MemberRecord(1, "b", "key", 9, 1, 1), sync=False) == ""
    assert files.operations == ["commit run.db"]
    files.arm(0, None)
    assert driver.commit(MemberRecord(1, "c", "key", 9, 1, 1), sync=True) == ""
    kinds = [name.split()[0] for name in files.operations]
    assert kinds == ["fsync", "fsync", "fsync", "fsync", "commit", "overwrite"]
    assert files.operations[3] == "fsync folder deltas"
    files.arm(0, None)
    assert driver.commit(MemberRecord(1, "d", "key", 9, 1, 1), sync=True) == ""
    assert files.operations == ["commit run.db", "overwrite head"]
    driver.store.close()


class LyingFiles(FailingFiles):
    """A disk that says it wrote a file and wrote something else."""

    lies_about = ""

    def write(self, path: Path, parts: Iterable[bytes | memoryview], *, sync: bool) -> None:
        super().write(path, parts, sync=sync)
        if path.name == self.lies_about:
            content = bytearray(path.read_bytes())
            content[-3] ^= 1
            path.write_bytes(content)


@pytest.mark.parametrize("name", ["0.safetensors", "1.safetensors", "contents.json"])
def test_a_snapshot_that_does_not_read_back_is_not_registered(start, folder, name):
    files = LyingFiles()
    driver = start("merge", files)
    before = sorted(path.name for path in (driver.run_dir / "snapshots").iterdir())
    files.lies_about = name
    assert driver.snapshot().startswith("what was written does not read back: ")
    assert sorted(path.name for path in (driver.run_dir / "snapshots").iterdir()) == before
    files.lies_about = ""
    assert driver.snapshot() == ""
    driver.assert_whole(reload(image(driver.run_dir, folder / "image"), driver.config))
    driver.store.close()


@contextmanager
def no_file_grows_beyond(num_bytes: int) -> Iterator[None]:
    """The kernel refuses to make any file longer: a real error, in SQLite too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_database_that_cannot_grow_refuses_and_goes_on_when_it_can(folder):
    run = config()
    driver = Driver(RunStore.open(folder / "run", run), run).begin()
    assert driver.round(0) == ""
    log_bytes = (folder / "run" / "run.db-wal").stat().st_size
    with no_file_grows_beyond(log_bytes):
        assert driver.commit(MemberRecord(1, "b", "key", 9, 1, 1)).startswith("run.db: ")
    driver.assert_whole(reload(image(driver.run_dir, folder / "image"), run))
    driver.assert_whole(driver.store.load())
    assert driver.commit(MemberRecord(1, "b", "key", 9, 1, 1)) == ""
    assert driver.round(1) == ""
    found = reload(image(driver.run_dir, folder / "image"), run)
    driver.assert_whole(found)
    assert found.state.members["b"].incarnation == 1
    driver.store.close()


def test_after_a_failed_commit_nothing_is_committed_until_the_log_is_repaired(start, monkeypatch):
    monkeypatch.setattr(ledger, "BUSY_S", 0.0)
    files = FailingFiles()
    driver = start("merge", files)
    assert driver.round(0) == ""
    files.arm(1, errno.EIO)
    assert driver.commit(MemberRecord(1, "b", "key", 9, 1, 1)).startswith("input/output error")
    files.arm(0, None)
    reader = sqlite3.connect(driver.run_dir / "run.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM records").fetchall()
    refused = driver.commit(MemberRecord(1, "b", "key", 9, 1, 1))
    assert refused == "run.db: a reader keeps the log from being repaired"
    reader.close()
    assert driver.commit(MemberRecord(1, "b", "key", 9, 1, 1)) == ""
    assert files.operations[-3:] == ["checkpoint run.db", "commit run.db", "overwrite head"]
    driver.store.close()


def test_a_second_writer_that_got_past_the_lock_is_caught(folder):
    run = config()
    driver = Driver(RunStore.open(folder / "run", run), run).begin()
    intruder = sqlite3.connect(folder / "run" / "run.db")
    with intruder:
        intruder.execute("INSERT INTO records VALUES (99, 'finish', x'00', x'00')")
    intruder.close()
    assert "written by another process" in driver.round(0)
    driver.store.close()
