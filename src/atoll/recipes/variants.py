"""Variants of small images: a little shifted, turned, zoomed and noisy, and the same for the same seed.

Each variant is the image seen through an affine map, sampled between its points (bilinear). Outside the image
there is background. Draws come from a generator of their own, so torch's global state plays no part.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

__all__ = ["BACKGROUND", "MOST_DEGREES", "MOST_NOISE", "MOST_POINTS", "MOST_ZOOM", "vary"]

BACKGROUND = -1.0
MOST_POINTS = 1.0  # of a shift, each way
MOST_DEGREES = 12.0
MOST_ZOOM = 0.12
MOST_NOISE = 0.8  # images go from -1 to 1; with less nearly all are told apart, and differences are luck


def vary(pixels: Tensor, count: int, seed: int) -> Tensor:
    """`count` variants [count * N, C, Y, X] of every image [N, C, Y, X]: all of them, then all again, ..."""
    generator = torch.Generator().manual_seed(seed)
    images = pixels.repeat(count, 1, 1, 1)
    maps = _maps(len(images), pixels.shape[-1], generator)
    grid = affine_grid(maps, list(images.shape), align_corners=False)
    seen = grid_sample(images - BACKGROUND, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    noise = _uniform(images.numel(), MOST_NOISE, generator).view_as(images)
    return (seen + BACKGROUND + noise).clamp(-1, 1)


def _maps(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Where each point of a variant is taken from: [count, 2, 3], in halves of the image's width."""
    angle = _uniform(count, math.radians(MOST_DEGREES), generator)
    zoom = 1 + _uniform(count, MOST_ZOOM, generator)
    shift = _uniform(2 * count, 2 * MOST_POINTS / width, generator).view(count, 2)
    turn, slant = zoom * angle.cos(), zoom * angle.sin()
    rows = (torch.stack([turn, -slant, shift[:, 0]], 1), torch.stack([slant, turn, shift[:, 1]], 1))
    return torch.stack(rows, 1)


def _uniform(count: int, most: float, generator: torch.Generator) -> Tensor:
    return (2 * torch.rand(count, generator=generator) - 1) * most
