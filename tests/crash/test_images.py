"""Hundreds of power cuts: whatever the disk held, the next syncer goes on with all that was acknowledged.

A power cut destroys nothing that was durable, so no image may be refused. In `merge` durability nothing is
rolled back either; in the others a fragment comes back no older than at the last synced transaction, and what
is lost is named as a rollback (`tests.crash.syncer` holds every start against its promise). A failure names
the story and the seed: `survive(story, seed, folder)` makes the same image again.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from atoll.core.records import fold
from atoll.runtime.store import RunStore
from tests.crash.disk import RecordedFiles
from tests.crash.image import draw
from tests.crash.story import RUN, Story, tell, tell_of_cuts
from tests.crash.syncer import Promise, Syncer, recorded
from tests.unit.runtime.store.driver import config, reload

NUM_IMAGES = {"merge": 160, "cycle": 130, "snapshot": 130, "cuts": 80}
NUM_NESTED = 54
STRIDE = 7919
"""A prime, so that the seeds walk over all moments."""


@pytest.fixture(scope="module")
def stories(shared_folder: Path) -> dict[str, Story]:
    told = {mode: tell(Story(config(mode)), shared_folder / mode) for mode in ("merge", "cycle", "snapshot")}
    return {**told, "cuts": tell_of_cuts(shared_folder / "cuts")}


def survive(story: Story, seed: int, folder: Path) -> Syncer:
    """Draw an image, start on it, go on, and come back once more."""
    moment = story.moments[seed * STRIDE % len(story.moments)]
    assert isinstance(moment.promise, Promise)
    draw(moment, seed, folder)
    try:
        syncer = story.boot(folder, moment.promise)
        go_on(syncer)
        syncer.store.close()
        syncer.assert_whole(reload(folder / RUN, story.config))
    except Exception as error:
        raise AssertionError(f"{story.mode}, image {seed}, cut at {moment.label!r}: {error}") from error
    shutil.rmtree(folder)
    return syncer


def go_on(syncer: Syncer) -> None:
    if not syncer.states:
        syncer.seed()
    for p in (0, 1):
        syncer.round(p)


@pytest.mark.parametrize("name", NUM_IMAGES)
def test_after_a_power_cut_a_run_goes_on_with_all_that_was_acknowledged(stories, folder, name):
    lives = [survive(stories[name], seed, folder / "image") for seed in range(NUM_IMAGES[name])]
    num_shorter = sum(life.num_lost_records > 0 for life in lives)
    num_rolled_back = sum(life.num_lost_versions > 0 for life in lives)
    print(f"\n{name}: {len(stories[name].moments)} moments, {len(lives)} images, all recovered; ", end="")
    print(f"{num_shorter} without the newest records, {num_rolled_back} with versions rolled back")
    assert num_shorter > 0  # the images really lose something
    assert (num_rolled_back > 0) == (name in ("cycle", "snapshot"))


def test_the_recorded_runs_hold_what_they_are_about(stories):
    for name, story in stories.items():
        labels = Counter(moment.label.split(": ")[-1] for moment in story.moments)
        assert (story.rollbacks > 0) == (name in ("cycle", "snapshot"))
        assert labels["header of the log"] > 2
        assert labels["checkpoint"] > 2


@pytest.mark.parametrize("name", ["merge", "cycle", "snapshot"])
def test_a_recovery_that_is_itself_cut_off_twice_is_recovered_from(stories, folder, name):
    """The power goes, and goes again while the syncer starts, and again while it starts anew."""
    story = stories[name]
    for seed in range(NUM_NESTED // 3):
        moment = story.moments[(seed + 1) * STRIDE % len(story.moments)]
        try:
            for depth in range(2):
                root = draw(moment, seed + 1000 * depth, folder / f"{seed}-{depth}")
                with recorded(root) as disk:
                    assert isinstance(moment.promise, Promise)
                    syncer = story.boot(root, moment.promise, disk)
                    go_on(syncer)
                    syncer.close()
                moment = disk.moments[(seed + 1) * STRIDE % len(disk.moments)]
            again = Story(story.config, moments=[moment], past=story.past)
            survive(again, seed, folder / "last")
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {error}") from error


def test_a_first_start_that_was_cut_off_before_its_tables_were_written_is_begun_anew(folder):
    RunStore.open(folder / RUN, config()).close()
    database = folder / RUN / "run.db"
    database.unlink()
    with contextlib.closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA journal_mode = WAL")
    database.with_name("run.db-wal").write_bytes(b"torn")
    assert reload(folder / RUN, config()).state == fold([])


# What the images are worth: each of these stores has one fault, and some image shows it.


class NoFileForced(RecordedFiles):
    """Files are never forced to disk."""

    def step(self, operation: str, path: Path) -> None:
        super().step("skipped" if operation == "fsync" else operation, path)


class NoNameForced(RecordedFiles):
    """Folders are never forced to disk."""

    def step(self, operation: str, path: Path) -> None:
        super().step("skipped" if operation == "fsync folder" else operation, path)


class NoDeltaForcedLater(RecordedFiles):
    """Deltas that were written without being forced are not forced by the next synced commit."""

    def sync_file(self, path: Path) -> None:
        pass


class LogNotForced(RecordedFiles):
    """A commit of the database is not forced."""

    def step(self, operation: str, path: Path) -> None:
        super().step(operation, path)
        self.disk.is_full = False


class DeltaLast(RunStore):
    """The record is committed before its delta is a file."""

    def _put_delta(self, name, delta, *, sync):
        self._later = (name, delta, sync)
        self._expected.deltas[name] += 1

    def _commit(self, record, *, sync, lines):
        super()._commit(record, sync=sync, lines=lines)
        if late := self.__dict__.pop("_later", None):
            super()._put_delta(late[0], late[1], sync=late[2])


FAULTS = {
    "no file forced": Story(config("merge"), NoFileForced),
    "no name forced": Story(config("merge"), NoNameForced),
    "no delta forced later": Story(config("cycle"), NoDeltaForcedLater),
    "log not forced": Story(config("merge"), LogNotForced),
    "delta last": Story(config("merge"), kind=DeltaLast),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_with_a_fault_does_not_pass(folder, fault):
    with pytest.raises(AssertionError):
        live_through(FAULTS[fault], folder)


def live_through(story: Story, folder: Path) -> None:
    tell(story, folder / "story")
    for seed in range(150):
        survive(story, seed, folder / "image")
