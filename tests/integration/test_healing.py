"""What breaks and comes back: the syncer, connections, a learner; nothing that was merged is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

from torch import Tensor

import atoll
from atoll.core.records import EpochRecord, MemberRecord, RoundRecord
from atoll.runtime.connection import Connection
from atoll.runtime.export import weights_of
from atoll.runtime.links import Link
from atoll.runtime.store import read_run
from atoll.runtime.verdict import check_run
from tests.integration.conditions import wait_until
from tests.integration.processes import Child
from tests.integration.programs import (
    Task,
    config,
    crash,
    global_weights,
    join_and_train,
    model,
    same,
    sgd,
    train,
)


class Trainee:
    """A learner that trains in a thread until it is told to stop."""

    def __init__(self, url: str, name: str, **options: object) -> None:
        self.net = model()
        self.optimizer = sgd(self.net)
        self.learner = atoll.join(
            url,
            model=self.net,
            optimizer=self.optimizer,
            name=name,
            **options,  # type: ignore[arg-type]
        )
        self.enough = threading.Event()
        self.task = Task(train, self.learner, self.net, self.optimizer, self.enough.is_set)

    @property
    def adopted(self) -> int:
        return self.learner.shell.num_adopted

    def see_it_go_on(self) -> None:
        """Steps are made, and newer versions are taken in."""
        steps, adopted = self.learner.watch.num_steps, self.adopted
        wait_until(lambda: self.learner.watch.num_steps > steps and self.adopted > adopted + 2)

    def stop(self) -> None:
        self.enough.set()
        self.task.result()
        self.learner.leave()


def row(syncer: atoll.Syncer, name: str) -> dict[str, Any]:
    return next(row for row in syncer.status()["learner_details"] if row["name"] == name)


def links(syncer: atoll.Syncer, name: str) -> list[Link]:
    return list(syncer._shell.links.get(name, ()))


def break_off(connection: Connection) -> None:
    """Break a connection below us, as a network does."""
    socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)


def test_a_syncer_that_dies_and_comes_back_is_found_by_its_learners_and_has_lost_nothing(tmp_path):
    run_dir = tmp_path / "reef"
    settings = config(interval=8, quorum=2, durability={"snapshot_every": 3})
    syncer = atoll.Syncer(settings, run_dir).start()
    trainees = [Trainee(syncer.url, name, state_dir=run_dir / "learners" / name) for name in ("ada", "bob")]
    before: tuple[object, ...] = ()
    for epoch in (1, 2, 3):
        for trainee in trainees:
            trainee.see_it_go_on()
        assert syncer.status()["epoch"] == epoch
        crash(syncer)
        records = read_run(run_dir).records
        assert records[: len(before)] == before, "what was committed is still there"
        before = records
        steps = [trainee.learner.watch.num_steps for trainee in trainees]
        for trainee, done in zip(trainees, steps, strict=True):  # nobody is there, and nobody minds
            wait_until(lambda trainee=trainee, done=done: trainee.learner.watch.num_steps > done + 20)
        syncer = atoll.Syncer(settings, run_dir, port=syncer.port).start()
    for trainee in trainees:
        trainee.see_it_go_on()
        assert trainee.learner.incarnation == 1, "the same life, taken up again"
    syncer.finish()
    wait_until(lambda: all(trainee.learner.finished for trainee in trainees))
    merged = syncer.weights()
    assert all(same(global_weights_of(trainee), merged) for trainee in trainees)
    for trainee in trainees:
        trainee.stop()
    syncer.stop()
    check_whole(run_dir, before, num_epochs=4)
    found = read_run(run_dir).found()
    assert found.fragments is not None
    assert found.manifest is not None
    assert not found.state.problems
    folded = weights_of(found.manifest, [state.served for state in found.fragments])
    assert same(folded, merged), "the fold of the tape is the state, bit for bit"


def global_weights_of(trainee: Trainee) -> dict[str, Tensor]:
    """Its thread must not step meanwhile."""
    trainee.enough.set()
    trainee.task.result()
    return global_weights(trainee.learner)


def check_whole(run_dir: Path, before: tuple[object, ...], num_epochs: int) -> None:
    records = read_run(run_dir).records
    assert records[: len(before)] == before
    epochs = [record.epoch for record in records if isinstance(record, EpochRecord)]
    assert epochs == list(range(1, num_epochs + 1))
    assert {record.epoch for record in records if isinstance(record, RoundRecord)} == set(epochs)
    assert [record.name for record in records if isinstance(record, MemberRecord)].count("ada") == 1
    verdict = check_run(run_dir)
    assert (verdict.violations, verdict.replay) == ([], [])


def test_a_learner_whose_connections_break_heals_and_is_still_the_same_life():
    with atoll.Syncer(config()) as syncer:
        trainee = Trainee(syncer.url, "ada")
        for _ in range(3):
            trainee.see_it_go_on()
            control = trainee.learner.uplink.control
            assert control is not None
            break_off(control)
            wait_until(lambda: trainee.learner.uplink.control not in (None, control))  # noqa: B023
        trainee.see_it_go_on()
        assert trainee.learner.incarnation == 1
        wait_until(lambda: len(links(syncer, "ada")) == 1)
        trainee.stop()
        wait_until(lambda: row(syncer, "ada")["state"] == "left")
        assert [note["kind"] for note in syncer.status()["notes"]].count("admitted") == 1


def test_a_data_connection_that_breaks_is_dialled_again_and_the_others_carry_on():
    with atoll.Syncer(config(network={"data_connections": 3})) as syncer:
        trainee = Trainee(syncer.url, "ada")
        trainee.see_it_go_on()
        uplink = trainee.learner.uplink
        control = uplink.control
        broken = wait_until(lambda: list(uplink.attached))
        for connection in broken:
            break_off(connection)
        wait_until(lambda: len(uplink.attached) == 3 and not uplink.attached & set(broken))
        trainee.see_it_go_on()
        assert uplink.control is control
        trainee.stop()


def test_a_link_whose_other_end_has_vanished_gives_way_to_the_new_one():
    """A path that lost its state: the syncer never hears that the old connection is gone."""
    with atoll.Syncer(config()) as syncer:
        trainee = Trainee(syncer.url, "ada")
        trainee.see_it_go_on()
        (old,) = links(syncer, "ada")
        uplink = trainee.learner.uplink
        control = uplink.control
        assert control is not None
        kept = socket.socket(fileno=os.dup(control.sock.fileno()))  # so that no goodbye is sent by the system
        uplink.loop.call(control.close, "vanished")
        wait_until(lambda: old not in links(syncer, "ada") and len(links(syncer, "ada")) == 1)
        assert old.control.state == "closed"
        trainee.see_it_go_on()
        trainee.stop()
        kept.close()


def test_a_link_that_is_silent_for_long_is_closed():
    with atoll.Syncer(config(alive_s=0.15, sync={"heartbeat_s": 0.05})) as syncer:
        learner = atoll.join(syncer.url, model=model(), name="ada")
        (link,) = links(syncer, "ada")
        stuck = threading.Event()
        learner.loop.call(stuck.wait)
        wait_until(lambda: link.control.state == "closed")
        assert row(syncer, "ada")["state"] == "lost"
        stuck.set()
        wait_until(lambda: row(syncer, "ada")["state"] == "training")
        learner.leave()


def test_two_runs_on_one_host_never_mix(tmp_path):
    settings = config(ticks=12, quorum=2)
    with (
        atoll.Syncer(settings, tmp_path / "one") as one,
        atoll.Syncer(settings, tmp_path / "two") as two,
    ):
        tasks = [
            Task(join_and_train, syncer.url, name, seed)
            for seed, syncer in enumerate((one, two))
            for name in ("ada", "bob")
        ]
        learners = [task.result()[0] for task in tasks]
        weights = [global_weights(learner) for learner in learners]
        for learner in learners:
            learner.leave()
        assert same(weights[0], one.weights())
        assert same(weights[1], one.weights())
        assert same(weights[2], two.weights())
        assert same(weights[3], two.weights())
        assert not same(weights[0], weights[2])


def test_a_learner_that_is_killed_comes_back_as_a_new_life_with_its_shard_and_its_place_in_the_data(tmp_path):
    settings = config(data={"num_shards": 5, "seed": 3})
    with atoll.Syncer(settings, tmp_path / "reef") as syncer:
        other = Trainee(syncer.url, "other")
        first = Child("learner_with_a_cursor", syncer.url, syncer.token, "ada", str(tmp_path / "state"))
        joined = first.hear()
        wait_until(lambda: (tmp_path / "state" / "cursor.json").exists())
        saved = json.loads((tmp_path / "state" / "cursor.json").read_text())["cursor"]
        first.kill(signal.SIGKILL)
        second = Child("learner_with_a_cursor", syncer.url, syncer.token, None, str(tmp_path / "state"))
        again = second.hear()
        assert again["name"] == "ada"
        assert (joined["incarnation"], again["incarnation"]) == (1, 2)
        assert joined["shard"] == again["shard"] == [1, 5, 3]
        assert joined["cursor"] is None
        assert again["cursor"] >= saved
        wait_until(lambda: row(syncer, "ada")["state"] == "training")
        other.see_it_go_on()
        second.kill(signal.SIGTERM)
        wait_until(lambda: row(syncer, "ada")["state"] == "left")
        other.stop()


def test_who_comes_back_under_a_name_while_its_old_life_still_speaks_fences_it_off(tmp_path):
    with atoll.Syncer(config()) as syncer:
        old = Child("learner_with_a_cursor", syncer.url, syncer.token, "ada", str(tmp_path / "state"))
        assert old.hear()["incarnation"] == 1
        (tmp_path / "copy").mkdir()
        (tmp_path / "copy" / "identity.key").write_bytes((tmp_path / "state" / "identity.key").read_bytes())
        (tmp_path / "copy" / "identity.key").chmod(0o600)
        new = Trainee(syncer.url, "ada", state_dir=tmp_path / "copy")
        assert new.learner.incarnation == 2
        assert "a newer incarnation of ada was admitted" in old.hear()["ended"]
        old.wait()
        new.see_it_go_on()
        new.stop()
