"""What runs inside the processes of a fleet: a syncer, or a learner of a recipe, in a frame for both.

The frame gives a child a process group of its own, the signals it would have if nobody had started it, a log
file for its output, one torch thread, and an eye on its parent, whose death it does not survive. Torch is
imported inside functions only: the parent of a fleet needs none.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atoll.config import RunConfig
from atoll.errors import AtollError
from atoll.recipes import recipe_from
from atoll.runtime.pace import Pace

__all__ = ["PATIENCE_S", "Settings", "enter", "run_learner", "run_own_learner", "run_syncer"]

PATIENCE_S = 15.0
"""Time to say goodbye, at a stop or when the parent has died, before a child is killed."""

Settings = Mapping[str, Any]
"""Of a recipe."""


def run_learner(
    settings: Settings,
    url: str,
    token: str | None,
    name: str | None,
    state_dir: str | None,
    speed: float = 1.0,
    certificate: str | None = None,
) -> None:
    """Join a run with a recipe and train until it is over; the loop that `atoll join` runs.

    `speed` 0.5 makes a step take twice its usual time, by sleeping before the boundary (`pace`).
    """
    import torch

    from atoll.runtime.joining import join

    recipe = recipe_from(settings)
    model = recipe.build_model()
    optimizer = recipe.build_optimizer(model)
    learner = join(
        url,
        model=model,
        optimizer=optimizer,
        name=name,
        token=token,
        schedule=recipe.schedule,
        state_dir=state_dir,
        certificate=certificate,
    )
    torch.manual_seed(recipe.seed + learner.shard.index)  # for whatever a model draws while it trains
    pace = Pace(speed)
    with learner:
        began_s = time.perf_counter()
        for batch in recipe.batches(learner.shard, learner.cursor or 0):
            loss = recipe.loss(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
            optimizer.step()
            optimizer.zero_grad()
            if rest_s := pace.rest_s(time.perf_counter() - began_s):
                time.sleep(rest_s)
            learner.step(tokens=batch.tokens, loss=loss)
            learner.cursor = batch.cursor
            if learner.finished:
                break
            began_s = time.perf_counter()
    if learner.ended:
        raise SystemExit(f"{learner.name} no longer takes part: {learner.ended}")


def run_own_learner(
    settings: Settings, url: str, run_dir: str, name: str, state_dir: str, speed: float
) -> None:
    """A learner of a fleet on the syncer's own machine: the token is in the run directory."""
    from atoll.runtime.security.tokens import read_token

    if hasattr(os, "SCHED_BATCH"):  # the syncer answers first, and steps are interrupted less often
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    Path(state_dir).mkdir(parents=True, exist_ok=True)
    run_learner(settings, url, read_token(None, {}, Path(run_dir)), name, state_dir, speed)


def run_syncer(
    config: str,
    run_dir: str,
    port: int,
    listen: str = "127.0.0.1",
    name: str | None = None,
    advertise: str | None = None,
    accepts_loss: bool = False,
) -> None:
    """Serve a run until it is finished. After SIGTERM it closes in order, and then ends by that signal:
    exit code 0 says that the run is over."""
    from atoll.runtime.syncer import Syncer

    syncer = Syncer(
        RunConfig.from_toml(config),
        run_dir,
        name=name,
        listen=listen,
        port=port,
        advertise=advertise,
        accepts_loss=accepts_loss,
    )
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: asked.set())
    is_over = False
    with syncer:
        while not is_over and not asked.is_set():
            is_over = syncer.wait(0.1)
    if not is_over:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)


def enter(name: str, log_path: str | None, what: Callable[..., None], args: tuple[Any, ...]) -> None:
    """What a child begins with: `what(*args)` in a frame of signals, log and torch's one thread."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the fork server never hears it
    if log_path is not None:
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    _die_with_parent()
    import torch

    torch.set_num_threads(1)
    try:
        what(*args)
    except AtollError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(PATIENCE_S)
            os._exit(1)

    threading.Thread(target=watch, name="atoll-parent", daemon=True).start()
