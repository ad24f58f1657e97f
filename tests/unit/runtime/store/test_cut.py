"""A run that does not keep everything begins at a snapshot: the fold of what came before stands for it."""

from __future__ import annotations

import errno
import itertools
import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.config import RunConfig, TapeConfig
from atoll.core.records import Contributor, MemberRecord, fold
from atoll.errors import StoreError
from atoll.runtime.store import MemoryStore, RunStore, Store, read_run
from atoll.runtime.store.chain import num_before
from atoll.tape.entries import Entry, Image
from tests.unit.runtime.store.driver import Crash, Driver, FailingFiles, config, image, reload

IMAGE_BYTES = 550_000
"""Two of them are more tape than is kept."""


def cutting(mode="merge", keep: str = "recent") -> RunConfig:
    return replace(config(mode, keep), tape=TapeConfig(keep_mb=1))


def snapshot(driver: Driver, *, has_image: bool = True) -> str:
    """As the syncer does it: an image of the machine on the tape, then the snapshot."""
    if has_image:
        content = random.Random(driver.num_rounds).randbytes(IMAGE_BYTES)
        reason = driver.store.write_tape([Entry(1, "syncer", Image(driver.num_rounds, content))])
        assert reason == ""
    return driver.snapshot()


def grow(store: Store, run: RunConfig, num_snapshots: int) -> Driver:
    """Three rounds and a snapshot, several times."""
    driver = Driver(store, run).begin()
    for _ in range(num_snapshots):
        go_on(driver)
    return driver


def go_on(driver: Driver) -> None:
    for p in (0, 1, 0):
        assert driver.round(p) == ""
    assert snapshot(driver) == ""


@pytest.fixture(scope="module")
def original(shared_folder: Path) -> Driver:
    """Cut at its second snapshot: three have been taken, and a round after them."""
    driver = grow(RunStore.open(shared_folder / "original", cutting()), cutting(), 3)
    assert driver.round(1) == ""
    driver.store.close()
    return driver


@pytest.fixture
def run_dir(original: Driver, folder: Path) -> Path:
    return image(original.run_dir, folder / "run")


def test_a_cut_run_comes_back_bit_for_bit(original, run_dir):
    found = reload(run_dir, original.config)
    original.assert_whole(found)
    assert found.state == fold(original.records)
    view = read_run(run_dir)
    num_cut = 3 + 6
    assert view.base == fold(original.records[:num_cut])
    assert view.records == tuple(original.records[num_cut:])
    assert view.state == fold(original.records)
    assert isinstance(next(view.entries()).item, Image)


def test_what_follows_from_old_records_goes_with_them_and_members_stay(run_dir):
    with sqlite3.connect(run_dir / "run.db") as db:
        for table, num_rows in {"records": 4, "commits": 4, "contributions": 4, "members": 1}.items():
            assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (num_rows,)
    db.close()


def test_a_cut_run_goes_on_and_is_cut_again(original, run_dir):
    driver = original.twin(RunStore.open(run_dir, original.config))
    driver.next_epoch(driver.store.load())
    for _ in range(3):
        go_on(driver)
        driver.assert_whole(driver.store.load())
    driver.store.close()
    driver.assert_whole(reload(run_dir, original.config))
    view = read_run(run_dir)
    assert len(view.records) == 3
    assert view.state == fold(driver.records)


def test_an_epoch_and_a_key_that_were_cut_away_are_still_known(folder):
    driver = grow(RunStore.open(folder / "run", cutting()), cutting(), 1)
    assert driver.commit(MemberRecord(1, "a", "key", 8, 2, 0)) == ""
    driver.store.close()
    driver.store = RunStore.open(folder / "run", cutting())
    driver.next_epoch(driver.store.load())
    for _ in range(2):
        assert snapshot(driver) == ""
    assert read_run(folder / "run").records == ()  # everything lies before both snapshots
    driver.store.close()
    store = RunStore.open(folder / "run", cutting())
    found = store.load()
    assert (found.state.epoch, found.state.members["a"].incarnation) == (2, 2)
    assert found.state == fold(driver.records)
    driver.store = store
    assert driver.store.put_seed([state.served for state in driver.states]).startswith("the run already has")
    driver.next_epoch(found)
    with sqlite3.connect(folder / "run" / "run.db") as db:
        assert db.execute("SELECT incarnation FROM members").fetchall() == [(2,)]
    db.close()
    store.close()


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_what_was_merged_before_the_cut_is_not_merged_again(kind, folder):
    store: Store = MemoryStore(cutting()) if kind == "memory" else RunStore.open(folder / "run", cutting())
    driver = grow(store, cutting(), 3)
    _, delta, record = driver.merge(0)
    (part,) = record.contributors
    old = Contributor("a", 1, 100, 160, 3, 0, 1200.0)
    fenced = replace(record, contributors=(part._replace(incarnation=0),))
    for wrong, why in {
        replace(record, version=2): "version 2 of fragment 0 was committed long ago",
        replace(record, contributors=(old,)): "tokens of a from 100 on were merged into fragment 0 long ago",
        fenced: "incarnation 0 of a was followed by another long ago",
    }.items():
        assert store.put_delta(record.delta_digest, delta, sync=True) == ""
        assert store.commit(wrong, sync=True, lines=[]) == why
    assert store.commit(record, sync=True, lines=[]) == ""
    store.close()


def test_versions_that_are_lost_after_a_cut_are_rolled_back_to_those_that_are_not(original, run_dir):
    driver = original.twin(RunStore.open(run_dir, original.config))
    driver.store.load()
    assert driver.round(1) == ""
    lost = driver.records[-1]
    driver.store.close()
    (run_dir / "deltas" / f"{lost.delta_digest}.safetensors").unlink()
    driver.store = RunStore.open(run_dir, original.config)
    found = driver.store.load()
    (rollback,) = found.state.rollbacks
    assert (rollback.fragment, rollback.from_version, rollback.to_version) == (1, 5, 4)
    driver.assert_true(found)
    driver.next_epoch(found)
    for _ in range(2):
        assert driver.round(1) == ""
    assert snapshot(driver) == ""
    driver.store.close()
    for path in (run_dir / "deltas").iterdir():
        path.unlink()  # the snapshot is newer than the rollback, so it suffices
    driver.assert_whole(reload(run_dir, original.config))


def test_a_fragment_that_fell_back_to_the_base_itself_has_its_digests(original, run_dir):
    for number in (0, 1):
        (run_dir / "snapshots" / "9" / f"{number}.safetensors").unlink()
    for path in (run_dir / "deltas").iterdir():
        path.unlink()
    found = reload(run_dir, original.config)
    assert [(r.from_version, r.to_version) for r in found.state.rollbacks] == [(6, 4), (4, 2)]
    original.assert_true(found)
    base = read_run(run_dir).base
    assert base is not None
    assert [r.previous_digest for r in found.state.rollbacks] == [f.previous_digest for f in base.fragments]


def test_without_both_snapshots_a_cut_run_does_not_fall_back_to_its_seed(original, run_dir):
    for name in ("6", "9"):
        (run_dir / "snapshots" / name / "contents.json").unlink()
    with pytest.raises(StoreError, match="Fragment 0 cannot be rebuilt"):
        reload(run_dir, original.config)


@pytest.mark.parametrize(
    ("run", "has_image"),
    [(cutting(keep="all"), True), (config(), True), (cutting(), False)],
    ids=["everything is kept", "the tape is small", "the tape has no image"],
)
def test_nothing_is_cut_when(folder, run, has_image):
    driver = Driver(RunStore.open(folder / "run", run), run).begin()
    for _ in range(4):
        assert driver.round(0) == ""
        assert driver.round(1) == ""
        assert snapshot(driver, has_image=has_image) == ""
    driver.store.close()
    view = read_run(folder / "run")
    assert (view.base, view.records) == (None, tuple(driver.records))


def test_a_record_that_came_between_a_snapshot_and_its_registration_stays(folder):
    driver = grow(RunStore.open(folder / "run", cutting()), cutting(), 1)
    prepared = driver.store.write_snapshot(3, tuple(driver.versions), driver.states)
    assert driver.round(1) == ""
    assert driver.store.register_snapshot(prepared) == ""
    assert driver.round(0) == ""
    assert snapshot(driver) == ""
    driver.store.close()
    assert len(read_run(folder / "run").records) == 2
    driver.assert_whole(reload(folder / "run", cutting()))


def test_the_cut_of_a_history_with_rollbacks_lies_after_them():
    driver = Driver(MemoryStore(config(keep="all"))).begin()
    for _ in range(3):
        assert driver.round(0) == ""
    records = driver.records
    assert num_before(None, records, (2, 0)) == 5
    assert num_before(None, records, (3, 0)) == 6
    assert num_before(fold(records[:4]), records[4:], (2, 0)) == 1
    assert num_before(None, records[:2], (0, 0)) == 0


@pytest.mark.parametrize("column", ["record_id", "chain", "state", "digest"])
def test_a_damaged_base_is_refused(original, run_dir, column):
    with sqlite3.connect(run_dir / "run.db") as db:
        changed = "record_id + 1" if column == "record_id" else f"x'00' || {column}"
        db.execute(f"UPDATE base SET {column} = {changed}")
    db.close()
    with pytest.raises(StoreError, match="the base, which stands for its oldest records"):
        reload(run_dir, original.config)


def test_a_lost_base_is_refused(original, run_dir):
    with sqlite3.connect(run_dir / "run.db") as db:
        db.execute("DELETE FROM base")
    db.close()
    with pytest.raises(StoreError, match="record 1 does not fit the digest chain"):
        reload(run_dir, original.config)


@pytest.mark.parametrize("error", [errno.ENOSPC, None], ids=["no space", "a crash"])
def test_a_cut_that_fails_anywhere_loses_nothing_and_is_made_up_for(original, folder, error):
    for n in itertools.count(1):
        run_dir = image(original.run_dir, folder / f"run-{n}")
        files = FailingFiles()
        driver = original.twin(RunStore.open(run_dir, original.config, files=files))
        driver.store.load()
        assert driver.round(0) == ""
        content = random.Random(n).randbytes(IMAGE_BYTES)
        assert driver.store.write_tape([Entry(1, "syncer", Image(driver.num_rounds, content))]) == ""
        files.arm(n, error)
        try:
            reason = driver.snapshot()
        except Crash:
            reason = "crash"
        failed = files.has_failed
        files.arm(0, None)
        if error is not None and reason:
            assert reason == "no space left on the disk"
        driver.assert_whole(reload(image(run_dir, folder / "image"), driver.config))
        if error is not None:
            go_on(driver)
            assert len(read_run(run_dir).records) <= 3 + 2
            driver.assert_whole(driver.store.load())
        driver.store.close()
        if not failed:
            assert n > 10
            return


def test_a_run_of_many_rounds_stays_as_large_as_it_is(folder):
    driver = grow(RunStore.open(folder / "run", cutting()), cutting(), 4)

    def size() -> tuple[int, int, int]:
        db = sqlite3.connect(folder / "run" / "run.db")
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.close()
        return (
            pages,
            len(list((folder / "run" / "deltas").iterdir())),
            len(list((folder / "run" / "snapshots").iterdir())),
        )

    before = size()
    for _ in range(12):
        go_on(driver)
    after = size()
    assert after[0] <= before[0] + 32  # rows of a few more bytes may need a page more; an image has 134
    assert after[1:] == before[1:]
    driver.store.close()


def test_a_run_in_memory_keeps_its_fold_and_what_came_after_its_snapshot():
    store = MemoryStore(config())
    driver = Driver(store).begin()
    for _ in range(5):
        assert driver.round(0) == ""
        assert driver.round(1) == ""
        assert driver.snapshot() == ""
        assert store.records == []
    assert driver.round(1) == ""
    assert len(store.records) == 1
    found = store.load()
    driver.assert_whole(found)
    assert found.state == fold(driver.records)
