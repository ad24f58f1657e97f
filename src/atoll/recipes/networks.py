"""Lean transformers that can be stacked: one network, or the networks of many learners in one pass.

A small network is bound by the overhead of its operations, not by arithmetic. So the forward pass is
written once for a stack: every value carries a leading dimension S, the learners, and matrices are multiplied
by `bmm`. `Network` is the ordinary `nn.Module` of one learner and runs the same code with S = 1;
`forward_stack` takes the values of S such networks. Both give the same numbers up to rounding.

    text    bytes in, bytes out: embedding tied to the output, learned places, the three bytes before each by
            learned weights, blocks of attention and MLP
    moe     the same with the MLP replaced by experts, of which every byte takes two
    vision  8 x 8 pictures in patches of 2 x 2, the same blocks, the mean of all places, ten digits

Norms come before each part, the activation is the ReLU, and there are no biases. Of what would do, each part
is what costs a small CPU least: the fused layer norm, few heads. The bytes before its own are given to each
place because a small transformer learns to look back in one sudden step, at a moment that is luck: runs at
rates of 0.0057 and 0.00566 ended 3.6 % apart without them, and 0.1 % with them (tiny, M = 4, one pair each).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, layer_norm, linear, pad, relu, scaled_dot_product_attention

from atoll.recipes.shapes import NUM_PATCHES, PATCH, SIDE

__all__ = ["Kind", "Network", "Output", "build", "forward_stack"]

Kind = Literal["text", "moe", "vision"]

NUM_BYTES, NUM_DIGITS = 256, 10
MAX_WINDOW = 64
"""Places of a text."""
BEFORE = 3
"""Bytes before its own that a place of a text sees from the start, each with a learned weight."""
EXPERTS_USED = 2
HIDDEN = 4
"""Width of the MLP, in widths of the network."""
EMBEDDING_STD = 0.02
WIDE = 96
"""From this width on oneDNN multiplies faster than MKL."""
HAS_ONEDNN = hasattr(torch.ops.mkldnn, "_linear_pointwise")
PLACE_STD = 0.3
"""Of a picture's places: patches come in at about 1, and smaller places are learned very slowly."""


class Output(NamedTuple):
    """What a network says."""

    logits: Tensor
    """[B, T, 256] for a text, [B, 10] for pictures."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of one network."""

    kind: Kind
    width: int
    layers: int
    heads: int
    experts: int = 0
    hidden: int = 0


class Block(nn.Module):
    """The parameters of one layer; the arithmetic is in `_block`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.norm1, self.norm2 = _norm_of(width), _norm_of(width)
        self.qkv, self.join = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        if shape.experts:
            self.router = nn.Linear(width, shape.experts, bias=False)
            self.experts_up = nn.Parameter(torch.empty(shape.experts, shape.hidden, width))
            self.experts_down = nn.Parameter(torch.empty(shape.experts, shape.hidden, width))
        else:
            self.up = nn.Linear(width, HIDDEN * width, bias=False)
            self.down = nn.Linear(HIDDEN * width, width, bias=False)


class Network(nn.Module):
    """One learner's network. `input_ids` [B, T] or `pixel_values` [B, 1, 8, 8] become logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        if shape.kind == "vision":
            self.patches = nn.Linear(PATCH * PATCH, shape.width, bias=False)
            self.places = nn.Embedding(NUM_PATCHES, shape.width)
            self.head = nn.Linear(shape.width, NUM_DIGITS, bias=False)
        else:
            self.embedding = nn.Embedding(NUM_BYTES, shape.width)
            self.before = nn.Parameter(torch.full((BEFORE * shape.width,), 0.5))
            self.places = nn.Embedding(MAX_WINDOW, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = _norm_of(shape.width)
        self._initialise()

    def forward(self, input_ids: Tensor | None = None, pixel_values: Tensor | None = None) -> Output:
        """Logits of a batch."""
        inputs = input_ids if pixel_values is None else pixel_values
        assert inputs is not None
        values = {name: parameter.unsqueeze(0) for name, parameter in self.named_parameters()}
        return Output(forward_stack(self.shape, values, inputs.unsqueeze(0)).squeeze(0))

    def _initialise(self) -> None:
        """Normal, by fan-in; what is added to the residual stream is smaller the more layers there are."""
        depth = (2 * self.shape.layers) ** -0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            fan_in = parameter.shape[-2] if "experts_down" in name else parameter.shape[-1]
            std = fan_in**-0.5
            if name in ("embedding.weight", "places.weight"):
                std = PLACE_STD if self.shape.kind == "vision" else EMBEDDING_STD
            is_last = any(part in name for part in ("join", "down"))
            nn.init.normal_(parameter, std=std * depth if is_last else std)


def _norm_of(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, bias=False)


def build(kind: Kind, shape: Mapping[str, int | float]) -> Network:
    """A network with weights drawn from torch's global generator."""
    return Network(Shape(kind, **{name: int(value) for name, value in shape.items()}))


def forward_stack(shape: Shape, values: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Logits of S networks: `values` [S, ...] by parameter name, `inputs` [S, B, ...] a batch for each."""
    if shape.kind == "vision":
        x = _linear(_cut(inputs), values["patches.weight"])
        num_places = NUM_PATCHES
    else:
        num_stacked, _, num_places = inputs.shape
        table = values["embedding.weight"]
        rows = inputs + NUM_BYTES * torch.arange(num_stacked).view(-1, 1, 1)
        x = embedding(rows, table.reshape(-1, shape.width))
        x = _with_before(x, values["before"]).flatten(1, 2)
    x = _by_place(x, values["places.weight"], num_places)
    for layer in range(shape.layers):
        prefix = f"blocks.{layer}."
        x = _block(
            shape,
            {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)},
            x,
            num_places,
        )
    if shape.kind == "vision":
        x = _apart(x, num_places).mean(dim=2)
        return _linear(_norm(x, values["norm.weight"]), values["head.weight"])
    logits = _linear(_norm(x, values["norm.weight"]), values["embedding.weight"])
    return _apart(logits, num_places)


def _block(shape: Shape, own: Mapping[str, Tensor], x: Tensor, num_places: int) -> Tensor:
    """[S, B T, width] to the same."""
    heads = _linear(_norm(x, own["norm1.weight"]), own["qkv.weight"])
    q, k, v = heads.view(-1, num_places, 3, shape.heads, shape.width // shape.heads).permute(2, 0, 3, 1, 4)
    seen = scaled_dot_product_attention(q, k, v, is_causal=shape.kind != "vision")
    x = x + _linear(seen.transpose(1, 2).reshape(x.shape), own["join.weight"])
    y = _norm(x, own["norm2.weight"])
    if shape.experts:
        return x + _experts(shape, own, y)
    return x + _linear(relu(_linear(y, own["up.weight"])), own["down.weight"])


def _experts(shape: Shape, own: Mapping[str, Tensor], y: Tensor) -> Tensor:
    """Every expert sees everything, weighted by the router: so small, that is cheaper than sorting."""
    scores = _linear(y, own["router.weight"])
    least = scores.topk(EXPERTS_USED, dim=-1).values[..., -1:]
    shares = scores.masked_fill(scores < least, float("-inf")).softmax(dim=-1)
    hidden = relu(_linear(y, own["experts_up"].flatten(1, 2)))
    by_expert = hidden.view(*hidden.shape[:2], shape.experts, shape.hidden)
    weighted = (by_expert * shares.unsqueeze(-1)).flatten(2)
    return torch.bmm(weighted, own["experts_down"].flatten(1, 2))


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [S, N, in] by weight [S, out, in]."""
    if HAS_ONEDNN and min(weight.shape[1:]) >= WIDE:
        return _wide(x, weight)
    if weight.shape[0] == 1:
        return linear(x.squeeze(0), weight.squeeze(0)).unsqueeze(0)
    return torch.bmm(x, weight.transpose(1, 2))


class _Wide(torch.autograd.Function):
    """The same product by oneDNN, one network after the other.

    torch multiplies f32 matrices on a CPU by MKL, which uses half of what some AMD cores can do: at a width
    of 128 a step of four learners took 43 ms this way and 66 ms by MKL. Narrow matrices are faster by MKL.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _each(x, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (gradient,), (x, weight) = gradients, ctx.saved_tensors
        by_input = _each(gradient, weight.transpose(1, 2))
        return by_input, _each(gradient.transpose(1, 2), x.transpose(1, 2))


def _wide(x: Tensor, weight: Tensor) -> Tensor:
    found: Tensor = _Wide.apply(x, weight)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return found


def _each(x: Tensor, weight: Tensor) -> Tensor:
    """x [S, N, in] by weight [S, out, in], by oneDNN."""
    product = torch.ops.mkldnn._linear_pointwise
    pairs = zip(x.unbind(0), weight.unbind(0), strict=True)
    found = [product(one, own, None, "none", [], "") for one, own in pairs]
    return found[0].unsqueeze(0) if len(found) == 1 else torch.stack(found)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:]) * weight.unsqueeze(1)


def _with_before(x: Tensor, weights: Tensor) -> Tensor:
    """Add the bytes before each, by learned weights [S, 3 width]: x [S, B, T, width]."""
    num_places, padded = x.shape[2], pad(x, (0, 0, BEFORE, 0))
    by_distance = weights.view(len(weights), BEFORE, 1, 1, -1).unbind(1)
    for distance, weight in enumerate(by_distance, start=1):
        x = x + padded[:, :, BEFORE - distance : BEFORE - distance + num_places] * weight
    return x


def _by_place(x: Tensor, places: Tensor, num_places: int) -> Tensor:
    """Add what each place is: x [S, B T, width]."""
    return (_apart(x, num_places) + places[:, :num_places].unsqueeze(1)).flatten(1, 2)


def _apart(x: Tensor, num_places: int) -> Tensor:
    """[S, B T, width] as [S, B, T, width]."""
    return x.view(x.shape[0], -1, num_places, x.shape[2])


def _cut(pictures: Tensor) -> Tensor:
    """[S, B, 1, 8, 8] into patches [S, B 16, 4]."""
    num_stacked, batch = pictures.shape[:2]
    grid = pictures.reshape(num_stacked, batch, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH)
    return grid.permute(0, 1, 2, 4, 3, 5).reshape(num_stacked, batch * NUM_PATCHES, PATCH * PATCH)
