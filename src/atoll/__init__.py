"""Atoll trains one model on many unreliable islands of compute.

An open, PyTorch-native implementation of Decoupled DiLoCo (arXiv:2604.21428): learners train at
their own pace, a syncer merges what a quorum of them offers, and nobody waits for the dead.

`RunConfig` holds every setting of a run with its default; the sections it is built from live in
`atoll.config`. Whatever Atoll raises on purpose is an `AtollError`. Importing this package does
not import torch.
"""

from __future__ import annotations

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

__version__ = "0.1.0"

__all__ = [
    "AtollError",
    "CodecError",
    "ConfigError",
    "JoinError",
    "ModelError",
    "ProtocolError",
    "RecipeError",
    "RunConfig",
    "StoreError",
    "TapeError",
    "WireError",
    "__version__",
]
