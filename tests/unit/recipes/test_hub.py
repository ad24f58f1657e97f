"""Users' own models and datasets. The hub is out of reach here, so what it would give stands on disk."""

import json
import sys
import types
from typing import Any

import pytest
import torch

from atoll.errors import RecipeError
from atoll.recipes import Recipe, Shard, examples, hub, load_recipe, recipe_from, text

LLAMA = {
    "model_type": "llama", "vocab_size": 300, "hidden_size": 16, "intermediate_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
}  # fmt: skip


def build(recipe: Recipe) -> Any:
    """The model as the class that it is, for tests that look inside."""
    return recipe.build_model()


@pytest.fixture
def config_file(tmp_path):
    def write(**values):
        file = tmp_path / "my-config.json"
        file.write_text(json.dumps(values))
        return f"hf:{file}"

    return write


def test_a_config_file_becomes_a_model_with_random_weights_of_the_seed(config_file):
    name = config_file(**LLAMA)
    one, two, other = (build(load_recipe("gemma", model=name, seed=seed)) for seed in (0, 0, 1))
    assert type(one).__name__ == "LlamaForCausalLM"
    assert torch.equal(one.lm_head.weight, two.lm_head.weight)
    assert not torch.equal(one.lm_head.weight, other.lm_head.weight)


def test_a_users_model_trains_on_the_recipes_bytes(config_file):
    recipe = load_recipe("gemma", model=config_file(**LLAMA))
    model = build(recipe)
    loss = recipe.loss(model, next(recipe.batches(Shard(0, 1, 0))))
    loss.backward()
    assert 5 < loss.item() < 6.5
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_folder_with_weights_gives_those_weights(tmp_path):
    recipe = load_recipe("gemma", seed=5)
    saved = build(recipe)
    saved.save_pretrained(tmp_path / "mine")
    loaded = build(load_recipe("gemma", seed=0, model=f"hf:{tmp_path / 'mine'}"))
    assert torch.equal(loaded.model.embed_tokens.weight, saved.model.embed_tokens.weight)
    assert loaded.training


def test_a_folder_without_weights_gives_random_ones(tmp_path):
    build(load_recipe("gemma")).config.save_pretrained(tmp_path)
    model = build(load_recipe("gemma", model=f"hf:{tmp_path}"))
    assert type(model).__name__ == "Gemma4ForCausalLM"


def test_a_relative_model_is_found_again_from_another_folder(tmp_path, monkeypatch, config_file):
    config_file(**LLAMA)
    monkeypatch.chdir(tmp_path)
    settings = load_recipe("gemma", model="hf:my-config.json").settings()
    monkeypatch.chdir("/")
    assert build(recipe_from(settings)) is not None


def test_an_image_model_gets_the_digits_at_its_own_size(config_file):
    name = config_file(
        model_type="vit", hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, image_size=12, patch_size=4, num_channels=3,
    )  # fmt: skip
    recipe = load_recipe("vit-digits", model=name)
    batch = next(recipe.batches(Shard(0, 1, 0)))
    assert batch.inputs["pixel_values"].shape == (32, 3, 12, 12)
    assert recipe.loss(build(recipe), batch).item() == pytest.approx(2.3, abs=0.3)


def test_a_models_tokenizer_reads_the_text(tmp_path):
    save_word_tokenizer(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("red blue " * 2_000)
    recipe = load_recipe("gemma", model=f"hf:{tmp_path / 'model'}", data=str(tmp_path / "texts"))
    train = examples.load(recipe).train
    assert len(train) == 3_800 // 64  # two words in nine letters, and one twentieth held out
    assert set(train.batch(torch.arange(4), 0).inputs["input_ids"].flatten().tolist()) == {1, 2}


def save_word_tokenizer(folder):
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"?": 0, "red": 1, "blue": 2, "end": 3}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="end").save_pretrained(folder)


def test_a_hub_that_cannot_be_reached_is_one_clear_sentence():
    with pytest.raises(RecipeError) as caught:
        load_recipe("gemma", model="hf:nobody/no-such-model")
    assert "hf:nobody/no-such-model cannot be had from the Hugging Face hub" in caught.value.what
    assert "every learner would fail" in caught.value.so_what
    assert "HF_HUB_OFFLINE" in caught.value.now_what


def test_a_model_without_the_prefix_is_told_how_to_write_it():
    with pytest.raises(RecipeError, match="Write hf:google/gemma"):
        load_recipe("gemma", model="google/gemma")


@pytest.mark.parametrize(
    "name", ["hf:/no/such/folder", "hf:./here", "hf:conf.json", "hf:a/b/c", "hf:~/model"]
)
def test_what_looks_like_a_path_is_never_asked_for_at_the_hub(name):
    with pytest.raises(RecipeError, match="neither a file nor a folder"):
        load_recipe("gemma", model=name)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "cannot be read"),
        ("[1]", "names no model_type"),
        ('{"hidden_size": 4}', "names no model_type"),
        ('{"model_type": "no-such-type"}', "no-such-type"),
        ('{"model_type": "llama", "vocab_size": "many"}', "cannot be read"),
    ],
)
def test_a_config_that_is_none_is_refused(tmp_path, content, reason):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(RecipeError, match=reason):
        load_recipe("gemma", model=f"hf:{tmp_path / 'config.json'}")


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe("gemma", model=f"hf:{tmp_path}")


def test_a_vocabulary_too_small_for_bytes_is_refused(config_file):
    with pytest.raises(RecipeError, match=r"vocabulary of 100\.[\s\S]*256 or more"):
        load_recipe("gemma", model=config_file(**{**LLAMA, "vocab_size": 100}))


def test_a_language_model_for_images_is_refused(config_file):
    recipe = load_recipe("vit-digits", model=config_file(**LLAMA))
    with pytest.raises(RecipeError, match="vit-digits needs a model that classifies images"):
        build(recipe)


def test_weights_that_would_have_to_be_unpickled_are_not_loaded(tmp_path):
    build(load_recipe("gemma")).config.save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert not hub.has_weights(tmp_path)


def fake_datasets(monkeypatch, rows):
    """Stands in for the library `datasets`, which is optional."""
    module: Any = types.ModuleType("datasets")

    def load_dataset(name, split, streaming):
        assert (name, split, streaming) == ("owner/books", "train", True)
        if isinstance(rows, Exception):
            raise rows
        return iter(rows)

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_a_dataset_of_the_hub_becomes_documents(monkeypatch):
    fake_datasets(monkeypatch, [{"id": n, "text": f"row {n} " * 50} for n in range(200)])
    texts = text.read("hf:owner/books", 1, 10**6)
    assert len(texts.train) + len(texts.heldout) == 200
    assert len(texts.heldout) >= 2


def test_a_dataset_is_read_no_further_than_needed(monkeypatch):
    fake_datasets(monkeypatch, ({"body": "x" * 100} for _ in iter(int, 1)))
    assert len(hub.rows("hf:owner/books", 950)) == 10


@pytest.mark.parametrize("rows", [[], [{"label": 3}], [{"text": ""}]])
def test_a_dataset_without_text_is_refused(monkeypatch, rows):
    fake_datasets(monkeypatch, rows)
    with pytest.raises(RecipeError, match="has no text"):
        load_recipe("gemma", data="hf:owner/books")


def test_a_dataset_that_cannot_be_reached_is_refused(monkeypatch):
    fake_datasets(monkeypatch, ConnectionError("Couldn't reach the hub.\nlong story"))
    with pytest.raises(
        RecipeError, match=r"cannot be had from the Hugging Face hub: Couldn't reach the hub\.\n"
    ):
        load_recipe("gemma", data="hf:owner/books")


def test_a_missing_library_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(RecipeError, match="pip install datasets"):
        load_recipe("gemma", data="hf:owner/books")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(RecipeError, match=r"pip install 'atoll\[recipes\]'"):
        build(load_recipe("gemma"))


def test_the_hub_is_left_alone_unless_it_is_asked_for(monkeypatch):
    import os

    monkeypatch.delenv("HF_HUB_OFFLINE")
    hub.library("transformers", online=True)
    assert "HF_HUB_OFFLINE" not in os.environ
    hub.library("transformers")
    assert os.environ["HF_HUB_OFFLINE"] == "1"
