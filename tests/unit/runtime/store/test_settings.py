"""An edited config.toml is found out by what run.db has kept, and is never taken for lost merges."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.config import BudgetConfig, RunConfig
from atoll.errors import StoreError
from atoll.runtime.fsck import check_store
from atoll.runtime.store import RunStore, read_run
from atoll.runtime.store.settings import edits, fixed, is_as_written, read_settings
from tests.unit.runtime.store.driver import Driver, config, reload

USUAL = f"momentum = {RunConfig().outer.momentum}"


@pytest.fixture
def run_dir(folder: Path) -> Path:
    return folder / "run"


def edit(run_dir: Path, before: str, after: str) -> None:
    path = run_dir / "config.toml"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))


def test_an_edited_config_is_named_with_the_setting_and_both_values_and_no_loss_is_claimed(run_dir):
    driver = Driver(RunStore.open(run_dir, config())).begin()
    assert driver.round(0) == ""
    driver.store.close()
    edit(run_dir, USUAL, "momentum = 0.5")
    given = RunConfig.from_toml(run_dir / "config.toml")
    for look in (
        lambda: RunStore.open(run_dir, given),
        lambda: RunStore.open(run_dir, given, accepts_loss=True),
        lambda: RunStore.open(run_dir, replace(given, budget=BudgetConfig(ticks=99))),
        lambda: RunStore.open(run_dir, given, readonly=True),
        lambda: read_run(run_dir),
    ):
        with pytest.raises(StoreError) as error:
            look()
        assert f"{run_dir / 'config.toml'} says outer.momentum = 0.5" in error.value.what
        assert f"started with {RunConfig().outer.momentum}" in error.value.what
        assert "--accept-loss" not in str(error.value)
    assert not is_as_written(run_dir), "a refusal does not seal what it refuses"
    edit(run_dir, "momentum = 0.5", USUAL)
    assert reload(run_dir, config()).state.fragments[0].version == 1


def test_what_may_change_may_be_edited_in_the_file(run_dir):
    RunStore.open(run_dir, config()).close()
    edit(run_dir, 'keep = "recent"', 'keep = "all"')
    RunStore.open(run_dir, RunConfig.from_toml(run_dir / "config.toml")).close()
    assert read_run(run_dir).config == config(keep="all")


def test_a_database_that_kept_no_settings_is_opened_as_ever(run_dir):
    RunStore.open(run_dir, config()).close()
    with closing(sqlite3.connect(run_dir / "run.db")) as db, db:
        db.execute("DELETE FROM meta WHERE key = 'settings'")
    RunStore.open(run_dir, config()).close()
    assert read_run(run_dir).config == config()


def test_settings_that_another_version_of_atoll_does_not_know_are_not_compared():
    kept = json.loads(fixed(config()))
    assert "outer.momentum" in kept
    assert not {"budget.ticks", "durability.keep"} & kept.keys()
    del kept["outer.momentum"]
    kept |= {"sync.forgotten": 1, "sync.num_fragments": 5}
    assert edits(json.dumps(kept), config()) == [("sync.num_fragments", 5, 2)]


def test_fsck_names_the_edited_setting_even_in_a_file_without_its_digest(run_dir):
    RunStore.open(run_dir, config()).close()
    text = config().to_toml()
    (run_dir / "config.toml").write_text(text.replace(USUAL, "momentum = 0.5"))
    (problem,) = check_store(run_dir).problems
    assert problem == f"run.db: the run was started with outer.{USUAL}, and config.toml says 0.5."
    (run_dir / "config.toml").write_text(text)
    assert check_store(run_dir).ok


def test_a_run_of_an_older_atoll_goes_on_by_the_rules_that_it_began_with(run_dir):
    RunStore.open(run_dir, config()).close()
    assert read_settings(run_dir).sync.grace_rule == "worth"
    edit(run_dir, 'grace_rule = "worth"\n', "grace_min_steps = 0.0\n")
    assert read_settings(run_dir).sync.grace_rule == "slack"
    edit(run_dir, "grace_min_steps = 0.0\n", "grace_min_steps = 1.0\n")
    with pytest.raises(StoreError, match="grace_min_steps"):
        read_settings(run_dir)


def test_a_config_that_people_wrote_has_todays_defaults(run_dir):
    run_dir.mkdir()
    (run_dir / "config.toml").write_text("[sync]\nmin_quorum = 2\n")
    assert read_settings(run_dir).sync.grace_rule == "worth"
