"""The head notices a lost end of run.db; it is never ahead of the disk, and never in the way."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from atoll.core.records import EpochRecord, MemberRecord
from atoll.errors import StoreError
from atoll.runtime.store import RunStore
from atoll.runtime.store.head import SLOT_BYTES, Head, read_head, read_slots, write_head
from tests.unit.runtime.store.driver import Driver, FailingFiles, config, image, line, reload


@pytest.fixture(scope="module")
def original(shared_folder: Path) -> Driver:
    """A run of ten records whose process was killed: its log is still there."""
    driver = Driver(RunStore.open(shared_folder / "original", config())).begin()
    for p in (0, 1, 0, 1, 0, 1, 0):
        assert driver.round(p) == ""
    return driver


@pytest.fixture
def run_dir(original: Driver, folder: Path) -> Path:
    copy = image(original.run_dir, folder / "run")
    (copy / "run.db-shm").unlink()
    return copy


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def lengths(log: Path) -> list[int]:
    """Where each commit ends in a log: frames with the size of the database in their header end one."""
    content = log.read_bytes()
    page = int.from_bytes(content[8:12], "big")
    ends = []
    for at in range(32, len(content) - page, 24 + page):
        if int.from_bytes(content[at + 4 : at + 8], "big"):
            ends.append(at + 24 + page)
    return ends


def test_every_number_of_lost_records_is_told_exactly(original, run_dir):
    log = run_dir / "run.db-wal"
    ends = lengths(log)
    for num_lost in (1, 2, 5):
        os.truncate(log, ends[-1 - num_lost])
        (run_dir / "run.db-shm").unlink(missing_ok=True)
        with pytest.raises(StoreError) as error:
            RunStore.open(run_dir, original.config)
        lost = "record 10" if num_lost == 1 else f"records {11 - num_lost} to 10"
        assert f"its newest records are lost, {num_lost} of them: {lost}." in error.value.what
        image(original.run_dir, run_dir)


def test_a_bit_flipped_anywhere_in_the_log_is_found_or_changes_nothing(original, run_dir):
    log = run_dir / "run.db-wal"
    num_found = 0
    for at in range(0, log.stat().st_size, 2999):
        flip(log, at)
        try:
            original.assert_whole(reload(run_dir, original.config))
        except StoreError:
            num_found += 1
        image(original.run_dir, run_dir)
        (run_dir / "run.db-shm").unlink()
    assert num_found > 5


def test_an_accepted_loss_lets_the_run_go_on_under_an_epoch_that_nobody_has_seen(original, run_dir):
    store = RunStore.open(run_dir, original.config)
    driver = original.twin(store)
    assert [driver.commit(EpochRecord(epoch, ())) for epoch in (2, 3)] == ["", ""]
    store.close()
    with sqlite3.connect(run_dir / "run.db") as db:
        db.execute("DELETE FROM records WHERE id > 10")
    db.close()
    with pytest.raises(StoreError, match="lost, 2 of them: records 11 to 12"):
        RunStore.open(run_dir, original.config)
    accepted = RunStore.open(run_dir, original.config, accepts_loss=True)
    assert accepted.load().state.epoch == 3
    assert accepted.commit(EpochRecord(3, ()), sync=True, lines=[]) == "epoch 3 does not follow epoch 3"
    assert accepted.commit(EpochRecord(4, ()), sync=True, lines=[]) == ""
    accepted.close()
    assert reload(run_dir, original.config).state.epoch == 4


def test_an_older_copy_of_the_database_is_not_taken_for_the_run(original, run_dir, folder):
    store = RunStore.open(run_dir, original.config)
    store.close()
    shutil.copy(run_dir / "run.db", folder / "older.db")
    driver = original.twin(RunStore.open(run_dir, original.config))
    assert driver.round(1) == ""
    driver.store.close()
    shutil.copy(folder / "older.db", run_dir / "run.db")
    with pytest.raises(StoreError, match="lost, 1 of them: record 11"):
        RunStore.open(run_dir, original.config)


def test_another_history_of_the_same_length_is_refused(original, run_dir, folder):
    RunStore.open(run_dir, original.config).close()
    other = original.twin(RunStore.open(image(run_dir, folder / "other"), original.config))
    this = original.twin(RunStore.open(run_dir, original.config))
    assert other.commit(MemberRecord(1, "b", "key", 9, 1, 1)) == ""
    assert this.commit(MemberRecord(1, "c", "key", 9, 1, 1)) == ""
    for driver in (other, this):
        driver.store.close()
    shutil.copy(folder / "other" / "run.db", run_dir / "run.db")
    with pytest.raises(StoreError, match="record 11 is not the one that was committed"):
        RunStore.open(run_dir, original.config)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("DELETE FROM blocks WHERE id > 4", "its tape has lost its newest blocks, 3 of them"),
        ("UPDATE blocks SET chain = x'00' WHERE id = 7", "block 7 of its tape is not the one"),
    ],
)
def test_lost_tape_is_noticed_too(original, run_dir, statement, what):
    with sqlite3.connect(run_dir / "run.db") as db:
        db.execute(statement)
    db.close()
    with pytest.raises(StoreError, match=what):
        RunStore.open(run_dir, original.config)
    RunStore.open(run_dir, original.config, accepts_loss=True).close()


def test_one_good_slot_suffices_and_the_bad_one_is_written_next(original, run_dir):
    path = run_dir / "head"
    newest = read_head(path)
    assert newest is not None
    flip(path, newest.number % 2 * SLOT_BYTES)
    older = read_head(path)
    assert older is not None
    assert (older.number, older.record_id) == (newest.number - 1, newest.record_id - 1)
    driver = original.twin(RunStore.open(run_dir, original.config))
    assert driver.round(1) == ""
    assert [head.record_id for head in read_slots(path) if isinstance(head, Head)].count(11) == 1
    assert "it does not have its digest" not in read_slots(path)
    driver.store.close()


@pytest.mark.parametrize("content", [None, b"", b"\0" * 600, b"nonsense" * 80])
def test_a_run_without_a_head_is_taken_as_it_is(original, run_dir, content):
    (run_dir / "head").unlink()
    if content is not None:
        (run_dir / "head").write_bytes(content)
    original.assert_whole(reload(run_dir, original.config))


def test_the_head_is_never_ahead_of_what_was_forced_to_disk(folder):
    run = config("cycle")
    driver = Driver(RunStore.open(folder / "run", run), run).begin()
    path = folder / "run" / "head"
    for p in (0, 1):
        assert driver.round(p, sync=False) == ""
        assert driver.store.write_tape([line("a line")]) == ""
    head = read_head(path)
    assert head is not None
    assert (head.record_id, head.block_id) == (3, 0)
    assert driver.round(1) == ""
    head = read_head(path)
    assert head is not None
    assert (head.record_id, head.block_id) == (6, 5)
    assert driver.round(1, sync=False) == ""
    assert driver.snapshot() == ""  # forces what came before it too
    assert read_head(path).record_id == 7  # type: ignore[union-attr]
    driver.store.close()


def test_a_head_that_cannot_be_written_costs_nothing(original, run_dir):
    files = FailingFiles()
    driver = original.twin(RunStore.open(run_dir, original.config, files=files))
    before = read_head(run_dir / "head")
    files.arm(3, errno.ENOSPC)
    assert driver.commit(MemberRecord(1, "b", "key", 9, 1, 1)) == ""
    assert files.has_failed
    assert files.operations[-1] == "overwrite head"
    assert read_head(run_dir / "head") == before
    assert driver.round(1) == ""
    assert read_head(run_dir / "head").record_id == 12  # type: ignore[union-attr]
    driver.store.close()
    driver.assert_whole(reload(run_dir, original.config))


def test_heads_are_written_in_turn(folder):
    path = folder / "head"
    heads = [Head(n, 1, n, bytes([n]) * 16, n, bytes([n]) * 16) for n in range(1, 5)]
    for head in heads:
        write_head(FailingFiles(), path, head)
        assert read_head(path) == head
    assert sorted(read_slots(path)) == heads[-2:]
