"""Data as tensors: numbered examples on each side, cut from text or taken from images.

A text becomes one row of numbers, its documents joined by an end mark: bytes and a zero byte, or
the tokens of the user's model. Example i is the window at i T with one number more, so every number but
the first is a target exactly once. Images are scikit-learn's digits, or variants of them. Held-out windows
are put in a fixed random order: the first few of them are a fair sample of all.

What was loaded stays in the process: two learners in threads, or a learner and its score, share it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from atoll.errors import RecipeError
from atoll.recipes import hub, order, text
from atoll.recipes.recipe import Batch, Recipe
from atoll.recipes.variants import vary

__all__ = ["Examples", "Images", "Split", "Windows", "augmented_digits", "load", "parts"]

DIGITS_HELDOUT_ONE_IN = 5
DIGITS_MIDDLE = 8.0  # points go from 0 to 16
TRAIN_VARIANTS = 32
HELDOUT_VARIANTS = 8


class Examples(Protocol):
    """Numbered examples that become batches."""

    def __len__(self) -> int:
        """How many there are."""

    def batch(self, indices: Tensor, cursor: int) -> Batch:
        """The examples with these numbers, and the cursor to go on from."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Text: `numbers` cut into windows of `length` targets; `places` says in which order."""

    numbers: Tensor
    length: int
    places: Tensor

    def __len__(self) -> int:
        return len(self.places)

    def batch(self, indices: Tensor, cursor: int) -> Batch:
        """Windows [B, T] and, as targets, the same one number further on."""
        starts = self.places[indices] * self.length
        windows = self.numbers[starts[:, None] + torch.arange(self.length + 1)].long()
        inputs = {"input_ids": windows[:, :-1].contiguous(), "targets": windows[:, 1:].contiguous()}
        return Batch(inputs, inputs["targets"].numel(), cursor)


@dataclass(frozen=True, slots=True)
class Images:
    """Pictures [N, C, Y, X] and what they show [N]."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, cursor: int) -> Batch:
        """Pictures and, as targets, the digits they show."""
        inputs = {"pixel_values": self.pixels[indices], "targets": self.labels[indices]}
        return Batch(inputs, len(indices), cursor)


Side = TypeVar("Side", bound=Examples, covariant=True)


@dataclass(frozen=True, slots=True)
class Split(Generic[Side]):
    """Both sides of a recipe's data."""

    train: Side
    heldout: Side


def load(recipe: Recipe) -> Split[Examples]:
    """The data of a recipe, read once per process."""
    preset = recipe.preset
    if preset.network == "vision":
        return augmented_digits()
    if recipe.unit == "images":
        return Split(*_digits(recipe.model))
    return _text(recipe.model, recipe.data, preset.window, preset.train_bytes, preset.heldout_bytes)


def parts(count: int, window: int, train_bytes: int, heldout_bytes: int) -> tuple[list[Tensor], Tensor]:
    """The library's bytes, to train on in `count` equal parts of different topics, and the held-out ones.

    The same documents as a recipe of these sizes reads, but joined in the order of their names, in which
    neighbours belong together (`asyncio`, `email`, ...), and cut where the bytes are even.
    """
    texts = text.read(None, train_bytes, heldout_bytes)
    cut = list(torch.tensor_split(_numbers(texts.train_by_name(), None), count))
    if min(map(len, cut)) <= window:
        raise RecipeError(
            f"{train_bytes} bytes in {count} parts leave {min(map(len, cut))} bytes to a part.",
            f"An example takes {window + 1} bytes, so a part would have none.",
            "Ask for fewer parts, or for more bytes.",
        )
    return cut, _numbers(texts.heldout, None)


@lru_cache(maxsize=1)
def augmented_digits(heldout_variants: int = HELDOUT_VARIANTS) -> Split[Images]:
    """The digits shifted, turned, zoomed and made noisy: many variants of each, always the same ones.

    1,437 images to train on are soon known by heart. Sides are those of the plain digits: no image has
    variants on both. Held-out variants are in a fixed random order, as text is.
    """
    plain_train, plain_heldout = _digits(None)
    train = _varied(plain_train, TRAIN_VARIANTS, seed=1)
    heldout = _varied(plain_heldout, heldout_variants, seed=2)
    shuffled = order.permutation(len(heldout), 0)
    return Split(train, Images(heldout.pixels[shuffled], heldout.labels[shuffled]))


@lru_cache(maxsize=4)
def _text(
    model: str | None, data: str | None, window: int, train_bytes: int, heldout_bytes: int
) -> Split[Windows]:
    texts = text.read(data, train_bytes, heldout_bytes)
    tokenizer = None if model is None else hub.tokenizer(model)
    train, heldout = (_numbers(side, tokenizer) for side in (texts.train, texts.heldout))
    if min(len(train), len(heldout)) <= window:
        raise RecipeError(
            f"The text has {len(train)} tokens to train on and {len(heldout)} held out.",
            f"An example takes {window + 1} tokens, so one side would be empty.",
            f"Bring more text: {20 * (window + 1)} bytes at the very least, and better a million.",
        )
    shuffled = order.permutation((len(heldout) - 1) // window, 0)
    every = torch.arange((len(train) - 1) // window)
    return Split(Windows(train, window, every), Windows(heldout, window, shuffled))


def _numbers(documents: list[bytes], tokenizer: Any | None) -> Tensor:
    if tokenizer is None:
        return torch.frombuffer(bytearray(b"\0".join(documents)), dtype=torch.uint8)
    mark = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    texts = [document.decode("utf-8", "replace") for document in documents]
    rows = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor([number for row in rows for number in (*row, *mark)], dtype=torch.int32)


@lru_cache(maxsize=2)
def _digits(model: str | None) -> tuple[Images, Images]:
    digits = hub.library("sklearn.datasets").load_digits()
    pixels = torch.from_numpy(digits.images.astype(np.float32)).unsqueeze(1) / DIGITS_MIDDLE - 1
    labels = torch.from_numpy(digits.target.astype(np.int64))
    if model is not None:
        pixels = _fitted(pixels, hub.config(model, "images"))
    held = torch.tensor([_is_held(number) for number in range(len(labels))])
    return Images(pixels[~held], labels[~held]), Images(pixels[held], labels[held])


def _fitted(pixels: Tensor, config: Any) -> Tensor:
    """The digits at the size and with the channels that a user's model expects."""
    size, channels = getattr(config, "image_size", 8), getattr(config, "num_channels", 1)
    return torch.nn.functional.interpolate(pixels, size=size, mode="bilinear").repeat(1, channels, 1, 1)


def _is_held(number: int) -> bool:
    digest = hashlib.blake2b(str(number).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % DIGITS_HELDOUT_ONE_IN == 0


def _varied(images: Images, count: int, seed: int) -> Images:
    return Images(vary(images.pixels, count, seed), images.labels.repeat(count))
