"""Processes that fork, as data loaders do: a child inherits everything and takes nothing."""

from __future__ import annotations

import os

import pytest

import atoll
from tests.integration.conditions import wait_until
from tests.integration.processes import Child
from tests.integration.programs import config, model


def kinds(syncer: atoll.Syncer) -> set[str]:
    return {note["kind"] for note in syncer.status()["notes"]}


def exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_data_loader_with_forked_workers_feeds_a_learner():
    with atoll.Syncer(config(ticks=16)) as syncer:
        child = Child("learner_with_a_data_loader", syncer.url, syncer.token)
        assert child.hear() == {"workers": 2, "finished": True}
        assert child.wait() == 0
        assert syncer.wait(60)
        assert syncer.status()["t"] >= 16


@pytest.mark.slow
def test_forked_children_that_end_in_any_way_do_not_disturb_their_parent():
    with atoll.Syncer(config()) as syncer:
        child = Child("learner_that_forks", syncer.url, syncer.token)
        assert child.hear() == {"exit": 42, "after": "step"}
        assert child.hear() == {"exit": 0, "after": "leave"}
        assert child.hear() == {"exit": 0, "after": "the end of the interpreter"}
        assert child.hear() == {"exit": -15, "after": "a signal"}
        assert child.hear() == {"goes_on": True}
        assert kinds(syncer).isdisjoint({"left", "lost"})
        child.wait()
        wait_until(lambda: "left" in kinds(syncer))


def test_a_child_that_stops_a_syncer_it_only_inherited_stops_nothing():
    with atoll.Syncer(config()) as syncer:
        learner = atoll.join(syncer.url, model=model(), name="ada")
        pid = os.fork()
        if pid == 0:
            syncer.stop()
            os._exit(0)
        assert exit_code(pid) == 0
        assert syncer.run_dir.exists()
        assert syncer.status()["alive"] == 1
        learner.leave()
        wait_until(lambda: "left" in kinds(syncer))
    assert not syncer.run_dir.exists(), "a run in memory leaves nothing behind"


def test_a_process_that_holds_a_syncer_may_have_children_that_exit():
    child = Child("syncer_that_forks")
    assert child.hear() == {"exit": 0, "is_kept": True, "alive": 1}
    assert child.wait() == 0
