"""How a recipe learns: its optimizer, schedule, batches, loss and held-out score.

Text and images are trained alike: the model turns its inputs into logits, and the loss is the
cross-entropy of the targets. Targets come shifted, so the model's own loss is not used and every
model with logits will do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from atoll.recipes import examples, order
from atoll.recipes.recipe import Batch, Preset, Recipe, Shard

__all__ = ["BETA2", "Score", "adamw", "batches", "build_optimizer", "loss", "schedule", "score"]

WARMUP = 0.05  # share of the budget
BETA1, BETA2 = 0.9, 0.95  # of AdamW
FLOOR = 0.1  # factor that the schedule begins and ends with
SCORE_BATCHES = 4  # training batches per held-out batch: without gradients there is room


class Score(NamedTuple):
    """What a model is worth on held-out data."""

    loss: float
    accuracy: float


def build_optimizer(model: nn.Module, preset: Preset) -> torch.optim.Optimizer:
    """The optimizer of a recipe."""
    return adamw(model, preset.learning_rate, preset.weight_decay)


def adamw(
    model: nn.Module, learning_rate: float, weight_decay: float, beta2: float = BETA2
) -> torch.optim.AdamW:
    """AdamW; matrices decay, while embeddings, norms and biases do not."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    decaying: list[nn.Parameter] = []
    other: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            is_matrix = parameter.dim() >= 2 and id(parameter) not in embeddings
            (decaying if is_matrix else other).append(parameter)
    groups = [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": other, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(BETA1, beta2), fused=True)


def schedule(progress: float) -> float:
    """Linear from a tenth to 1 over the warm-up, then half a cosine down to a tenth."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < WARMUP:
        return FLOOR + (1 - FLOOR) * progress / WARMUP
    angle = math.pi * (progress - WARMUP) / (1 - WARMUP)
    return FLOOR + (1 - FLOOR) * (1 + math.cos(angle)) / 2


def batches(recipe: Recipe, shard: Shard, cursor: int) -> Iterator[Batch]:
    """A shard's batches from `cursor` on, without end."""
    train = examples.load(recipe).train
    indices = order.stream(shard, len(train), recipe.preset.batch_size, cursor)
    return (train.batch(chosen, number) for number, chosen in enumerate(indices, start=cursor + 1))


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy per target, in nats."""
    logits, targets = _predict(model, batch)
    return cross_entropy(logits, targets)


def score(recipe: Recipe, model: nn.Module, max_batches: int | None) -> Score:
    """Loss and accuracy over the held-out examples, or over the first batches of them, always the same."""
    heldout = examples.load(recipe).heldout
    chunks = torch.split(torch.arange(len(heldout)), SCORE_BATCHES * recipe.preset.batch_size)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            parts = [_part(model, heldout.batch(chunk, 0)) for chunk in islice(chunks, max_batches)]
    finally:
        model.train(was_training)
    count = sum(part[0] for part in parts)
    return Score(sum(part[1] for part in parts) / count, sum(part[2] for part in parts) / count)


def _part(model: nn.Module, batch: Batch) -> tuple[int, float, int]:
    logits, targets = _predict(model, batch)
    right = (logits.argmax(dim=-1) == targets).sum()
    return batch.tokens, float(cross_entropy(logits, targets, reduction="sum")), int(right)


def _predict(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits [N, C] in f32 and targets [N]."""
    arguments = {name: value for name, value in batch.inputs.items() if name != "targets"}
    logits = model(**arguments).logits
    return logits.flatten(0, -2).float(), batch.inputs["targets"].flatten()
