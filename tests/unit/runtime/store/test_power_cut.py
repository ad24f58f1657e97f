"""A power cut takes everything that was not forced to disk. What was acknowledged as synced stays."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from atoll.runtime.store import RunStore
from atoll.runtime.store.files import Files
from tests.unit.runtime.store.driver import Driver, FailingFiles, config, image, reload


class CachedFiles(FailingFiles):
    """Knows, beside the real folder, what a disk would hold of it if the power went now.

    A file's content is on the disk after its fsync; a name in a folder after the fsync of the folder.
    A failed fsync drops what was to be written, as the kernel does: a second one would find nothing to do.
    """

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self.run_dir = run_dir
        self.numbers: dict[Path, int] = {}
        """A number for each file that was ever written, by its name now."""
        self.content: dict[int, bytes] = {}
        """What the disk has of each file."""
        self.names: dict[Path, int] = {}
        """What the disk has of each folder: the numbers of its files, 0 for a folder."""
        self.dropped: set[int] = set()
        self.forcing: tuple[str, Path] | None = None

    def step(self, operation: str, path: Path) -> None:
        """At the next operation the one before it is done; only then does the disk have its result."""
        self.settle()
        try:
            super().step(operation, path)
        except OSError:
            if operation == "fsync":
                self.dropped.add(self.numbers[path])
            raise
        is_inside = self.run_dir in (path, *path.parents)
        if operation in ("fsync", "fsync folder") and is_inside:
            self.forcing = (operation, path)

    def write(self, path: Path, parts: Iterable[bytes | memoryview], *, sync: bool) -> None:
        self.numbers[path] = 1 + max(self.numbers.values(), default=0)
        super().write(path, parts, sync=sync)

    def rename(self, old: Path, new: Path) -> None:
        """A folder takes along what the disk has of it; its own new name is not there yet."""
        super().rename(old, new)
        self.settle()
        for known in (self.numbers, self.names):
            for name in [name for name in known if name.parent == old]:
                known[new / name.name] = known.pop(name)
        if old in self.numbers:
            self.numbers[new] = self.numbers[old]

    def settle(self) -> None:
        if self.forcing is None:
            return
        (operation, path), self.forcing = self.forcing, None
        if operation == "fsync folder":
            self.names = {name: number for name, number in self.names.items() if name.parent != path}
            for child in path.iterdir():
                if child.is_dir() or child in self.numbers:
                    self.names[child] = 0 if child.is_dir() else self.numbers[child]
        elif self.numbers[path] not in self.dropped:
            self.content[self.numbers[path]] = path.read_bytes()

    def cut(self, target: Path) -> Path:
        """The run directory after the power went. The database is another test's: it is taken as it is."""
        self.settle()
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for path in self.run_dir.glob("run.db*"):
            shutil.copy(path, target)
        for path, number in sorted(self.names.items()):
            new = target / path.relative_to(self.run_dir)
            if number == 0:
                new.mkdir(parents=True, exist_ok=True)
            elif new.parent.exists():
                new.write_bytes(self.content.get(number, b"\0" * 64))
        return target


def start(folder: Path, mode) -> tuple[Driver, CachedFiles]:
    run = config(mode)
    files = CachedFiles(folder / "run")
    return Driver(RunStore.open(folder / "run", run, files=files), run), files


def test_in_merge_durability_a_power_cut_costs_nothing_at_any_time(folder):
    driver, files = start(folder, "merge")
    driver.begin()
    for p in (0, 1, 0, 1, 1, 0, 0, 1):
        assert driver.round(p) == ""
        driver.assert_whole(reload(files.cut(folder / "image"), driver.config))
        if driver.num_rounds % 3 == 0:
            assert driver.snapshot() == ""
            driver.assert_whole(reload(files.cut(folder / "image"), driver.config))
    driver.store.close()


def test_the_folder_of_a_new_run_is_forced_to_disk_with_those_above_it(folder):
    files = FailingFiles()
    RunStore.open(folder / "runs" / "mine", config(), files=files).close()
    assert files.operations[:3] == [
        "make folder mine",
        "fsync folder runs",
        f"fsync folder {folder.name}",
    ]


def test_in_cycle_durability_a_power_cut_costs_at_most_the_cycle(folder):
    driver, files = start(folder, "cycle")
    driver.begin()
    for number, p in enumerate((0, 1, 0, 1, 1, 0, 0, 1), 1):
        assert driver.round(p, sync=number % 4 == 0) == ""
        found = reload(files.cut(folder / "image"), driver.config)
        driver.assert_true(found)
        lost = sum(rollback.from_version - rollback.to_version for rollback in found.state.rollbacks)
        assert lost == number % 4
    driver.store.close()


def test_in_snapshot_durability_a_power_cut_costs_what_came_after_the_snapshot(folder):
    driver, files = start(folder, "snapshot")
    driver.begin()
    for number, p in enumerate((0, 1, 0, 1, 1, 0, 0, 1), 1):
        assert driver.round(p, sync=False) == ""
        if number == 5:
            assert driver.snapshot() == ""
        found = reload(files.cut(folder / "image"), driver.config)
        driver.assert_true(found)
        lost = sum(rollback.from_version - rollback.to_version for rollback in found.state.rollbacks)
        assert lost == (number if number < 5 else number - 5)
    driver.store.close()


def test_a_snapshot_also_forces_the_deltas_to_disk_that_stand_in_for_it_if_it_is_damaged(folder):
    driver, files = start(folder, "snapshot")
    driver.begin()
    for p in (0, 1, 0):
        assert driver.round(p, sync=False) == ""
    assert driver.snapshot() == ""
    run_dir = files.cut(folder / "image")
    (run_dir / "snapshots" / "3" / "contents.json").unlink()
    driver.assert_whole(reload(run_dir, driver.config))
    driver.store.close()


def test_deltas_of_a_killed_process_are_forced_to_disk_by_the_next_one(folder):
    driver, files = start(folder, "cycle")
    driver.begin()
    for p in (0, 1, 0):
        assert driver.round(p, sync=False) == ""
    driver.store.close()  # as after a kill: the kernel has the deltas, the disk does not
    store = RunStore.open(folder / "run", driver.config, files=files)
    driver.store = store
    driver.next_epoch(store.load())
    driver.assert_whole(reload(files.cut(folder / "image"), driver.config))
    store.close()


ACTS: dict[str, Callable[[Driver], str]] = {
    "round": lambda driver: driver.round(1),
    "snapshot": lambda driver: driver.snapshot(),
}


@pytest.mark.parametrize("mode", ["merge", "cycle"])
@pytest.mark.parametrize("act", ACTS)
def test_after_a_failed_fsync_an_acknowledgement_is_true_all_the_same(folder, act, mode):
    """The trap: a second fsync of the same file succeeds, and the file is not there."""
    for n in itertools.count(1):
        driver, files = start(folder / str(n), mode)
        driver.begin()
        for p in (0, 1, 1):
            assert driver.round(p, sync=mode == "merge") == ""
        files.arm(n, errno.EIO)
        if ACTS[act](driver):
            files.arm(0, None)
            assert ACTS[act](driver) == ""
        failed = files.has_failed
        files.arm(0, None)
        assert driver.round(0) == ""  # synced: takes everything before it along
        driver.assert_whole(reload(files.cut(folder / "image"), driver.config))
        driver.store.close()
        if not failed:
            return


def test_a_log_that_lost_its_end_gives_back_the_records_before_it(folder):
    """Whatever length of the log survives, the run is a run of some moment, and none before the last sync."""
    run = config("cycle")
    driver = Driver(RunStore.open(folder / "run", run), run).begin()
    assert driver.round(0) == ""
    log = folder / "run" / "run.db-wal"
    synced_bytes, num_synced = log.stat().st_size, driver.num_acknowledged()
    for p in (1, 0, 1):
        assert driver.round(p, sync=False) == ""
    merges = []
    for length in range(synced_bytes, log.stat().st_size + 1, 1009):
        run_dir = image(folder / "run", folder / "image")
        os.truncate(run_dir / log.name, length)
        (run_dir / "run.db-shm").unlink()
        found = reload(run_dir, run)
        driver.assert_true(found)
        assert found.state.problems == ()
        merges.append(found.state.merges)
    assert merges[0] == num_synced
    assert merges == sorted(merges)
    assert len(set(merges)) > 2
    driver.store.close()


def test_the_cut_of_this_test_really_cuts(folder):
    """A store that forced nothing to disk would lose everything here."""

    class Careless(CachedFiles):
        def write(self, path, parts, *, sync):
            Files.write(self, path, parts, sync=False)

    run = config()
    files = Careless(folder / "run")
    driver = Driver(RunStore.open(folder / "run", run, files=files), run).begin()
    assert driver.round(0) == ""
    target = files.cut(folder / "image")
    shutil.copy(folder / "run" / "config.toml", target)
    shutil.copy(folder / "run" / "snapshots" / "seed.safetensors", target / "snapshots")
    assert [r.to_version for r in reload(target, run).state.rollbacks] == [0]
    driver.store.close()
