"""The recipe itself: what a learner's loop asks for, gathered in one object.

A `Recipe` holds names and numbers only. Data and models are made when they are asked for, so a
command line can describe a recipe without waiting for torch. Text is read once per process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from atoll.errors import RecipeError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from atoll.recipes.networks import Kind

__all__ = ["Batch", "Preset", "Recipe", "Shard"]


@dataclass(frozen=True, slots=True)
class Shard:
    """One learner's part of the training data: number `index` of `count`, shuffled from `seed`."""

    index: int
    count: int
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise RecipeError(
                f"Shard {self.index} of {self.count} does not exist.",
                "A learner without a shard of its own has nothing to train on.",
                "Number shards from 0 to count - 1, with a count of at least 1.",
            )


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step trains on. All of `inputs` but `targets` are the model's arguments."""

    inputs: dict[str, Tensor]
    """`input_ids` [B, T] or `pixel_values` [B, C, Y, X], and `targets` [B, T] or [B], already shifted."""
    tokens: int
    """Targets predicted: tokens of a text, or images."""
    cursor: int
    """What to pass to `batches` to go on right after this batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """The numbers of one recipe at one size; `catalogue` holds them all."""

    about: str
    """The model in a few words."""
    shape: Mapping[str, int | float]
    """Arguments of the model's config, or of a lean network."""
    network: Kind | None = None
    """Which lean network of ours it trains; None: a model of transformers."""
    unit: Literal["tokens", "images"]
    steps: int
    """Default budget of a run, in ticks."""
    batch_size: int
    window: int = 0
    """Tokens predicted per example; 0 for images."""
    train_bytes: int = 0
    """Standard-library text to read for training; a user's own text is read whole."""
    heldout_bytes: int = 0
    """Text that the held-out score is measured on, at most."""
    learning_rate: float
    weight_decay: float
    tables: Mapping[str, Mapping[str, object]]
    """Sections of a run's config that suit this recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A model, its data and its training, the same for everybody who asks for the same settings."""

    name: str
    size: str
    seed: int
    model: str | None
    """`hf:...` if the user brings a model, else None."""
    data: str | None
    """A folder or `hf:...` if the user brings text, else None."""
    preset: Preset

    @property
    def unit(self) -> Literal["tokens", "images"]:
        """What is counted: `tokens` predicted, or `images`."""
        return self.preset.unit

    @property
    def steps(self) -> int:
        """Default budget of a run, in ticks."""
        return self.preset.steps

    @property
    def tables(self) -> Mapping[str, Mapping[str, object]]:
        """Settings of a run that suit the recipe, as sections of `RunConfig`; the user's own come on top."""
        return self.preset.tables

    def settings(self) -> dict[str, str | int | None]:
        """All that `recipe_from` needs to build this recipe again; plain values that fit into JSON."""
        return {
            "name": self.name,
            "size": self.size,
            "seed": self.seed,
            "model": self.model,
            "data": self.data,
        }

    def describe(self) -> str:
        """One line for a person: what is trained, on what, in steps of how much."""
        from atoll.recipes import text

        preset = self.preset
        model = f"the model {self.model}" if self.model else preset.about
        if preset.unit == "images":
            source = "variants of scikit-learn's digits" if preset.network else "scikit-learn's digits"
            step = f"{preset.batch_size} images a step"
        else:
            source = text.describe(self.data, preset.train_bytes)
            step = f"{preset.batch_size} x {preset.window} tokens a step"
        return f"{self.name} {self.size}: {model}, on {source}, {step}"

    def build_model(self) -> nn.Module:
        """The model in f32. Its initial weights follow from the seed, whatever torch's global state."""
        from atoll.recipes import models

        return models.build(self)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW on what is trainable; only matrices that are no embeddings decay."""
        from atoll.recipes import learning

        return learning.build_optimizer(model, self.preset)

    def schedule(self, progress: float) -> float:
        """Factor on the learning rate at `progress` (0..1) of the budget: warm-up, then cosine to a tenth."""
        from atoll.recipes import learning

        return learning.schedule(progress)

    def batches(self, shard: Shard, cursor: int = 0) -> Iterator[Batch]:
        """A shard's batches without end, from `cursor` on: always the same, disjoint between indices."""
        from atoll.recipes import learning

        return learning.batches(self, shard, cursor)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy per target, in nats."""
        from atoll.recipes import learning

        return learning.loss(model, batch)

    def evaluate(self, model: nn.Module, max_batches: int | None = None) -> float:
        """Held-out loss per target, in nats, on the same data for everybody; the model keeps its mode."""
        from atoll.recipes import learning

        return learning.score(self, model, max_batches).loss

    def accuracy(self, model: nn.Module, max_batches: int | None = None) -> float:
        """Share of held-out targets that the model ranks first, 0..1; otherwise as `evaluate`."""
        from atoll.recipes import learning

        return learning.score(self, model, max_batches).accuracy
