"""Fragments, bodies and small models for the tests of numerics."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from atoll.numerics.codec import Codec, codec_for
from atoll.numerics.manifest import Fragment, Rule, Unit

F32 = codec_for("f32")


def fragment(*units: tuple[int, Rule]) -> Fragment:
    """A fragment of units of these lengths and rules."""
    return Fragment(0, tuple(Unit(f"t{k}", 0, numel, rule) for k, (numel, rule) in enumerate(units)))


def body(values: list[float] | Tensor, codec: Codec = F32) -> Tensor:
    """The body of some values."""
    return codec.encode(torch.as_tensor(values, dtype=torch.float32).reshape(-1))


def decoded(encoded: Tensor, numel: int, codec: Codec = F32) -> Tensor:
    """All values of a body."""
    return codec.decode(encoded, 0, numel, torch.empty(numel))


def gaussian(numel: int, seed: int = 0) -> Tensor:
    """Gaussian values whose size varies from row to row, as outer gradients' does."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(numel, generator=generator)
    rows = torch.rand(-(-numel // 100), generator=generator).mul_(3).exp_().repeat_interleave(100)
    return values.mul_(rows[:numel]).mul_(1e-3)


class Tied(nn.Module):
    """An embedding tied to the output, a matrix, a bias, a frozen layer, a buffer."""

    def __init__(self, vocabulary: int = 50, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.Linear(width, width)
        self.fixed = nn.Linear(width, width, bias=False).requires_grad_(False)
        self.out = nn.Linear(width, vocabulary, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros(3))
