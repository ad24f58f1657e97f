"""What runs in the processes of the kill matrix: a syncer, and learners of a tiny model, one of them doomed.

A process that is to die arms its failpoint itself: at once, if the point lies in its coming up, else when the
parent says so on the board, which is when everybody takes part. The board is memory that all processes of a
run share: each learner counts its steps there, so the parent sees who goes on while somebody is dead.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import atoll
from atoll.config import RunConfig
from atoll.runtime import failpoints
from atoll.runtime.security.tokens import read_token

__all__ = ["LEARNERS", "NUM_FRAGMENTS", "Board", "Trap", "learner", "settings", "syncer"]

LEARNERS = ("ada", "bob", "cid")
NUM_FRAGMENTS = 4
PACE_S = 0.004
"""A step's pause, so that many processes have their turns on few cores; nothing depends on it."""
JOIN_S = 240.0


@dataclass(frozen=True, slots=True)
class Trap:
    """Where a life ends, and at which time of reaching it."""

    point: str
    nth: int = 1
    at_once: bool = False
    """Armed when the process begins; else when the board says go."""


@dataclass(frozen=True, slots=True)
class Board:
    """Numbers that all processes of a run see, each written by one of them."""

    steps: Any = field(default_factory=lambda: _numbers(len(LEARNERS)))
    incarnations: Any = field(default_factory=lambda: _numbers(len(LEARNERS)))
    """Of the present life of a learner; 0 while it is not in."""
    go: Any = field(default_factory=lambda: _numbers(1))
    """1: traps may be armed."""


def settings() -> RunConfig:
    """Small and quick: messages of several pieces, a snapshot every few merges, quorum without the dead.

    Nobody is lost before half a minute: a loaded machine must not change what happens."""
    return RunConfig.from_tables(
        {
            "sync": {
                "num_learners": len(LEARNERS),
                "num_fragments": NUM_FRAGMENTS,
                "interval_steps": 8,
                "min_quorum": len(LEARNERS) - 1,
                "merge_rule": "rda",
                "heartbeat_s": 0.1,
                "alive_s": 30.0,
                "retry_s": 0.3,
            },
            "outer": {"learning_rate": 0.4, "momentum": 0.5},
            "network": {"data_connections": 2, "piece_bytes": 4096},
            "durability": {"snapshot_every": 4},
        }
    )


def syncer(run_dir: str, port: int, trap: Trap | None, board: Board) -> None:
    """Serve the run until it is finished."""
    _set(trap, board)
    with atoll.Syncer(settings(), run_dir, port=port) as serving:
        serving.wait()


def learner(run_dir: str, name: str, trap: Trap | None, board: Board) -> None:
    """Train until the run is over, with everything that a learner keeps on its disk."""
    _set(trap, board)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    me, folder = LEARNERS.index(name), Path(run_dir)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    taking_part = atoll.join(
        (folder / "url").read_text(encoding="utf-8").strip(),
        model=model,
        optimizer=optimizer,
        name=name,
        token=read_token(None, {}, folder),
        state_dir=folder / "learners" / name,
        timeout_s=JOIN_S,
    )
    board.incarnations[me] = taking_part.incarnation
    with taking_part:
        number = taking_part.cursor or 0
        while not taking_part.finished:
            _step(model, optimizer, number)
            number += 1
            taking_part.cursor = number
            taking_part.step(tokens=8)
            board.steps[me] += 1
            if trap is not None and trap.point == "L13" and board.go[0]:
                taking_part.leave()
            time.sleep(PACE_S)
    assert not taking_part.ended, taking_part.ended


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    made = torch.Generator().manual_seed(seed)
    inputs = torch.randn(8, 64, generator=made)
    nn.functional.mse_loss(model(inputs), inputs.flip(1)).backward()
    optimizer.step()
    optimizer.zero_grad()


def _set(trap: Trap | None, board: Board) -> None:
    if trap is None:
        return
    if trap.at_once:
        failpoints.arm(trap.point, trap.nth)
        return

    def wait() -> None:
        while not board.go[0]:
            time.sleep(0.002)
        failpoints.arm(trap.point, trap.nth)

    threading.Thread(target=wait, name="trap", daemon=True).start()


def _numbers(count: int) -> Any:
    return multiprocessing.get_context("forkserver").RawArray("Q", count)
