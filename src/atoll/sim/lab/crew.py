"""The networks of all learners in one stack, and their steps computed together.

A learner's values change only at its own step boundaries. So the gradient of the step that it is in may be
computed at any moment until that step ends; and when one is needed, those of all other learners that are in
the middle of a step are computed in the same pass. Which steps share a pass follows from the calendar alone,
so the bits do too. A learner's model is an ordinary module whose parameters are rows of the stack: replicas,
optimizers and merges see nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from atoll.recipes.networks import Network, forward_stack
from atoll.sim.lab.data import Examples

__all__ = ["Crew", "score"]

SCORE_EXAMPLES = 32
"""Held-out examples in one pass."""


@dataclass(slots=True)
class Crew:
    """S networks of one shape, all with the same initial values."""

    make: Callable[[], Network]
    """The network with its initial values, always the same."""
    size: int
    is_stacked: bool = True
    """Whether steps in flight are computed together; if not, one by one."""
    models: list[Network] = field(init=False)
    stacks: dict[str, Tensor] = field(init=False)
    waiting: dict[int, Examples] = field(default_factory=dict)
    """Steps in flight whose gradients are not computed yet."""
    computed: set[int] = field(default_factory=set)
    """Steps in flight whose gradients are in the model already."""
    passes: int = 0
    parameters: list[dict[str, nn.Parameter]] = field(init=False)
    """Of each model by name: walking the modules in every step would cost as much as a small layer."""

    def __post_init__(self) -> None:
        first = self.make()
        self.stacks = {
            name: parameter.detach().repeat(self.size, *[1] * parameter.dim())
            for name, parameter in first.named_parameters()
        }
        self.models = [self._row(slot) for slot in range(self.size)]
        self.parameters = [dict(model.named_parameters()) for model in self.models]

    def _row(self, slot: int) -> Network:
        model = self.make()
        for name, stack in self.stacks.items():
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, nn.Parameter(stack[slot]))
        return model

    def begin_again(self, slot: int) -> None:
        """Put the initial values back: a new life."""
        self.forget(slot)
        with torch.no_grad():
            for parameter, initial in zip(
                self.models[slot].parameters(), self.make().parameters(), strict=True
            ):
                parameter.copy_(initial)

    def forget(self, slot: int) -> None:
        """The step in flight comes to nothing."""
        self.waiting.pop(slot, None)
        self.computed.discard(slot)

    def prepare(self, slot: int, examples: Examples) -> None:
        """A step begins: its examples are known, and its values stay until it ends."""
        self.waiting[slot] = examples

    def is_in_flight(self, slot: int) -> bool:
        """Whether a step of this network has begun and not ended."""
        return slot in self.waiting or slot in self.computed

    def gradients(self, slot: int) -> None:
        """A step ends: put its gradients into the model."""
        if slot in self.computed:
            self.computed.discard(slot)
            return  # together with another learner's
        shape = self.waiting[slot].inputs.shape
        together = [slot]
        if self.is_stacked:
            together = sorted(s for s, one in self.waiting.items() if one.inputs.shape == shape)
        batches = [self.waiting.pop(one) for one in together]
        inputs = torch.stack([batch.inputs for batch in batches])
        targets = torch.stack([batch.targets for batch in batches])
        found = self._backward(together, inputs, targets)
        self.passes += 1
        self.computed.update(one for one in together if one != slot)
        for row, one in enumerate(together):
            for name, parameter in self.parameters[one].items():
                parameter.grad = found[name][row]

    def _backward(self, slots: list[int], inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Gradients [S, ...] of each network's own mean loss."""
        low, high = slots[0], slots[-1] + 1
        if high - low == len(slots):
            values = {name: stack[low:high].detach() for name, stack in self.stacks.items()}
        else:
            values = {name: stack[slots] for name, stack in self.stacks.items()}
        for value in values.values():
            value.requires_grad_(True)
        logits = forward_stack(self.models[0].shape, values, inputs)
        flat = targets.flatten()
        loss = cross_entropy(logits.flatten(0, -2), flat, reduction="sum") / (len(flat) // len(slots))
        found = torch.autograd.grad(loss, list(values.values()))
        # bmm leaves transposed gradients, and the fused AdamW reads memory as it lies.
        return {name: gradient.contiguous() for name, gradient in zip(values, found, strict=True)}


def score(model: Network, heldout: Examples, most: int | None = None) -> tuple[float, float]:
    """Mean loss per target, in nats, and the share of targets ranked first; of about `most` examples."""
    stride = max(1, len(heldout.inputs) // most) if most else 1
    inputs, wanted = heldout.inputs[::stride], heldout.targets[::stride]
    total = right = 0.0
    values = {name: parameter.detach().unsqueeze(0) for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for low in range(0, len(inputs), SCORE_EXAMPLES):
            part = slice(low, low + SCORE_EXAMPLES)
            logits = forward_stack(model.shape, values, inputs[part].unsqueeze(0)).flatten(0, -2)
            targets = wanted[part].flatten()
            total += float(cross_entropy(logits, targets, reduction="sum"))
            right += float((logits.argmax(dim=-1) == targets).sum())
    return total / wanted.numel(), right / wanted.numel()
