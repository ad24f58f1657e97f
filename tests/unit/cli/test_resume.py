"""What is found of a run that was left behind, and what `--resume` refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atoll.cli.main import run
from atoll.cli.resume import resumed
from atoll.cli.settings import run_config
from atoll.errors import ConfigError, StoreError
from atoll.recipes import load_recipe
from atoll.runtime.fleet_file import FleetFile


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """As a power cut leaves it: nothing was ever closed."""
    recipe = load_recipe("vit-digits", seed=3)
    (tmp_path / "recipe.json").write_text(json.dumps(recipe.settings()))
    (tmp_path / "config.toml").write_text(run_config(recipe, num_learners=2, steps=50, seed=3).to_toml())
    FleetFile((1.0, 0.5), 12.5).write(tmp_path)
    return tmp_path


def test_a_run_goes_on_as_it_was(left):
    plan = resumed(left, None, ())
    assert plan.recipe.settings() == load_recipe("vit-digits", seed=3).settings()
    assert plan.config.budget.ticks == 50
    assert plan.config.sync.num_learners == 2
    assert plan.fleet == FleetFile((1.0, 0.5), 12.5)
    assert plan.is_old
    assert not plan.is_finished


def test_the_budget_may_be_raised_and_settings_given(left):
    plan = resumed(left, 500, ["durability.keep=all"])
    assert plan.config.budget.ticks == 500
    assert plan.config.durability.keep == "all"
    with pytest.raises(ConfigError, match="--steps is 0"):
        resumed(left, 0, ())


@pytest.mark.parametrize("name", ["recipe.json", "config.toml"])
def test_a_directory_without_a_run_is_refused(left, name):
    (left / name).unlink()
    with pytest.raises(StoreError, match=f"There is no run of `atoll train` in .*{name}"):
        resumed(left, None, ())


def test_a_run_of_somebodys_own_learners_is_refused(left):
    (left / "fleet.json").unlink()
    with pytest.raises(StoreError, match="Only a run of `atoll train` can be resumed"):
        resumed(left, None, ())


def test_files_that_were_half_written_do_no_harm(left):
    (left / "status.json").write_text('{"state": "fini')
    (left / "summary.json").write_text("")
    (left / "fleet.json.part").write_text("{")
    assert not resumed(left, None, ()).is_finished


def test_a_finished_run_says_so(left, capsys):
    (left / "status.json").write_text(json.dumps({"state": "finished"}))
    assert resumed(left, None, ()).is_finished
    assert resumed(left, None, ()).summary is None, "it was killed before it was judged"
    (left / "summary.json").write_text(json.dumps({"violations": 0, "merges": 7}))
    assert run(["train", "--resume", str(left), "--json"]) == 0
    said = capsys.readouterr()
    assert "is finished" in said.err.replace("\n", " ")
    assert json.loads(said.out) == {"violations": 0, "merges": 7}


@pytest.mark.parametrize("more", [["--steps", "500"], ["--set", "budget.tokens=9000"]])
def test_the_budget_of_a_finished_run_cannot_be_raised(left, more, capsys):
    (left / "status.json").write_text(json.dumps({"state": "finished"}))
    (left / "summary.json").write_text(json.dumps({"violations": 0}))
    assert run(["train", "--resume", str(left), *more]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "is finished" in said
    assert f"atoll rollback {left} --to T" in said
    assert run(["train", "--resume", str(left), "--steps", "50", "--json"]) == 0, "that is what it had"


def test_a_loss_can_be_accepted_when_a_run_goes_on_and_only_then(left, capsys):
    (left / "status.json").write_text(json.dumps({"state": "finished"}))
    (left / "summary.json").write_text(json.dumps({"violations": 0}))
    assert run(["train", "--resume", str(left), "--accept-loss"]) == 0
    assert run(["train", "--accept-loss"]) == 2
    assert "--accept-loss was given without --resume" in capsys.readouterr().err


@pytest.mark.parametrize("more", [["--learners", "3"], ["--size", "small"], ["gemma"], ["--seed", "0"]])
def test_what_made_the_run_cannot_be_given_again(left, more, capsys):
    assert run(["train", *more, "--resume", str(left)]) == 2
    assert "cannot be given with it" in capsys.readouterr().err


def test_a_kill_of_somebody_else_is_refused(left, capsys):
    assert run(["train", "--resume", str(left), "--kill", "learner-2@50%"]) == 2
    assert "there is no learner-2" in capsys.readouterr().err
