"""Recipes from end to end: the same weights, the same batches, and a loss that falls."""

import subprocess
import sys
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn

from atoll.errors import RecipeError
from atoll.recipes import Batch, Recipe, Shard, examples, load_recipe, order
from atoll.recipes.learning import schedule
from atoll.recipes.models import gemma3_config, gemma4_config


def build(recipe: Recipe) -> Any:
    """The model as the class that it is, for tests that look inside."""
    return recipe.build_model()


TINY = ["gemma", "gemma-moe", "vit-digits", "text", "text-moe", "digits"]


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", TINY)
def test_the_seed_decides_the_weights_and_the_global_state_does_not(name):
    torch.manual_seed(1)
    first = weights(build(load_recipe(name)))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert same(weights(build(load_recipe(name))), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert not same(weights(build(load_recipe(name, seed=1))), first)


@pytest.mark.parametrize(
    ("name", "size", "least", "most"),
    [
        ("gemma", "tiny", 100_000, 200_000),
        ("gemma", "small", 800_000, 1_000_000),
        ("gemma-moe", "tiny", 100_000, 200_000),
        ("gemma-moe", "small", 800_000, 1_200_000),
        ("vit-digits", "tiny", 30_000, 60_000),
        ("vit-digits", "small", 200_000, 400_000),
        ("text", "tiny", 80_000, 120_000),
        ("text", "small", 700_000, 900_000),
        ("text-moe", "tiny", 80_000, 120_000),
        ("text-moe", "small", 700_000, 900_000),
        ("digits", "tiny", 60_000, 120_000),
        ("digits", "small", 700_000, 900_000),
    ],
)
def test_models_have_the_size_they_promise_and_train_in_f32(name, size, least, most):
    model = build(load_recipe(name, size))
    assert least <= sum(parameter.numel() for parameter in model.parameters()) <= most
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.training


def test_the_decoder_is_a_gemma_4_with_tied_bytes():
    model = build(load_recipe("gemma"))
    assert type(model).__name__ == "Gemma4ForCausalLM"
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert model.config.vocab_size == 256
    assert model.config.layer_types == ["sliding_attention", "full_attention"]


def test_experts_are_stacked_in_one_tensor():
    shapes = {name: tuple(p.shape) for name, p in build(load_recipe("gemma-moe")).named_parameters()}
    assert shapes["model.layers.0.experts.gate_up_proj"] == (4, 128, 64)
    assert shapes["model.layers.1.experts.down_proj"] == (4, 64, 64)


def test_an_older_transformers_gets_a_gemma_3_of_about_the_same_size():
    import transformers

    shape = load_recipe("gemma").preset.shape
    sizes = [
        sum(p.numel() for p in model.parameters())
        for model in (
            transformers.Gemma3ForCausalLM(gemma3_config(shape)),
            transformers.Gemma4ForCausalLM(gemma4_config(shape)),
        )
    ]
    assert abs(sizes[0] - sizes[1]) < 2_000


def test_gemma_3_has_no_experts_and_says_so():
    with pytest.raises(RecipeError, match="does not have Gemma 4"):
        gemma3_config(load_recipe("gemma-moe").preset.shape)


def test_text_batches_predict_the_next_byte_and_count_what_they_predict():
    batch = next(load_recipe("gemma").batches(Shard(0, 4, 0)))
    assert batch.inputs["input_ids"].shape == (8, 64)
    assert batch.inputs["input_ids"].dtype == torch.int64
    assert torch.equal(batch.inputs["input_ids"][:, 1:], batch.inputs["targets"][:, :-1])
    assert batch.tokens == 8 * 64
    assert int(batch.inputs["input_ids"].max()) < 256


def test_every_byte_but_the_first_is_a_target_once_an_epoch(tmp_path):
    (tmp_path / "digits.txt").write_bytes(bytes(48 + n % 10 for n in range(20_001)))
    recipe = load_recipe("gemma", data=str(tmp_path))
    train = examples.load(recipe).train
    assert len(train) == (19_001 - 1) // 64
    batch = train.batch(torch.arange(len(train)), 0)
    targets = batch.inputs["targets"].flatten()
    assert torch.equal(targets, torch.tensor([48 + (n + 1) % 10 for n in range(len(targets))]))


def test_image_batches_are_digits_and_count_images():
    batch = next(load_recipe("vit-digits").batches(Shard(1, 2, 0)))
    assert batch.inputs["pixel_values"].shape == (32, 1, 8, 8)
    assert [v.item() for v in batch.inputs["pixel_values"].aminmax()] == [-1, 1]
    assert set(batch.inputs["targets"].tolist()) <= set(range(10))
    assert batch.tokens == 32


def test_no_digit_is_on_both_sides():
    split = examples.load(load_recipe("vit-digits"))
    assert len(split.train) + len(split.heldout) == 1797
    assert 300 <= len(split.heldout) <= 420


@pytest.mark.parametrize("name", TINY)
def test_a_cursor_resumes_right_after_its_batch(name):
    recipe, shard = load_recipe(name), Shard(1, 3, 9)
    straight = list(islice(recipe.batches(shard), 6))
    resumed = list(islice(recipe.batches(shard, straight[2].cursor), 3))
    for expected, got in zip(straight[3:], resumed, strict=True):
        assert same(expected.inputs, got.inputs)
        assert expected.cursor == got.cursor


def test_shards_of_a_text_share_no_window(tmp_path):
    (tmp_path / "numbers.txt").write_text("".join(f"{n:07d}\n" for n in range(2_000)))
    recipe = load_recipe("gemma", data=str(tmp_path))
    seen = [
        {tuple(row) for batch in islice(recipe.batches(Shard(index, 2, 0)), 20) for row in rows(batch)}
        for index in range(2)
    ]
    assert not seen[0] & seen[1]
    assert sum(map(len, seen)) == len(examples.load(recipe).train)


def rows(batch):
    return batch.inputs["input_ids"].tolist()


def train(recipe, steps):
    model = build(recipe)
    optimizer = recipe.build_optimizer(model)
    for batch in islice(recipe.batches(Shard(0, 1, 0)), steps):
        recipe.loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize(
    ("name", "steps", "start", "end"),
    [
        ("gemma", 40, 5.5, 3.6),
        ("gemma-moe", 40, 5.5, 3.6),
        ("text", 60, 5.55, 3.4),
        ("text-moe", 60, 5.55, 3.5),
    ],
)
def test_a_decoder_learns_bytes(name, steps, start, end):
    recipe = load_recipe(name)
    assert recipe.evaluate(build(recipe), 2) == pytest.approx(start, abs=0.1)  # ln 256
    assert recipe.evaluate(train(recipe, steps), 2) < end


def test_a_vit_learns_digits():
    recipe = load_recipe("vit-digits")
    assert recipe.evaluate(build(recipe)) > 2.2  # ln 10 is 2.3
    model = train(recipe, 150)
    assert recipe.evaluate(model) < 0.6
    assert recipe.accuracy(model) > 0.8


def test_a_lean_vit_learns_digits():
    recipe = load_recipe("digits")
    assert recipe.evaluate(build(recipe), 4) > 2.2
    model = train(recipe, 1_200)
    assert recipe.evaluate(model, 32) < 2.1
    assert recipe.accuracy(model, 32) > 0.2


def test_lean_recipes_need_no_transformers():
    code = (
        "import sys; sys.modules['transformers'] = None; from atoll.recipes import Shard, load_recipe;"
        "recipe = load_recipe('text'); model = recipe.build_model();"
        "print(recipe.loss(model, next(recipe.batches(Shard(0, 4, 0)))).item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert 5 < float(done.stdout) < 6.5


@pytest.mark.parametrize("name", ["text", "digits"])
def test_shards_of_a_lean_recipe_share_no_example(name):
    recipe = load_recipe(name)
    count = len(examples.load(recipe).train)
    firsts = [next(order.stream(Shard(index, 4, 7), count, count // 4, 0)).tolist() for index in range(4)]
    assert len({number for first in firsts for number in first}) == 4 * (count // 4)


def test_evaluating_is_repeatable_and_leaves_mode_gradients_and_random_state_alone():
    recipe = load_recipe("vit-digits")
    model = build(recipe)
    state = torch.get_rng_state()
    scores = {recipe.evaluate(model) for _ in range(2)}
    assert model.training
    model.eval()
    scores.add(recipe.evaluate(model))
    assert not model.training
    assert len(scores) == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


class Spy(nn.Module):
    """A model that counts what it is shown, forgets in training, and always says 3."""

    def __init__(self):
        super().__init__()
        self.shown = []

    def forward(self, pixel_values):
        assert not self.training
        self.shown.append(len(pixel_values))
        self.logits = nn.functional.one_hot(torch.full((len(pixel_values),), 3), 10).float()
        return self


def test_a_score_covers_the_heldout_data_once_and_weighs_every_image_alike():
    recipe, spy = load_recipe("vit-digits"), Spy()
    heldout: Any = examples.load(recipe).heldout
    share = recipe.accuracy(spy)
    assert sum(spy.shown) == len(heldout)
    assert share == pytest.approx((heldout.labels == 3).float().mean().item())


def test_max_batches_limits_a_score():
    recipe, spy = load_recipe("vit-digits"), Spy()
    recipe.evaluate(spy, max_batches=2)
    assert spy.shown == [128, 128]


def test_the_mode_comes_back_even_if_the_model_fails():
    class Broken(nn.Module):
        def forward(self, pixel_values):
            raise RuntimeError("out of memory")

    model = Broken()
    with pytest.raises(RuntimeError):
        load_recipe("vit-digits").evaluate(model)
    assert model.training


def test_only_matrices_that_are_no_embeddings_decay():
    recipe = load_recipe("gemma")
    model = build(recipe)
    model.model.norm.weight.requires_grad_(False)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decaying, other = (
        [names[id(p)] for p in group["params"]] for group in recipe.build_optimizer(model).param_groups
    )
    assert "model.layers.0.mlp.up_proj.weight" in decaying
    assert "model.embed_tokens.weight" in other
    assert "model.layers.0.input_layernorm.weight" in other
    assert len(decaying) + len(other) == len(names) - 1


def test_the_schedule_warms_up_and_falls_to_a_tenth():
    assert schedule(0.0) == pytest.approx(0.1)
    assert schedule(0.05) == pytest.approx(1.0)
    assert schedule(0.525) == pytest.approx(0.55)
    assert schedule(1.0) == pytest.approx(0.1)
    assert schedule(-1) == schedule(0)
    assert schedule(2) == schedule(1)
    falling = [schedule(0.05 + n / 100) for n in range(95)]
    assert falling == sorted(falling, reverse=True)


def test_a_text_shorter_than_an_example_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("too short")
    recipe = load_recipe("gemma", data=str(tmp_path))
    with pytest.raises(RecipeError, match=r"8 tokens to train on and 1 held out[\s\S]*takes 65 tokens"):
        next(recipe.batches(Shard(0, 1, 0)))


def test_a_batch_is_plain_data():
    batch = Batch({}, 3, 4)
    assert (batch.tokens, batch.cursor) == (3, 4)
