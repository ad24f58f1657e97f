"""Small runs: settings that make them quick, a model, a loop like a user's, and threads to run it in."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

import atoll
from atoll.config import RunConfig
from tests.integration.conditions import LIMIT_S

__all__ = [
    "Task",
    "adamw",
    "batch",
    "config",
    "crash",
    "global_weights",
    "model",
    "same",
    "sgd",
    "state_digest",
    "step",
    "train",
]

T = TypeVar("T")
PACE_S = 0.002
"""A step's pause, so that threads of one process have their turns; nothing depends on it."""


def config(
    *,
    ticks: int = 0,
    fragments: int = 2,
    interval: int = 4,
    quorum: int = 1,
    algorithm: str = "decoupled",
    alive_s: float = 30.0,
    **sections: dict[str, Any],
) -> RunConfig:
    """A quick run. Nobody is lost before half a minute: a loaded machine must not change what happens."""
    sync = {
        "algorithm": algorithm,
        "num_fragments": fragments,
        "interval_steps": interval,
        "min_quorum": quorum,
        "merge_rule": "rda",  # with momentum the most that a merge can do, also where a short H has neither
        "heartbeat_s": 0.1,
        "alive_s": alive_s,
        "retry_s": 0.5,
        **sections.pop("sync", {}),
    }
    budget = {"ticks": ticks, **sections.pop("budget", {})}
    network = {"data_connections": 2, **sections.pop("network", {})}
    outer = {"learning_rate": 0.4, "momentum": 0.5, **sections.pop("outer", {})}
    tables = {"sync": sync, "outer": outer, "budget": budget, "network": network, **sections}
    return RunConfig.from_tables(tables)


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 2))


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.05)


def adamw(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=0.01)


def state_digest(net: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of all that an optimizer keeps, bit for bit; empty if it keeps nothing."""
    whole = hashlib.blake2b(digest_size=16)
    for name, parameter in net.named_parameters():
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            whole.update(f"{name} {key} {value.dtype} {list(value.shape)}".encode())
            whole.update(value.numpy().tobytes())
    return whole.hexdigest() if optimizer.state else ""


def batch(seed: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    inputs = torch.randn(8, 6, generator=made)
    return inputs, torch.stack([inputs.sum(1), inputs.prod(1)], 1)


def step(net: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> Tensor:
    inputs, wanted = batch(seed)
    loss = nn.functional.mse_loss(net(inputs).float(), wanted)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def train(
    learner: atoll.Learner,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    until: Callable[[], bool] | None = None,
) -> atoll.Learner:
    """A user's loop, until the run is over or something has happened; fails rather than going on for ever."""
    deadline_s = time.monotonic() + 2 * LIMIT_S
    number = 0
    while not (until() if until is not None else learner.finished):
        assert time.monotonic() < deadline_s, "the run does not end"
        assert not learner.ended, learner.ended
        loss = step(net, optimizer, number)
        learner.step(tokens=8, loss=loss)
        number += 1
        time.sleep(PACE_S)
    return learner


def join_and_train(url: str, name: str, seed: int = 0, **options: Any) -> tuple[atoll.Learner, nn.Module]:
    """All of a learner's life but the goodbye."""
    net = model(seed)
    optimizer = sgd(net)
    learner = atoll.join(url, model=net, optimizer=optimizer, name=name, **options)
    return train(learner, net, optimizer), net


class Task(Generic[T]):
    """Something that runs in a thread; `result` waits for it and raises what it raised."""

    def __init__(self, what: Callable[..., T], *args: Any, **options: Any) -> None:
        self._answer: list[T] = []
        self._error: list[BaseException] = []

        def run() -> None:
            try:
                self._answer.append(what(*args, **options))
            except BaseException as error:
                self._error.append(error)

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    @property
    def is_over(self) -> bool:
        return not self.thread.is_alive()

    def result(self, timeout: float = 2 * LIMIT_S) -> T:
        self.thread.join(timeout)
        assert self.is_over, "it hangs"
        if self._error:
            raise self._error[0]
        return self._answer[0]


def global_weights(learner: atoll.Learner) -> dict[str, Tensor]:
    """The merged model as a learner holds it."""
    with learner.global_weights() as net:
        return {name: value.detach().clone() for name, value in net.named_parameters()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def crash(syncer: atoll.Syncer) -> None:
    """End a syncer as a kill would: sockets close, nobody is told, the tape of the last moment is lost."""
    syncer._loop.stop(LIMIT_S)
    for worker in syncer._workers:
        worker.stop(LIMIT_S)
    syncer._store.close()
