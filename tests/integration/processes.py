"""Learners in processes of their own, from one fork server that has imported torch already."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

import atoll
from tests.integration.conditions import LIMIT_S

__all__ = ["Child", "event"]

PRELOAD = [
    "torch",
    "torch._dynamo",  # which the first optimizer of a process imports: more than a second
    "atoll.runtime.joining",
    "atoll.runtime.syncer",
    "tests.integration.programs",
]


class Child:
    """One program of this module in a process; what it says comes back as JSON values."""

    def __init__(self, program: str, *args: Any) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self._ears, mouth = context.Pipe(duplex=False)
        self.process = context.Process(target=_run, args=(program, mouth, *args), daemon=True)
        self.process.start()
        mouth.close()

    def hear(self, timeout: float = LIMIT_S) -> Any:
        """The next thing it says."""
        assert self._ears.poll(timeout), "it says nothing"
        return json.loads(self._ears.recv_bytes())

    def kill(self, number: int) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        return self.wait()

    def wait(self, timeout: float = LIMIT_S) -> int:
        self.process.join(timeout)
        assert self.process.exitcode is not None, "it does not end"
        self._ears.close()
        return self.process.exitcode


def event() -> Event:
    """One that parent and children share."""
    return multiprocessing.get_context("forkserver").Event()


def _run(program: str, mouth: Connection, *args: Any) -> None:
    import torch

    torch.set_num_threads(1)

    def say(**words: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody is interested any more
            mouth.send_bytes(json.dumps(words).encode())

    PROGRAMS[program](say, *args)


def learner_with_a_cursor(say: Any, url: str, token: str, name: str | None, state_dir: str) -> None:
    """Counts its batches in the cursor, until it is killed or fenced."""
    from tests.integration.programs import PACE_S, model, sgd, step

    net = model()
    optimizer = sgd(net)
    learner = atoll.join(url, model=net, optimizer=optimizer, name=name, token=token, state_dir=state_dir)
    shard = learner.shard
    say(
        name=learner.name,
        incarnation=learner.incarnation,
        shard=[shard.index, shard.count, shard.seed],
        cursor=learner.cursor,
    )
    number = learner.cursor or 0
    while not learner.ended:
        step(net, optimizer, number)
        number += 1
        learner.cursor = number
        learner.step(tokens=8)
        time.sleep(PACE_S)
    say(ended=learner.ended)


def learner_with_moments(say: Any, url: str, token: str, state_dir: str) -> None:
    """Says what it has found, then trains with AdamW until it is killed."""
    from tests.integration.programs import PACE_S, adamw, model, state_digest, step

    net = model()
    optimizer = adamw(net)
    learner = atoll.join(url, model=net, optimizer=optimizer, name="ada", token=token, state_dir=state_dir)
    learner.leave = partial(learner.leave, LIMIT_S)  # type: ignore[method-assign]  # however busy we are
    say(
        incarnation=learner.incarnation,
        state=state_digest(net, optimizer),
        cursor=learner.cursor,
        warmup=learner.warmup,
    )
    number = learner.cursor or 0
    while not learner.ended:
        step(net, optimizer, number)
        number += 1
        learner.cursor = number
        learner.step(tokens=8)
        if learner.watch.num_steps == 20:
            say(steps=20)
        time.sleep(PACE_S)


def learner_that_is_asked_to_go(say: Any, url: str, token: str, state_dir: str) -> None:
    """Trains until it has to leave, and says last what it has done."""
    from tests.integration.programs import PACE_S, adamw, model, step

    net = model()
    optimizer = adamw(net)
    learner = atoll.join(url, model=net, optimizer=optimizer, name="ada", token=token, state_dir=state_dir)
    learner.leave = partial(learner.leave, LIMIT_S)  # type: ignore[method-assign]  # however busy we are
    shell = learner.shell
    learner.on_left.append(
        lambda: say(offers=shell.num_offers, steps=shell.machine.steps, cursor=learner.cursor)
    )
    say(joined=1)
    while True:
        step(net, optimizer, learner.watch.num_steps)
        learner.cursor = learner.watch.num_steps
        learner.step(tokens=8)
        time.sleep(PACE_S)


def learner_that_ends(say: Any, url: str, token: str, end: str) -> None:
    """Joins, and does not say goodbye."""
    from tests.integration.programs import model

    atoll.join(url, model=model(), name="ada", token=token)
    say(joined=1)
    if end == "exit":
        sys.exit(3)
    if end == "raise":
        raise RuntimeError("on purpose")


def learners_that_wait(say: Any, url: str, token: str) -> None:
    """Two learners in one process, the second after the first has left and come again."""
    from tests.integration.programs import model

    atoll.join(url, model=model(), name="ada", token=token).leave()
    kept = [atoll.join(url, model=model(), name=name, token=token) for name in ("bob", "cid")]
    say(joined=len(kept))
    while True:
        time.sleep(60)


def learner_with_its_own_handler(say: Any, url: str, token: str) -> None:
    """A handler that was there before is the user's business."""
    from tests.integration.programs import model

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
    kept = atoll.join(url, model=model(), name="ada", token=token)
    say(joined=1)
    while not kept.ended:
        time.sleep(0.01)


def learner_with_a_data_loader(say: Any, url: str, token: str) -> None:
    """A user's loop over a loader whose workers are forked after joining."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from tests.integration.programs import batch, model, sgd

    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # may have children
    net = model()
    optimizer = sgd(net)
    learner = atoll.join(url, model=net, optimizer=optimizer, name="ada", token=token)
    loader = DataLoader(TensorDataset(*batch(0)), batch_size=2, num_workers=2, multiprocessing_context="fork")
    while not learner.finished:
        for inputs, wanted in loader:
            torch.nn.functional.mse_loss(net(inputs), wanted).backward()
            optimizer.step()
            optimizer.zero_grad()
            learner.step(tokens=len(inputs))
    say(workers=loader.num_workers, finished=learner.finished)


def _in_a_fork(what: Callable[[], object]) -> int:
    """The exit code of a forked child that does something and then ends as a script does."""
    pid = os.fork()
    if pid == 0:
        what()
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def learner_that_forks(say: Any, url: str, token: str) -> None:
    """Forks between its steps, in every way in which a child may end."""
    from tests.integration.programs import model, sgd, train

    net = model()
    optimizer = sgd(net)
    learner = atoll.join(url, model=net, optimizer=optimizer, name="ada", token=token)

    def go_on() -> None:
        adopted = learner.shell.num_adopted
        train(learner, net, optimizer, lambda: learner.shell.num_adopted > adopted + 2)

    def use_it() -> None:
        try:
            learner.step(tokens=1)
        except atoll.JoinError as error:
            sys.exit(42 if "joined in process" in str(error) else 1)

    for after, what in {
        "step": use_it,
        "leave": learner.leave,
        "the end of the interpreter": lambda: None,
        "a signal": lambda: os.kill(os.getpid(), signal.SIGTERM),
    }.items():
        go_on()
        say(exit=_in_a_fork(what), after=after)
    go_on()
    say(goes_on=True)


def syncer_that_forks(say: Any) -> None:
    """A run in memory, in a process one of whose children ends as a script does."""
    from tests.integration.programs import config, model

    with atoll.Syncer(config()) as syncer:
        learner = atoll.join(syncer.url, model=model(), name="ada")
        code = _in_a_fork(lambda: None)
        say(exit=code, is_kept=syncer.run_dir.exists(), alive=syncer.status()["alive"])
        learner.leave()


def learner_of_a_fleet(say: Any, url: str, token: str, name: str, go: Event) -> None:
    """Trains until the run is over, one step at least, and says what it holds."""
    from tests.integration.programs import global_weights, model, sgd, train

    net = model()
    optimizer = sgd(net)
    learner = atoll.join(url, model=net, optimizer=optimizer, name=name, token=token)
    go.wait(LIMIT_S)
    train(learner, net, optimizer, lambda: learner.finished and learner.watch.num_steps > 0)
    weights = b"".join(value.numpy().tobytes() for value in global_weights(learner).values())
    say(weights=hashlib.blake2b(weights).hexdigest())


def idle_learners(say: Any, url: str, token: str, group: str, count: int) -> None:
    """Many learners that never step; says how much memory this process has of its own."""
    from tests.integration.programs import model

    kept = [
        atoll.join(url, model=model(), name=f"{group}-{number:03}", token=token) for number in range(count)
    ]
    say(joined=len(kept), bytes=_resident_bytes())
    while True:
        time.sleep(60)


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


PROGRAMS = {
    program.__name__: program
    for program in (
        learner_with_a_cursor,
        learner_with_moments,
        learner_that_is_asked_to_go,
        learner_that_ends,
        learners_that_wait,
        learner_with_its_own_handler,
        learner_with_a_data_loader,
        learner_that_forks,
        syncer_that_forks,
        learner_of_a_fleet,
        idle_learners,
    )
}
