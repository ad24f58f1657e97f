"""Every algorithm trains to its end, and at the end everybody holds the same."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import atoll
from atoll.runtime.verdict import check_run
from tests.integration.conditions import wait_until
from tests.integration.programs import Task, config, global_weights, join_and_train, model, same, sgd, train

SETTINGS: dict[str, dict[str, Any]] = {
    "decoupled": {"fragments": 2, "quorum": 2},
    "streaming": {"fragments": 2},
    "diloco": {"fragments": 1},
}


@pytest.mark.parametrize("algorithm", list(SETTINGS))
def test_three_learners_train_to_the_end_and_hold_the_same_bits(tmp_path, algorithm):
    settings = config(algorithm=algorithm, budget={"tokens": 256}, **SETTINGS[algorithm])
    with atoll.Syncer(settings, tmp_path / "reef") as syncer:
        states = [tmp_path / "reef" / "learners" / name for name in "abc"]
        tasks = [
            Task(join_and_train, syncer.url, path.name, seed, state_dir=path)
            for seed, path in enumerate(states)
        ]
        learners = [task.result()[0] for task in tasks]
        held = [global_weights(learner) for learner in learners]
        merged = syncer.weights()
        for learner in learners:
            learner.leave()
        assert syncer.wait(60)
        status = syncer.status()
    assert all(same(weights, merged) for weights in held)
    assert status["state"] == "finished"
    assert status["merged_tokens"] >= 256
    assert all(learner.progress == 1.0 for learner in learners)
    verdict = check_run(tmp_path / "reef")
    assert (verdict.violations, verdict.replay) == ([], [])
    assert verdict.num_checks > 0


@pytest.mark.parametrize("codec", ["f32", "bf16", "int8", "int4", "fp4", "int2"])
def test_every_codec_carries_a_run_to_its_end(codec):
    settings = config(ticks=8, quorum=2, codec={"up": codec, "down": codec})
    with atoll.Syncer(settings) as syncer:
        tasks = [Task(join_and_train, syncer.url, name) for name in "ab"]
        learners = [task.result()[0] for task in tasks]
        merged = syncer.weights()
        assert all(same(global_weights(learner), merged) for learner in learners)
        for learner in learners:
            learner.leave()


@pytest.mark.parametrize("adopt", ["overwrite", "blend", "rebase"])
def test_every_way_to_adopt_ends_with_the_merged_model_at_hand(adopt):
    with atoll.Syncer(config(ticks=8, sync={"adopt": adopt})) as syncer:
        learner, _ = join_and_train(syncer.url, "a")
        assert same(global_weights(learner), syncer.weights())
        learner.leave()


def test_a_budget_of_tokens_ends_a_run():
    with atoll.Syncer(config(budget={"tokens": 64})) as syncer:
        learner, _ = join_and_train(syncer.url, "a")
        learner.leave()
        assert syncer.status()["merged_tokens"] >= 64


def test_an_operator_ends_a_run_without_a_budget():
    with atoll.Syncer(config()) as syncer:
        with pytest.raises(atoll.StoreError, match="no weights yet"):
            syncer.finish("before anything began")
        task = Task(join_and_train, syncer.url, "a")
        wait_until(lambda: syncer.status()["merges"])
        syncer.finish("enough")
        task.result()[0].leave()
        assert syncer.wait(60)
        assert any(note["kind"] == "finished" for note in syncer.status()["notes"])


def test_finished_waits_until_the_last_versions_are_held():
    """Word of the end travels ahead of the weights; whoever evaluates at once must not have the old ones."""
    with atoll.Syncer(config(budget={"drain_s": 0.5})) as syncer:
        net = model()
        optimizer = sgd(net)
        ada = atoll.join(syncer.url, model=net, optimizer=optimizer, name="ada")
        busy = threading.Event()
        ada.worker.do(busy.wait)  # what is published to her arrives, and is not taken in
        bob = Task(join_and_train, syncer.url, "bob")
        wait_until(lambda: syncer.status()["merges"] > 2)
        syncer.finish()
        bob.result()[0].leave()
        wait_until(lambda: ada.shell.machine.final is not None)
        for _ in range(10):
            ada.step(tokens=1)
            assert not ada.finished
        busy.set()
        train(ada, net, optimizer)
        assert same(global_weights(ada), syncer.weights())
        ada.leave()


def test_alone_on_a_laptop():
    net = model()
    optimizer = sgd(net)
    with atoll.join("local://", model=net, optimizer=optimizer, config=config(ticks=8)) as learner:
        train(learner, net, optimizer)
        assert learner.progress == 1.0


def test_who_joins_a_run_that_is_over_gets_its_weights_and_is_told():
    with atoll.Syncer(config(ticks=4)) as syncer:
        first, _ = join_and_train(syncer.url, "first")
        first.leave()
        late, _ = join_and_train(syncer.url, "late", seed=5)
        assert late.finished
        assert same(global_weights(late), syncer.weights())
        late.leave()
