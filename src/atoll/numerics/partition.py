"""Cut a model into P fragments of nearly equal size.

1. List trainable storages once; a tied weight keeps its first name and the others as aliases.
2. Make merge units. Embeddings, whatever is tied to them, and tensors of fewer than two dimensions use
   the weighted mean; everything else radial-directional averaging (RDA), which needs the norm of a
   whole matrix. Stacked experts (three dimensions, not a convolution) are one unit per expert.
3. A unit larger than 2N/P would set the peak of the traffic: it is cut by rows into nearly equal
   slices of at most about N/P, each a unit of its own. If even a row is too large, cut within rows.
4. If there are fewer units than fragments, the largest is halved until there are enough.
5. Largest first, each unit goes to the lightest fragment. No fragment then exceeds N/P plus the largest
   unit. Ties are broken by name and offset, so that every learner finds the same cut.

Names are those of the plain model: `torch.compile` and DistributedDataParallel wrap a module in another
and put `_orig_mod.` or `module.` into every name, which the other learners need not know of.

Buffers are never merged. A learner reports the float ones now and then, so that an exported model can
hold their mean; whole numbers, like the count of batches of a BatchNorm, have no mean worth exporting.

Paper: balanced tensor fragments by greedy bin packing, arXiv:2604.21428v1.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import UninitializedParameter

from atoll.errors import ModelError
from atoll.numerics.manifest import Fragment, Manifest, Rule, Storage, Unit

__all__ = [
    "Fragment",
    "Manifest",
    "Rule",
    "Storage",
    "Unit",
    "float_buffers",
    "load_buffers",
    "partition",
    "plain_name",
    "trainable",
]

_EXCHANGED = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def partition(model: nn.Module, num_fragments: int, merge_rule: Rule = "rda") -> Manifest:
    """Cut the trainable parameters of a model into `num_fragments` fragments (P).

    `merge_rule` "mean" merges everything by the weighted mean; "rda" as described above.
    """
    parameters = trainable(model)
    storages = tuple(storage for storage, _ in parameters)
    numel = sum(storage.numel for storage in storages)
    _check(model, parameters, numel, num_fragments)
    embeddings = _weights_of(model, (nn.Embedding, nn.EmbeddingBag))
    convolutions = _weights_of(model, (_ConvNd,))
    slices: list[_Slice] = []
    for storage, parameter in parameters:
        mean = merge_rule == "mean" or parameter.dim() < 2 or id(parameter) in embeddings
        stacked = parameter.dim() == 3 and not mean and id(parameter) not in convolutions
        slices += _cut(storage, "mean" if mean else "rda", stacked, numel, num_fragments)
    while len(slices) < num_fragments:
        largest = max(slices, key=lambda s: s.numel)  # the first of equals
        at = slices.index(largest)
        slices[at : at + 1] = largest.halves()
    return Manifest(
        storages=storages,
        fragments=_pack(slices, storages, num_fragments),
        frozen=tuple(
            plain_name(model, name)
            for name, parameter in model.named_parameters(remove_duplicate=False)
            if not parameter.requires_grad
        ),
        buffers=tuple(plain_name(model, name) for name, _ in model.named_buffers(remove_duplicate=False)),
    )


def trainable(model: nn.Module) -> list[tuple[Storage, nn.Parameter]]:
    """The trainable storages of a model in order of first name, each with its parameter."""
    _check_memory(model)
    names: dict[object, list[str]] = {}
    found: dict[object, nn.Parameter] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            identity = _identity(parameter)
            names.setdefault(identity, []).append(plain_name(model, name))
            found.setdefault(identity, parameter)
    return [
        (
            Storage(
                name=names[identity][0],
                shape=tuple(parameter.shape),
                dtype=str(parameter.dtype).removeprefix("torch."),
                aliases=tuple(names[identity][1:]),
            ),
            parameter,
        )
        for identity, parameter in found.items()
    ]


def plain_name(model: nn.Module, name: str) -> str:
    """The name of a parameter, buffer or module of `model` without what wrappers put into it."""
    plain: list[str] = []
    inside: object = model
    for part in name.split("."):
        if not _wraps(inside, part):
            plain.append(part)
        inside = getattr(inside, part, None)
    return ".".join(plain)


def float_buffers(model: nn.Module) -> list[tuple[str, Tensor]]:
    """The persistent float buffers of a model, each once, with their plain names. Not copied.

    Buffers that are not part of the state dict are computed from the configuration, and stay out.
    """
    kept = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name in module._buffers
        if name not in module._non_persistent_buffers_set
    }
    return [
        (plain_name(model, name), buffer)
        for name, buffer in model.named_buffers()
        if name in kept and buffer.is_floating_point()
    ]


def load_buffers(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Copy values into the float buffers of these names, in place; the others stay as they are.

    Raises `ModelError`, before anything is changed, if a name or a shape is not this model's.
    """
    here = dict(float_buffers(model))
    for name, value in values.items():
        if name not in here or here[name].shape != value.shape:
            found = (
                f"has shape {list(here[name].shape)}" if name in here else "is not one of its float buffers"
            )
            raise ModelError(
                f"Buffer {name} with shape {list(value.shape)} does not fit this model, where it {found}.",
                "It comes from another model.",
                "Build the model with the run's configuration and code.",
            )
    with torch.no_grad():
        for name, value in values.items():
            here[name].copy_(value)


@dataclass(frozen=True, slots=True)
class _Slice:
    """A unit in the making: `numel` values from `start`, made of rows of `row` values."""

    storage: str
    start: int
    numel: int
    row: int
    rule: Rule

    def halves(self) -> list[_Slice]:
        """Two nearly equal slices, at a row if there is more than one."""
        return list(self.split(2))

    def split(self, parts: int) -> Iterator[_Slice]:
        """Nearly equal slices, at most `parts`, cut between rows, or anywhere within a single row."""
        row = self.row if self.numel > self.row else 1
        rows = self.numel // row
        parts = min(parts, rows)
        edges = [rows * k // parts * row for k in range(parts + 1)]
        for low, high in pairwise(edges):
            yield _Slice(self.storage, self.start + low, high - low, row, self.rule)


def _cut(storage: Storage, rule: Rule, stacked: bool, numel: int, num_fragments: int) -> Iterator[_Slice]:
    """The units of one storage, none much larger than N/P if it can be helped."""
    if storage.numel == 0:
        return
    shape = storage.shape[1:] if stacked else storage.shape
    size = math.prod(shape)
    for start in range(0, storage.numel, size):
        yield from _shrink(storage.name, start, shape, rule, numel, num_fragments)


def _shrink(
    name: str, start: int, shape: tuple[int, ...], rule: Rule, numel: int, num_fragments: int
) -> Iterator[_Slice]:
    """Cut one unit by rows if it exceeds 2N/P; rows that are themselves too large by their own rows."""
    size = math.prod(shape)
    row = size // shape[0] if shape else 1
    whole = _Slice(name, start, size, row, rule)
    target = -(-numel // num_fragments)
    if size * num_fragments <= 2 * numel or not shape:
        yield whole
    elif row <= target or rule == "mean":
        row = row if row <= target else 1
        per_slice = target // row
        yield from _Slice(name, start, size, row, rule).split(-(-(size // row) // per_slice))
    else:
        for k in range(shape[0]):
            yield from _shrink(name, start + k * row, shape[1:], rule, numel, num_fragments)


def _pack(slices: list[_Slice], storages: tuple[Storage, ...], num_fragments: int) -> tuple[Fragment, ...]:
    """Largest first into the lightest fragment; units inside a fragment in the order of the model."""
    order = {storage.name: k for k, storage in enumerate(storages)}
    bins: list[list[_Slice]] = [[] for _ in range(num_fragments)]
    loads = [(0, index) for index in range(num_fragments)]
    for piece in sorted(slices, key=lambda s: (-s.numel, s.storage, s.start)):
        load, index = loads[0]
        bins[index].append(piece)
        heapq.heapreplace(loads, (load + piece.numel, index))
    return tuple(
        Fragment(
            index,
            tuple(
                Unit(piece.storage, piece.start, piece.start + piece.numel, piece.rule)
                for piece in sorted(held, key=lambda s: (order[s.storage], s.start))
            ),
        )
        for index, held in enumerate(bins)
    )


def _identity(parameter: nn.Parameter) -> object:
    """Equal for two names of one tensor: the same object, or another view of exactly the same memory."""
    if parameter.numel() == 0 or parameter.device.type == "meta":
        return id(parameter)
    return (parameter.data_ptr(), parameter.dtype, tuple(parameter.shape), parameter.stride())


def _check_memory(model: nn.Module) -> None:
    """Refuse parameters without values, and parameters that share memory without being the same tensor."""
    spans: dict[object, tuple[int, int, str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if isinstance(parameter, UninitializedParameter):
            raise ModelError(
                f"Parameter {name} has no shape yet.",
                "It cannot be cut into fragments.",
                "Run one forward pass through the lazy modules before joining.",
            )
        if parameter.requires_grad and hasattr(parameter, "device_mesh"):
            raise ModelError(
                f"Parameter {name} is sharded over several ranks (DTensor).",
                "This process holds a part of it only, and could not offer or adopt the whole.",
                "Join with a model that is whole on every rank, for example under DistributedDataParallel.",
            )
        if parameter.requires_grad and parameter.numel() and parameter.device.type != "meta":
            reach = sum((n - 1) * step for n, step in zip(parameter.shape, parameter.stride(), strict=True))
            start = parameter.data_ptr()
            spans.setdefault(
                _identity(parameter), (start, start + (reach + 1) * parameter.element_size(), name)
            )
    for (_, end, first), (start, _, second) in pairwise(sorted(spans.values())):
        if start < end:
            raise ModelError(
                f"Parameters {first} and {second} share memory but are not the same tensor.",
                "Their values would be exchanged twice and overwrite each other.",
                "Tie whole parameters (module.weight = other.weight), or give one of them its own memory.",
            )


def _wraps(module: object, part: str) -> bool:
    if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
        return part == "module"
    return part == "_orig_mod"  # torch.compile; its class is not worth the import of the compiler


def _weights_of(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> frozenset[int]:
    """Parameters whose memory is the weight of such a module, tied ones under any name."""
    owned = {
        _identity(module.weight)
        for module in model.modules()
        if isinstance(module, kinds) and isinstance(module.weight, nn.Parameter)
    }
    return frozenset(id(p) for p in model.parameters() if _identity(p) in owned)


def _check(
    model: nn.Module, parameters: list[tuple[Storage, nn.Parameter]], numel: int, num_fragments: int
) -> None:
    if num_fragments < 1:
        raise ModelError(
            f"A model cannot be cut into {num_fragments} fragments.",
            "Nothing would ever be exchanged.",
            "Ask for at least one fragment.",
        )
    for storage, parameter in parameters:
        if parameter.dtype not in _EXCHANGED:
            raise ModelError(
                f"Parameter {storage.name} is {storage.dtype}.",
                "Offers carry real floating-point values, so it could not be merged.",
                "Freeze it with requires_grad_(False), or store it as float32, bfloat16 or float16.",
            )
    if numel == 0:
        total = sum(1 for _ in model.parameters())
        raise ModelError(
            f"The model has no trainable values ({total} parameters, all frozen or empty).",
            "There is nothing to merge.",
            "Pass the model that the optimizer trains, and unfreeze what should be trained.",
        )
    if numel < num_fragments:
        raise ModelError(
            f"The model has {numel} trainable values but {num_fragments} fragments are asked for.",
            "Some fragments would be empty, and their rounds would merge nothing.",
            f"Set the number of fragments to {numel} or less.",
        )
