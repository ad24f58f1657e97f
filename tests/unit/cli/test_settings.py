"""Flags become a run: what wins, what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.cli.settings import Kill, config_of, new_run_dir, parse_kill, parse_speeds, run_config
from atoll.errors import ConfigError, StoreError
from atoll.recipes import load_recipe

NAMES = ("syncer", "learner-0", "learner-1")
RECIPE = load_recipe("gemma")


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text("[sync]\nmin_quorum = 2\ninterval_steps = 30\n[budget]\nticks = 70\n", encoding="utf-8")
    return path


def test_a_recipe_alone_makes_a_whole_run():
    config = run_config(RECIPE, num_learners=4)
    assert config.sync.num_learners == 4
    assert config.sync.interval_steps == RECIPE.tables["sync"]["interval_steps"]
    assert config.budget.ticks == RECIPE.steps
    assert config.codec.up == "int4"


def test_a_file_wins_over_the_recipe_a_flag_over_the_file_and_set_over_all(config_file):
    config = run_config(RECIPE, num_learners=3, config_file=config_file)
    assert (config.sync.min_quorum, config.sync.interval_steps, config.budget.ticks) == (2, 30, 70)
    config = run_config(RECIPE, num_learners=3, steps=80, config_file=config_file)
    assert config.budget.ticks == 80
    config = run_config(
        RECIPE,
        num_learners=3,
        steps=80,
        config_file=config_file,
        settings=["budget.ticks=90", "codec.up=int8"],
    )
    assert (config.budget.ticks, config.codec.up) == (90, "int8")


def test_a_setting_is_read_as_toml_and_a_bare_word_as_text():
    settings = ["security.tls=false", "sync.alive_s=7.5", 'codec.down="bf16"', "sync.adopt = rebase"]
    config = run_config(RECIPE, num_learners=2, settings=settings)
    assert config.security.tls is False
    assert config.sync.alive_s == 7.5
    assert config.codec.down == "bf16"
    assert config.sync.adopt == "rebase"


def test_diloco_merges_the_whole_model_at_the_same_interval():
    config = run_config(RECIPE, num_learners=2, algorithm="diloco")
    assert (config.sync.algorithm, config.sync.num_fragments) == ("diloco", 1)
    assert config.sync.interval_steps == RECIPE.tables["sync"]["interval_steps"]


def test_streaming_keeps_the_fragments():
    config = run_config(RECIPE, num_learners=2, algorithm="streaming")
    assert config.sync.num_fragments == RECIPE.tables["sync"]["num_fragments"]


def test_the_seed_orders_the_data():
    assert run_config(RECIPE, num_learners=2, seed=5).data.seed == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"settings": ["sync.min_quorum"]}, "cannot be read"),
        ({"settings": ["min_quorum=2"]}, "cannot be read"),
        ({"settings": ["sync.min_quorums=2"]}, "not a setting"),
        ({"settings": ["sinc.min_quorum=2"]}, "not a section"),
        ({"settings": ["sync.min_quorum=3"]}, "2 learners"),
        ({"steps": 0}, "--steps is 0"),
        ({"algorithm": "data-parallel"}, "data-parallel"),
        ({"algorithm": "lockstep"}, "lockstep"),
    ],
)
def test_a_wrong_flag_is_refused_in_words(change, words):
    with pytest.raises(ConfigError, match=words) as refusal:
        run_config(RECIPE, num_learners=2, **change)
    assert refusal.value.so_what
    assert refusal.value.now_what


def test_a_wrong_file_is_named(tmp_path):
    (tmp_path / "bad.toml").write_text("[sync]\nmin_quorum = 0\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        run_config(RECIPE, num_learners=2, config_file=tmp_path / "bad.toml")


def test_a_syncer_goes_on_with_the_settings_of_its_run_unless_told_otherwise(tmp_path, config_file):
    (tmp_path / "config.toml").write_text("[sync]\ninterval_steps = 50\n", encoding="utf-8")
    assert config_of(tmp_path, None, {}, ()).sync.interval_steps == 50
    assert config_of(tmp_path, config_file, {}, ()).sync.interval_steps == 30
    changed = config_of(tmp_path, None, {"budget": {"ticks": 9}}, ["security.mtls=true"])
    assert (changed.sync.interval_steps, changed.budget.ticks, changed.security.mtls) == (50, 9, True)
    assert config_of(tmp_path / "new", None, {}, ()).budget.ticks == 0


def test_a_start_without_tls_is_not_remembered(tmp_path):
    plain = config_of(tmp_path, None, {"security": {"tls": False}}, ())
    assert not plain.security.tls
    (tmp_path / "config.toml").write_text(plain.to_toml(), encoding="utf-8")
    assert config_of(tmp_path, None, {}, ()).security.tls
    assert not config_of(tmp_path, None, {"security": {"tls": False}}, ()).security.tls
    assert not config_of(tmp_path, None, {}, ["security.tls=false"]).security.tls
    assert not config_of(tmp_path, tmp_path / "config.toml", {}, ()).security.tls  # the file was named


def test_a_run_that_asks_for_certificates_goes_on_asking(tmp_path):
    (tmp_path / "config.toml").write_text("[security]\nmtls = true\n", encoding="utf-8")
    assert config_of(tmp_path, None, {}, ()).security.mtls
    with pytest.raises(ConfigError, match=r"security\.mtls is true"):
        config_of(tmp_path, None, {"security": {"tls": False}}, ())


def test_a_kill_names_who_and_when():
    assert parse_kill("learner-1@40%", NAMES) == Kill("learner-1", share=0.4)
    assert parse_kill("syncer@12.5s", NAMES) == Kill("syncer", after_s=12.5)
    assert str(parse_kill("learner-1@40%", NAMES)) == "40 %"
    assert str(parse_kill("learner-1@12s", NAMES)) == "12 s"


def test_a_kill_is_due_by_progress_or_by_time():
    assert not Kill("learner-1", share=0.4).is_due(0.39, 99.0)
    assert Kill("learner-1", share=0.4).is_due(0.4, 0.0)
    assert not Kill("learner-1", after_s=12.0).is_due(0.9, 11.9)
    assert Kill("learner-1", after_s=12.0).is_due(0.0, 12.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("learner-1", "cannot be read"),
        ("learner-1@", "cannot be read"),
        ("learner-1@40", "cannot be read"),
        ("learner-1@-4%", "cannot be read"),
        ("learner-7@40%", "no learner-7"),
        ("learner-1@100%", "over"),
    ],
)
def test_a_kill_that_makes_no_sense_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_kill(text, NAMES)


def test_speeds_say_how_many_learners_there_are():
    assert parse_speeds(None, None) == [1.0] * 4
    assert parse_speeds(None, 2) == [1.0, 1.0]
    assert parse_speeds("1, 0.5", None) == [1.0, 0.5]
    assert parse_speeds("1,0.5", 2) == [1.0, 0.5]


@pytest.mark.parametrize(
    ("text", "learners"), [("1,2", None), ("0,1", None), ("fast", None), ("", None), ("1,1", 3), (None, 0)]
)
def test_speeds_that_cannot_be_kept_are_refused(text, learners):
    with pytest.raises(ConfigError):
        parse_speeds(text, learners)


def test_a_run_gets_the_next_free_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = new_run_dir(None, "gemma")
    first.mkdir(parents=True)
    assert (first.parent.name, first.name, new_run_dir(None, "gemma").name) == ("runs", "gemma-1", "gemma-2")


def test_a_directory_that_is_in_use_is_refused(tmp_path):
    assert new_run_dir(tmp_path, "gemma") == tmp_path
    (tmp_path / "run.db").touch()
    with pytest.raises(StoreError, match="exists already"):
        new_run_dir(tmp_path, "gemma")


def test_a_directory_whose_name_cannot_stand_in_a_url_is_refused(tmp_path):
    with pytest.raises(StoreError, match="cannot be called"):
        new_run_dir(tmp_path / "My Run", "gemma")
