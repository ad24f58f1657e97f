"""One name is one learner: who may bear it, who gives way, and whose weights a run begins with."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import torch

import atoll
from atoll.core import messages as msg
from atoll.core.records import MemberRecord, Record, RoundRecord, SeedRecord
from atoll.numerics.codec import codec_for
from atoll.numerics.outer import digest
from atoll.numerics.partition import partition
from atoll.numerics.replica import Replica
from atoll.runtime.learner_shell import bytes_of
from atoll.runtime.store import read_run
from atoll.runtime.verdict import check_run
from tests.integration.cable import Cable
from tests.integration.conditions import wait_until
from tests.integration.peer import Peer
from tests.integration.programs import Task, config, global_weights, model, same, sgd, step, train
from tests.integration.test_healing import Trainee, row


def copy_identity(old: Path, new: Path) -> Path:
    """As somebody does who copies a state_dir to another machine."""
    new.mkdir()
    for name in ("identity.key", "name"):
        shutil.copy2(old / name, new / name)
    return new


def incarnations_of(record: RoundRecord, name: str) -> list[int]:
    return [part.incarnation for part in record.contributors if part.name == name]


def merged_lives(records: tuple[Record, ...], name: str) -> list[int]:
    """The incarnations of a name in the order in which they were merged; never two of them in one merge."""
    merged = [incarnations_of(record, name) for record in records if isinstance(record, RoundRecord)]
    assert all(len(lives) <= 1 for lives in merged)
    return [life for lives in merged for life in lives]


def own_loop(learner: atoll.Learner, over: threading.Event) -> int:
    """A user's loop that does not ask whether the run is over; returns the steps it made after the end."""
    optimizer, number, after = sgd(learner.model), 0, 0
    while not over.is_set():
        step(learner.model, optimizer, number)
        learner.step(tokens=8)
        number += 1
        after += bool(learner.ended)
    return after


def test_of_two_processes_with_one_key_the_newer_wins_and_the_older_stops_offering(tmp_path):
    run_dir = tmp_path / "reef"
    over = threading.Event()
    with atoll.Syncer(config(), run_dir) as syncer:
        old = atoll.join(syncer.url, model=model(), name="ada", state_dir=tmp_path / "old")
        loop = Task(own_loop, old, over)
        wait_until(lambda: row(syncer, "ada")["merged_offers"])
        new = Trainee(syncer.url, "ada", state_dir=copy_identity(tmp_path / "old", tmp_path / "new"))
        assert new.learner.incarnation == 2
        wait_until(lambda: old.ended)
        assert old.finished
        assert old.ended == "a newer incarnation of ada was admitted; this one must stop offering"
        offers, steps = old.shell.num_offers, old.watch.num_steps
        wait_until(lambda: old.watch.num_steps > steps + 20)
        assert old.shell.num_offers == offers
        new.see_it_go_on()
        assert row(syncer, "ada")["incarnation"] == 2
        over.set()
        assert loop.result() > 0, "its own loop goes on as it likes"
        old.leave()
        new.see_it_go_on()
        new.stop()
    records = read_run(run_dir).records
    lives = merged_lives(records, "ada")
    assert set(lives) == {1, 2}
    assert lives == sorted(lives)
    admitted = records.index(next(r for r in records if isinstance(r, MemberRecord) and r.incarnation == 2))
    assert 1 not in merged_lives(records[admitted:], "ada"), "no commit holds a life that was fenced"
    verdict = check_run(run_dir)
    assert (verdict.violations, verdict.replay) == ([], [])


def test_a_live_name_is_not_given_to_another_key(tmp_path):
    with atoll.Syncer(config(), tmp_path / "reef") as syncer:
        holder = Trainee(syncer.url, "ada", state_dir=tmp_path / "state")
        with pytest.raises(
            atoll.JoinError, match="the name ada is in use by a live learner with another key"
        ):
            atoll.join(syncer.url, model=model(), name="ada", state_dir=tmp_path / "other")
        assert not holder.learner.ended
        holder.see_it_go_on()
        assert row(syncer, "ada")["incarnation"] == 1
        assert "refused" in [note["kind"] for note in syncer.status()["notes"]]
        holder.stop()


def test_a_name_that_was_given_up_long_ago_may_be_taken_by_another_key_and_its_old_bearer_is_told(tmp_path):
    """The old bearer was only cut off; when it is back, it hears that it is over."""
    run_dir = tmp_path / "reef"
    settings = config(alive_s=0.5)
    with atoll.Syncer(settings, run_dir) as syncer, Cable(syncer.url) as cable:
        over = threading.Event()
        old = atoll.join(cable.url, model=model(), name="ada", state_dir=tmp_path / "old", token=syncer.token)
        loop = Task(own_loop, old, over)
        wait_until(lambda: row(syncer, "ada")["merged_offers"])
        cable.cut()
        wait_until(lambda: row(syncer, "ada")["state"] == "lost")
        new = Trainee(syncer.url, "ada", state_dir=tmp_path / "new")
        assert new.learner.incarnation == 2
        new.see_it_go_on()
        cable.mend()
        wait_until(lambda: old.ended)
        assert old.finished
        assert "a newer incarnation of ada was admitted" in old.ended
        new.see_it_go_on()
        over.set()
        loop.result()
        old.leave()
        new.stop()
    lives = merged_lives(read_run(run_dir).records, "ada")
    assert lives == sorted(lives)
    assert set(lives) == {1, 2}


# The first weights


def seeds(run_dir: Path) -> list[SeedRecord]:
    return [record for record in read_run(run_dir).records if isinstance(record, SeedRecord)]


def digests_of(net: torch.nn.Module) -> tuple[str, ...]:
    return tuple(digest(base) for base in bases_of(net))


def bases_of(net: torch.nn.Module) -> list[torch.Tensor]:
    """Every fragment as a learner would seed it."""
    manifest = partition(net, 2, "rda")
    replica = Replica(net, manifest, codec_for("bf16"), codec_for("bf16"), "overwrite", 0.5, None)
    return [replica.set_base_from_local(p).clone() for p in range(2)]


def test_of_two_learners_that_race_to_seed_one_wins_and_the_other_is_healed_to_it(tmp_path):
    run_dir = tmp_path / "reef"
    nets = [model(seed) for seed in (1, 2)]
    offered = [digests_of(net) for net in nets]

    def join(number: int) -> atoll.Learner:
        net = nets[number]
        learner = atoll.join(syncer.url, model=net, optimizer=sgd(net), name=f"learner-{number}")
        assert learner.optimizer is not None
        return train(learner, net, learner.optimizer)

    with atoll.Syncer(config(ticks=12), run_dir) as syncer:
        learners = [task.result() for task in [Task(join, number) for number in (0, 1)]]
        weights = [global_weights(learner) for learner in learners]
        assert same(weights[0], weights[1])
        assert same(weights[0], syncer.weights())
        for learner in learners:
            learner.leave()
    (seed,) = seeds(run_dir)
    assert seed.digests in offered
    assert offered[0] != offered[1]


def test_a_seed_that_comes_after_the_first_one_is_not_taken(tmp_path):
    """Asked first and silent, so the next learner is asked; then it sends its weights after all."""
    run_dir = tmp_path / "reef"
    with (
        atoll.Syncer(config(sync={"retry_s": 0.05}), run_dir) as syncer,
        Peer(syncer.url, syncer.token, "late") as late,
    ):
        late.get_in()
        ask = late.hear(msg.SeedAsk)
        learner = atoll.join(syncer.url, model=model(2), name="ada")
        wait_until(lambda: syncer.status()["state"] == "training")
        first = syncer.weights()
        for p, base in enumerate(bases_of(model(1))):
            content = bytes(bytes_of(base))
            whose = (late.name, late.incarnation, ask.epoch)
            late.send_bulk(msg.SeedBody(*whose, p, digest(base), len(content)), content)
        late.follow()
        wanted = digests_of(model(2))
        wait_until(lambda: tuple(held.digest for held in late.holdings) == wanted)
        assert same(syncer.weights(), first)
        learner.leave()
    (seed,) = seeds(run_dir)
    assert (seed.source, seed.digests) == ("ada", wanted)


def test_who_joins_later_with_other_weights_gets_those_of_the_run(tmp_path):
    run_dir = tmp_path / "reef"
    with atoll.Syncer(config(), run_dir) as syncer:
        first = atoll.join(syncer.url, model=model(1), name="ada")
        wait_until(lambda: syncer.status()["state"] == "training")
        net = model(2)
        later = atoll.join(syncer.url, model=net, name="bob")
        assert same({name: value.detach() for name, value in net.named_parameters()}, syncer.weights())
        later.leave()
        first.leave()
    with atoll.Syncer(config(), run_dir) as again:  # nor after a restart
        net = model(3)
        learner = atoll.join(again.url, model=net, name="cid")
        assert same({name: value.detach() for name, value in net.named_parameters()}, again.weights())
        learner.leave()
    assert [seed.source for seed in seeds(run_dir)] == ["ada"]
