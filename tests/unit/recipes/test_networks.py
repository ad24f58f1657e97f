"""The lean networks: one learner's module and a stack of them compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from atoll.numerics.partition import partition
from atoll.recipes import networks
from atoll.recipes.networks import Kind, Network, build, forward_stack

SHAPES: dict[Kind, dict[str, int]] = {
    "text": {"width": 16, "layers": 2, "heads": 2},
    "moe": {"width": 16, "layers": 2, "heads": 2, "experts": 4, "hidden": 8},
    "vision": {"width": 16, "layers": 1, "heads": 2},
}
KINDS = list(SHAPES)


def network(kind: Kind, seed: int = 0) -> Network:
    torch.manual_seed(seed)
    return build(kind, SHAPES[kind])


def inputs(kind: Kind, *size: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if kind == "vision":
        return torch.randn(*size, 1, 8, 8, generator=generator)
    return torch.randint(0, 256, (*size, 12), generator=generator)


def logits(model: Network, kind: Kind, batch: Tensor) -> Tensor:
    return model(pixel_values=batch).logits if kind == "vision" else model(input_ids=batch).logits


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_computes_what_each_network_computes_alone(kind: Kind):
    models = [network(kind, seed) for seed in range(3)]
    batch = inputs(kind, 3, 2)
    alone = torch.stack([logits(model, kind, batch[m]) for m, model in enumerate(models)])
    values = {
        name: torch.stack([dict(model.named_parameters())[name] for model in models])
        for name, _ in models[0].named_parameters()
    }
    torch.testing.assert_close(forward_stack(models[0].shape, values, batch), alone)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_has_a_gradient(kind: Kind):
    model = network(kind)
    logits(model, kind, inputs(kind, 4)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("kind", ["text", "moe"])
def test_a_byte_is_predicted_from_those_before_it_only(kind: Kind):
    model, batch = network(kind), inputs(kind, 1)
    other = batch.clone()
    other[0, 8:] = (other[0, 8:] + 1) % 256
    before, after = logits(model, kind, batch), logits(model, kind, other)
    torch.testing.assert_close(before[0, :8], after[0, :8])
    assert (before[0, 8:] - after[0, 8:]).abs().max() > 1e-3


def test_a_picture_is_seen_whole():
    model, batch = network("vision"), inputs("vision", 1)
    corner = batch.clone()
    corner[0, 0, 7, 7] += 1.0
    assert (logits(model, "vision", batch) - logits(model, "vision", corner)).abs().max() > 1e-4


def test_two_experts_share_every_byte():
    """With two of four experts zeroed, bytes routed to those alone would come out unchanged by the MLP."""
    model = network("moe")
    whole = logits(model, "moe", inputs("moe", 2))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "experts_up" in name:
                parameter[2:] = 0.0
    assert (logits(model, "moe", inputs("moe", 2)) - whole).abs().max() > 1e-4


def test_experts_are_merged_one_by_one_and_embeddings_by_the_mean():
    manifest = partition(network("moe"), 4)
    rules = {}
    for fragment in manifest.fragments:
        for unit in fragment.units:
            rules.setdefault(unit.storage, set()).add(unit.rule)
    assert rules["embedding.weight"] == {"mean"}
    assert rules["blocks.0.experts_up"] == {"rda"}
    experts = [u for f in manifest.fragments for u in f.units if u.storage == "blocks.0.experts_up"]
    assert len(experts) == 4


def test_the_same_seed_gives_the_same_weights():
    first, second = network("text", 5), network("text", 5)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.skipif(not networks.HAS_ONEDNN, reason="this torch is built without oneDNN")
def test_wide_matrices_are_multiplied_as_narrow_ones_are(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    model = build("text", {"width": networks.WIDE, "layers": 1, "heads": 2})
    values = {
        name: parameter.detach().repeat(3, *[1] * parameter.dim())
        for name, parameter in model.named_parameters()
    }
    batch, used = inputs("text", 3, 2), []
    product = networks._each
    monkeypatch.setattr(networks, "_each", lambda *pair: used.append(1) or product(*pair))

    def both() -> list[Tensor]:
        for value in values.values():
            value.requires_grad_(True)
        logits = forward_stack(model.shape, values, batch)
        return [logits.detach(), *torch.autograd.grad(logits.square().mean(), list(values.values()))]

    wide = both()
    assert used
    monkeypatch.setattr(networks, "HAS_ONEDNN", False)
    for ours, theirs in zip(wide, both(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
