"""The recipes by name, their sizes, and the numbers that make them.

`tiny` is over in seconds to a minute on two cores, `small` in minutes. The settings of a run that
stand beside a recipe (`tables`) are for its default budget: fragments are merged 25 times or more.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from atoll.errors import RecipeError
from atoll.recipes import hub, text
from atoll.recipes.recipe import Preset, Recipe
from atoll.recipes.shapes import LEAN_SHAPES, WINDOW

__all__ = ["RECIPES", "SIZES", "load_recipe", "recipe_from"]

RECIPES: Mapping[str, str] = MappingProxyType(
    {
        "gemma": "a small Gemma decoder on the text of Python's standard library",
        "gemma-moe": "its sibling with a mixture of experts, on the same text",
        "vit-digits": "a small vision transformer on scikit-learn's handwritten digits",
        "text": "a lean decoder on the text of Python's standard library; needs no transformers",
        "text-moe": "its sibling with a mixture of experts, on the same text",
        "digits": "a lean vision transformer on many variants of scikit-learn's digits",
    }
)
SIZES = ("tiny", "small")


def load_recipe(
    name: str, size: str = "tiny", *, seed: int = 0, model: str | None = None, data: str | None = None
) -> Recipe:
    """The recipe of that name and size, with the user's own model or text in place of ours if given.

    What the user brings is looked at here: a folder without text or a hub that cannot be reached
    is refused before anything is started. Nothing is read or built yet for a recipe of ours.
    """
    _known("recipe", name, tuple(RECIPES))
    _known("size", size, SIZES)
    preset = PRESETS[name, size]
    if data is not None and preset.unit == "images":
        raise RecipeError(
            f"The recipe {name} cannot train on {data}.",
            "It is made for images, and --data brings text.",
            "Leave --data out, or train gemma on that text.",
        )
    if model is not None and preset.network is not None:
        raise RecipeError(
            f"The recipe {name} cannot train {model}.",
            "It is made of a lean network of ours, whose settings suit nothing else.",
            f"Leave --model out, or train {'vit-digits' if preset.unit == 'images' else 'gemma'} with it.",
        )
    if model is not None:
        hub.config(model, preset.unit)
        model = hub.PREFIX + hub.source(model)
    return Recipe(name=name, size=size, seed=seed, model=model, data=text.resolve(data), preset=preset)


def recipe_from(settings: Mapping[str, str | int | None]) -> Recipe:
    """The recipe whose `settings()` these are."""
    wanted = {"name", "size", "seed", "model", "data"}
    if set(settings) != wanted:
        raise RecipeError(
            f"These are no settings of a recipe: {', '.join(sorted(settings)) or 'nothing'}.",
            "The recipe cannot be built again without guessing.",
            "Pass what Recipe.settings() returned, unchanged.",
        )
    optional = {key: settings[key] for key in ("model", "data")}
    return load_recipe(
        str(settings["name"]),
        str(settings["size"]),
        seed=int(settings["seed"] or 0),
        **{key: None if value is None else str(value) for key, value in optional.items()},
    )


def _known(kind: str, value: str, known: Sequence[str]) -> None:
    if value in known:
        return
    close = difflib.get_close_matches(value, known, n=1)
    guess = f"Did you mean {close[0]}? " if close else ""
    raise RecipeError(
        f"There is no {kind} {value!r}.",
        "There is nothing to train.",
        f"{guess}The {kind}s are {', '.join(known)}.",
    )


def _tables(
    num_fragments: int, interval_steps: int, **more: Mapping[str, object]
) -> Mapping[str, Mapping[str, object]]:
    """RDA with 0.7 / 0.5 does better than with 0.4 / 0.9 over so few merges: momentum needs a long run."""
    return MappingProxyType({
        "sync": {"num_fragments": num_fragments, "interval_steps": interval_steps, "merge_rule": "rda"},
        "outer": {"learning_rate": 0.7, "momentum": 0.5},
        **more,
    })  # fmt: skip


def _text(size: str, shape: Mapping[str, int | float]) -> Preset:
    """The decoder and its sibling differ in shape alone."""
    layers = shape["num_hidden_layers"]
    experts = f" with {shape['num_experts']} experts" if "num_experts" in shape else ""
    about = f"a Gemma decoder of {layers} layers{experts}"
    codec = {"up": "int4", "down": "int4"}
    if size == "tiny":
        return Preset(
            about=about, shape=shape, unit="tokens", steps=600, batch_size=8, window=64,
            train_bytes=4_000_000, heldout_bytes=64_000, learning_rate=6e-3, weight_decay=0.1,
            tables=_tables(12, 24, codec=codec),
        )  # fmt: skip
    return Preset(
        about=about, shape=shape, unit="tokens", steps=1_500, batch_size=6, window=128,
        train_bytes=16_000_000, heldout_bytes=256_000, learning_rate=3e-3, weight_decay=0.1,
        tables=_tables(24, 48, codec=codec),
    )  # fmt: skip


def _lean(network: Literal["text", "moe"], size: Literal["tiny", "small"]) -> Preset:
    """What the lab trains, on as many tokens, with the settings that its sweep found for four learners."""
    shape = LEAN_SHAPES[network, size]
    experts = f" with {shape['experts']} experts" if network == "moe" else ""
    is_tiny = size == "tiny"
    return Preset(
        about=f"a lean decoder of {shape['layers']} layers{experts}", shape=shape, network=network,
        unit="tokens", steps=6_144 if is_tiny else 13_440, batch_size=1 if is_tiny else 4, window=WINDOW,
        train_bytes=4_000_000 if is_tiny else 16_000_000, heldout_bytes=128_000,
        learning_rate=LEAN_RATES[network, size], weight_decay=0.1, tables=LEAN_TABLES,
    )  # fmt: skip


def _lean_digits(size: Literal["tiny", "small"]) -> Preset:
    shape = LEAN_SHAPES["vision", size]
    return Preset(
        about=f"a lean ViT of {shape['layers']} layers", shape=shape, network="vision", unit="images",
        steps=6_144 if size == "tiny" else 12_288, batch_size=4 if size == "tiny" else 8,
        learning_rate=LEAN_RATES["vision", size], weight_decay=0.1, tables=LEAN_TABLES,
    )  # fmt: skip


LEAN_RATES: Mapping[tuple[str, str], float] = MappingProxyType({
    ("text", "tiny"): 2.83e-3, ("text", "small"): 5.83e-4,
    ("moe", "tiny"): 2e-3, ("moe", "small"): 1.17e-3,
    ("vision", "tiny"): 1e-3, ("vision", "small"): 7.08e-4,
})  # fmt: skip
"""As the lab tuned them for four learners by our defaults; at `small` those of experts and images follow from
`tiny`."""
LEAN_TABLES: Mapping[str, Mapping[str, object]] = MappingProxyType({
    "sync": {"num_fragments": 12, "interval_steps": 24},
    "outer": {"learning_rate": 0.7, "momentum": 0.9},
})  # fmt: skip

TINY = {
    "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 32, "max_position_embeddings": 512,
}  # fmt: skip
SMALL = {
    "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "sliding_window": 64, "max_position_embeddings": 512,
}  # fmt: skip
TINY_EXPERTS = {"intermediate_size": 128, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64}
SMALL_EXPERTS = {"intermediate_size": 128, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 96}
VIT = {"num_attention_heads": 4, "initializer_range": 0.1}
TINY_VIT = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "patch_size": 4}
SMALL_VIT = {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 4, "patch_size": 2}

PRESETS: Mapping[tuple[str, str], Preset] = MappingProxyType({
    ("gemma", "tiny"): _text("tiny", TINY),
    ("gemma", "small"): _text("small", SMALL),
    ("gemma-moe", "tiny"): _text("tiny", TINY | TINY_EXPERTS),
    ("gemma-moe", "small"): _text("small", SMALL | SMALL_EXPERTS),
    ("vit-digits", "tiny"): Preset(
        about="a ViT of 2 layers", shape=VIT | TINY_VIT, unit="images", steps=300,
        batch_size=32, learning_rate=3e-3, weight_decay=0.05, tables=_tables(6, 12),
    ),
    ("vit-digits", "small"): Preset(
        about="a ViT of 4 layers", shape=VIT | SMALL_VIT, unit="images", steps=1_000,
        batch_size=64, learning_rate=1e-3, weight_decay=0.05, tables=_tables(12, 24),
    ),
    ("text", "tiny"): _lean("text", "tiny"),
    ("text", "small"): _lean("text", "small"),
    ("text-moe", "tiny"): _lean("moe", "tiny"),
    ("text-moe", "small"): _lean("moe", "small"),
    ("digits", "tiny"): _lean_digits("tiny"),
    ("digits", "small"): _lean_digits("small"),
})  # fmt: skip
