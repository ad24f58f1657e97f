"""Learners in processes of their own, from one fork server that has imported torch already."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import atoll
from tests.integration.conditions import LIMIT_S

__all__ = ["Child"]

PRELOAD = ["torch", "atoll.runtime.joining", "atoll.runtime.syncer", "tests.integration.programs"]


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


PROGRAMS = {
    program.__name__: program
    for program in (
        learner_with_a_cursor,
        learner_that_ends,
        learners_that_wait,
        learner_with_its_own_handler,
    )
}
