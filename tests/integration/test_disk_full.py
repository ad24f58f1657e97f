"""A disk that is full or fails under a running syncer: nobody crashes or waits, and nothing is lost.

The small disk is a tmpfs, and a ballast file fills it. What is freed is filled again at once, so that "full"
is a state and not a moment.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

import atoll
from atoll.cli.main import run
from atoll.core.events import Stepped
from atoll.core.records import RoundRecord
from atoll.runtime.fsck import check_store
from atoll.runtime.replay import replay_run
from atoll.runtime.store import read_run
from atoll.runtime.store.files import Files
from atoll.runtime.tape_file import TapeFile
from atoll.runtime.verdict import check_run
from atoll.tape.entries import Entry, Stored
from tests.integration.conditions import wait_until
from tests.integration.programs import Task, config, model
from tests.integration.test_healing import Trainee, row

DISK_BYTES = 32 << 20
PAGE = bytes(4096)
NAMES = ("ada", "bob")
NUM_STEPS = 60
"""Of every learner while nothing can be committed: many cycles of H = 4."""


class SmallDisk:
    """A mounted tmpfs and the ballast on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ballast = folder / "ballast"

    def fill(self) -> int:
        """Take every free page; returns how many bytes that were."""
        num_bytes = 0
        with open(self.ballast, "ab", buffering=0) as file:
            try:
                while True:
                    num_bytes += file.write(PAGE)
            except OSError:
                return num_bytes

    def drop_ballast(self) -> None:
        self.ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount the small disk that this test fills")
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this system does not let root mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def settings(**sections: dict[str, object]) -> atoll.RunConfig:
    sync = {"retry_s": 0.05}
    return config(quorum=2, sync=sync, **{"durability": {"snapshot_every": 4}, **sections})  # type: ignore[arg-type]


@contextmanager
def training(run_dir: Path) -> Iterator[tuple[atoll.Syncer, list[Trainee]]]:
    """A syncer and two learners that have merged something; all of them end in order."""
    with atoll.Syncer(settings(), run_dir) as syncer, ExitStack() as trains:
        trainees = [Trainee(syncer.url, name, state_dir=run_dir / "learners" / name) for name in NAMES]
        for trainee in trainees:
            trains.callback(trainee.stop)
            trainee.see_it_go_on()
        yield syncer, trainees


def versions(run_dir: Path) -> list[int]:
    """On disk, of every fragment."""
    held = [0, 0]
    for record in read_run(run_dir).records:
        if isinstance(record, RoundRecord):
            assert record.version == held[record.fragment] + 1
            held[record.fragment] = record.version
    return held


def held(trainee: Trainee) -> list[int]:
    return [slot.version for slot in trainee.learner.shell.machine.slots]


def stand_still(syncer: atoll.Syncer, trainees: list[Trainee], keep_full: Callable[[], object]) -> int:
    """Wait until no merge comes while every learner makes many steps; returns the merges."""
    begun = [-1, 0, 0]

    def has_stood() -> bool:
        keep_full()
        status = syncer.status()
        steps = [trainee.learner.watch.num_steps for trainee in trainees]
        if status["merges"] != begun[0] or status["state"] != "blocked":
            begun[:] = [status["merges"], *steps]
        return all(now - then >= NUM_STEPS for now, then in zip(steps, begun[1:], strict=True))

    wait_until(has_stood)
    return begun[0]


def see_merges_resume(syncer: atoll.Syncer, merges: int, num: int = 8) -> None:
    wait_until(lambda: syncer.status()["merges"] >= merges + num)
    wait_until(lambda: (syncer.status()["state"], syncer.status()["problems"]) == ("training", []))


def check_nothing_is_lost(run_dir: Path, before: tuple[object, ...]) -> None:
    records = read_run(run_dir).records
    assert records[: len(before)] == before
    verdict = check_run(run_dir)
    assert (verdict.violations, verdict.replay) == ([], [])
    assert check_store(run_dir).problems == ()
    replayed = replay_run(run_dir)
    assert replayed.problems == []
    assert replayed.commits > 0


def test_a_full_disk_stops_merges_and_nothing_else_until_space_returns(disk, capsys):
    run_dir = disk.folder / "reef"
    with training(run_dir) as (syncer, trainees):
        merges = stand_still(syncer, trainees, disk.fill)
        assert sum(versions(run_dir)) == merges, "what is counted is on the disk"
        for trainee in trainees:
            assert all(mine <= there for mine, there in zip(held(trainee), versions(run_dir), strict=True))
        before = read_run(run_dir).records
        status = syncer.status()
        assert status["problems"][0].startswith("no space left on the disk")
        assert "nothing can be committed" in status["problems"][0]
        assert "store" in [note["kind"] for note in status["notes"]]
        assert status["alive"] == 2
        capsys.readouterr()
        assert run(["status", str(run_dir)]) == 0
        page = capsys.readouterr().out
        assert "blocked" in page.splitlines()[0]
        assert "problem: no space left on the disk" in page
        assert "Free some space" in " ".join(page.split())
        disk.drop_ballast()
        see_merges_resume(syncer, merges)
        assert "writable" in [note["kind"] for note in syncer.status()["notes"]]
        for trainee in trainees:
            trainee.see_it_go_on()
            assert trainee.learner.incarnation == 1
    check_nothing_is_lost(run_dir, before)


def test_a_syncer_that_is_stopped_while_its_disk_is_full_comes_back_whole(disk):
    run_dir = disk.folder / "reef"
    with training(run_dir) as (syncer, trainees):
        merges = stand_still(syncer, trainees, disk.fill)
        syncer.stop()
        disk.drop_ballast()
        before = read_run(run_dir).records
        assert sum(versions(run_dir)) == merges
        with atoll.Syncer(settings(), run_dir, port=syncer.port) as again:
            see_merges_resume(again, merges)
    assert read_run(run_dir).records[: len(before)] == before
    assert replay_run(run_dir, until=1 << 40).problems == []


def test_a_run_is_not_begun_on_a_full_disk_and_says_why(disk):
    disk.fill()
    with pytest.raises(atoll.StoreError, match="no space left on the disk"):
        atoll.Syncer(settings(), disk.folder / "reef").start()


# Parts of the disk that fail: through the hook that every operation of the store passes


class Failing:
    """Refuses the operations that a test chooses, for as long as it chooses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.which: Callable[[str, Path], bool] = lambda operation, path: False
        self.number = errno.ENOSPC
        self.num_failed = 0

        def step(files: Files, operation: str, path: Path) -> None:
            if self.which(operation, path):
                self.num_failed += 1
                raise OSError(self.number, os.strerror(self.number))

        monkeypatch.setattr(Files, "step", step)

    def nothing(self) -> None:
        self.which = lambda operation, path: False


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(monkeypatch)


def test_an_fsync_that_fails_stops_merges_until_the_disk_works_again(tmp_path, failing):
    run_dir = tmp_path / "reef"
    with training(run_dir) as (syncer, trainees):
        failing.number = errno.EIO
        failing.which = lambda operation, path: operation == "fsync"
        merges = stand_still(syncer, trainees, lambda: None)
        assert failing.num_failed > 0
        assert sum(versions(run_dir)) == merges
        assert syncer.status()["problems"][0].startswith("input/output error")
        before = read_run(run_dir).records
        failing.nothing()
        see_merges_resume(syncer, merges)
    check_nothing_is_lost(run_dir, before)


def test_a_commit_that_fails_in_the_database_is_made_again_and_only_once(tmp_path, failing):
    run_dir = tmp_path / "reef"
    with training(run_dir) as (syncer, trainees):
        failing.number = errno.EIO
        failing.which = lambda operation, path: operation in ("commit", "checkpoint")
        merges = stand_still(syncer, trainees, lambda: None)
        wait_until(lambda: "the tape cannot be written" in syncer.status()["problems"][0])
        before = read_run(run_dir).records
        failing.nothing()
        see_merges_resume(syncer, merges)
    check_nothing_is_lost(run_dir, before)


def test_a_disk_that_has_no_room_for_a_snapshot_costs_the_snapshot_and_no_merge(tmp_path, failing):
    run_dir = tmp_path / "reef"
    with training(run_dir) as (syncer, _):
        failing.which = lambda operation, path: "snapshots" in path.parts and operation == "write"
        merges = syncer.status()["merges"]
        wait_until(lambda: "snapshot" in "".join(syncer.status()["problems"]))
        wait_until(lambda: syncer.status()["merges"] >= merges + 12)
        assert syncer.status()["state"] == "training"
        assert "no snapshot can be written" in syncer.status()["problems"][0]
        before = read_run(run_dir).records
        failing.nothing()
        wait_until(lambda: not syncer.status()["problems"])
    assert not list((run_dir / "snapshots").glob(".tmp-*")), "half a snapshot is not left behind"
    check_nothing_is_lost(run_dir, before)


def note_what_is_taped(syncer: atoll.Syncer) -> list[Entry]:
    """The lines that are given to be written from now on."""
    shell, taken = syncer._shell, list[Entry]()
    take = shell.take_lines

    def take_and_note() -> list[Entry]:
        lines = take()
        taken.extend(lines)
        return lines

    shell.take_lines = take_and_note  # type: ignore[method-assign]
    return taken


def test_lines_of_the_tape_that_the_disk_refuses_are_written_when_it_takes_them(tmp_path, failing):
    """Nobody trains, so no commit takes the lines along."""
    run_dir = tmp_path / "reef"
    with atoll.Syncer(settings(), run_dir) as syncer:
        learner = atoll.join(syncer.url, model=model(), name="ada", state_dir=run_dir / "learners" / "ada")
        wait_until(lambda: syncer.status()["state"] == "training")  # the seed is durable
        taken = note_what_is_taped(syncer)
        failing.which = lambda operation, path: operation == "commit"
        wait_until(lambda: syncer.status()["problems"])
        assert syncer.status()["state"] == "training"
        assert "the tape cannot be written" in syncer.status()["problems"][0]
        failing.nothing()
        wait_until(lambda: not syncer.status()["problems"])
        learner.leave()
    events = [entry for entry in read_run(run_dir).entries() if not isinstance(entry.item, Stored)]
    assert events[-len(taken) :] == taken, "every line, in its order"
    verdict = check_run(run_dir)
    assert (verdict.violations, verdict.replay) == ([], [])


def test_what_the_run_directory_says_of_itself_is_old_or_new_and_never_half(disk):
    run_dir = disk.folder / "reef"
    with atoll.Syncer(settings(), run_dir) as syncer:
        learner = atoll.join(syncer.url, model=model(), name="ada")
        wait_until(lambda: (run_dir / "status.json").exists() and (run_dir / "books.json").exists())
        wait_until(lambda: disk.fill() == 0 and syncer.status()["problems"])
        for name in ("status.json", "books.json"):
            assert isinstance(json.loads((run_dir / name).read_bytes()), dict)
        learner.leave()


def test_a_syncer_that_is_started_again_while_its_disk_refuses_waits_and_then_goes_on(tmp_path, failing):
    """Its epoch must be durable before it may speak."""
    run_dir = tmp_path / "reef"
    with training(run_dir):
        pass
    before = read_run(run_dir).records
    failing.which = lambda operation, path: operation == "commit"
    again = atoll.Syncer(settings(), run_dir)
    starting = Task(again.start)
    wait_until(lambda: failing.num_failed > 1)
    assert not starting.is_over
    assert again.url == "", "nobody can join it yet"
    failing.nothing()
    starting.result()
    assert again.status()["epoch"] == 2
    again.stop()
    check_nothing_is_lost(run_dir, before)


def test_a_learner_whose_own_disk_is_full_trains_on_says_so_and_saves_later(disk):
    with atoll.Syncer(settings()) as syncer:
        learner = atoll.join(syncer.url, model=model(), name="ada", state_dir=disk.folder / "state")

        def train(fill: bool) -> str:
            if fill:
                disk.fill()
            learner.cursor = learner.watch.num_steps
            learner.step(tokens=8)
            return str(row(syncer, "ada")["note"])

        wait_until(lambda: "the data cursor cannot be saved: No space left on device" in train(fill=True))
        disk.drop_ballast()
        wait_until(lambda: not train(fill=False))
        wait_until(lambda: train(fill=True))
        disk.drop_ballast()
        learner.leave()
        saved = json.loads((disk.folder / "state" / "cursor.json").read_bytes())["cursor"]
        assert saved == learner.cursor, "also what was refused before it left"


def test_a_learner_whose_tape_is_refused_for_a_while_says_so_and_its_tape_has_no_gap(tmp_path):
    with atoll.Syncer(settings()) as syncer:
        learner = atoll.join(syncer.url, model=model(), name="ada", state_dir=tmp_path)
        (path,) = tmp_path.glob("tape-*.db")

        def train() -> str:
            learner.step(tokens=8)
            return str(row(syncer, "ada")["note"])

        def rename(old: str, new: str) -> None:
            with closing(sqlite3.connect(path, timeout=60)) as db, db:
                db.execute(f"ALTER TABLE {old} RENAME TO {new}")

        rename("blocks", "elsewhere")
        wait_until(lambda: "the tape cannot be written: no such table" in train())
        rename("elsewhere", "blocks")
        wait_until(lambda: not train())
        learner.leave(60)
    with closing(TapeFile(path)) as tape:
        steps = [entry.item.steps for entry in tape.read() if isinstance(entry.item, Stepped)]
    assert sum(steps) == learner.watch.num_steps - learner.shell.missed_steps
