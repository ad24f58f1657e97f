"""A look at a run from outside, while its syncer goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from atoll.core.records import fold
from atoll.errors import StoreError
from atoll.numerics.partition import partition
from atoll.runtime.store import RunStore, read_run
from atoll.runtime.store.files import Files
from tests.unit.runtime.store.driver import Driver, config, line


@pytest.fixture
def driver(folder):
    made = Driver(RunStore.open(folder / "run", config())).begin()
    yield made
    made.store.close()


def test_a_view_shows_settings_records_state_manifest_tape_and_fragments(driver):
    manifest = partition(nn.Linear(4, 3), 2)
    assert driver.store.put_manifest(manifest) == ""
    assert driver.round(0) == ""
    assert driver.store.write_tape([line("later"), line("last")]) == ""
    view = read_run(driver.run_dir)
    assert view.config == config()
    assert view.records == tuple(driver.records)
    assert view.state == fold(driver.records)
    assert view.manifest == manifest
    assert list(view.entries()) == [line("round 1"), line("later"), line("last")]
    driver.assert_whole(view.found())


def test_a_view_of_a_run_without_a_model_has_no_fragments(folder):
    store = RunStore.open(folder / "empty", config())
    view = read_run(folder / "empty")
    assert (view.records, view.manifest, view.found().fragments) == ((), None, None)
    store.close()


def test_a_view_holds_still_while_the_run_goes_on(driver):
    assert driver.round(0) == ""
    view = read_run(driver.run_dir)
    assert driver.round(1) == ""
    assert view.state.merges == 1
    assert read_run(driver.run_dir).state.merges == 2


class Overtaken(Files):
    """At the first look at a file, the run goes on and deletes what was about to be read."""

    def __init__(self, driver: Driver) -> None:
        self.driver: Driver | None = driver

    def step(self, operation: str, path: Path) -> None:
        driver, self.driver = self.driver, None
        if driver is not None:
            for _ in range(3):
                assert driver.round(0) == ""
                assert driver.snapshot() == ""
            assert not path.exists()


def test_files_that_vanish_under_a_reader_are_looked_for_again(driver):
    """Between reading run.db and reading the files, snapshots delete what was there."""
    assert driver.round(0) == ""
    assert driver.snapshot() == ""
    files = Overtaken(driver)
    driver.assert_whole(read_run(driver.run_dir, files).found())
    assert driver.num_acknowledged() == 4


def test_a_closed_run_can_be_viewed_and_stays_as_it_is(driver):
    assert driver.round(0) == ""
    driver.store.close()
    before = sorted(path.name for path in driver.run_dir.iterdir())
    driver.assert_whole(read_run(driver.run_dir).found())
    after = sorted(path.name for path in driver.run_dir.iterdir())
    assert [name for name in after if not name.startswith("run.db-")] == before


def test_a_folder_without_a_run_is_refused(folder):
    with pytest.raises(StoreError, match="There is no run in"):
        read_run(folder)
