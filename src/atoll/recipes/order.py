"""Which example a learner sees when: a pure function of the shard and of a position.

Example i belongs to shard i mod count, so shards are disjoint, cover everything and differ by one
example at most. A shard is read in epochs, each in an order of its own that follows from (seed,
index, epoch). The epochs make one endless stream, and batch k takes places k B to (k + 1) B of it:
a cursor is a number of batches, and resuming is arithmetic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from atoll.errors import RecipeError
from atoll.recipes.recipe import Shard

__all__ = ["permutation", "stream"]


def stream(shard: Shard, num_examples: int, batch_size: int, cursor: int) -> Iterator[Tensor]:
    """Indices of the examples of batch `cursor`, `cursor + 1`, ... of a shard, for ever."""
    if num_examples < shard.count:
        raise RecipeError(
            f"The training data has {num_examples} examples but the run has {shard.count} shards.",
            "Some shards would be empty, and their learners could not take a step.",
            f"Set data.num_shards to {num_examples} or less, or bring more data.",
        )
    mine = torch.arange(shard.index, num_examples, shard.count)
    return _stream(shard, mine, batch_size, cursor * batch_size)


def permutation(length: int, *names: int) -> Tensor:
    """An order of 0..length-1 that follows from the names alone."""
    digest = hashlib.blake2b(":".join(map(str, names)).encode(), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    return torch.randperm(length, generator=generator)


def _stream(shard: Shard, mine: Tensor, batch_size: int, place: int) -> Iterator[Tensor]:
    epoch, offset = divmod(place, len(mine))
    upcoming = _epoch(shard, mine, epoch)[offset:]
    while True:
        while len(upcoming) < batch_size:
            epoch += 1
            upcoming = torch.cat([upcoming, _epoch(shard, mine, epoch)])
        yield upcoming[:batch_size]
        upcoming = upcoming[batch_size:]


def _epoch(shard: Shard, mine: Tensor, epoch: int) -> Tensor:
    return mine[permutation(len(mine), shard.seed, shard.index, epoch)]
