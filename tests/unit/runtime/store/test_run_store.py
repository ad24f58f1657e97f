"""A run directory: who may open it, with which settings, what stays in it, and what anybody may ask it."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from atoll.config import BudgetConfig, NetworkConfig, RunConfig, SecurityConfig, SyncConfig
from atoll.core.records import Contributor, RoundRecord, fold
from atoll.errors import StoreError
from atoll.numerics.outer import digest
from atoll.numerics.partition import partition
from atoll.runtime.store import MemoryStore, RunStore, read_run
from atoll.runtime.store.lock import RunLock
from atoll.runtime.store.memory import MAX_LINES
from tests.unit.runtime.store.driver import SIZES, Driver, config, line, reload


@pytest.fixture
def run_dir(folder: Path) -> Path:
    return folder / "run"


def ask(run_dir: Path, query: str) -> list[tuple[object, ...]]:
    db = sqlite3.connect(run_dir / "run.db")
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_run_goes_on_over_many_restarts(run_dir):
    driver = Driver(RunStore.open(run_dir, config())).begin()
    for number in range(1, 5):
        assert driver.round(number % 2) == ""
        if number % 2:
            assert driver.snapshot() == ""
        driver.store.close()
        driver.store = RunStore.open(run_dir, config())
        found = driver.store.load()
        driver.assert_whole(found)
        assert found.state == fold(driver.records)
        driver.next_epoch(found)
    driver.store.close()


def test_the_manifest_survives_a_restart(run_dir):
    manifest = partition(nn.Linear(4, 3), 2)
    store = RunStore.open(run_dir, config())
    assert store.put_manifest(manifest) == ""
    store.close()
    assert reload(run_dir, config()).manifest == manifest


# The lock


def test_a_directory_in_use_is_refused_and_the_error_names_the_process(run_dir):
    store = RunStore.open(run_dir, config())
    with pytest.raises(StoreError, match=f"in use by process {os.getpid()}"):
        RunStore.open(run_dir, config())
    store.close()
    store.close()
    RunStore.open(run_dir, config()).close()


def test_a_store_that_could_not_be_opened_holds_no_lock(run_dir):
    RunStore.open(run_dir, config()).close()
    for _ in range(2):
        with pytest.raises(StoreError, match="was started with"):
            RunStore.open(run_dir, config("cycle"))
    RunStore.open(run_dir, config()).close()


def test_a_forked_child_does_not_keep_the_run_locked(folder):
    lock = RunLock(folder)
    child = os.fork()
    if child == 0:
        os._exit(0 if lock._descriptor == -1 else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    with pytest.raises(StoreError):
        RunLock(folder)
    lock.release()
    RunLock(folder).release()


def test_a_directory_that_cannot_be_made_is_refused(folder):
    (folder / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be used"):
        RunStore.open(folder / "file" / "run", config())


# Settings


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (RunConfig(sync=SyncConfig(num_fragments=3)), "sync.num_fragments = 2"),
        (RunConfig.from_tables({"sync": {"num_fragments": 2, "merge_rule": "rda"}}), "sync.merge_rule"),
        (RunConfig.from_tables({"sync": {"num_fragments": 2, "adopt": "blend"}}), "sync.adopt"),
        (RunConfig.from_tables({"sync": {"num_fragments": 2}, "codec": {"down": "int4"}}), "codec.down"),
        (RunConfig.from_tables({"sync": {"num_fragments": 2}, "outer": {"momentum": 0.5}}), "outer.momentum"),
        (RunConfig.from_tables({"sync": {"num_fragments": 2}, "data": {"seed": 5}}), "data.seed"),
        (config("snapshot"), "durability.mode"),
    ],
)
def test_a_setting_that_changes_the_run_is_refused_by_name(run_dir, other, name):
    RunStore.open(run_dir, config()).close()
    with pytest.raises(StoreError) as error:
        RunStore.open(run_dir, other)
    assert name in error.value.what
    assert read_run(run_dir).config == config()


def test_budget_network_security_and_what_is_kept_may_change(run_dir):
    RunStore.open(run_dir, config()).close()
    other = replace(
        config(keep="all"),
        budget=BudgetConfig(ticks=99),
        network=NetworkConfig(data_connections=2),
        security=SecurityConfig(tls=False),
    )
    RunStore.open(run_dir, other).close()
    assert read_run(run_dir).config == other


@pytest.mark.parametrize("content", [None, "[sync]\nnum_fragments = -1\n", "\0\0\0"])
def test_a_config_that_is_gone_or_damaged_is_refused(run_dir, content):
    RunStore.open(run_dir, config()).close()
    path = run_dir / "config.toml"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(StoreError, match=r"config\.toml"):
        RunStore.open(run_dir, config())


def test_a_start_that_died_before_its_database_leaves_a_new_directory(run_dir):
    run_dir.mkdir()
    (run_dir / "config.toml").write_text(config("cycle").to_toml())
    (run_dir / ".tmp-1-1-config.toml").write_text("half")
    RunStore.open(run_dir, config()).close()
    assert read_run(run_dir).config == config()
    assert not (run_dir / ".tmp-1-1-config.toml").exists()


def test_a_database_of_another_format_is_refused(run_dir):
    RunStore.open(run_dir, config()).close()
    db = sqlite3.connect(run_dir / "run.db")
    with db:
        check = hashlib.blake2b(b"format\x0099", digest_size=16).digest()
        db.execute("UPDATE meta SET value = '99', digest = ? WHERE key = 'format'", (check,))
    db.close()
    with pytest.raises(StoreError, match="has format 99, and this Atoll reads format 3"):
        RunStore.open(run_dir, config())


# Reading only


def test_a_reader_sees_the_run_and_can_change_nothing(run_dir):
    driver = Driver(RunStore.open(run_dir, config())).begin()
    assert driver.round(0) == ""
    reader = RunStore.open(run_dir, config(), readonly=True)
    driver.assert_whole(reader.load())
    refusal = "the run directory was opened for reading only"
    _, delta, record = driver.merge(0)
    assert reader.put_delta(record.delta_digest, delta, sync=True) == refusal
    assert reader.commit(record, sync=True, lines=[]) == refusal
    assert reader.put_seed([torch.ones(size) for size in SIZES]) == refusal
    assert reader.write_tape([line("x")]) == refusal
    assert reader.take_snapshot(1, (1, 0), driver.states) == refusal
    reader.close()
    driver.assert_whole(driver.store.load())
    driver.store.close()


def test_a_reader_makes_no_directory(folder):
    with pytest.raises(StoreError, match="cannot be opened"):
        RunStore.open(folder / "nothing", config(), readonly=True)
    assert not (folder / "nothing").exists()


# What stays


def test_what_lies_before_the_second_newest_snapshot_is_deleted(run_dir):
    driver = Driver(RunStore.open(run_dir, config())).begin()
    kept: list[set[str]] = []
    for _ in range(4):
        before = names(run_dir / "deltas")
        for p in (0, 1, 0):
            assert driver.round(p) == ""
        kept.append(names(run_dir / "deltas") - before)
        assert driver.snapshot() == ""
    assert names(run_dir / "deltas") == kept[3]
    assert names(run_dir / "snapshots") == {"9", "12", "seed.safetensors"}
    driver.store.close()


def test_the_first_snapshot_deletes_nothing_because_the_seed_may_be_needed(run_dir):
    driver = Driver(RunStore.open(run_dir, config())).begin()
    for p in (0, 1, 0):
        assert driver.round(p) == ""
    assert driver.snapshot() == ""
    assert len(names(run_dir / "deltas")) == 3
    driver.store.close()


def test_keep_all_deletes_nothing(run_dir):
    driver = Driver(RunStore.open(run_dir, config(keep="all")), config(keep="all")).begin()
    for _ in range(4):
        for p in (0, 1):
            assert driver.round(p) == ""
        assert driver.snapshot() == ""
    assert len(names(run_dir / "deltas")) == 8
    assert names(run_dir / "snapshots") == {"2", "4", "6", "8", "seed.safetensors"}
    driver.store.close()


def test_a_damaged_snapshot_does_not_count_as_one_of_the_two_that_stay(run_dir):
    driver = Driver(RunStore.open(run_dir, config())).begin()
    for _ in range(2):
        assert driver.round(0) == ""
        assert driver.snapshot() == ""
    driver.store.close()
    (run_dir / "snapshots" / "2" / "0.safetensors").write_bytes(b"")
    driver.store = RunStore.open(run_dir, config())
    driver.next_epoch(driver.store.load())
    assert driver.round(0) == ""
    assert driver.snapshot() == ""
    assert names(run_dir / "snapshots") == {"1", "3", "seed.safetensors"}
    (run_dir / "snapshots" / "3" / "0.safetensors").write_bytes(b"")
    driver.store.close()
    driver.assert_whole(reload(run_dir, config()))


@pytest.mark.parametrize(
    "statement",
    ["DELETE FROM commits", "UPDATE commits SET voided_by = 1", "UPDATE snapshots SET versions = '[99, 99]'"],
)
def test_what_is_deleted_follows_from_the_records_and_not_from_the_tables_beside_them(run_dir, statement):
    driver = Driver(RunStore.open(run_dir, config())).begin()
    for p in (0, 1):
        assert driver.round(p) == ""
        assert driver.snapshot() == ""
    assert driver.round(0) == ""
    db = sqlite3.connect(run_dir / "run.db")
    with db:
        db.execute(statement)
    db.close()
    assert driver.snapshot() == ""
    (run_dir / "snapshots" / "3" / "contents.json").unlink()
    driver.store.close()
    needed = {f"{record.delta_digest}.safetensors" for record in driver.records[-1:]}  # type: ignore[union-attr]
    assert names(run_dir / "deltas") == needed


def test_an_old_run_that_was_not_loaded_loses_nothing_to_a_snapshot(run_dir):
    driver = Driver(RunStore.open(run_dir, config())).begin()
    for p in (0, 1, 0):
        assert driver.round(p) == ""
        assert driver.snapshot() == ""
    before = names(run_dir / "deltas")
    driver.store.close()
    driver.store = RunStore.open(run_dir, config())
    for p in (0, 1):
        assert driver.round(p) == ""
        assert driver.snapshot() == ""
    assert before < names(run_dir / "deltas")
    driver.assert_whole(driver.store.load())
    driver.store.close()


def test_orphaned_deltas_go_with_the_next_snapshots(run_dir):
    driver = Driver(RunStore.open(run_dir, config())).begin()
    _, delta, record = driver.merge(0)
    assert driver.store.put_delta(record.delta_digest, delta, sync=True) == ""
    driver.store.close()
    driver.store = RunStore.open(run_dir, config())
    driver.next_epoch(driver.store.load())
    assert len(names(run_dir / "deltas")) == 1
    for _ in range(2):
        assert driver.round(0) == ""
        assert driver.snapshot() == ""
    assert f"{record.delta_digest}.safetensors" not in names(run_dir / "deltas")
    driver.store.close()


def test_the_same_number_of_merges_may_come_twice(run_dir):
    """After a rollback; each snapshot has a folder of its own."""
    driver = Driver(RunStore.open(run_dir, config())).begin()
    assert driver.round(0) == ""
    for _ in range(2):
        assert driver.store.take_snapshot(1, tuple(driver.versions), driver.states) == ""
    assert names(run_dir / "snapshots") == {"1", "1-2", "seed.safetensors"}
    driver.assert_whole(driver.store.load())
    driver.store.close()


def test_a_snapshot_is_written_by_another_thread_while_rounds_are_committed(run_dir):
    driver = Driver(RunStore.open(run_dir, config())).begin()
    assert driver.round(0) == ""
    prepared = []
    states, versions = list(driver.states), tuple(driver.versions)
    writer = threading.Thread(
        target=lambda: prepared.append(driver.store.write_snapshot(1, versions, states))
    )
    writer.start()
    for p in (0, 1, 0, 1):
        assert driver.round(p) == ""
    writer.join()
    assert driver.store.register_snapshot(prepared[0]) == ""
    driver.assert_whole(driver.store.load())
    driver.store.close()


# What anybody may ask


def test_commits_contributions_and_members_can_be_queried(run_dir):
    driver = Driver(RunStore.open(run_dir, config())).begin()
    assert driver.round(1) == ""
    record = driver.records[-1]
    assert isinstance(record, RoundRecord)
    row = (1, 1, record.digest, record.delta_digest, 1, 1, 1, None)
    query = "SELECT fragment, version, digest, delta_digest, epoch, round, t, voided_by FROM commits"
    assert ask(run_dir, query) == [row]
    query = "SELECT learner, incarnation, fragment, start_token, end_token, steps, weight FROM contributions"
    assert ask(run_dir, query) == [("a", 1, 1, 100, 160, 3, 1200.0)]
    assert ask(run_dir, "SELECT learner, incarnation, identity_key, shard FROM members") == [
        ("a", 1, "key", 0)
    ]
    assert ask(run_dir, "SELECT kind FROM records") == [("epoch",), ("member",), ("seed",), ("round",)]
    driver.store.close()


def test_the_database_refuses_a_contribution_or_a_version_twice(run_dir):
    driver = Driver(RunStore.open(run_dir, config())).begin()
    assert driver.round(0) == ""
    record = driver.records[-1]
    assert isinstance(record, RoundRecord)
    delta = torch.ones(SIZES[0])
    for again in (
        replace(record, delta_digest=digest(delta)),
        replace(record, delta_digest=digest(delta), version=2),
    ):
        assert driver.store.put_delta(digest(delta), delta, sync=True) == ""
        assert driver.store.commit(again, sync=True, lines=[]).startswith("run.db: UNIQUE constraint failed")
    driver.assert_whole(driver.store.load())
    assert driver.round(0) == ""
    driver.store.close()


def test_every_field_of_a_record_survives(run_dir):
    driver = Driver(RunStore.open(run_dir, config())).begin()
    _, delta, record = driver.merge(0)
    parts = tuple(Contributor(f"l{i}", i + 1, 2**40, 2**41, i, 0, 0.1 + i) for i in range(5))
    record = replace(record, contributors=parts, t=2**40)
    assert driver.store.put_delta(record.delta_digest, delta, sync=True) == ""
    assert driver.commit(record) == ""
    assert read_run(run_dir).records == tuple(driver.records)
    driver.store.close()


def test_memory_keeps_a_bounded_tape():
    store = MemoryStore(config())
    for _ in range(3):
        assert store.write_tape([line("x")] * (MAX_LINES // 2)) == ""
    assert len(store.tape) == MAX_LINES
