"""Damage is found, named, and never served: flipped bits, torn files, lost files, changed rows."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from atoll.core.records import Rollback, history
from atoll.errors import StoreError, TapeError
from atoll.runtime.store import RunStore, read_run
from tests.unit.runtime.store.driver import Driver, config, image, reload


@pytest.fixture(scope="module")
def original(shared_folder) -> Driver:
    """Two snapshots, rounds before, between and after them."""
    run = config("cycle", keep="all")
    driver = Driver(RunStore.open(shared_folder / "original", run), run).begin()
    for _ in range(2):
        for p in (0, 1, 0):
            assert driver.round(p) == ""
        assert driver.snapshot() == ""
    for p in (0, 1, 0):
        assert driver.round(p) == ""
    driver.store.close()
    return driver


@pytest.fixture
def run_dir(original, folder) -> Path:
    return image(original.run_dir, folder / "run")


def delta_of(driver: Driver, run_dir: Path, fragment: int, version: int) -> Path:
    record = history(driver.records)[fragment][version - 1]
    return run_dir / "deltas" / f"{record.delta_digest}.safetensors"


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def change(run_dir: Path, statement: str) -> None:
    db = sqlite3.connect(run_dir / "run.db")
    with db:
        assert db.execute(statement).rowcount
    db.close()


def test_a_flipped_bit_in_a_delta_rolls_its_fragment_back_and_leaves_the_others(original, run_dir):
    path = delta_of(original, run_dir, 0, 5)
    chain = history(original.records)[0]
    flip(path, -1)
    found = reload(run_dir, original.config)
    voided = tuple(part for record in chain[4:] for part in record.contributors)
    assert found.state.rollbacks == (Rollback(0, 6, 4, chain[3].digest, chain[2].digest, voided),)
    assert found.state.problems[0] == (
        f"fragment 0, version 5: its delta {path.stem} cannot be used: "
        "its content does not have the digest in its name"
    )
    original.assert_true(found)


def test_a_flipped_bit_anywhere_in_a_delta_is_found_or_changes_no_value(original, run_dir):
    path = delta_of(original, run_dir, 1, 3)
    whole = path.read_bytes()
    num_found = 0
    for at in range(0, len(whole), 3):
        flip(path, at)
        found = reload(run_dir, original.config)
        original.assert_true(found)
        num_found += bool(found.state.rollbacks)
        path.write_bytes(whole)
    assert num_found > len(whole) // 4  # spaces that fill up the header are nobody's loss


@pytest.mark.parametrize("length", [0, 5, 8, 40, -1])
def test_a_torn_delta_is_found(original, run_dir, length):
    path = delta_of(original, run_dir, 0, 6)
    path.write_bytes(path.read_bytes()[:length])
    found = reload(run_dir, original.config)
    assert [(r.from_version, r.to_version) for r in found.state.rollbacks] == [(6, 5)]
    original.assert_true(found)


def test_a_delta_of_another_round_under_the_wrong_name_is_found(original, run_dir):
    path = delta_of(original, run_dir, 0, 6)
    path.write_bytes(delta_of(original, run_dir, 0, 5).read_bytes())
    assert [r.to_version for r in reload(run_dir, original.config).state.rollbacks] == [5]


def test_deltas_before_the_snapshot_are_not_needed(original, run_dir):
    for version in (1, 2, 3, 4):
        delta_of(original, run_dir, 0, version).unlink()
    found = reload(run_dir, original.config)
    assert (found.state.rollbacks, found.state.problems) == ((), ())
    original.assert_whole(found)


@pytest.mark.parametrize("name", ["contents.json", "0.safetensors"])
def test_a_damaged_snapshot_costs_nothing_while_the_one_before_it_is_good(original, run_dir, name):
    path = run_dir / "snapshots" / "6" / name
    whole = path.read_bytes()
    for at in range(0, len(whole), 37):
        flip(path, at)
        found = reload(run_dir, original.config)
        original.assert_whole(found)
        path.write_bytes(whole)
    flip(path, len(whole) // 2)
    problems = reload(run_dir, original.config).state.problems
    assert problems[0].startswith("fragment 0: 6 cannot be used: ")


def test_a_snapshot_that_is_gone_costs_nothing_either(original, run_dir):
    for path in (run_dir / "snapshots" / "6").iterdir():
        path.unlink()
    found = reload(run_dir, original.config)
    original.assert_whole(found)
    assert len(found.state.problems) == 2


def test_without_any_snapshot_the_run_comes_back_from_its_seed(original, run_dir):
    for name in ("3", "6"):
        flip(run_dir / "snapshots" / name / "contents.json", 0)
    original.assert_whole(reload(run_dir, original.config))


def test_fragments_fall_back_each_for_itself(original, run_dir):
    flip(run_dir / "snapshots" / "6" / "0.safetensors", -1)
    delta_of(original, run_dir, 0, 4).unlink()
    found = reload(run_dir, original.config)
    assert [(r.fragment, r.from_version, r.to_version) for r in found.state.rollbacks] == [(0, 6, 3)]
    original.assert_true(found)


def test_when_nothing_of_a_fragment_is_left_the_error_says_what_is_damaged(original, run_dir):
    for name in ("3", "6"):
        flip(run_dir / "snapshots" / name / "1.safetensors", -1)
    flip(run_dir / "snapshots" / "seed.safetensors", -1)
    with pytest.raises(StoreError) as error:
        reload(run_dir, original.config)
    assert error.value.what.startswith("Fragment 1 cannot be rebuilt: ")
    assert "seed.safetensors cannot be used: it is not version 0 of this run" in error.value.what


def test_after_a_rollback_the_versions_are_made_again_and_found_again(original, run_dir):
    delta_of(original, run_dir, 0, 5).unlink()
    store = RunStore.open(run_dir, original.config)
    driver = original.twin(store)
    driver.next_epoch(store.load())
    for p in (0, 0, 1, 0):
        assert driver.round(p) == ""
    assert store.load().state.rollbacks == ()
    store.close()
    found = reload(run_dir, original.config)
    driver.assert_whole(found)
    with sqlite3.connect(run_dir / "run.db") as db:
        lost = db.execute("SELECT version, voided_by FROM commits WHERE voided_by IS NOT NULL").fetchall()
        epoch = db.execute("SELECT max(id) FROM records WHERE kind = 'epoch'").fetchone()[0]
        query = "SELECT count(*) FROM contributions WHERE voided_by = ?"
        assert db.execute(query, (epoch,)).fetchone() == (2,)
    assert lost == [(5, epoch), (6, epoch)]


def test_a_snapshot_of_versions_that_were_rolled_back_is_never_used_again(original, run_dir):
    snapshot = run_dir / "snapshots" / "6" / "0.safetensors"
    whole = snapshot.read_bytes()
    flip(snapshot, -1)
    delta_of(original, run_dir, 0, 4).unlink()
    store = RunStore.open(run_dir, original.config)
    driver = original.twin(store)
    driver.next_epoch(store.load())
    assert driver.versions == [3, 3]
    for _ in range(2):
        assert driver.round(0) == ""
    store.close()
    snapshot.write_bytes(whole)  # the damage is gone, the decision is not
    found = reload(run_dir, original.config)
    assert found.state.problems == ()
    driver.assert_whole(found)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE records SET body = body || x'00' WHERE id = 5", "record 5 does not fit the digest chain"),
        ("UPDATE records SET kind = 'finish' WHERE id = 4", "record 4 does not fit the digest chain"),
        ("UPDATE records SET chain = x'00' WHERE id = 7", "record 7 does not fit the digest chain"),
        ("DELETE FROM records WHERE id = 6", "record 6 does not fit the digest chain"),
        ("UPDATE records SET id = 100 WHERE id = 2", "record 2 does not fit the digest chain"),
        ("UPDATE snapshots SET versions = '[1, \"x\"]'", "the list of snapshots cannot be read"),
        ("UPDATE meta SET value = '4' WHERE key = 'format'", "the entry 'format' does not have its digest"),
    ],
)
def test_a_changed_database_is_refused_with_what_is_damaged(original, run_dir, statement, why):
    change(run_dir, statement)
    with pytest.raises(StoreError, match="is damaged") as error:
        reload(run_dir, original.config)
    assert why in error.value.what


@pytest.mark.parametrize("length", [0, 100, 4096, 9000])
def test_a_torn_database_is_refused(original, run_dir, length):
    path = run_dir / "run.db"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(StoreError, match="is damaged"):
        reload(run_dir, original.config)


def test_a_missing_database_is_not_taken_for_a_new_run(original, run_dir):
    (run_dir / "run.db").unlink()
    with pytest.raises(StoreError, match=r"run\.db is missing"):
        RunStore.open(run_dir, original.config)
    assert list((run_dir / "deltas").iterdir())


def test_a_flipped_bit_in_the_database_is_found_or_changes_nothing_that_is_read(original, run_dir):
    path = run_dir / "run.db"
    whole = path.read_bytes()
    num_found = 0
    for at in range(0, len(whole), 499):
        flip(path, at)
        try:
            found = reload(run_dir, original.config)
        except StoreError:
            num_found += 1
        else:
            original.assert_true(found)
            assert found.state.merges == original.num_acknowledged()
        image(original.run_dir, run_dir)
    assert num_found


def test_a_changed_tape_is_a_tape_error_and_the_run_still_loads(original, run_dir):
    change(run_dir, "UPDATE blocks SET content = x'00' WHERE id = 2")
    original.assert_whole(reload(run_dir, original.config))
    with pytest.raises(TapeError, match="Block 2"):
        list(read_run(run_dir).entries())
