"""`step()` makes no blocking call: whatever else hangs, the user's loop goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import atoll
from atoll.runtime.connection import Connection
from tests.integration.programs import Task, config, model, sgd, step

STEPS = 1_000


@pytest.fixture
def learner() -> Iterator[atoll.Learner]:
    """A learner that has the weights of its run, alone in it."""
    net = model()
    with atoll.Syncer(config()) as syncer:
        joined = atoll.join(syncer.url, model=net, optimizer=sgd(net), name="a")
        yield joined
        joined.leave(timeout_s=0.0)


def thousand_steps(learner: atoll.Learner) -> int:
    optimizer = sgd(learner.model)
    for number in range(STEPS):
        step(learner.model, optimizer, number % 8)
        learner.step(tokens=8)
    return learner.watch.num_steps


def test_a_thousand_steps_complete_while_every_call_of_the_transport_blocks_for_ever(learner, monkeypatch):
    over, blocked = threading.Event(), threading.Event()

    def block(*args: object) -> None:
        blocked.set()
        over.wait()

    for call in ("send", "wake", "_flush", "_receive", "_enqueue"):
        monkeypatch.setattr(Connection, call, block)
    try:
        assert Task(thousand_steps, learner).result() == STEPS
        assert blocked.wait(60), "nothing was ever sent, so this test shows nothing"
    finally:
        over.set()


def test_a_thousand_steps_complete_while_another_thread_holds_the_lock_for_ever(learner):
    with learner.shell.lock:
        before = learner.shell.machine.steps
        assert Task(thousand_steps, learner).result() == STEPS
        assert learner.shell.machine.steps == before
        assert learner.metrics["missed_boundaries"] == STEPS


def test_boundaries_that_were_missed_are_counted_at_the_next_one_to_the_token(learner):
    machine = learner.shell.machine
    with learner.shell.lock:
        for _ in range(5):
            learner.step(tokens=3)
    while learner.shell.missed_steps:  # a thread of ours may hold the lock for a moment
        learner.step(tokens=3)
    assert machine.steps == learner.watch.num_steps
    assert machine.tokens == 3 * learner.watch.num_steps


def test_a_thousand_steps_complete_while_the_worker_is_stuck(learner):
    over = threading.Event()
    learner.worker.do(over.wait)
    try:
        assert Task(thousand_steps, learner).result() == STEPS
    finally:
        over.set()
