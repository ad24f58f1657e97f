"""The syncer as an object: how it starts, what keeps it from starting, how it ends."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys

import pytest

import atoll
from tests.integration.conditions import LIMIT_S, wait_until
from tests.integration.programs import config, join_and_train, model

SCRIPT = """
import sys, atoll, torch
learner = atoll.join(sys.argv[1], model=torch.nn.Linear(4, 4), name="script")
learner.step(tokens=1)
"""


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(atoll.StoreError, match=f"Cannot listen on 127.0.0.1:{port}"):
            atoll.Syncer(config(), tmp_path / "reef", port=port).start()
    atoll.Syncer(config(), tmp_path / "reef", port=port).start().stop()


def test_a_run_directory_in_use_is_refused_until_it_is_let_go(tmp_path):
    with (
        atoll.Syncer(config(), tmp_path / "reef"),
        pytest.raises(atoll.StoreError, match=f"is in use by process {os.getpid()}"),
    ):
        atoll.Syncer(config(), tmp_path / "reef").start()
    with atoll.Syncer(config(), tmp_path / "reef") as again:
        assert again.status()["state"] == "waiting"


def test_a_run_that_cannot_be_started_leaves_nothing_open(tmp_path):
    (tmp_path / "reef" / "tls").mkdir(parents=True)
    (tmp_path / "reef" / "tls" / "key.pem").write_text("no key")
    for _ in range(3):
        before = open_descriptors()
        with pytest.raises(atoll.StoreError):
            atoll.Syncer(config(), tmp_path / "reef").start()
        wait_until(lambda: open_descriptors() <= before)  # noqa: B023


def test_a_syncer_is_started_once():
    with atoll.Syncer(config()) as syncer, pytest.raises(atoll.StoreError, match="was started before"):
        syncer.start()


def test_a_name_that_no_run_can_have(tmp_path):
    with pytest.raises(atoll.StoreError, match="A run cannot be called 'Große Insel'"):
        atoll.Syncer(config(), tmp_path, name="Große Insel")


def test_a_status_is_there_before_during_and_after():
    syncer = atoll.Syncer(config(ticks=4))
    assert syncer.status() == {}
    syncer.stop()
    syncer = atoll.Syncer(config(ticks=4)).start()
    join_and_train(syncer.url, "ada")[0].leave()
    assert syncer.wait(LIMIT_S)
    syncer.stop()
    syncer.stop()
    assert syncer.status()["state"] == "finished"
    assert not syncer.run_dir.exists()


def test_the_run_directory_says_how_the_run_stands(tmp_path):
    run_dir = tmp_path / "reef"
    with atoll.Syncer(config(ticks=4), run_dir) as syncer:
        assert (run_dir / "url").read_text().strip() == syncer.url
        join_and_train(syncer.url, "ada")[0].leave()
        assert syncer.wait(LIMIT_S)
        wait_until(lambda: (run_dir / "metrics.jsonl").exists())
    assert json.loads((run_dir / "status.json").read_text())["state"] == "finished"
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        assert json.loads(line)["run"] == "reef"


@pytest.mark.parametrize("thread", ["loop", "compute", "store", "snapshots"])
def test_a_crash_inside_is_told_and_ends_this_life(tmp_path, thread):
    """Learners go on alone, and find the next life."""
    run_dir = tmp_path / "reef"
    syncer = atoll.Syncer(config(), run_dir).start()
    learner = atoll.join(syncer.url, model=model(), name="ada")
    workers = dict(zip(("compute", "store", "snapshots"), syncer._workers, strict=True))
    if thread == "loop":
        syncer._loop.call(lambda: 1 // 0)
    else:
        workers[thread].do(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        syncer.wait(LIMIT_S)
    wait_until(lambda: not learner.uplink.is_ready)
    learner.step(tokens=1)
    syncer.stop()
    with atoll.Syncer(config(), run_dir, port=syncer.port) as again:
        wait_until(lambda: again.status()["alive"] == 1)
        assert again.status()["epoch"] == 2
        assert learner.incarnation == 1
        learner.leave()


def test_a_learner_in_the_process_of_its_syncer_needs_no_token(monkeypatch):
    monkeypatch.delenv("ATOLL_TOKEN", raising=False)
    with atoll.Syncer(config()) as syncer:
        atoll.join(syncer.url, model=model(), name="ada").leave()


def test_a_script_that_simply_ends_has_left(tmp_path):
    with atoll.Syncer(config()) as syncer:
        environment = {**os.environ, "ATOLL_TOKEN": syncer.token, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", SCRIPT, syncer.url]
        done = subprocess.run(command, env=environment, timeout=2 * LIMIT_S, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        wait_until(lambda: syncer.status()["learner_details"][0]["state"] == "left")


def test_many_runs_one_after_the_other_leave_no_descriptor_behind():
    def run() -> None:
        with atoll.Syncer(config(ticks=4)) as syncer:
            join_and_train(syncer.url, "ada")[0].leave()

    run()
    gc.collect()
    before = open_descriptors()
    for _ in range(5):
        run()
    wait_until(lambda: gc.collect() >= 0 and open_descriptors() <= before)


def test_many_refused_joins_leave_no_descriptor_behind():
    with atoll.Syncer(config()) as syncer:
        gc.collect()
        wait_until(lambda: not syncer._door.visits)
        before = open_descriptors()
        for _ in range(10):
            with pytest.raises(atoll.JoinError):
                atoll.join(syncer.url, model=model(), token="wrong")
        wait_until(lambda: gc.collect() >= 0 and open_descriptors() <= before)
