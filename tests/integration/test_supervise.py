"""`atoll syncer --supervise`: a syncer that is killed comes back under its URL; its parent ends in order."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.config import RunConfig
from atoll.core.records import EpochRecord
from atoll.errors import StoreError
from atoll.recipes import load_recipe
from atoll.runtime.processes import SYNCER, Fleet
from atoll.runtime.store import RunStore
from atoll.runtime.supervising import Supervised
from tests.integration.conditions import wait_until
from tests.integration.programs import Task, config, join_and_train, model, sgd, train


def pid_of_the_syncer(run_dir: Path) -> int:
    return int((run_dir / "lock").read_text())


def kill_the_syncer(run_dir: Path) -> None:
    os.kill(pid_of_the_syncer(run_dir), signal.SIGKILL)


def token_in(run_dir: Path) -> str:
    return (run_dir / "tokens" / "join.token").read_text().strip()


def status(run_dir: Path) -> dict[str, Any]:
    """The newest; the first one follows the URL, but not at once."""
    path = run_dir / "status.json"
    wait_until(path.exists)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@contextlib.contextmanager
def supervised(run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """The command, as a user starts it."""
    run_dir.mkdir()
    (run_dir.parent / "run.toml").write_text(config().to_toml())
    command = [sys.executable, "-m", "atoll", "syncer", "--supervise", "--listen", "127.0.0.1:0"]
    more = ["--run-dir", str(run_dir), "--config", str(run_dir.parent / "run.toml")]
    with subprocess.Popen(
        [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def keep(run_dir: Path, settings: RunConfig, port: int = 0) -> tuple[Supervised, list[str]]:
    said: list[str] = []
    return Supervised(settings, run_dir, None, "127.0.0.1", port, None, False, said.append), said


def test_a_syncer_that_was_killed_comes_back_and_sigterm_ends_it_in_order(tmp_path):
    run_dir = tmp_path / "reef"
    with supervised(run_dir) as parent:
        assert parent.stdout is not None
        url = wait_until(lambda: (run_dir / "url").exists() and (run_dir / "url").read_text().strip())
        net = model()
        optimizer = sgd(net)
        learner = atoll.join(url, model=net, optimizer=optimizer, name="ada", token=token_in(run_dir))
        for epoch in (2, 3):
            train(learner, net, optimizer, until_a_merge(run_dir))
            victim = pid_of_the_syncer(run_dir)
            os.kill(victim, signal.SIGKILL)
            train(learner, net, optimizer, lambda epoch=epoch: status(run_dir)["epoch"] == epoch)
            assert pid_of_the_syncer(run_dir) != victim
        train(learner, net, optimizer, until_a_merge(run_dir))
        assert (run_dir / "url").read_text().strip() == url
        assert learner.incarnation == 1, "it never left"
        parent.send_signal(signal.SIGTERM)
        said = parent.stdout.read()
        assert parent.wait() == 130
        learner.leave()
    assert url in said
    assert said.count("the syncer died (ended by SIGKILL) and listens again after") == 2
    assert "the same command goes on from there" in said
    assert "Traceback" not in said
    with pytest.raises(ProcessLookupError):
        os.kill(pid_of_the_syncer(run_dir), 0)
    with atoll.Syncer(config(), run_dir) as syncer:  # nobody holds the directory any more
        assert syncer.status()["epoch"] == 4


def until_a_merge(run_dir: Path) -> Any:
    """True once there are more merges than now, as the syncer's status has it."""
    merges = status(run_dir)["merges"]
    return lambda: status(run_dir)["merges"] > merges


def test_a_finished_run_ends_the_supervisor(tmp_path):
    kept, said = keep(tmp_path / "reef", config(ticks=12))
    learners: list[Task[Any]] = []

    def take_part(url: str) -> bool:
        with join_and_train(url, "ada", token=token_in(tmp_path / "reef"))[0] as learner:
            return learner.finished

    kept.run(lambda url: learners.append(Task(take_part, url)))
    assert learners[0].result()
    assert status(tmp_path / "reef")["state"] == "finished"
    assert said == []


def test_a_syncer_that_fails_by_its_own_fault_again_and_again_is_given_up(tmp_path):
    run_dir = tmp_path / "reef"
    kept, said = keep(run_dir, config())

    def sabotage(url: str) -> None:
        (run_dir / "config.toml").write_text("this is no TOML")
        kill_the_syncer(run_dir)

    with pytest.raises(atoll.StoreError, match="syncer cannot be kept running: exit code 2"):
        kept.run(sabotage)
    assert said, "it was told what is going on before that"
    with pytest.raises(ProcessLookupError):
        os.kill(pid_of_the_syncer(run_dir), 0)


def test_what_keeps_a_syncer_from_its_first_start_is_not_tried_again(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        kept, said = keep(tmp_path / "reef", config(), port=taken.getsockname()[1])
        with pytest.raises(atoll.StoreError, match="cannot be kept running"):
            kept.run(lambda url: pytest.fail("nobody can listen there"))
    assert said == []


def test_a_run_directory_that_is_deleted_under_a_syncer_is_said_to_be_gone(tmp_path):
    run_dir = tmp_path / "reef"
    kept, _ = keep(run_dir, config())
    with pytest.raises(atoll.StoreError, match="is gone"):
        kept.run(lambda url: run_dir.rename(tmp_path / "moved"))


@pytest.mark.slow
def test_a_syncer_whose_fork_server_has_died_is_not_left_beside_its_successor(tmp_path):
    """Nobody can say how such a child ended, or whether it did."""
    run_dir = tmp_path / "reef"
    kept, said = keep(run_dir, config(ticks=12))
    learners: list[Task[Any]] = []

    def take_part(url: str, before: int) -> bool:
        wait_until(lambda: (run_dir / "lock").read_text() not in ("", f"{before}\n"))
        with join_and_train(url, "ada", token=token_in(run_dir))[0] as learner:
            return learner.finished

    def strike(url: str) -> None:
        learners.append(Task(take_part, url, pid_of_the_syncer(run_dir)))
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]

    kept.run(strike)
    assert learners[0].result()
    assert any("exit code 255" in line for line in said)


def test_a_fleet_accepts_a_loss_at_its_first_start_and_later_no_more(tmp_path):
    run_dir, settings = tmp_path / "reef", config()
    store = RunStore.open(run_dir, settings)
    assert [store.commit(EpochRecord(epoch, ()), sync=True, lines=[]) for epoch in (1, 2)] == ["", ""]
    store.close()
    with contextlib.closing(sqlite3.connect(run_dir / "run.db")) as db, db:
        db.execute("DELETE FROM records WHERE id = 2")
    recipe = load_recipe("vit-digits").settings()
    with pytest.raises(StoreError, match="--accept-loss"):
        Fleet(run_dir, settings, recipe, []).start()
    fleet = Fleet(run_dir, settings, recipe, [], accepts_loss=True)
    try:
        fleet.start()
        assert True not in fleet.children[SYNCER].args
    finally:
        fleet.stop()
