"""Who is away, for a while or for ever, who comes anew, and who must be kept out for a while."""

from __future__ import annotations

import json
import logging
import signal
import threading
from pathlib import Path

import torch

import atoll
from atoll.core.records import RoundRecord
from atoll.runtime.moment_files import FOLDER as MOMENTS
from atoll.runtime.store import read_run
from atoll.runtime.verdict import check_run
from tests.integration.cable import Cable
from tests.integration.conditions import wait_until
from tests.integration.processes import Child
from tests.integration.programs import PACE_S, Task, adamw, config, model, step
from tests.integration.test_healing import Trainee, row

H = 4


def is_cut_off(learner: atoll.Learner) -> bool:
    """No ask can come any more, and none waits for an answer."""
    return not learner.uplink.is_ready and all(slot.ask is None for slot in learner.shell.machine.slots)


def check(run_dir: Path) -> None:
    verdict = check_run(run_dir)
    assert (verdict.violations, verdict.replay) == ([], [])


def merged_since(run_dir: Path, name: str, num_before: int) -> list[RoundRecord]:
    """Rounds with a part of this learner, past the first so many records."""
    later = read_run(run_dir).records[num_before:]
    rounds = [record for record in later if isinstance(record, RoundRecord)]
    return [record for record in rounds if name in [part.name for part in record.contributors]]


def test_a_learner_cut_off_for_long_trains_on_stops_offering_heals_and_is_merged_again(tmp_path):
    run_dir = tmp_path / "reef"
    with atoll.Syncer(config(interval=H), run_dir) as syncer, Cable(syncer.url) as cable:
        ada = Trainee(syncer.url, "ada", state_dir=run_dir / "learners" / "ada")
        bob = Trainee(cable.url, "bob", token=syncer.token, state_dir=run_dir / "learners" / "bob")
        wait_until(lambda: row(syncer, "bob")["merged_offers"])
        cable.cut()
        wait_until(lambda: is_cut_off(bob.learner))
        offers, steps, merges = (
            bob.learner.shell.num_offers, bob.learner.watch.num_steps, syncer.status()["merges"],
        )  # fmt: skip
        wait_until(lambda: bob.learner.watch.num_steps > steps + 5 * H)
        wait_until(lambda: syncer.status()["merges"] > merges + 10)
        assert bob.learner.shell.num_offers == offers, "nobody asked, so nothing was offered"
        ada.see_it_go_on()
        num_records = len(read_run(run_dir).records)
        cable.mend()
        wait_until(lambda: merged_since(run_dir, "bob", num_records))
        assert bob.learner.incarnation == 1
        bob.see_it_go_on()
        for trainee in (ada, bob):
            trainee.stop()
    check(run_dir)


def test_a_newcomer_joins_in_mid_run_and_takes_part(tmp_path):
    run_dir = tmp_path / "reef"
    with atoll.Syncer(config(interval=H), run_dir) as syncer:
        ada = Trainee(syncer.url, "ada", state_dir=run_dir / "learners" / "ada")
        wait_until(lambda: syncer.status()["merges"] > 10)
        t, num_records = syncer.status()["t"], len(read_run(run_dir).records)
        bob = Trainee(syncer.url, "bob", state_dir=run_dir / "learners" / "bob")
        assert bob.learner.global_step >= t
        wait_until(lambda: merged_since(run_dir, "bob", num_records))
        ada.see_it_go_on()
        for trainee in (ada, bob):
            trainee.stop()
    check(run_dir)


# Shards


def leave_long_ago(syncer: atoll.Syncer, learner: atoll.Learner) -> None:
    """Leave, and let much time pass for the syncer."""
    learner.leave()
    wait_until(lambda: row(syncer, learner.name)["state"] == "left")
    aged = threading.Event()

    def age() -> None:
        machine = syncer._shell.machine
        assert machine is not None
        machine.desk.sessions[learner.name].heard_ns -= machine.params.hand_on_ns
        aged.set()

    syncer._loop.call(age)
    assert aged.wait(60)


def test_a_shard_waits_for_its_learner_then_it_is_handed_on_and_the_learner_gets_another(tmp_path):
    def join(name: str) -> atoll.Learner:
        return atoll.join(syncer.url, model=model(), name=name, state_dir=tmp_path / name)

    with atoll.Syncer(config(data={"num_shards": 2, "hand_on_s": 600.0})) as syncer:
        ada, bob = join("ada"), join("bob")
        assert (ada.shard.index, bob.shard.index) == (0, 1)
        ada.cursor, bob.cursor = {"batch": 7}, {"batch": 9}
        bob.leave()
        early = join("early")
        assert early.shard.index == 0, "shared with ada: the one of bob waits for him"
        leave_long_ago(syncer, early)
        bob = join("bob")
        assert (bob.shard.index, bob.cursor) == (1, {"batch": 9})
        leave_long_ago(syncer, ada)
        cid = join("cid")
        assert (cid.shard.index, cid.cursor) == (0, None)
        leave_long_ago(syncer, bob)
        ada = join("ada")
        assert ada.shard.index == 1, "hers is taken, and the one of bob has been given up"
        assert ada.cursor is None, "a place in one shard means nothing in another"
        for learner in (cid, ada):
            learner.leave()


def test_how_long_a_shard_waits_is_a_setting(tmp_path):
    hand_on_s = 0.2
    with atoll.Syncer(config(data={"num_shards": 1, "hand_on_s": hand_on_s})) as syncer:
        ada = atoll.join(syncer.url, model=model(), name="ada")
        ada.leave()
        wait_until(lambda: row(syncer, "ada")["heard_s_ago"] > hand_on_s)
        bob = atoll.join(syncer.url, model=model(), name="bob")
        assert bob.shard.index == 0
        bob.leave()


# SIGTERM


def test_sigterm_pushes_the_last_offers_says_goodbye_and_saves_the_state(tmp_path):
    settings = config(interval=H, sync={"retry_s": 30.0})  # bodies are waited for at least as long
    state = tmp_path / "state"
    with atoll.Syncer(settings) as syncer:
        child = Child("learner_that_is_asked_to_go", syncer.url, syncer.token, str(state))
        child.hear()
        wait_until(lambda: row(syncer, "ada")["merged_offers"])
        child.process.terminate()
        last = child.hear()
        assert child.wait() == -signal.SIGTERM
        wait_until(lambda: row(syncer, "ada")["state"] == "left")
        wait_until(lambda: row(syncer, "ada")["merged_offers"] == last["offers"])
        saved = json.loads((state / "cursor.json").read_text())["cursor"]
        assert last["steps"] - 1 <= saved <= last["cursor"], "training goes on while it says goodbye"
        assert sorted(path.name for path in (state / MOMENTS).iterdir()) == ["0.safetensors", "1.safetensors"]


# Numbers that are none


class Patient:
    """A learner whose parameters can be spoiled between two steps."""

    def __init__(self, url: str, name: str, state_dir: Path) -> None:
        self.net = model()
        self.optimizer = adamw(self.net)
        self.learner = atoll.join(
            url, model=self.net, optimizer=self.optimizer, name=name, state_dir=state_dir
        )
        self.poison = threading.Event()
        self.over = threading.Event()
        self.is_finite = True
        self.task = Task(self._train)

    def _train(self) -> None:
        number = 0
        while not self.over.is_set():
            if self.poison.is_set():
                self.poison.clear()
                with torch.no_grad():
                    for parameter in self.net.parameters():
                        parameter.fill_(float("nan"))
            loss = step(self.net, self.optimizer, number)
            self.learner.step(tokens=8, loss=loss)
            self.is_finite = all(bool(torch.isfinite(p).all()) for p in self.net.parameters())
            number += 1
            self.over.wait(PACE_S)

    def stop(self) -> None:
        self.over.set()
        self.task.result()
        self.learner.leave()


def notes_of(syncer: atoll.Syncer, kind: str, who: str) -> list[str]:
    notes = syncer.status()["notes"]
    return [note["reason"] for note in notes if note["kind"] == kind and note["who"] == who]


def test_a_learner_that_has_become_nan_is_quarantined_heals_anew_and_is_merged_again(tmp_path, caplog):
    run_dir = tmp_path / "reef"
    settings = config(interval=H, guard={"strikes": 2, "quarantine_steps": 20, "norm_gate": 0})
    caplog.set_level(logging.INFO, logger="atoll")
    with atoll.Syncer(settings, run_dir) as syncer:
        ada = Trainee(syncer.url, "ada", state_dir=run_dir / "learners" / "ada")
        bob = Patient(syncer.url, "bob", run_dir / "learners" / "bob")
        wait_until(lambda: row(syncer, "bob")["merged_offers"])
        bob.poison.set()
        (why, *_) = wait_until(lambda: notes_of(syncer, "quarantined", "bob"))
        assert "offers were rejected, the last one because the delta is not finite" in why
        wait_until(lambda: notes_of(syncer, "released", "bob"))
        num_records = len(read_run(run_dir).records)
        wait_until(lambda: len(merged_since(run_dir, "bob", num_records)) > 3)
        assert bob.is_finite
        assert len(notes_of(syncer, "quarantined", "bob")) == 1, "once was enough"
        assert row(syncer, "bob")["moments"].startswith("fresh")
        told = "\n".join(caplog.messages)
        assert "bob is quarantined, and heals anew" in told
        assert "bob: begins anew, with fresh optimizer state" in told
        ada.see_it_go_on()
        assert all(bool(torch.isfinite(value).all()) for value in syncer.weights().values())
        ada.stop()
        bob.stop()
    check(run_dir)
