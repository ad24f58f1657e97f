"""The local model: a user's parameters, seen as the flat f32 fragments of a manifest.

A fragment's values are those of its units, one after the other, each unit a range of one parameter in
row-major order. `gather` reads them, `scatter` writes them in place, so that optimizers, compiled graphs
and views of the parameters go on as if nothing had happened. Parameters may be bf16 or f16, and need not
be contiguous; conversion happens while copying.

All parameters live on one device. A model spread over several, or sharded into DTensors, is refused: its
values could not be copied at one step boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from atoll.errors import ModelError
from atoll.numerics.manifest import Manifest, Unit
from atoll.numerics.partition import trainable
from atoll.numerics.scratch import borrow

__all__ = ["Copy", "LocalModel"]

Copy = Callable[[Tensor, Tensor], object]
"""(target, source): how values are moved; a ferry passes its own."""


class LocalModel:
    """The parameters of one model by fragment. Reads and writes them, keeps nothing of its own."""

    def __init__(self, model: nn.Module, manifest: Manifest) -> None:
        self.manifest = manifest
        self._parameters = _parameters_of(model, manifest)
        self.device = _one_device(self._parameters)

    def gather(self, fragment: int, out: Tensor, copy: Copy = Tensor.copy_) -> Tensor:
        """Write the local values of a fragment into the flat f32 `out`, and return it."""
        for low, high, unit in self._spans(fragment):
            flat = self._parameters[unit.storage].detach().reshape(-1)
            copy(out[low:high], flat[unit.start : unit.stop])
        return out

    def scatter(self, fragment: int, values: Tensor, copy: Copy = Tensor.copy_) -> None:
        """Write flat f32 values into the parameters, whatever their type and layout."""
        with torch.no_grad():
            for low, high, unit in self._spans(fragment):
                parameter = self._parameters[unit.storage].detach()
                if parameter.is_contiguous():
                    copy(parameter.view(-1)[unit.start : unit.stop], values[low:high])
                else:
                    flat = parameter.reshape(-1)
                    copy(flat[unit.start : unit.stop], values[low:high])
                    copy(parameter, flat.view(parameter.shape))

    def seen(self, fragment: int, values: Tensor, role: str) -> Tensor:
        """A version as the model holds it, rounded where parameters are coarser, in a borrowed buffer."""
        seen = borrow(role, values.numel()).copy_(values)
        for low, high, unit in self._spans(fragment):
            dtype = self._parameters[unit.storage].dtype
            if dtype in (torch.bfloat16, torch.float16):
                seen[low:high].copy_(seen[low:high].to(dtype))
        return seen

    def save(self) -> list[Tensor]:
        """A copy of every parameter as it is, for `restore`."""
        return [parameter.detach().clone() for parameter in self._parameters.values()]

    def restore(self, saved: list[Tensor]) -> None:
        """Put back what `save` returned, bit for bit."""
        with torch.no_grad():
            for parameter, values in zip(self._parameters.values(), saved, strict=True):
                parameter.detach().copy_(values)

    def checked(self, fragment: int, values: Tensor) -> Tensor:
        """The values as a flat tensor, or `ModelError` if they are not this fragment's."""
        numel = self.manifest.fragments[fragment].numel
        if values.numel() != numel or values.dtype != torch.float32:
            raise ModelError(
                f"Fragment {fragment} has {numel} f32 values, not {values.numel()} of {values.dtype}.",
                "They would land in the wrong parameters.",
                "Check that both sides hold the same manifest.",
            )
        return values.detach().reshape(-1)

    def _spans(self, fragment: int) -> Iterator[tuple[int, int, Unit]]:
        at = 0
        for unit in self.manifest.fragments[fragment].units:
            yield at, at + unit.numel, unit
            at += unit.numel


def _parameters_of(model: nn.Module, manifest: Manifest) -> dict[str, nn.Parameter]:
    """Parameters by storage name, or `ModelError` naming the first that is not the manifest's."""
    found = trainable(model)
    here = Manifest(tuple(storage for storage, _ in found), manifest.fragments)
    difference = here.first_difference(manifest)
    if difference is not None:
        raise ModelError(
            f"This is not the model of the run: {difference}.",
            "Its values cannot be merged with the others'.",
            "Build the model with the run's configuration and code, and freeze the same parameters.",
        )
    return {storage.name: parameter for storage, parameter in found}


def _one_device(parameters: dict[str, nn.Parameter]) -> torch.device:
    """The device of all parameters, or `ModelError` naming the first that is elsewhere or nowhere."""
    first_name, first = next(iter(parameters.items()))
    for name, parameter in parameters.items():
        if parameter.device != first.device:
            raise ModelError(
                f"Parameter {first_name} is on {first.device} and {name} on {parameter.device}.",
                "A fragment is copied at one boundary of one device, so this model cannot be joined.",
                "Put all trainable parameters on one device, or freeze those that are elsewhere.",
            )
    if first.device.type == "meta":
        raise ModelError(
            f"Parameter {first_name} is on the meta device.",
            "It has a shape but no values to exchange.",
            "Materialise the model (model.to_empty, then load or initialise it) before joining.",
        )
    return first.device
