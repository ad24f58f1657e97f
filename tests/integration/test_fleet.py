"""A real fleet: whoever is killed comes back, a syncer under its old URL, and nothing wrong was done.

One fleet of a tiny model for all of it, because each process costs a second.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atoll.cli.settings import run_config
from atoll.errors import JoinError, StoreError
from atoll.recipes import load_recipe
from atoll.runtime.processes import SYNCER, Fleet, in_child
from atoll.runtime.reader import StatusClient, read_status
from atoll.runtime.verdict import check_run
from tests.integration.conditions import wait_until

RECIPE = load_recipe("vit-digits")
LONG = 10**6
"""Ticks that no test reaches: the run ends when it is told to."""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    quick = ["sync.alive_s=1.5", "sync.heartbeat_s=0.3"]
    config = run_config(RECIPE, num_learners=2, steps=LONG, settings=quick)
    fleet = Fleet(tmp_path / "reef", config, RECIPE.settings(), [1.0, 0.5], down_s=0.0)
    try:
        yield fleet
    finally:
        fleet.stop()


def status_of(fleet: Fleet) -> dict[str, Any]:
    fleet.look_after()
    return read_status(fleet.run_dir)


def learner(fleet: Fleet, name: str) -> dict[str, Any]:
    details = status_of(fleet)["learner_details"]
    return next((detail for detail in details if detail["name"] == name), {})


def everybody_trains(fleet: Fleet) -> bool:
    status = status_of(fleet)
    states = [detail["state"] for detail in status["learner_details"]]
    return status["live"] and states == ["training"] * 2 and status["merges"] > 0


def kinds(fleet: Fleet, name: str) -> list[str]:
    return [event.kind for event in fleet.events if event.who == name]


def test_learners_and_syncer_may_die_and_the_run_goes_on_to_its_end(fleet):
    fleet.start()
    wait_until(lambda: everybody_trains(fleet))

    assert fleet.kill("learner-1")
    assert not fleet.kill("learner-1"), "nobody dies twice"
    wait_until(lambda: learner(fleet, "learner-1").get("incarnation") == 2)
    wait_until(lambda: everybody_trains(fleet))
    assert kinds(fleet, "learner-1") == ["killed", "restarted"]

    os.kill(fleet.children["learner-0"].process.pid, signal.SIGKILL)  # not by the fleet's own hand
    wait_until(lambda: learner(fleet, "learner-0").get("incarnation") == 2)
    wait_until(lambda: everybody_trains(fleet))
    assert kinds(fleet, "learner-0") == ["died", "restarted"]

    before = status_of(fleet)
    assert fleet.kill(SYNCER)
    wait_until(lambda: status_of(fleet)["epoch"] == before["epoch"] + 1)
    wait_until(lambda: everybody_trains(fleet))
    wait_until(lambda: status_of(fleet)["merges"] > before["merges"])
    assert (fleet.run_dir / "url").read_text().strip() == fleet.url
    assert learner(fleet, "learner-1")["incarnation"] == 2, "it never noticed"

    admin = (fleet.run_dir / "tokens" / "admin.token").read_text().strip()
    with StatusClient(fleet.url, admin) as client:
        client.finish("the test has seen enough")

    def is_over() -> bool:
        fleet.look_after()
        return bool(fleet.is_over)

    wait_until(is_over)
    fleet.stop()
    assert read_status(fleet.run_dir)["state"] == "finished"
    assert all(child.process.exitcode is not None for child in fleet.children.values())
    verdict = check_run(fleet.run_dir)
    assert (verdict.violations, verdict.replay) == ([], [])


def test_a_child_that_fails_for_good_stops_the_run_with_its_last_words(fleet):
    fleet.run_dir.mkdir()
    (fleet.run_dir / "run.db").write_bytes(b"this is no database, and a syncer will say so" * 100)
    with pytest.raises(StoreError, match=r"syncer cannot be kept running.*config\.toml"):
        fleet.start()


def test_what_a_child_finds_out_comes_back(tmp_path):
    assert in_child(tmp_path / "child.log", _sum_and_group, [1, 2, 3])["sum"] == 6


def test_a_child_has_a_process_group_of_its_own(tmp_path):
    assert in_child(tmp_path / "child.log", _sum_and_group, [])["group"] != os.getpgid(0)


def test_a_refusal_in_a_child_is_a_refusal_here(tmp_path):
    with pytest.raises(JoinError, match="so it was") as refusal:
        in_child(tmp_path / "child.log", _refuse)
    assert refusal.value.now_what == "now what"


def test_a_child_that_dies_is_reported_with_the_end_of_its_log(tmp_path):
    with pytest.raises(StoreError, match="my last words"):
        in_child(tmp_path / "child.log", _die)


def _sum_and_group(numbers: list[int]) -> dict[str, int]:
    return {"sum": sum(numbers), "group": os.getpgid(0)}


def _refuse() -> None:
    raise JoinError("so it was", "so what", "now what")


def _die() -> None:
    os.write(2, b"my last words\n")
    os.kill(os.getpid(), signal.SIGKILL)
