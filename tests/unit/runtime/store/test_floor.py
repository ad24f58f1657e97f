"""Deltas that were deleted on purpose are no damage, whatever became of snapshots or settings since."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from atoll.core.records import Contributor, EpochRecord, Rollback, RoundRecord, history
from atoll.runtime.fsck import check_store
from atoll.runtime.offers import KeptOffers, offers_path
from atoll.runtime.store import RunStore
from atoll.runtime.store.files import Files
from atoll.runtime.store.floor import find_floor
from atoll.runtime.store.ledger import SnapshotRow
from tests.unit.runtime.store.driver import Driver, config


@pytest.fixture
def pruned(folder: Path) -> Driver:
    """A run with the snapshots 6 and 9; the deltas before 6 are deleted."""
    driver = Driver(RunStore.open(folder / "run", config())).begin()
    for _ in range(3):
        for p in (0, 1, 0):
            assert driver.round(p) == ""
        assert driver.snapshot() == ""
    return driver


def go_back(driver: Driver, p: int, version: int) -> list[RoundRecord]:
    """Give up the versions of a fragment after one; returns their records."""
    chain = history(driver.records)[p]
    lost = chain[version:]
    parts: tuple[Contributor, ...] = tuple(part for record in lost for part in record.contributors)
    digests = chain[version - 1].digest, chain[version - 2].digest
    back = Rollback(p, len(chain), version, *digests, parts)
    driver.epoch += 1
    assert driver.commit(EpochRecord(driver.epoch, (back,), chain[version - 1].t)) == ""
    driver.versions[p] = version
    return lost


def delta(driver: Driver, p: int, version: int) -> Path:
    name = history(driver.records)[p][version - 1].delta_digest
    return driver.run_dir / "deltas" / f"{name}.safetensors"


def test_a_rollback_that_voids_the_newest_snapshot_leaves_the_run_whole(pruned):
    go_back(pruned, 0, 5)
    pruned.store.close()
    report = check_store(pruned.run_dir)
    assert report.problems == ()
    assert report.since == "snapshot 6"
    assert [part.recoverable for part in report.fragments] == [5, 3]


def test_after_such_a_rollback_a_delta_that_is_needed_is_still_missed(pruned):
    go_back(pruned, 0, 5)
    pruned.store.close()
    needed = delta(pruned, 0, 5)
    needed.unlink()
    (problem,) = check_store(pruned.run_dir).problems
    assert problem.startswith(f"deltas/{needed.name} is missing; it leads to version 5 of fragment 0")


def test_a_run_that_keeps_everything_from_now_on_is_whole(pruned):
    pruned.store.close()
    pruned.store = RunStore.open(pruned.run_dir, config(keep="all"))
    pruned.store.load()
    for p in (0, 1, 0):
        assert pruned.round(p) == ""
    assert pruned.snapshot() == ""
    pruned.store.close()
    report = check_store(pruned.run_dir)
    assert report.problems == ()
    assert report.since == "snapshot 6"
    assert report.commits == 12
    delta(pruned, 0, 5).unlink()
    assert not check_store(pruned.run_dir).ok


def test_a_run_that_kept_everything_misses_every_delta(folder):
    run = config(keep="all")
    driver = Driver(RunStore.open(folder / "run", run), run).begin()
    for _ in range(2):
        assert [driver.round(p) for p in (0, 1, 0)] == ["", "", ""]
        assert driver.snapshot() == ""
    driver.store.close()
    assert check_store(driver.run_dir).since == "version 0"
    delta(driver, 0, 1).unlink()
    (problem,) = check_store(driver.run_dir).problems
    assert "it leads to version 1 of fragment 0" in problem


def test_files_of_versions_given_up_are_told_from_what_a_crash_left(folder):
    run = config(keep="all")
    driver = Driver(RunStore.open(folder / "run", run), run).begin()
    assert [driver.round(0) for _ in range(3)] == ["", "", ""]
    lost = go_back(driver, 0, 2)
    driver.store.close()
    assert KeptOffers(driver.run_dir / "offers", Files()).keep(lost[0], {}, sync=False)
    (driver.run_dir / "deltas" / ".tmp-1-1-x").write_bytes(b"")
    report = check_store(driver.run_dir)
    assert report.ok
    assert report.strays == ("deltas/.tmp-1-1-x",)
    offers = offers_path(driver.run_dir / "offers", lost[0]).name
    assert report.given_up == (f"deltas/{lost[0].delta_digest}.safetensors", f"offers/{offers}")


# The decision itself

RECORDS = tuple(RoundRecord(1, n, 0, n, f"v{n}", f"d{n}", n, ()) for n in range(1, 7))
FOUR = SnapshotRow("4", 8, 4, (4,), "", is_voided=False)
SIX = replace(FOUR, name="6", merges=6, versions=(6,))


@pytest.mark.parametrize(
    ("usable", "held", "keeps_all", "is_cut", "wanted"),
    [
        ((), (1, 2, 3, 4, 5, 6), False, False, None),
        ((FOUR,), (1, 2, 3, 4, 5, 6), False, False, None),
        ((FOUR,), (5, 6), False, False, FOUR),
        ((FOUR,), (5, 6), True, False, FOUR),
        ((FOUR,), (4, 5, 6), False, False, None),
        ((FOUR, SIX), (4, 5, 6), False, False, FOUR),
        ((FOUR, SIX), (4, 5, 6), True, False, None),
        ((FOUR, SIX), (1, 2, 3, 4, 6), False, False, None),
        ((FOUR,), (1, 2, 3, 4, 5, 6), True, True, FOUR),
    ],
)
def test_the_directory_says_where_a_run_begins(usable, held, keeps_all, is_cut, wanted):
    names = {f"d{n}" for n in held}
    assert find_floor(usable, {0: RECORDS}, names, keeps_all=keeps_all, is_cut=is_cut) == wanted
