"""A crash loses what was not synced, and nothing that was."""

from __future__ import annotations

import random

import pytest

from atoll.core.records import (
    EpochRecord,
    MemberRecord,
    Record,
    Rollback,
    RoundRecord,
    SeedRecord,
    fold,
)
from atoll.sim.disk import Damage, Disk

BEGINNING: list[Record] = [
    EpochRecord(1, ()),
    MemberRecord(1, "a", "k", 1, 1, 0),
    SeedRecord(1, "a", 1, ("d0",)),
]


class Always(random.Random):
    """Every draw is the same, so a crash does what the test says."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value

    def randint(self, a: int, b: int) -> int:
        return a + int(self.value * (b - a + 1))


HARSH, MILD = Always(0.0), Always(0.99)


def merge(version: int) -> RoundRecord:
    return RoundRecord(1, version, 0, version, f"d{version}", f"x{version}", version, ())


def disk(num_merges: int, *, sync: bool) -> Disk:
    """A store with some merges, each with its delta."""
    new = Disk()
    for record in BEGINNING:
        assert new.commit(record, sync=True)
    for version in range(1, num_merges + 1):
        write(new, version, sync=sync)
        assert new.commit(merge(version), sync=sync)
    return new


def write(store: Disk, version: int, *, sync: bool) -> bool:
    store.begin_file(f"x{version}", f"content {version}")
    return store.end_file(f"x{version}", sync=sync)


def test_what_was_synced_survives_any_crash():
    store = disk(5, sync=True)
    assert store.crash(HARSH, lose=True, tear=True) == Damage()
    assert store.load() == fold([*BEGINNING, *(merge(v) for v in range(1, 6))])


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_loses_only_an_unsynced_suffix_of_the_records(seed):
    store = disk(3, sync=True)
    for version in range(4, 9):
        write(store, version, sync=True)
        store.commit(merge(version), sync=False)
    before = list(store.records)
    damage = store.crash(random.Random(seed), lose=True, tear=False)
    assert store.records == before[: len(store.records)]
    assert len(BEGINNING) + 3 <= len(store.records) == len(before) - damage.num_records_lost


def test_a_harsh_crash_loses_the_whole_unsynced_suffix_and_a_mild_one_none_of_it():
    for rng, lost in ((HARSH, 2), (MILD, 0)):
        store = disk(3, sync=True)
        for version in (4, 5):
            write(store, version, sync=True)
            store.commit(merge(version), sync=False)
        assert store.crash(rng, lose=True, tear=False).num_records_lost == lost


def test_a_synced_record_makes_those_before_it_durable():
    store = disk(2, sync=False)
    store.commit(merge(3), sync=True)
    assert store.crash(HARSH, lose=True, tear=False).num_records_lost == 0
    assert len(store.records) == len(BEGINNING) + 3


def test_what_survived_a_crash_survives_the_next_one():
    store = disk(4, sync=False)
    store.crash(MILD, lose=True, tear=True)
    assert store.crash(HARSH, lose=True, tear=True) == Damage()
    assert store.load().merges == 4


def test_a_torn_delta_is_caught_and_the_rollback_is_named():
    store = disk(3, sync=True)
    store.files["x2"].synced = False
    assert store.crash(HARSH, lose=False, tear=True) == Damage(num_files_torn=1)
    assert not store.files["x2"].is_intact
    state = store.load()
    assert state.rollbacks == (Rollback(0, 3, 1, "d1", "d0", ()),)
    assert state.problems == (
        "fragment 0: the delta of version 2 is torn or missing, so versions 2 to 3 cannot be rebuilt",
    )


def test_a_delta_that_is_gone_is_caught_too():
    store = disk(2, sync=True)
    store.files["x2"].synced = False
    assert store.crash(HARSH, lose=True, tear=False) == Damage(num_files_lost=1)
    assert [(r.from_version, r.to_version) for r in store.load().rollbacks] == [(2, 1)]


def test_a_write_that_a_crash_interrupts_leaves_a_torn_file_or_none():
    torn, gone = disk(1, sync=True), disk(1, sync=True)
    torn.begin_file("x2", "content")
    torn.crash(HARSH, lose=False, tear=True)
    assert not torn.files["x2"].is_intact
    gone.begin_file("x2", "content")
    gone.crash(MILD, lose=True, tear=True)
    assert "x2" not in gone.files
    assert not torn.end_file("x2", sync=True)
    assert not gone.end_file("x2", sync=True)


def test_a_torn_file_may_be_written_anew():
    store = disk(2, sync=True)
    store.files["x2"].synced = False
    store.crash(HARSH, lose=False, tear=True)
    assert store.load().rollbacks
    assert write(store, 2, sync=True)
    assert store.load().rollbacks == ()


def test_a_full_disk_refuses_records_files_and_snapshots_whole():
    store = disk(1, sync=True)
    before = list(store.records), dict(store.files), store.snapshot
    store.is_full = True
    assert not store.commit(merge(2), sync=True)
    assert not write(store, 2, sync=True)
    assert not store.take_snapshot((1,), "all")
    assert (store.records, store.files, store.snapshot) == before
    store.is_full = False
    assert write(store, 2, sync=True)
    assert store.commit(merge(2), sync=True)


def test_a_snapshot_makes_the_deltas_before_it_needless_and_the_log_durable():
    store = disk(3, sync=False)
    assert store.take_snapshot((2,), "all of version 2")
    assert store.crash(HARSH, lose=True, tear=True).num_records_lost == 0
    assert not any(store.files[f"x{v}"].is_intact for v in (1, 2, 3))
    assert [(r.from_version, r.to_version) for r in store.load().rollbacks] == [(3, 2)]


# An operator's way back


def test_a_way_back_is_a_record_that_gives_versions_up():
    store = disk(5, sync=True)
    record = store.go_back(3)
    assert record == EpochRecord(2, (Rollback(0, 5, 3, "d3", "d2", ()),), 3)
    assert store.records[-1] == record
    state = store.load()
    assert (state.t, state.fragments[0].version, state.rollbacks) == (3, 3, ())


def test_a_way_back_behind_the_snapshot_needs_every_delta_and_drops_the_snapshot():
    store = disk(5, sync=True)
    store.take_snapshot((4,), "content")
    assert store.go_back(4) is not None
    assert store.snapshot is not None
    assert store.go_back(2) is not None
    assert store.snapshot is None
    assert store.load().fragments[0].version == 2


def test_a_way_back_that_cannot_be_rebuilt_changes_nothing():
    store = disk(5, sync=True)
    store.take_snapshot((4,), "content")
    store.files["x1"].torn = True
    before = list(store.records)
    assert store.go_back(2) is None
    assert (store.records, store.snapshot) == (before, (len(before), (4,), "content"))


@pytest.mark.parametrize("t", [-1, 5, 6])
def test_there_is_no_way_back_to_where_the_run_never_was(t):
    assert disk(5, sync=True).go_back(t) is None
    assert Disk().go_back(0) is None


def test_a_full_disk_takes_no_way_back():
    store = disk(5, sync=True)
    store.is_full = True
    assert store.go_back(3) is None
