"""A run whose tapes were cut is checked from there on, goes on, and says since when it can be checked."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

import pytest
import torch
from torch import nn

from atoll import RunConfig, Syncer, join
from atoll.core import events as ev
from atoll.core.learner import LearnerMachine
from atoll.core.syncer import SyncerMachine
from atoll.runtime import tape_file
from atoll.runtime.joining import sizes_of
from atoll.runtime.learner import Learner
from atoll.runtime.store import RunView, read_run
from atoll.runtime.store.files import Files
from atoll.runtime.store.ledger import Ledger, SnapshotRow
from atoll.runtime.tape_file import TapeFile
from atoll.runtime.verdict import check_run
from atoll.tape.entries import SYNCER, Entry, Fault, Image
from atoll.tape.image import image_of, machine_from
from tests.integration.conditions import wait_until

CONFIG = RunConfig.from_tables({
    "sync": {"num_fragments": 2, "interval_steps": 4, "num_learners": 2},
    "outer": {"momentum": 0.5},
    "durability": {"snapshot_every": 4},
    "tape": {"keep_mb": 1},
})  # fmt: skip


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def lengthen(learner: Learner) -> None:
    """Put more onto a learner's tape than is kept."""
    tape, noise = learner.tape, random.Random(0).randbytes(1_500_000).hex()
    assert tape is not None
    learner.worker.do(tape.file.append, [Entry(0, learner.shell.actor, Fault("noise", "", noise))])


def snapshots_of(run_dir: Path) -> list[SnapshotRow]:
    """Those that count, the oldest first."""
    ledger = Ledger(run_dir / "run.db", Files(), readonly=True)
    try:
        return sorted(ledger.snapshots(), key=lambda row: row.merges)
    finally:
        ledger.close()


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two learners, over real sockets; the tape of the first one has become too long on the way."""
    run_dir = tmp_path_factory.mktemp("cut") / "reef"
    with Syncer(CONFIG, run_dir) as syncer:
        learners = [
            join(syncer.url, model=model(), name=name, state_dir=run_dir / "learners" / name)
            for name in ("learner-0", "learner-1")
        ]

        def num_merges() -> int:
            for learner in learners:
                learner.step(tokens=4)
            return read_run(run_dir).state.merges

        wait_until(lambda: num_merges() >= 3)
        lengthen(learners[0])
        wait_until(lambda: num_merges() >= 13 and len(snapshots_of(run_dir)) == 2)
        for learner in learners:
            learner.leave()
    return run_dir


@pytest.fixture
def cut_run(whole_run: Path, tmp_path: Path) -> Path:
    """The same run, cut at its second-newest snapshot as the store does it."""
    run_dir = tmp_path / "reef"
    shutil.copytree(whole_run, run_dir)
    ledger = Ledger(run_dir / "run.db", Files())
    assert ledger.cut(snapshots_of(run_dir)[-2]) is not None
    ledger.close()
    return run_dir


def merges_at_the_cut(view: RunView) -> int:
    first = next(view.entries()).item
    assert isinstance(first, Image)
    return first.merges


# The syncer's


def test_with_every_snapshot_the_tape_holds_what_the_machine_is(whole_run: Path):
    images = [entry.item for entry in read_run(whole_run).entries() if isinstance(entry.item, Image)]
    assert [image.merges for image in images] == list(range(4, 4 * len(images) + 1, 4))
    assert len(images) >= 3
    for image in images:
        assert image_of(machine_from(image.content)) == image.content


def test_an_image_is_what_the_machine_is_after_all_lines_above(whole_run: Path):
    machine, num_images = None, 0
    view = read_run(whole_run)
    assert view.manifest is not None
    for _, actor, item in view.entries():
        if isinstance(item, Image):
            num_images += 1
            assert machine == machine_from(item.content)
        elif isinstance(item, ev.Booted):
            machine = SyncerMachine(sizes_of(view.manifest, view.config))
        if actor == SYNCER and type(item).__module__ == ev.__name__:
            assert machine is not None
            machine.handle(item)  # type: ignore[arg-type]  # told by its module
    assert num_images


def test_a_whole_run_passes_and_says_nothing_of_a_cut(whole_run: Path):
    verdict = check_run(whole_run)
    assert verdict.ok, (verdict.violations, verdict.replay)
    assert verdict.since == ""


def test_a_cut_run_passes_and_says_since_when(cut_run: Path):
    verdict = check_run(cut_run)
    assert verdict.ok, (verdict.violations, verdict.replay)
    view = read_run(cut_run)
    assert view.base is not None
    assert verdict.since == f"since the snapshot at merge {merges_at_the_cut(view)}"
    assert verdict.num_checks > 100


def test_a_cut_run_goes_on_after_a_restart(cut_run: Path):
    with Syncer(CONFIG, cut_run):
        pass
    verdict = check_run(cut_run)
    assert verdict.ok, (verdict.violations, verdict.replay)
    assert verdict.since


def test_a_cut_tape_that_lost_its_end_does_not_pass(cut_run: Path):
    db = sqlite3.connect(cut_run / "run.db")
    with db:
        db.execute("DELETE FROM blocks WHERE image IS NULL")
        assert tape_file.starts_at(db) == merges_at_the_cut(read_run(cut_run))
    db.close()
    assert not check_run(cut_run).ok


# Learners'


def lines_of(run_dir: Path, name: str) -> list[Entry]:
    (path,) = (run_dir / "learners" / name).glob("tape-*.db")
    tape = TapeFile(path)
    lines = list(tape.read())
    tape.close()
    return lines


def test_a_learners_tape_that_became_too_long_begins_with_what_the_machine_was(whole_run: Path):
    first, *rest = lines_of(whole_run, "learner-0")
    assert isinstance(first.item, Image)
    assert first.item.merges == 0
    machine = machine_from(first.item.content)
    assert isinstance(machine, LearnerMachine)
    assert machine.steps > 0
    assert not any(isinstance(line.item, Image | Fault) for line in rest)


def test_a_learners_tape_that_is_short_begins_at_the_beginning(whole_run: Path):
    assert isinstance(lines_of(whole_run, "learner-1")[1].item, ev.Started)
