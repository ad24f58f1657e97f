"""`atoll train` from its first process to its summary, what it leaves behind, and what Ctrl-C does."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from atoll.cli.main import run
from atoll.recipes import load_recipe
from atoll.runtime.reader import read_status
from tests.integration.commands import LONG_S, finish, interrupt, meanwhile, status_of
from tests.integration.conditions import wait_until

KEYS = {
    "run_dir", "algorithm", "learners", "steps", "learner_steps", "tokens", "merges", "heldout_loss",
    "goodput", "participation", "bytes_up", "bytes_down", "bits_per_param", "stall_fraction", "violations",
}  # fmt: skip
TRAIN = ["train", "vit-digits", "--steps", "1000000"]
"""More than any test waits for: what happens decides when a run ends, not how fast this machine is."""


def trains(run_dir: Path, life: int = 1) -> bool:
    """Whether both learners are training, learner-1 in this life of its, and something was merged."""
    status = status_of(run_dir)
    if status is None:
        return False
    details = {detail["name"]: detail for detail in status["learner_details"]}
    states = {name: details.get(name, {}).get("state") for name in ("learner-0", "learner-1")}
    lives = {name: details.get(name, {}).get("incarnation") for name in states}
    wanted = {"learner-0": 1, "learner-1": life}
    return set(states.values()) == {"training"} and lives == wanted and status["merges"] > 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[int, dict[str, Any], str]:
    """A whole run with a slow learner and a kill: exit code, JSON answer, and what a person read."""
    run_dir = tmp_path_factory.mktemp("train") / "reef"

    def end_it_when_the_victim_is_back() -> None:
        wait_until(lambda: trains(run_dir, life=2), timeout=LONG_S)
        finish(run_dir)

    more = ["--speeds", "1,0.5", "--kill", "learner-1@0s", "--seed", "3", "--json", "--run-dir", str(run_dir)]
    out, err = io.StringIO(), io.StringIO()
    with (
        meanwhile(end_it_when_the_victim_is_back),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run([*TRAIN, *more])
    return code, json.loads(out.getvalue().splitlines()[-1]) if out.getvalue() else {}, err.getvalue()


def test_a_run_learns_ends_and_breaks_no_rule(trained):
    code, answer, page = trained
    assert answer["violation_reasons"] == []
    assert code == 0, page
    assert answer.keys() >= KEYS
    assert answer["learners"] == 2
    assert answer["steps"] > 0
    assert answer["heldout_loss"]["end"] < 0.8 * answer["heldout_loss"]["start"]
    assert 0 < answer["goodput"] <= 1
    assert answer["bits_per_param"]["up"] == pytest.approx(16, abs=0.1)


def test_a_kill_is_shown_as_it_happens_and_in_the_summary(trained):
    _, answer, page = trained
    assert "learner-1 was killed" in page
    assert "learner-1 was restarted" in page
    (kill,) = answer["kills"]
    assert kill["event"].startswith("learner-1 killed at 0 s, back after")
    assert set(kill["survivors"]) <= {"learner-0"}, "who was not heard of before the kill is none"
    assert [row["phase"] for row in kill["rows"]] == ["before", "during", "after"]
    assert "held-out loss" in page


def test_the_run_directory_tells_the_whole_story(trained):
    run_dir = Path(trained[1]["run_dir"])
    assert json.loads((run_dir / "summary.json").read_text()) == trained[1]
    assert json.loads((run_dir / "recipe.json").read_text()) == load_recipe("vit-digits", seed=3).settings()
    assert {path.name for path in (run_dir / "logs").iterdir()} == {
        f"{name}.log" for name in ("syncer", "learner-0", "learner-1", "judge")
    }
    assert json.loads((run_dir / "fleet.json").read_text())["speeds"] == [1.0, 0.5]
    status = read_status(run_dir)
    assert (status["live"], status["state"]) == (False, "finished")


def test_a_second_run_in_the_same_directory_is_refused(trained, capsys):
    assert run(["train", "--run-dir", trained[1]["run_dir"]]) == 2
    assert "exists already" in capsys.readouterr().err


def test_an_exported_model_loads_with_transformers_and_is_the_one_that_was_judged(trained, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    assert run(["export", trained[1]["run_dir"], "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["merges"] == trained[1]["merges"]
    model, info = transformers.AutoModelForImageClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(info.values()), info
    heldout = load_recipe("vit-digits", seed=3).evaluate(model)
    assert heldout == pytest.approx(trained[1]["heldout_loss"]["end"], rel=1e-5)
    first = load_file(Path(trained[1]["run_dir"]) / "model" / "model.safetensors")
    second = load_file(tmp_path / "out" / "model.safetensors")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_page_of_a_run_counts_in_its_own_unit(trained, capsys):
    assert run(["status", trained[1]["run_dir"]]) == 0
    page = capsys.readouterr().out
    assert "The run ended" in page
    assert "images/s" in page


def test_ctrl_c_stops_everybody_and_says_where_the_run_is(tmp_path, capsys):
    run_dir = tmp_path / "reef"

    def interrupt_when_all_train() -> None:
        wait_until(lambda: trains(run_dir), timeout=LONG_S)
        interrupt()

    with meanwhile(interrupt_when_all_train):
        code = run([*TRAIN, "--learners", "2", "--run-dir", str(run_dir)])
    assert code == 130
    said = capsys.readouterr().out.replace("\n", "")
    assert f"atoll train --resume {run_dir}" in said
    last = read_status(run_dir)
    assert last["live"] is False
    assert [detail["state"] for detail in last["learner_details"]] == ["left", "left"]
