"""Small runs with kept offers, for what is computed from a run directory afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import atoll
from atoll.core.records import EpochRecord, RoundRecord
from atoll.runtime.past import open_past
from atoll.runtime.store import RunStore, read_run
from tests.integration.conditions import wait_until
from tests.integration.programs import batch, config, sgd

__all__ = ["NAMES", "Fleet", "finished_run", "flip", "lose_end", "model", "pruned_run", "rounds", "settings"]

NAMES = ("learner-0", "learner-1")
NUM_VERSIONS = 4
"""Of every fragment, at least: runs are as long as it takes, however slow the machine is."""


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 2))


def settings(quorum: int = 2, **sections: dict[str, Any]) -> atoll.RunConfig:
    """Every round has both learners: who was merged does not depend on how fast the machine is. Momentum
    warms up, over a budget that is never spent."""
    given: dict[str, Any] = {"tape": {"keep_offers": True}, "security": {"tls": False}}
    given |= {"budget": {"tokens": 1_000_000}, "outer": {"momentum_warmup": 0.001}, **sections}
    return config(quorum=quorum, network={"data_connections": 1}, **given)


class Fleet:
    """Learners of one thread, which step in turn."""

    def __init__(self, syncer: atoll.Syncer, names: Sequence[str] = NAMES, *, has_tapes: bool = True) -> None:
        self.nets = [model() for _ in names]
        self.optimizers = [sgd(net) for net in self.nets]
        homes = [syncer.run_dir / "learners" / name if has_tapes else None for name in names]
        self.learners = [
            atoll.join(syncer.url, model=net, optimizer=optimizer, name=name, state_dir=home)
            for net, optimizer, name, home in zip(self.nets, self.optimizers, names, homes, strict=True)
        ]
        self.number = 0

    def step(self) -> None:
        for net, optimizer, learner in zip(self.nets, self.optimizers, self.learners, strict=True):
            inputs, wanted = batch(self.number)
            loss = nn.functional.mse_loss(net(inputs), wanted)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            learner.step(tokens=8, loss=loss)
            self.number += 1

    def train_until(self, is_over: Callable[[], bool]) -> None:
        def is_over_now() -> bool:
            self.step()
            return is_over()

        wait_until(is_over_now)

    def finish(self, syncer: atoll.Syncer) -> None:
        """The last rounds, and goodbye."""
        syncer.finish("enough")
        self.train_until(lambda: all(learner.finished for learner in self.learners))
        self.leave()

    def leave(self) -> None:
        for learner in self.learners:
            learner.leave()


def finished_run(run_dir: Path, using: atoll.RunConfig, names: Sequence[str] = NAMES) -> Path:
    """A run with some versions of every fragment, to its end."""
    with atoll.Syncer(using, run_dir) as syncer:
        fleet = Fleet(syncer, names)
        fleet.train_until(lambda: min(versions(run_dir), default=0) >= NUM_VERSIONS)
        fleet.finish(syncer)
    return run_dir


def pruned_run(run_dir: Path) -> Path:
    """A run that has gone on until old deltas were deleted, and a little longer."""
    using = settings(durability={"snapshot_every": 4, "keep": "recent"})
    with atoll.Syncer(using, run_dir) as syncer:
        fleet = Fleet(syncer)
        fleet.train_until(lambda: open_past(run_dir).start.merges > 0)
        merges = len(rounds(run_dir))
        fleet.train_until(lambda: len(rounds(run_dir)) > merges)
        fleet.leave()
    return run_dir


def versions(run_dir: Path) -> list[int]:
    return [fragment.version for fragment in read_run(run_dir).state.fragments]


def rounds(run_dir: Path) -> list[RoundRecord]:
    return [record for record in read_run(run_dir).records if isinstance(record, RoundRecord)]


def flip(path: Path, at: int = -1) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def lose_end(run_dir: Path) -> int:
    """One more record is committed, and run.db comes back without it; returns its number."""
    older = run_dir.with_suffix(".older")
    shutil.copy(run_dir / "run.db", older)
    view = read_run(run_dir)
    store = RunStore.open(run_dir, view.config)
    assert store.commit(EpochRecord(view.state.epoch + 1, ()), sync=True, lines=[]) == ""
    store.close()
    older.replace(run_dir / "run.db")
    return len(view.records) + 1
