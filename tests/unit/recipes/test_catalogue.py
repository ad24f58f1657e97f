import json
import subprocess
import sys

import pytest

from atoll.config import RunConfig
from atoll.errors import RecipeError
from atoll.recipes import RECIPES, SIZES, load_recipe, recipe_from

ALL = [(name, size) for name in RECIPES for size in SIZES]


def test_importing_the_recipes_imports_neither_torch_nor_transformers():
    code = (
        "import sys; from atoll.recipes import load_recipe; load_recipe('gemma').describe();"
        "sys.exit(str({'torch', 'transformers', 'sklearn', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip() == "set()"


def test_the_recipes_are_these_six():
    assert list(RECIPES) == ["gemma", "gemma-moe", "vit-digits", "text", "text-moe", "digits"]
    assert SIZES == ("tiny", "small")


@pytest.mark.parametrize(("name", "size"), ALL)
def test_settings_survive_json_and_build_the_same_recipe(name, size):
    recipe = load_recipe(name, size, seed=3)
    assert recipe_from(json.loads(json.dumps(recipe.settings()))) == recipe


@pytest.mark.parametrize(("name", "size"), ALL)
def test_the_tables_are_settings_that_a_run_accepts_and_merge_25_times(name, size):
    recipe = load_recipe(name, size)
    toml = "\n".join(
        f"[{section}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items())
        for section, table in recipe.tables.items()
    )
    config = RunConfig.from_toml(toml)
    assert recipe.steps // config.sync.interval_steps >= 25
    outer = (0.7, 0.9) if recipe.preset.network else (0.7, 0.5)
    assert (config.outer.learning_rate, config.outer.momentum) == outer


def test_gemma_sends_four_bits_both_ways():
    assert load_recipe("gemma").tables["codec"] == {"up": "int4", "down": "int4"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("gema",),
            r"no recipe 'gema'\.[\s\S]*Did you mean gemma\? The recipes are gemma, gemma-moe, vit-digits,",
        ),
        (("resnet",), r"no recipe 'resnet'\.[\s\S]*\nThe recipes are"),
        (("gemma", "smal"), r"no size 'smal'\.[\s\S]*Did you mean small\? The sizes are tiny, small\."),
    ],
)
def test_an_unknown_recipe_or_size_is_refused_with_a_guess(arguments, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe(*arguments)


@pytest.mark.parametrize("name", ["vit-digits", "digits"])
def test_text_for_an_image_recipe_is_refused(name, tmp_path):
    with pytest.raises(RecipeError, match=rf"{name} cannot train on"):
        load_recipe(name, data=str(tmp_path))


@pytest.mark.parametrize(
    ("name", "instead"), [("text", "gemma"), ("text-moe", "gemma"), ("digits", "vit-digits")]
)
def test_a_lean_recipe_trains_its_own_network_and_says_which_one_takes_a_users(name, instead):
    with pytest.raises(
        RecipeError, match=rf"{name} cannot train hf:my/model\.[\s\S]*or train {instead} with it"
    ):
        load_recipe(name, model="hf:my/model")


def test_a_lean_decoder_reads_a_users_text(tmp_path):
    (tmp_path / "a.txt").write_text("red blue " * 1_000)
    assert "the text in" in load_recipe("text", data=str(tmp_path)).describe()


@pytest.mark.parametrize("size", ["tiny", "small"])
@pytest.mark.parametrize(("name", "task"), [("text", "text"), ("text-moe", "moe"), ("digits", "vision")])
def test_lean_recipes_are_what_the_lab_trains_for_four_learners(name, task, size):
    from atoll.sim.lab.experiments.common import Place
    from atoll.sim.lab.fleets import tokens_per_example
    from atoll.sim.lab.sizes import shape_of

    place = Place("decoupled", 4, task, "defaults")
    cell, recipe = place.cell(size, 0), load_recipe(name, size)
    preset, config = recipe.preset, RunConfig.from_tables(recipe.tables)
    assert (4 * preset.batch_size, preset.learning_rate) == (cell.batch, cell.learning_rate)
    assert recipe.steps * cell.batch * tokens_per_example(cell) == cell.tokens
    assert preset.shape == shape_of(task, size)
    assert (*config.outer.eta_mu, config.sync.merge_rule) == (cell.eta, cell.mu, cell.merge_rule)
    assert (config.sync.interval_steps, config.sync.num_fragments) == (
        cell.interval_steps,
        cell.num_fragments,
    )


def test_a_missing_folder_is_refused_when_the_recipe_is_loaded(tmp_path):
    with pytest.raises(RecipeError, match="does not exist"):
        load_recipe("gemma", data=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "settings", [{}, {"name": "gemma"}, {**load_recipe("gemma").settings(), "colour": "red"}]
)
def test_settings_that_are_not_a_recipes_are_refused(settings):
    with pytest.raises(RecipeError, match="no settings of a recipe"):
        recipe_from(settings)


def test_a_recipe_describes_itself_in_one_line():
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert load_recipe("gemma").describe() == (
        f"gemma tiny: a Gemma decoder of 2 layers, on up to 4 MB of Python {version}'s standard library, "
        "byte by byte, 8 x 64 tokens a step"
    )
    assert "4 experts" in load_recipe("gemma-moe", "small").describe()
    assert "scikit-learn's digits, 32 images a step" in load_recipe("vit-digits").describe()
    assert "a lean decoder of 2 layers with 4 experts" in load_recipe("text-moe").describe()
    assert "on variants of scikit-learn's digits" in load_recipe("digits").describe()


def test_units_are_what_is_counted():
    assert [load_recipe(name).unit for name in RECIPES] == ["tokens", "tokens", "images"] * 2
