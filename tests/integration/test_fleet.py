"""Many learners on one machine: real processes that train, and many idle ones in few.

Slow, so run by command: python -m pytest -m slow tests/integration/test_fleet.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import atoll
from tests.integration.conditions import wait_until
from tests.integration.processes import Child, event
from tests.integration.programs import config

NUM_TRAINING = 16
NUM_IDLE, NUM_PROCESSES, MAX_BYTES = 200, 4, 2 << 30


@pytest.mark.slow
def test_sixteen_real_processes_train_to_the_end():
    """They start to train together; the run ends once enough was merged."""
    settings = config(
        interval=8, quorum=4, sync={"num_learners": NUM_TRAINING}, budget={"tokens": 32 * NUM_TRAINING}
    )
    go = event()
    with atoll.Syncer(settings) as syncer:
        children = [
            Child("learner_of_a_fleet", syncer.url, syncer.token, f"learner-{number:02}", go)
            for number in range(NUM_TRAINING)
        ]
        wait_until(lambda: syncer.status()["alive"] == NUM_TRAINING)
        go.set()
        digests = {child.hear(120)["weights"] for child in children}
        assert [child.wait(120) for child in children] == [0] * NUM_TRAINING
        assert syncer.wait(60)
        status = syncer.status()
    assert len(digests) == 1, "everybody holds the same bits at the end"
    assert status["learners"] == NUM_TRAINING
    assert status["merged_tokens"] >= 32 * NUM_TRAINING
    assert {row["shard"] for row in status["learner_details"]} == set(range(NUM_TRAINING))
    assert all(row["steps"] > 0 for row in status["learner_details"])


@pytest.mark.slow
def test_two_hundred_idle_learners_in_four_processes_join_and_are_shown():
    with atoll.Syncer(config(sync={"heartbeat_s": 1.0})) as syncer:
        share = NUM_IDLE // NUM_PROCESSES
        children = [
            Child("idle_learners", syncer.url, syncer.token, f"group-{number}", share)
            for number in range(NUM_PROCESSES)
        ]
        words = [child.hear(120) for child in children]
        assert [word["joined"] for word in words] == [share] * NUM_PROCESSES
        assert sum(word["bytes"] for word in words) < MAX_BYTES
        wait_until(lambda: syncer.status()["alive"] == NUM_IDLE)
        status = syncer.status()
        assert len(status["learner_details"]) == NUM_IDLE
        assert {row["state"] for row in status["learner_details"]} == {"training"}
        for child in children:
            child.kill(signal.SIGTERM)
        wait_until(lambda: {row["state"] for row in syncer.status()["learner_details"]} == {"left"})
        wait_until(lambda: not syncer._shell.links and not syncer._door.visits)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_fleet_that_is_still_starting_is_stopped_without_a_traceback(number, tmp_path):
    """As a terminal does it: Ctrl-C goes to the whole group, so also to the fork server; SIGTERM to one."""
    command = [sys.executable, "-m", "atoll", "train", "vit-digits", "--learners", "2"]
    with subprocess.Popen(
        [*command, "--run-dir", str(tmp_path / "reef")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as training:
        assert training.stdout is not None
        while "a syncer in" not in training.stdout.readline():
            assert training.poll() is None
        if number == signal.SIGINT:
            os.killpg(training.pid, number)
        else:
            training.send_signal(number)
        said = training.stdout.read()
    assert training.returncode == 130, said
    assert "Traceback" not in said
    assert "stopped before the end" in said
