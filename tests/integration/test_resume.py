"""A power cut: everything is killed at once, and `atoll train --resume` goes on; so does a killed syncer."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atoll.cli.main import run
from atoll.runtime.store import read_run
from tests.integration.commands import LONG_S, finish, meanwhile, status_of
from tests.integration.conditions import wait_until

NAMES = ["learner-0", "learner-1"]


def has_merged_all(run_dir: Path, epoch: int, merges: int = 0) -> bool:
    """Whether both learners train in this epoch, and more than so many merges were made."""
    status = status_of(run_dir)
    if status is None or not status["live"] or status["epoch"] < epoch:
        return False
    training = [detail["name"] for detail in status["learner_details"] if detail["state"] == "training"]
    return training == NAMES and bool(status["merges"] > merges)


def pids_of(run_dir: Path) -> list[int]:
    """Of syncer and learners: each has written its own into the lock that it holds."""
    locks = [run_dir / "lock", *(run_dir / "learners" / name / "lock" for name in NAMES)]
    return [int(lock.read_text()) for lock in locks]


def cut_the_power(run_dir: Path) -> None:
    """Start a fleet, and kill -9 all of it in the middle of its work; the parent must not see it coming."""
    command = [
        sys.executable,
        "-m",
        "atoll",
        "train",
        "vit-digits",
        "--steps",
        "1000000",
        "--speeds",
        "1,0.5",
    ]
    with subprocess.Popen(
        [*command, "--run-dir", str(run_dir)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as parent:
        try:
            wait_until(lambda: has_merged_all(run_dir, 1), timeout=LONG_S)
            parent.send_signal(signal.SIGSTOP)
            for pid in pids_of(run_dir):
                os.kill(pid, signal.SIGKILL)
        finally:
            parent.kill()


@pytest.fixture(scope="module")
def resumed(tmp_path_factory) -> tuple[int, dict[str, Any], str, int]:
    """Exit code, JSON answer and page of the resumed run, and the merges that the first life had made."""
    run_dir = tmp_path_factory.mktemp("resume") / "reef"
    cut_the_power(run_dir)
    for name in ("status.json", "books.json"):  # as a power cut may leave files that are not forced to disk
        path = run_dir / name
        path.with_suffix(".part").write_bytes(path.read_bytes()[:100])
    (run_dir / "summary.json.part").write_text("{")
    merges = read_run(run_dir).state.merges

    def end_it_when_the_syncer_is_back() -> None:
        wait_until(lambda: has_merged_all(run_dir, 3, merges), timeout=LONG_S)
        before = read_run(run_dir).state.merges
        wait_until(lambda: has_merged_all(run_dir, 3, before), timeout=LONG_S)
        finish(run_dir)

    out, err = io.StringIO(), io.StringIO()
    with (
        meanwhile(end_it_when_the_syncer_is_back),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run(["train", "--resume", str(run_dir), "--kill", "syncer@0s", "--json"])
    return code, json.loads(out.getvalue().splitlines()[-1]), err.getvalue(), merges


def test_a_run_goes_on_after_everything_was_killed(resumed):
    code, answer, page, merges = resumed
    assert answer["violation_reasons"] == []
    assert code == 0, page
    assert "the run goes on: 2 learners and a syncer" in page
    assert answer["merges"] > merges > 0
    assert answer["heldout_loss"]["end"] < answer["heldout_loss"]["start"]


def test_every_learner_is_who_it_was(resumed):
    details = resumed[1]["learner_details"]
    assert [(detail["name"], detail["incarnation"]) for detail in details] == [(name, 2) for name in NAMES]
    assert len({detail["shard"] for detail in details}) == 2


def test_the_summary_counts_the_whole_run(resumed):
    _, answer, _, _ = resumed
    run_dir = Path(answer["run_dir"])
    began_s = json.loads((run_dir / "fleet.json").read_text())["began_s"]
    assert answer["wall_s"] == pytest.approx((run_dir / "status.json").stat().st_mtime - began_s)
    state = read_run(run_dir).state
    assert (answer["merges"], state.epoch) == (state.merges, 3)


def test_a_killed_syncer_is_back_by_itself_and_the_summary_says_how_soon(resumed):
    _, answer, page, _ = resumed
    assert "syncer was killed" in page
    assert "syncer was restarted" in page
    (kill,) = answer["kills"]
    assert kill["event"].startswith("syncer killed at 0 s, listening after ")
    assert kill["kill_to_listening_s"] > 0
    assert kill["listening_to_merge_s"] > 0
    assert [row["phase"] for row in kill["rows"]] == ["before", "during", "after"]


def test_a_finished_run_has_nothing_to_go_on_with(resumed, capsys):
    assert run(["train", "--resume", resumed[1]["run_dir"], "--json"]) == 0
    said = capsys.readouterr()
    assert "is finished" in said.err
    assert json.loads(said.out) == resumed[1]


def test_a_run_that_was_killed_after_its_end_is_judged_when_it_is_resumed(resumed, capsys):
    path = Path(resumed[1]["run_dir"]) / "summary.json"
    before = path.read_text()
    path.unlink()
    assert run(["train", "--resume", resumed[1]["run_dir"], "--json"]) == 0
    said = capsys.readouterr()
    assert "its summary is missing and is made now" in said.err
    again = json.loads(path.read_text())
    for key in ("merges", "tokens", "heldout_loss", "violations", "wall_s"):
        assert again[key] == json.loads(before)[key], key
    path.write_text(before)
