"""The networks: small relatives of Gemma and ViT from transformers, lean ones of ours, or the user's own.

The relatives are built from a config with random weights: the real architecture, at a size that a laptop
core trains. The Gemma decoder reads bytes, so its vocabulary is 256 and needs no tokenizer. Gemma 4 is taken
where transformers has it, else Gemma 3. The lean ones stand in `networks` and need no library but torch.
Initial weights are drawn from the recipe's seed with torch's global state put aside, so learners that draw
differently elsewhere still begin alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from atoll.errors import RecipeError
from atoll.recipes import hub, networks
from atoll.recipes.hub import NUM_BYTES, NUM_DIGITS
from atoll.recipes.recipe import Recipe

__all__ = ["build", "gemma3_config", "gemma4_config", "vit_config"]


def build(recipe: Recipe) -> nn.Module:
    """The model of a recipe with its initial weights, in f32 and in training mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model: nn.Module = _own(recipe) if recipe.model is None else _users(recipe, recipe.model)
    return model.float().train()


def gemma4_config(shape: Mapping[str, int | float]) -> Any:
    """A Gemma 4 text config without per-layer embeddings, which alone would have 270M parameters."""
    transformers = hub.library("transformers")
    return transformers.Gemma4TextConfig(
        **_decoder(shape),
        vocab_size_per_layer_input=NUM_BYTES,
        hidden_size_per_layer_input=0,
        global_head_dim=shape["head_dim"],
        enable_moe_block="num_experts" in shape,
    )


def gemma3_config(shape: Mapping[str, int | float]) -> Any:
    """The same decoder for a transformers that does not know Gemma 4 yet; it has no experts."""
    transformers = hub.library("transformers")
    if "num_experts" in shape:
        raise RecipeError(
            f"transformers {transformers.__version__} does not have Gemma 4.",
            "The recipe gemma-moe needs its experts, and Gemma 3 has none.",
            "Install a newer one (pip install -U transformers), or train gemma.",
        )
    return transformers.Gemma3TextConfig(**_decoder(shape), query_pre_attn_scalar=shape["head_dim"])


def vit_config(shape: Mapping[str, int | float]) -> Any:
    """A ViT for the digits as they are: 8 x 8 points, one channel."""
    transformers = hub.library("transformers")
    return transformers.ViTConfig(**shape, image_size=8, num_channels=1, num_labels=NUM_DIGITS)


def _own(recipe: Recipe) -> Any:
    shape = recipe.preset.shape
    if recipe.preset.network is not None:
        return networks.build(recipe.preset.network, shape)
    transformers = hub.library("transformers")
    if recipe.unit == "images":
        return transformers.ViTForImageClassification(vit_config(shape))
    if hasattr(transformers, "Gemma4ForCausalLM"):
        return transformers.Gemma4ForCausalLM(gemma4_config(shape))
    return transformers.Gemma3ForCausalLM(gemma3_config(shape))


def _users(recipe: Recipe, name: str) -> Any:
    config, path = hub.config(name, recipe.unit), hub.location(name)
    transformers = hub.library("transformers", online=path is None)
    images = recipe.unit == "images"
    maker = transformers.AutoModelForImageClassification if images else transformers.AutoModelForCausalLM
    try:
        if not hub.has_weights(path):
            return maker.from_config(config, dtype=torch.float32)
        how = {"config": config, "dtype": torch.float32, "ignore_mismatched_sizes": images}
        return maker.from_pretrained(hub.source(name), use_safetensors=True, **hub.NO_CODE, **how)
    except Exception as error:  # whatever the library finds wrong with it, the user brought it
        raise RecipeError(
            f"The model {name} cannot be built: {hub.first_line(error)}.",
            f"{recipe.name} needs a model that {'classifies images' if images else 'predicts text'}.",
            "Give such a model, or choose the recipe that fits this one.",
        ) from error


def _decoder(shape: Mapping[str, int | float]) -> dict[str, Any]:
    """What both Gemmas share: bytes in, bytes out, sliding windows but for the last layer."""
    layers = int(shape["num_hidden_layers"])
    return {
        **shape,
        "vocab_size": NUM_BYTES,
        "layer_types": ["sliding_attention"] * (layers - 1) + ["full_attention"],
        "tie_word_embeddings": True,
        "use_cache": False,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": 0,
    }
