"""What every store promises, in memory as on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from atoll.core.records import EpochRecord, FinishRecord, MemberRecord, SeedRecord, fold
from atoll.numerics.outer import digest
from atoll.numerics.partition import partition
from atoll.runtime.store import MemoryStore, RunStore, Store
from tests.unit.runtime.store.driver import SIZES, Driver, config, line


@pytest.fixture(params=["memory", "directory"])
def store(request, folder) -> Iterator[Store]:
    makers: dict[str, Callable[[Path], Store]] = {
        "memory": lambda _: MemoryStore(config()),
        "directory": lambda path: RunStore.open(path / "run", config()),
    }
    made = makers[request.param](folder)
    yield made
    made.close()


def test_a_new_store_holds_nothing(store):
    found = store.load()
    assert (found.state, found.fragments, found.manifest) == (fold([]), None, None)


def test_before_the_seed_there_are_members_and_no_fragments(store):
    driver = Driver(store)
    driver.next_epoch()
    assert driver.commit(MemberRecord(1, "a", "key", 7, 1, 0)) == ""
    found = store.load()
    assert found.fragments is None
    assert found.state == fold(driver.records)


def test_what_was_committed_is_found_bit_for_bit(store):
    driver = Driver(store).begin()
    for p in (0, 1, 0, 0, 1):
        assert driver.round(p) == ""
    assert driver.commit(FinishRecord(1, 5, "budget spent")) == ""
    found = store.load()
    assert found.state == fold(driver.records)
    assert found.state.finished
    driver.assert_whole(found)


@pytest.mark.parametrize("num_snapshots", [1, 2, 3])
def test_snapshots_change_nothing_of_what_is_found(store, num_snapshots):
    driver = Driver(store).begin()
    for _ in range(num_snapshots):
        for p in (0, 1, 0):
            assert driver.round(p) == ""
        assert driver.snapshot() == ""
    assert driver.round(1) == ""
    driver.assert_whole(store.load())


def test_the_fragments_found_are_the_callers_own(store):
    driver = Driver(store).begin()
    assert driver.round(0) == ""
    assert driver.snapshot() == ""
    fragments = store.load().fragments
    assert fragments is not None
    for state in fragments:
        state.served.zero_()
    driver.assert_whole(store.load())


def test_a_snapshot_may_be_written_before_rounds_and_registered_after_them(store):
    driver = Driver(store).begin()
    assert driver.round(0) == ""
    prepared = store.write_snapshot(1, tuple(driver.versions), list(driver.states))
    assert prepared.reason == ""
    assert driver.round(0) == ""
    assert driver.round(1) == ""
    assert store.register_snapshot(prepared) == ""
    assert driver.round(1) == ""
    driver.assert_whole(store.load())


def test_a_delta_that_is_put_and_not_yet_committed_survives_a_snapshot(store):
    driver = Driver(store).begin()
    for _ in range(2):
        assert driver.round(0) == ""
        assert driver.snapshot() == ""
    state, delta, record = driver.merge(1)
    assert store.put_delta(record.delta_digest, delta, sync=True) == ""
    assert driver.round(0) == ""
    assert driver.snapshot() == ""
    assert driver.commit(record) == ""
    driver.install(1, state)
    driver.assert_whole(store.load())


def test_the_same_delta_may_be_merged_twice(store):
    """Two zero deltas have one digest, and so one file."""
    driver = Driver(store).begin()
    for _ in range(4):
        driver.noise.manual_seed(5)
        assert driver.round(0) == ""
        assert driver.snapshot() == ""
    driver.assert_whole(store.load())


def test_a_record_of_another_epoch_is_refused(store):
    driver = Driver(store).begin()
    assert "does not follow epoch 1" in store.commit(EpochRecord(3, ()), sync=True, lines=[])
    assert "does not follow epoch 1" in store.commit(EpochRecord(1, ()), sync=True, lines=[])
    assert "store is in epoch 1" in store.commit(FinishRecord(2, 5, ""), sync=True, lines=[])
    assert store.load().state == fold(driver.records)


def test_only_an_empty_run_takes_initial_weights_and_only_once(store):
    driver = Driver(store).begin()
    weights = [torch.ones(size) for size in SIZES]
    assert store.put_seed(weights) == "the run already has its initial weights"
    record = SeedRecord(1, "b", 1, tuple(digest(values) for values in weights))
    assert store.commit(record, sync=True, lines=[]) == "the run already has its initial weights"
    driver.assert_whole(store.load())


def test_a_seed_record_must_name_the_weights_that_were_put(store):
    driver = Driver(store)
    driver.next_epoch()
    assert store.put_seed([torch.ones(size) for size in SIZES]) == ""
    assert "never put" in store.commit(SeedRecord(1, "a", 1, ("x", "y")), sync=True, lines=[])


def test_a_round_must_name_a_delta_that_was_put(store):
    driver = Driver(store).begin()
    _, _, record = driver.merge(0)
    assert "was never put" in store.commit(record, sync=True, lines=[])
    driver.assert_whole(store.load())


@pytest.mark.parametrize("snapshot_first", [False, True])
def test_a_version_whose_delta_does_not_lead_to_its_digest_is_rolled_back(store, snapshot_first):
    """As with another build of the numerics: the delta is good, the record is good, the fold is not."""
    driver = Driver(store).begin()
    for p in (0, 1, 0):
        assert driver.round(p) == ""
    if snapshot_first:
        assert driver.snapshot() == ""
    _, delta, record = driver.merge(0)
    assert store.put_delta(record.delta_digest, delta, sync=True) == ""
    assert driver.commit(replace(record, digest="0" * 32)) == ""
    found = store.load()
    assert [(r.fragment, r.from_version, r.to_version) for r in found.state.rollbacks] == [(0, 3, 2)]
    problem = "fragment 0, version 3: its delta does not lead to the digest in its record"
    assert found.state.problems[0] == problem
    driver.assert_true(found)


def test_the_manifest_is_kept_once_and_another_one_is_refused(store):
    mine, other = partition(nn.Linear(4, 3), 2), partition(nn.Linear(4, 5), 2)
    assert store.put_manifest(mine) == ""
    assert store.put_manifest(mine) == ""
    assert store.put_manifest(other).startswith(
        "the run has another model: weight (float32, shape [3, 4]) is"
    )
    assert store.load().manifest == mine


def test_tape_lines_may_be_written_alone(store):
    assert store.write_tape([line("one"), line("two")]) == ""
    assert store.write_tape([]) == ""
