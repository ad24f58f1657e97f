"""The tapes of a real run pass every check; a run that was tampered with does not."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from atoll import RunConfig, Syncer, join
from atoll.core import events as ev
from atoll.core.records import RoundRecord
from atoll.errors import StoreError
from atoll.runtime import learner_shell, syncer_shell
from atoll.runtime.clock import this_clock
from atoll.runtime.loop import Loop
from atoll.runtime.store import RunStore, read_run
from atoll.runtime.verdict import check_run
from atoll.tape.entries import SYNCER, Clock, Entry, Stored
from tests.integration.conditions import wait_until

CONFIG = RunConfig.from_tables({
    "sync": {"num_fragments": 2, "interval_steps": 4, "num_learners": 2},
    "budget": {"ticks": 40},
})  # fmt: skip


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two learners, over real sockets, until its budget was spent."""
    run_dir = tmp_path_factory.mktemp("verdict") / "reef"
    with Syncer(CONFIG, run_dir) as syncer:
        learners = [
            join(syncer.url, model=model(), name=name, state_dir=run_dir / "learners" / name)
            for name in ("learner-0", "learner-1")
        ]

        def all_finished() -> bool:
            for learner in learners:
                learner.step(tokens=4)
            return all(learner.finished for learner in learners)

        wait_until(all_finished)
        for learner in learners:
            learner.leave()
    return run_dir


@pytest.fixture
def copy(finished_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished_run, tmp_path / "reef")
    return tmp_path / "reef"


def add_line(run_dir: Path, line: Entry) -> None:
    """Write one more line onto the syncer's tape."""
    store = RunStore.open(run_dir, CONFIG)
    store.load()
    assert store.write_tape([line]) == ""
    store.close()


def last_round(run_dir: Path) -> RoundRecord:
    return [record for record in read_run(run_dir).records if isinstance(record, RoundRecord)][-1]


def test_a_real_run_passes_every_check_and_replays(finished_run):
    verdict = check_run(finished_run)
    assert verdict.violations == []
    assert verdict.replay == []
    assert verdict.ok
    assert verdict.num_checks > 500


def test_a_machine_that_was_started_again_has_a_clock_that_begins_anew(tmp_path, monkeypatch):
    run_dir, far_back_ns = tmp_path / "reef", 30_000_000_000
    train(run_dir, ticks=20)
    clock = this_clock()
    for module in (learner_shell, syncer_shell):
        monkeypatch.setattr(module, "this_clock", lambda: Clock("next", clock.wall_ns + far_back_ns))
    monkeypatch.setattr(Loop, "now_ns", staticmethod(lambda: time.monotonic_ns() - far_back_ns))
    train(run_dir, ticks=40)
    times = [entry.at_ns for entry in read_run(run_dir).entries()]
    assert times != sorted(times), "the clock did go back"
    verdict = check_run(run_dir)
    assert (verdict.violations, verdict.replay) == ([], [])
    assert len({record.epoch for record in read_run(run_dir).records if isinstance(record, RoundRecord)}) == 2


def train(run_dir: Path, ticks: int) -> None:
    """One life of a syncer, and of a learner that trains until this tick."""
    config = RunConfig.from_tables({"sync": {"num_fragments": 2, "interval_steps": 4}})
    with Syncer(config, run_dir) as syncer:
        state_dir = run_dir / "learners" / "learner-0"
        learner = join(syncer.url, model=model(), name="learner-0", state_dir=state_dir)

        def is_there() -> bool:
            learner.step(tokens=4)
            return learner.global_step >= ticks and bool(syncer.status()["merged"])

        wait_until(is_there)
        learner.leave()


def test_the_tapes_of_the_learners_are_read_too(copy):
    whole = check_run(copy)
    shutil.rmtree(copy / "learners")
    syncers = check_run(copy)
    assert syncers.ok
    assert syncers.num_checks < whole.num_checks
    assert syncers.num_entries < whole.num_entries


def test_a_record_that_the_machine_would_not_commit_is_found(copy):
    last = last_round(copy)
    forged = replace(last, version=last.version + 1, digest="0" * 32)
    add_line(copy, Entry(1 << 62, SYNCER, Stored(forged, True)))
    verdict = check_run(copy)
    assert any("does not commit it today" in problem for problem in verdict.replay)
    assert not verdict.ok


def test_a_broken_invariant_is_found(copy):
    add_line(copy, Entry(1 << 62, SYNCER, Stored(replace(last_round(copy), version=99), True)))
    assert any(violation.startswith("I1 ") for violation in check_run(copy).violations)


def test_an_event_that_cannot_have_happened_is_a_problem_of_the_replay(copy):
    add_line(copy, Entry(1 << 62, SYNCER, ev.Stepped(1 << 62, 1, 1, 0)))  # syncers do not step
    assert any("cannot be replayed" in problem for problem in check_run(copy).replay)


def test_a_learners_tape_that_was_changed_is_named(copy):
    path = next((copy / "learners").glob("*/tape-*.db"))
    path.write_bytes(b"not a tape at all")
    assert any(path.name in problem for problem in check_run(copy).replay)


def test_a_run_that_nobody_joined_has_nothing_to_check(tmp_path):
    with Syncer(CONFIG, tmp_path / "reef"):
        pass
    assert check_run(tmp_path / "reef").num_checks == 0


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(StoreError, match="no run"):
        check_run(tmp_path)
