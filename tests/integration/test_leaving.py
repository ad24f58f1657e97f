"""How learners leave, and that nothing in `step` or `leave` waits for a network."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import atoll
from tests.integration.conditions import LIMIT_S, wait_until
from tests.integration.processes import Child
from tests.integration.programs import Task, config, crash, model, sgd, step, train

NUM_STEPS = 1000


@pytest.fixture
def syncer() -> Iterator[atoll.Syncer]:
    with atoll.Syncer(config()) as syncer:
        yield syncer


def state(syncer: atoll.Syncer, name: str) -> str:
    rows = syncer.status()["learner_details"]
    return str(next((row["state"] for row in rows if row["name"] == name), "unknown"))


def walk(learner: atoll.Learner, num_steps: int = NUM_STEPS) -> int:
    """Steps in a thread of their own, so that one that hangs fails the test and does not stop it."""

    def steps() -> int:
        for _ in range(num_steps):
            learner.step(tokens=1)
        return learner.watch.num_steps

    return Task(steps).result(LIMIT_S)


# Nothing waits


class Tarpit:
    """A socket whose every call blocks until the test is over."""

    def __init__(self, sock: socket.socket, over: threading.Event) -> None:
        self._sock, self._over = sock, over

    def fileno(self) -> int:
        return self._sock.fileno()

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self._over.wait()
            return getattr(self._sock, name)(*args)

        return call


def test_a_thousand_steps_complete_with_a_transport_whose_every_call_blocks(syncer):
    over = threading.Event()
    learner = atoll.join(syncer.url, model=batch_normed(), name="ada")
    uplink = learner.uplink
    sunk = threading.Event()

    def sink() -> None:
        for connection in (uplink.control, *uplink.data):
            assert connection is not None
            connection.sock = Tarpit(connection.sock, over)  # type: ignore[assignment]
        sunk.set()

    wait_until(lambda: len(uplink.attached) == 2)
    learner.loop.call(sink)
    assert sunk.wait(LIMIT_S)
    assert walk(learner) >= NUM_STEPS
    wait_until(lambda: "_over.wait" in stack_of(learner.loop._thread))
    assert walk(learner, 10 * NUM_STEPS) >= 11 * NUM_STEPS
    assert len(uplink.telling) < 5000
    assert len(learner.loop._calls) < 100, "what waits for the loop is bounded"
    Task(learner.leave, timeout_s=0.1).result(LIMIT_S)
    over.set()
    wait_until(lambda: not learner.loop.is_running)


def stack_of(thread: threading.Thread | None) -> str:
    import sys
    import traceback

    assert thread is not None
    assert thread.ident is not None
    frame = sys._current_frames().get(thread.ident)
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def batch_normed() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))


def test_a_thousand_steps_complete_while_another_thread_holds_the_machine(syncer):
    learner = atoll.join(syncer.url, model=model(), name="ada")
    with learner.shell.lock:
        steps = learner.shell.machine.steps
        assert walk(learner) >= NUM_STEPS
        assert learner.shell.machine.steps == steps
        assert learner.metrics["missed_boundaries"] >= NUM_STEPS
    wait_until(lambda: walk(learner, 1) and not learner.shell.missed_steps)
    assert learner.shell.machine.steps == learner.shell.machine.tokens == learner.watch.num_steps
    learner.leave()


def test_a_learner_that_is_held_is_let_go_when_atoll_has_crashed():
    settings = config(algorithm="diloco", fragments=1, quorum=2)
    with atoll.Syncer(settings) as syncer:
        learners = [atoll.join(syncer.url, model=model(), name=name) for name in ("ada", "bob")]

        def steps() -> None:
            while not learners[0].ended:
                learners[0].step(tokens=1)

        task = Task(steps)
        wait_until(lambda: learners[0].shell.is_held)  # bob makes no step, so ada waits for him
        learners[0].loop.call(lambda: 1 // 0)
        task.result()
        assert "ZeroDivisionError" in learners[0].ended
        learners[0].step(tokens=1)
        for learner in learners:
            learner.leave()


# Leaving


def test_a_learner_that_leaves_is_shown_as_left(syncer):
    learner = atoll.join(syncer.url, model=model(), name="ada")
    wait_until(lambda: state(syncer, "ada") == "training")
    learner.leave()
    wait_until(lambda: state(syncer, "ada") == "left")
    assert not learner.loop.is_running
    assert not learner.worker.is_alive
    learner.leave()
    learner.step(tokens=1)
    assert state(syncer, "ada") == "left"


def test_leaving_from_many_threads_at_once_happens_once(syncer):
    learner = atoll.join(syncer.url, model=model(), name="ada")
    times: list[int] = []
    learner.on_left.append(lambda: times.append(1))
    tasks = [Task(learner.leave) for _ in range(4)]
    for task in tasks:
        task.result()
    assert times == [1]


def test_a_signal_handler_may_leave_while_a_step_is_interrupted(syncer):
    """The handler runs on the thread that holds the machine's lock."""
    learner = atoll.join(syncer.url, model=model(), name="ada")
    wait_until(lambda: len(learner.uplink.attached) == 2)
    learner.shell.lock.acquire()
    learner.leave(timeout_s=0.05)
    learner.shell.lock.release()
    assert learner._has_left


def test_an_offer_that_was_made_still_counts_when_its_learner_leaves():
    """Its body may not even be encoded when the goodbye is asked for."""
    with atoll.Syncer(config(sync={"retry_s": 30.0})) as syncer:  # bodies are waited for at least as long
        net = model()
        optimizer = sgd(net)
        learner = atoll.join(syncer.url, model=net, optimizer=optimizer, name="ada")
        busy = threading.Event()
        learner.worker.do(busy.wait)
        train(learner, net, optimizer, lambda: learner.shell.num_offers > 0)
        assert syncer.status()["merges"] == 0
        task = Task(learner.leave, timeout_s=LIMIT_S)
        wait_until(lambda: learner._has_left)
        busy.set()
        task.result()
        wait_until(lambda: syncer.status()["merges"] > 0)


def test_leaving_without_a_syncer_ends():
    syncer = atoll.Syncer(config()).start()
    learner = atoll.join(syncer.url, model=model(), name="ada")
    crash(syncer)
    Task(learner.leave).result(LIMIT_S)
    assert not learner.loop.is_running
    syncer.stop()


def test_a_with_block_leaves(syncer):
    with atoll.join(syncer.url, model=model(), name="ada"):
        wait_until(lambda: state(syncer, "ada") == "training")
    wait_until(lambda: state(syncer, "ada") == "left")


def test_a_state_dir_is_free_again_after_leaving(syncer, tmp_path):
    for incarnation in (1, 2, 3):
        learner = atoll.join(syncer.url, model=model(), name="ada", state_dir=tmp_path)
        assert learner.incarnation == incarnation
        learner.leave()


def test_a_state_dir_in_use_is_refused_and_its_holder_named(syncer, tmp_path):
    with (
        atoll.join(syncer.url, model=model(), name="ada", state_dir=tmp_path),
        pytest.raises(atoll.JoinError, match="is in use by process"),
    ):
        atoll.join(syncer.url, model=model(), name="bob", state_dir=tmp_path)


# The end of a process


@pytest.mark.parametrize("end", ["return", "exit", "raise"])
def test_the_end_of_the_interpreter_leaves(syncer, end):
    child = Child("learner_that_ends", syncer.url, syncer.token, end)
    assert child.hear() == {"joined": 1}
    assert child.wait() == {"return": 0, "exit": 3, "raise": 1}[end]
    wait_until(lambda: state(syncer, "ada") == "left")


def test_sigterm_leaves_every_learner_of_the_process_and_then_ends_it(syncer):
    child = Child("learners_that_wait", syncer.url, syncer.token)
    assert child.hear() == {"joined": 2}
    wait_until(lambda: state(syncer, "bob") == state(syncer, "cid") == "training")
    assert child.kill(signal.SIGTERM) == -signal.SIGTERM
    wait_until(lambda: state(syncer, "bob") == state(syncer, "cid") == "left")


def test_a_handler_of_the_users_own_is_not_replaced(syncer):
    child = Child("learner_with_its_own_handler", syncer.url, syncer.token)
    assert child.hear() == {"joined": 1}
    assert child.kill(signal.SIGTERM) == 7
    wait_until(lambda: state(syncer, "ada") == "left")


def test_a_learner_that_is_killed_is_lost_and_not_left(syncer):
    settings = config(alive_s=0.5)
    with atoll.Syncer(settings) as quick:
        child = Child("learners_that_wait", quick.url, quick.token)
        child.hear()
        child.kill(signal.SIGKILL)
        wait_until(lambda: state(quick, "bob") == state(quick, "cid") == "lost")


def test_steps_after_the_end_of_the_run_are_the_learners_own(syncer):
    net = model()
    optimizer = sgd(net)
    learner = atoll.join(syncer.url, model=net, optimizer=optimizer, name="ada")
    train(learner, net, optimizer, lambda: bool(syncer.status()["merges"]))
    syncer.finish()
    train(learner, net, optimizer)
    offers, adopted = learner.shell.num_offers, learner.shell.num_adopted
    before = [value.detach().clone() for value in net.parameters()]
    for number in range(20):
        step(net, optimizer, number)
        learner.step(tokens=8)
    assert (learner.shell.num_offers, learner.shell.num_adopted) == (offers, adopted)
    assert any(not torch.equal(old, new) for old, new in zip(before, net.parameters(), strict=True))
    learner.leave()
