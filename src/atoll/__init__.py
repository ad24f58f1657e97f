"""Atoll trains one model on many unreliable islands of compute.

An open, PyTorch-native implementation of Decoupled DiLoCo (arXiv:2604.21428): learners train at
their own pace, a syncer merges what a quorum of them offers, and nobody waits for the dead.

    learner = atoll.join("atoll://host:7700/run?key=...", model=model, optimizer=optimizer)
    ...
    learner.step(tokens=batch.numel())      # once per optimizer step; never blocks on the network

`join` gives a `Learner`; `Syncer` is the other side, in a process of its own. `RunConfig` holds
every setting of a run with its default; the sections it is built from live in `atoll.config`.
Whatever Atoll raises on purpose is an `AtollError`. Importing this package does not import
torch; `join`, `Learner` and `Syncer` do when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from atoll.config import RunConfig
from atoll.errors import (
    AtollError,
    CodecError,
    ConfigError,
    JoinError,
    ModelError,
    ProtocolError,
    RecipeError,
    StoreError,
    TapeError,
    WireError,
)

if TYPE_CHECKING:
    from atoll.runtime.joining import join
    from atoll.runtime.learner import Learner
    from atoll.runtime.syncer import Syncer

__version__ = "0.1.0"

__all__ = [
    "AtollError",
    "CodecError",
    "ConfigError",
    "JoinError",
    "Learner",
    "ModelError",
    "ProtocolError",
    "RecipeError",
    "RunConfig",
    "StoreError",
    "Syncer",
    "TapeError",
    "WireError",
    "__version__",
    "join",
]

_NEEDS_TORCH = {
    "join": "atoll.runtime.joining",
    "Learner": "atoll.runtime.learner",
    "Syncer": "atoll.runtime.syncer",
}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS_TORCH:
        raise AttributeError(f"module 'atoll' has no attribute {name!r}")
    return getattr(importlib.import_module(_NEEDS_TORCH[name]), name)
