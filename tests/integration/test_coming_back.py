"""A learner that comes back finds its optimizer again, or says why it does not."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import torch

import atoll
from atoll.numerics.moments import Moments
from atoll.numerics.partition import partition
from atoll.runtime.moment_files import Found, MomentFiles
from tests.integration.conditions import LIMIT_S, wait_until
from tests.integration.processes import Child
from tests.integration.programs import Task, adamw, config, model, state_digest, step, train

NUM_FRAGMENTS = 2
LONG_AGO = 10**6


class Trainee:
    """A learner with AdamW that trains in a thread until it is told to stop."""

    def __init__(self, syncer: atoll.Syncer, name: str, num_steps: int = 0, **options: Any) -> None:
        self.net = model()
        self.optimizer = adamw(self.net)
        if num_steps:  # an optimizer that has come far already
            step(self.net, self.optimizer, 0)
            for state in self.optimizer.state.values():
                state["step"] += num_steps
        self.learner = atoll.join(syncer.url, model=self.net, optimizer=self.optimizer, name=name, **options)
        self.enough = threading.Event()
        self.task = Task(train, self.learner, self.net, self.optimizer, self.enough.is_set)

    def stop(self) -> None:
        self.enough.set()
        self.task.result()
        self.learner.leave(LIMIT_S)


def row(syncer: atoll.Syncer, name: str) -> dict[str, Any]:
    return next(row for row in syncer.status()["learner_details"] if row["name"] == name)


def notes(syncer: atoll.Syncer, name: str) -> list[str]:
    """What the syncer was told about the optimizer state of a learner."""
    return [n["reason"] for n in syncer.status()["notes"] if (n["kind"], n["who"]) == ("moments", name)]


def saved_in(state_dir: Path) -> tuple[Found, str]:
    """What the files of a state_dir hold, and its digest once an optimizer has it."""
    net = model()
    optimizer = adamw(net)
    moments = Moments(optimizer, net, partition(net, NUM_FRAGMENTS, "rda"))
    files = MomentFiles(state_dir)
    any_copy = moments.from_bytes(0, bytearray(files.path(0).read_bytes()))
    found = files.find(moments, str(any_copy.notes["run"]), 0, LONG_AGO, LONG_AGO)
    moments.install(found.copies.values())
    return found, state_digest(net, optimizer)


def test_a_learner_that_is_killed_comes_back_with_the_optimizer_state_that_it_had_saved(tmp_path):
    state_dir = tmp_path / "state"
    with atoll.Syncer(config(heal={"save_every_steps": 4}), tmp_path / "reef") as syncer:
        first = Child("learner_with_moments", syncer.url, syncer.token, str(state_dir))
        joined = first.hear()
        assert (joined["state"], joined["cursor"], joined["warmup"]) == ("", None, 1.0)
        wait_until(lambda: row(syncer, "ada")["moments"] == "fresh")
        assert notes(syncer, "ada") == ["fresh: the run begins"]
        wait_until(lambda: all(MomentFiles(state_dir).path(p).exists() for p in range(NUM_FRAGMENTS)))
        wait_until((state_dir / "cursor.json").exists)
        first.kill(signal.SIGKILL)
        found, state = saved_in(state_dir)
        assert sorted(found.copies) == [0, 1]
        cursor = json.loads((state_dir / "cursor.json").read_text())["cursor"]
        second = Child("learner_with_moments", syncer.url, syncer.token, str(state_dir))
        assert second.hear() == {"incarnation": 2, "state": state, "cursor": cursor, "warmup": 1.0}
        wait_until(lambda: row(syncer, "ada")["moments"] == "own")
        second.kill(signal.SIGKILL)


def test_sigterm_saves_all_of_the_optimizer_state_and_the_cursor(tmp_path):
    state_dir = tmp_path / "state"
    with atoll.Syncer(config(heal={"save_every_steps": LONG_AGO}), tmp_path / "reef") as syncer:
        child = Child("learner_with_moments", syncer.url, syncer.token, str(state_dir))
        child.hear()
        assert child.hear() == {"steps": 20}
        assert not (state_dir / "moments").exists()
        assert child.kill(signal.SIGTERM) == -signal.SIGTERM
        wait_until(lambda: row(syncer, "ada")["state"] == "left")
        found, state = saved_in(state_dir)
        stamps = [copied.notes for copied in found.copies.values()]
        assert [stamp["incarnation"] for stamp in stamps] == [1, 1]
        assert all(stamp["step"] >= 20 for stamp in stamps)
        again = Child("learner_with_moments", syncer.url, syncer.token, str(state_dir))
        heard = again.hear()
        assert (heard["state"], heard["warmup"]) == (state, 1.0)
        assert heard["cursor"] >= 20
        again.kill(signal.SIGKILL)


def test_whoever_leaves_and_joins_again_in_time_has_its_state_and_too_late_it_has_not(tmp_path):
    settings = config(heal={"max_age_steps": 40, "warmup_steps": 5})
    with atoll.Syncer(settings) as syncer:
        other = Trainee(syncer, "other")
        ada = Trainee(syncer, "ada", state_dir=tmp_path)
        wait_until(lambda: ada.learner.watch.num_steps > 5)
        ada.stop()
        stamp_t = saved_in(tmp_path)[0].oldest_t
        wait_until(lambda: syncer.status()["t"] > stamp_t + 60)
        net = model()
        late = atoll.join(syncer.url, model=net, optimizer=adamw(net), name="ada", state_dir=tmp_path)
        assert late.warmup == 1 / 6
        wait_until(lambda: row(syncer, "ada")["moments"] == "fresh")
        assert "ticks old, and 40 are allowed" in notes(syncer, "ada")[-1]
        late.leave()
        other.stop()
        assert saved_in(tmp_path)[0].oldest_t == stamp_t, "who made no step saves nothing"


def test_a_newcomer_in_a_run_that_has_begun_warms_up_and_its_schedule_follows():
    with atoll.Syncer(config(heal={"warmup_steps": 4})) as syncer:
        other = Trainee(syncer, "other")
        wait_until(lambda: syncer.status()["t"] >= 4)
        net = model()
        optimizer = adamw(net)
        learner = atoll.join(
            syncer.url, model=net, optimizer=optimizer, name="new", schedule=lambda progress: 0.5
        )
        rates = []
        done = 0
        while len(rates) < 6:
            rates.append(optimizer.param_groups[0]["lr"] / (0.01 * 0.5))
            step(net, optimizer, done)
            done += 1
            learner.step(tokens=8)
            wait_until(lambda: heard_of(learner, done))  # noqa: B023
        assert [round(rate, 6) for rate in rates] == [0.2, 0.4, 0.6, 0.8, 1.0, 1.0]
        wait_until(lambda: row(syncer, "new")["moments"] == "fresh")
        assert notes(syncer, "new") == ["fresh: there is no state_dir"]
        learner.leave()
        other.stop()


def heard_of(learner: atoll.Learner, num_steps: int) -> bool:
    """Whether the machine knows of all steps; a boundary that was missed is made up for."""
    if learner.shell.machine.steps < num_steps:
        learner.shell.boundary(0, 0, steps=0)
        learner._follow()
    return learner.shell.machine.steps >= num_steps


def test_without_a_schedule_the_rate_is_the_users():
    with atoll.Syncer(config()) as syncer:
        other = Trainee(syncer, "other")
        wait_until(lambda: syncer.status()["t"] >= 4)
        new = Trainee(syncer, "new")
        wait_until(lambda: new.learner.watch.num_steps > 2)
        assert new.optimizer.param_groups[0]["lr"] == 0.01
        new.stop()
        other.stop()


def test_a_newcomer_is_given_a_healthy_peers_state_while_it_trains():
    with atoll.Syncer(config(heal={"moments": "peer"})) as syncer:
        ada = Trainee(syncer, "ada", num_steps=LONG_AGO)
        wait_until(lambda: syncer.status()["merges"] > 4)
        assert notes(syncer, "ada") == ["own: the optimizer came with its state"]
        bob = Trainee(syncer, "bob")
        wait_until(lambda: row(syncer, "bob")["moments"] == "peer")
        assert notes(syncer, "bob") == ["peer: from ada"]
        assert bob.learner.warmup == 1.0
        bob.stop()
        ada.stop()
        assert all(state["step"] > LONG_AGO for state in bob.optimizer.state.values()), "as ada's"
        assert all(torch.isfinite(s["exp_avg"]).all() for s in bob.optimizer.state.values())


def test_when_nobody_can_donate_a_newcomer_starts_fresh():
    with atoll.Syncer(config(heal={"moments": "peer"})) as syncer:
        ada = Trainee(syncer, "ada")
        wait_until(lambda: syncer.status()["t"] >= 4)
        ada.stop()
        wait_until(lambda: row(syncer, "ada")["state"] == "left")
        bob = Trainee(syncer, "bob")
        wait_until(lambda: row(syncer, "bob")["moments"] == "fresh")
        bob.stop()


def test_a_learner_that_is_given_another_shard_begins_its_data_anew(tmp_path):
    with atoll.Syncer(config(data={"num_shards": 5})) as syncer:
        cursors = []
        for name in ("ada", "ada", "bob"):
            learner = atoll.join(syncer.url, model=model(), name=name, state_dir=tmp_path)
            cursors.append((learner.shard.index, learner.cursor))
            learner.cursor = 12
            learner.leave()
        assert cursors == [(0, None), (0, 12), (1, None)]
