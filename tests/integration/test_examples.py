"""The example is the plain loop and three lines, and two processes of it train together."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from atoll import RunConfig, Syncer
from atoll.runtime.export import export_run
from tests.integration.conditions import wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PLAIN, ATOLL = EXAMPLES / "plain_loop.py", EXAMPLES / "atoll_loop.py"
MAX_LINES = 30
CONFIG = RunConfig.from_tables({"sync": {"num_fragments": 4, "interval_steps": 8, "num_learners": 2}})


@contextmanager
def process(syncer: Syncer, seed: int) -> Iterator[subprocess.Popen[bytes]]:
    """A user's script, its run and token in the environment, and more steps than anybody waits for."""
    run = {"ATOLL_URL": syncer.url, "ATOLL_TOKEN": syncer.token, "SEED": str(seed), "STEPS": "300000"}
    environment = {**os.environ, **run, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, str(ATOLL)], env=environment) as running:
        try:
            yield running
        finally:
            running.kill()


def test_three_lines_are_added_and_none_is_changed():
    plain, ours = PLAIN.read_text().splitlines(), ATOLL.read_text().splitlines()
    changes = [line for line in difflib.ndiff(plain, ours) if not line.startswith(" ")]
    assert [line[:2] for line in changes] == ["+ "] * 3
    assert "import atoll" in changes[0]
    assert "atoll.join(" in changes[1]
    assert "learner.step(" in changes[2]
    assert len(ours) <= MAX_LINES


def test_two_processes_of_it_train_one_model(tmp_path):
    with Syncer(CONFIG, tmp_path / "echo") as syncer, ExitStack() as stack:
        scripts = [stack.enter_context(process(syncer, seed)) for seed in (1, 2)]

        def both_were_merged() -> bool:
            assert all(script.poll() is None for script in scripts), "a script gave up"
            details = syncer.status()["learner_details"]
            return len(details) == 2 and all(detail["merged_offers"] >= 4 for detail in details)

        wait_until(both_were_merged)
        for script in scripts:
            script.terminate()  # they say goodbye
        for script in scripts:
            script.wait()
        wait_until(lambda: [d["state"] for d in syncer.status()["learner_details"]] == ["left", "left"])
    found = export_run(tmp_path / "echo", tmp_path / "model")
    # The tied weight once, the norm's weight and bias, the head's bias; and two buffers of the norm.
    assert found["tensors"] == 6
