"""fsck finds every damage, says it in one exact sentence, and touches nothing."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
import torch

from atoll.core.records import MemberRecord, RoundRecord, history
from atoll.errors import StoreError
from atoll.numerics.partition import partition
from atoll.runtime import fsck
from atoll.runtime.fsck import check_store
from atoll.runtime.offers import KeptOffers, offers_path
from atoll.runtime.store import RunStore
from atoll.runtime.store.files import Files
from tests.unit.runtime.store.driver import Driver, FailingFiles, config, image
from tests.unit.runtime.store.test_cut import cutting, go_on, grow


@pytest.fixture(scope="module")
def whole(shared_folder: Path) -> Driver:
    """A run with two snapshots, kept from its beginning, whose process was killed: its log is still there."""
    driver = Driver(RunStore.open(shared_folder / "whole", config()))
    assert driver.store.put_manifest(partition(torch.nn.Linear(4, 3), 2)) == ""
    driver.begin()
    for _ in range(2):
        for p in (0, 1, 0):
            assert driver.round(p) == ""
        assert driver.snapshot() == ""
    for p in (0, 1):
        assert driver.round(p) == ""
    assert driver.commit(MemberRecord(1, "a", "key", 8, 2, 0)) == ""
    return driver


@pytest.fixture(scope="module")
def cut(shared_folder: Path) -> Driver:
    """A run that begins at a snapshot."""
    driver = grow(RunStore.open(shared_folder / "cut", cutting()), cutting(), 3)
    assert driver.round(1) == ""
    return driver


@pytest.fixture(params=["whole", "cut"])
def driver(request: pytest.FixtureRequest) -> Driver:
    made = request.getfixturevalue(request.param)
    assert isinstance(made, Driver)
    return made


@pytest.fixture
def run_dir(whole: Driver, folder: Path) -> Path:
    return image(whole.run_dir, folder / "run")


def change(run_dir: Path, *statements: str) -> None:
    db = sqlite3.connect(run_dir / "run.db")
    with db:
        for statement in statements:
            db.execute(statement)
    db.close()


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def record_of(driver: Driver, fragment: int, version: int) -> RoundRecord:
    return history(driver.records)[fragment][version - 1]


def contents(run_dir: Path) -> dict[str, bytes]:
    """All files but the index of the log, which SQLite keeps in memory under a name."""
    paths = [path for path in run_dir.rglob("*") if path.is_file() and path.name != "run.db-shm"]
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in paths}


def test_a_whole_run_has_no_problems(driver):
    report = check_store(driver.run_dir)
    assert report.problems == ()
    assert report.ok
    assert report.strays == ()
    assert report.commits == driver.num_acknowledged()
    assert [(part.version, part.recoverable) for part in report.fragments] == [
        (version, version) for version in driver.versions
    ]


def test_it_says_where_the_fold_began(whole, cut):
    assert check_store(whole.run_dir).since == "snapshot 3"
    assert check_store(cut.run_dir).since == "snapshot 6"
    assert {check.name: check.what for check in check_store(cut.run_dir).checks}["records"] == "4, from 10 on"


def test_nothing_is_written_while_a_syncer_runs_after_it_died_or_after_it_ended(whole, folder):
    dead = image(whole.run_dir, folder / "dead")
    ended = image(whole.run_dir, folder / "ended")
    RunStore.open(ended, whole.config).close()
    for run_dir in (whole.run_dir, dead, ended):
        before = contents(run_dir)
        assert check_store(run_dir).ok
        assert contents(run_dir) == before


def test_a_running_syncer_is_not_kept_from_committing(folder):
    driver = grow(RunStore.open(folder / "run", cutting()), cutting(), 2)

    class Busy(Files):
        """While files are read, the syncer goes on and deletes some of them."""

        num_snapshots = 0

        def open(self, path):
            if self.num_snapshots < 2:
                self.num_snapshots += 1
                go_on(driver)
            return super().open(path)

    busy = Busy()
    report = check_store(folder / "run", busy)
    assert busy.num_snapshots == 2
    assert report.problems == ()
    driver.store.close()


def test_what_is_missing_is_missing_though_the_run_moves_on(whole, run_dir, monkeypatch):
    looks = iter(range(100))
    monkeypatch.setattr(fsck, "_moment", lambda _: (next(looks),))
    (run_dir / "snapshots" / "6" / "0.safetensors").unlink()
    assert not check_store(run_dir).ok
    assert next(looks) == 2 * fsck.MAX_LOOKS


DATABASE = {
    "UPDATE records SET body = body || x'00' WHERE id = 8": (
        "run.db: record 8 does not fit the digest chain; "
        "not proven: fragment 0 after version 3, fragment 1 after version 1."
    ),
    "DELETE FROM records WHERE id > 6": ("run.db: its newest records are lost, 6 of them: records 7 to 12."),
    "UPDATE records SET chain = x'00' WHERE id = 2": (
        "run.db: record 2 does not fit the digest chain; no version is proven."
    ),
    "UPDATE meta SET value = value || ' ' WHERE key = 'manifest'": (
        "run.db: the entry 'manifest' of the table meta does not have its digest."
    ),
    "UPDATE commits SET t = t + 1 WHERE version = 3 AND fragment = 0": (
        "run.db: the table commits does not say what the records say, at record 7; no version is affected."
    ),
    "DELETE FROM members WHERE incarnation = 2": (
        "run.db: the table members does not say what the records say, at record 12; no version is affected."
    ),
    "UPDATE snapshots SET voided_by = 5 WHERE name = '3'": (
        "run.db: the table snapshots does not say what the records say, at record 6; no version is affected."
    ),
    "UPDATE contributions SET start_token = 190 WHERE start_token = 300": (
        "run.db: the ledger has 590 merged tokens, and the records 480."
    ),
    "UPDATE contributions SET start_token = 150, end_token = 220 WHERE start_token = 300": (
        "run.db: tokens 150 to 160 of incarnation 1 of a were merged into fragment 0 twice."
    ),
    "UPDATE blocks SET content = x'00' WHERE id = 2": (
        "run.db: Block 2 of the tape does not fit the digest chain; decisions cannot be replayed past it."
    ),
    "DROP INDEX one_commit_per_version": (
        "run.db: the definition of its tables was changed, at one_commit_per_version."
    ),
    "UPDATE snapshots SET versions = '[1, \"x\"]'": "run.db: the list of snapshots cannot be read",
    "UPDATE commits SET voided_by = 'x', fragment = 'y'": "run.db: the table commits does not say",
    "DROP TABLE contributions": "run.db: no such table: contributions.",
}


@pytest.mark.parametrize("statement", DATABASE)
def test_damage_in_the_database_is_one_exact_sentence(run_dir, statement):
    change(run_dir, statement)
    problems = check_store(run_dir).problems
    assert [problem for problem in problems if problem.startswith(DATABASE[statement])]


def test_the_fold_stands_beside_the_ledger_when_only_the_ledger_is_wrong(whole, run_dir):
    change(run_dir, "DELETE FROM contributions", "DELETE FROM commits")
    report = check_store(run_dir)
    assert not report.ok
    assert [part.recoverable for part in report.fragments] == whole.versions


def test_a_break_in_the_records_leaves_what_was_before_it(whole, run_dir):
    change(run_dir, "UPDATE records SET body = x'00' WHERE id = 10")
    report = check_store(run_dir)
    assert [(part.version, part.recoverable) for part in report.fragments] == [(4, 4), (2, 2)]


def test_a_base_that_is_damaged_leaves_nothing_to_trust(cut, folder):
    run_dir = image(cut.run_dir, folder / "run")
    change(run_dir, "UPDATE base SET state = x'00'")
    report = check_store(run_dir)
    assert "no version can be told from it" in " ".join(report.problems)
    assert report.fragments == ()


def test_a_member_that_outlived_its_record_is_held_against_the_base(cut, folder):
    run_dir = image(cut.run_dir, folder / "run")
    change(run_dir, "UPDATE members SET identity_key = 'other'")
    (problem,) = check_store(run_dir).problems
    assert problem == "run.db: the table members does not say what the base says, about a."


def test_a_delta_is_held_against_its_name(whole, run_dir):
    name = record_of(whole, 0, 5).delta_digest
    flip(run_dir / "deltas" / f"{name}.safetensors", -1)
    report = check_store(run_dir)
    (problem,) = report.problems
    assert problem == (
        f"deltas/{name}.safetensors: its content does not have the digest in its name; "
        "it leads to version 5 of fragment 0, whose newest is 5."
    )
    assert [part.recoverable for part in report.fragments] == [4, 3]
    assert report.fragments[0].source == "snapshot 3 and 2 deltas"
    assert report.fragments[1].source == "snapshot 3 and 2 deltas"


def test_a_missing_delta_that_a_newer_snapshot_makes_good_costs_no_version(whole, run_dir):
    name = record_of(whole, 0, 3).delta_digest
    (run_dir / "deltas" / f"{name}.safetensors").unlink()
    report = check_store(run_dir)
    assert report.problems == (
        f"deltas/{name}.safetensors is missing; it leads to version 3 of fragment 0, whose newest is 5.",
    )
    assert report.fragments[0].recoverable == 5
    assert report.fragments[0].source == "snapshot 6 and 1 delta"


def test_a_snapshot_is_held_against_its_contents(whole, run_dir):
    flip(run_dir / "snapshots" / "3" / "1.safetensors", -1)
    report = check_store(run_dir)
    assert report.problems == (
        "snapshots/3/1.safetensors: momentum does not have its digest; it holds version 1 of fragment 1.",
    )
    assert [part.recoverable for part in report.fragments] == whole.versions


def test_the_initial_weights_are_held_against_their_record(whole, run_dir):
    flip(run_dir / "snapshots" / "seed.safetensors", -1)
    (problem,) = check_store(run_dir).problems
    assert problem == (
        "snapshots/seed.safetensors: its content does not have the digest in the records; "
        "it holds version 0 of fragment 1."
    )


def test_when_nothing_of_a_fragment_is_left_that_is_said(whole, run_dir):
    for name in ("3", "6"):
        (run_dir / "snapshots" / name / "0.safetensors").unlink()
    (run_dir / "snapshots" / "seed.safetensors").unlink()
    report = check_store(run_dir)
    assert len(report.problems) == 4
    assert report.fragments[0].recoverable is None
    assert report.fragments[1].recoverable == whole.versions[1]


def test_without_its_settings_snapshots_can_still_be_saved(whole, run_dir):
    (run_dir / "config.toml").write_text("sync = 3")
    report = check_store(run_dir)
    (problem,) = report.problems
    assert problem.startswith("config.toml: ")
    assert [part.recoverable for part in report.fragments] == [4, 2]


def test_a_kept_offer_is_held_against_its_digest(whole, run_dir):
    record = record_of(whole, 1, 2)
    bodies = {"a": torch.arange(50, dtype=torch.uint8)}
    assert KeptOffers(run_dir / "offers", Files()).keep(record, bodies, sync=False)
    assert check_store(run_dir).ok
    path = offers_path(run_dir / "offers", record)
    flip(path, -1)
    (problem,) = check_store(run_dir).problems
    assert problem == (
        f"offers/{path.name}: the body of a does not have its digest; "
        "version 2 of fragment 1 cannot be merged again."
    )


def test_a_slot_of_the_head_that_is_damaged_is_named(whole, run_dir):
    flip(run_dir / "head", 3)
    assert check_store(run_dir).problems == ("head: slot 0: it does not have its digest.",)


def test_what_a_crash_left_is_named_and_no_problem(run_dir):
    strays = [
        "deltas/.tmp-1-1-x",
        "deltas/abc.safetensors",
        "snapshots/77",
        "offers/x",
        ".tmp-1-2-config.toml",
    ]
    for name in strays:
        path = run_dir / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    report = check_store(run_dir)
    assert report.ok
    assert report.strays == (*strays[:2], "snapshots/77", "offers/x", ".tmp-1-2-config.toml")


@pytest.mark.parametrize("length", [0, 100, 5000])
def test_a_torn_database_is_told_and_files_are_still_looked_at(whole, run_dir, length):
    RunStore.open(run_dir, whole.config).close()
    content = (run_dir / "run.db").read_bytes()
    (run_dir / "run.db").write_bytes(content[:length])
    report = check_store(run_dir)
    assert not report.ok
    assert all(problem.startswith("run.db: ") for problem in report.problems)
    assert "deltas" in {check.name for check in report.checks}


def test_a_directory_without_its_database_is_damaged_and_an_empty_one_is_no_run(run_dir, folder):
    for path in run_dir.glob("run.db*"):
        path.unlink()
    assert check_store(run_dir).problems[0].startswith("run.db is missing")
    shutil.rmtree(run_dir)
    with pytest.raises(StoreError, match="There is no run"):
        check_store(run_dir)


def test_a_bit_flipped_anywhere_in_a_file_is_found_or_changes_nothing_that_is_read(whole, run_dir):
    RunStore.open(run_dir, whole.config).close()
    original = contents(run_dir)
    unread = {"lock", "config.toml"}
    for name in sorted(original.keys() - unread):
        size = len(original[name])
        for at in range(7, size, 6007 if name == "run.db" else max(size // 2, 1)):
            flip(run_dir / name, at)
            try:
                report = check_store(run_dir)
                if report.ok:
                    assert name in ("run.db", "head")  # parts of pages that nothing is in
                    assert [part.recoverable for part in report.fragments] == whole.versions
            finally:
                (run_dir / name).write_bytes(original[name])


def test_files_are_read_through_files(run_dir):
    """So that a disk that fails while it is read is told like damage."""
    files = FailingFiles()
    files.arm(1, 5)
    (problem,) = check_store(run_dir, files).problems
    assert "input/output error" in problem
