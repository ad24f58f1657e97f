"""`atoll replay` and `atoll rollback`: what they say, and how they end."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import safetensors.torch
import torch

import atoll
from atoll.cli.judge import write_recipe
from atoll.cli.main import run
from atoll.recipes import load_recipe
from atoll.runtime.store import read_run
from tests.integration.conditions import wait_until
from tests.unit.runtime.small_runs import finished_run, flip, pruned_run, rounds, settings


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("finished") / "reef", settings())


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "reef")
    return tmp_path / "reef"


def middle(run_dir: Path) -> int:
    """The tick of the second version of fragment 0."""
    return next(one.t for one in rounds(run_dir) if (one.fragment, one.version) == (0, 2))


@pytest.mark.parametrize("command", ["replay", "rollback"])
def test_each_command_explains_itself(command, capsys):
    assert run([command, "--help"]) == 0
    assert f"atoll {command} runs/gemma-1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "/nowhere"], "no run in"),
        (["replay", "a", "--until", "3", "--diff", "b"], "--until and --diff are given together"),
        (["replay", "a", "--since", "3"], "--since is given without --without"),
        (["replay", "a", "--out", "m"], "--out is given without --until or --without"),
        (["rollback", "/nowhere", "--to", "3"], "no run in"),
        (["rollback", "/nowhere", "--to", "3", "--dry-run"], "no run in"),
    ],
)
def test_what_makes_no_sense_gets_a_sentence(arguments, words, capsys):
    assert run(arguments) == 2
    assert words in capsys.readouterr().err


# Replay


def test_three_layers_are_said(finished, capsys):
    num = len(rounds(finished))
    assert run(["replay", str(finished)]) == 0
    decisions, fold, merges, last = capsys.readouterr().out.splitlines()
    assert decisions.startswith("decisions  ")
    assert " lines of tape: the machines decided the same, invariants hold (" in decisions
    assert fold == (
        f"fold       {num} commits folded, every digest compared; starts at version 0, the initial weights"
    )
    assert merges == f"merges     all {num} computed again from their offers"
    assert last == "everything agrees"


def test_a_program_reads_the_same(finished, capsys):
    assert run(["replay", str(finished), "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["ok"] is True
    assert (said["commits"], said["merged_again"]) == (len(rounds(finished)),) * 2
    assert (said["verified"], said["problems"], said["since"]) == ("merge", [], 0)
    held = read_run(finished).state.fragments
    assert [one["digest"] for one in said["fragments"]] == [fragment.digest for fragment in held]


def test_rounds_without_offers_are_said(copy, capsys):
    paths = sorted((copy / "offers").iterdir())
    paths[0].unlink()
    assert run(["replay", str(copy)]) == 0
    assert (
        f"{len(paths) - 1} computed again from their offers; 1 have none: fold only"
        in capsys.readouterr().out
    )
    shutil.rmtree(copy / "offers")
    assert run(["replay", str(copy)]) == 0
    assert "not computed again: no offers were kept (tape.keep_offers)" in capsys.readouterr().out


def test_a_pruned_run_says_where_it_starts(tmp_path, capsys):
    run_dir = pruned_run(tmp_path / "reef")
    assert run(["replay", str(run_dir)]) == 0
    page = capsys.readouterr().out
    assert "starts at the snapshot of merge " in page
    assert ": older deltas were deleted (durability.keep = recent)" in page


def test_damage_is_named_and_ends_with_one(copy, capsys):
    flip(copy / "deltas" / f"{rounds(copy)[1].delta_digest}.safetensors")
    assert run(["replay", str(copy)]) == 1
    page = capsys.readouterr().out
    assert f"problem: fragment {rounds(copy)[1].fragment}, version " in page
    assert page.endswith("1 problem: the run does not replay\n")
    assert run(["replay", str(copy), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False
    assert len(said["problems"]) == 1


@pytest.mark.parametrize("block", [1, 2])
def test_machines_that_a_damaged_tape_kept_from_being_asked_are_not_blamed(copy, block, capsys):
    with closing(sqlite3.connect(copy / "run.db")) as db, db:
        db.execute("UPDATE blocks SET content = content || x'00' WHERE id = ?", (block,))
        if block == 1:
            shutil.rmtree(copy / "learners")
    assert run(["replay", str(copy)]) == 1
    page = capsys.readouterr().out
    assert f"problem: decisions: Block {block} of the tape" in page
    assert "did not decide the same" not in page
    if block == 1:
        assert page.startswith("decisions  not looked at: the tape cannot be read\n")
    else:
        assert "lines of tape up to where it is damaged: the machines decided the same" in page


def test_until_a_tick_every_fragment_has_its_digest(finished, capsys):
    assert run(["replay", str(finished), "--until", "0"]) == 0
    page = capsys.readouterr().out
    assert "decisions  not looked at: with --until only values are computed" in page
    assert "merges     none to compute again" in page
    assert "fragment 0: version 0 of tick 0, digest " in page


def test_the_model_of_a_tick_is_written(finished, tmp_path, capsys):
    out = tmp_path / "model"
    assert run(["replay", str(finished), "--until", str(middle(finished)), "--out", str(out)]) == 0
    assert f"written to {out}/model.safetensors; buffers are the run's newest" in capsys.readouterr().out
    file = safetensors.torch.load_file(out / "model.safetensors")
    assert file.keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_equal_runs_say_so_and_others_where_they_part(copy, finished, capsys):
    assert run(["replay", str(finished), "--diff", str(copy)]) == 0
    assert capsys.readouterr().out == f"the runs are equal: {len(rounds(copy))} commits, the same bits\n"
    assert run(["rollback", str(copy), "--to", str(middle(copy)), "--yes"]) == 0
    capsys.readouterr()
    assert run(["replay", str(finished), "--diff", str(copy)]) == 1
    page = capsys.readouterr().out
    assert " commits are the same; the first that differs is fragment " in page
    assert "fragment 0, version 3 (tick " in page
    assert " against none): only the first run has it" in page
    assert run(["replay", str(finished), "--diff", str(copy), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["equal"] is False
    assert said["fragments"][0]["differences"] == ["only the first run has it"]


def test_without_a_learner_the_distance_and_the_caveat_are_said(finished, tmp_path, capsys):
    out = tmp_path / "model"
    assert run(["replay", str(finished), "--without", "learner-1", "--out", str(out)]) == 0
    page = capsys.readouterr().out
    num = len(rounds(finished))
    assert f"{num} of {num} merges computed again, 0 skipped because it was alone" in page
    assert "% away from the real end" in page
    assert "The others' offers are taken as they were made" in page
    assert "held-out" not in page
    assert (out / "model.safetensors").exists()
    assert run(["replay", str(finished), "--without", "learner-1", "--since", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["learner"], said["since"], said["rounds"]) == ("learner-1", 1, num)
    assert said["heldout_loss"] is None
    assert said["caveat"].startswith("The others' offers")


def test_a_run_of_a_recipe_gets_the_held_out_loss_of_both(tmp_path, capsys):
    run_dir, recipe = tmp_path / "reef", load_recipe("vit-digits")
    write_recipe(run_dir, recipe.settings())
    nets = [recipe.build_model() for _ in range(2)]
    with atoll.Syncer(settings(), run_dir) as syncer:
        learners = [
            atoll.join(syncer.url, model=net, name=name) for net, name in zip(nets, "ab", strict=True)
        ]

        def has_merged() -> bool:
            for net, learner in zip(nets, learners, strict=True):
                with torch.no_grad():
                    for parameter in net.parameters():
                        parameter.mul_(0.98 if learner is learners[0] else 1.01)
                learner.step(tokens=8)
            return read_run(run_dir).state.merges >= 2

        wait_until(has_merged)
        for learner in learners:
            learner.leave()
    out = tmp_path / "model"
    assert run(["replay", str(run_dir), "--without", "b", "--out", str(out), "--json"]) == 0
    loss = json.loads(capsys.readouterr().out)["heldout_loss"]
    assert loss.keys() == {"real", "without"}
    assert loss["real"] != loss["without"]
    assert (out / "config.json").exists()


# Rollback


def test_what_is_given_up_is_said_before_it_is(copy, capsys):
    before, tick = read_run(copy), middle(copy)
    assert run(["rollback", str(copy), "--to", str(tick), "--dry-run"]) == 0
    page = capsys.readouterr().out
    num = sum(record.t > tick for record in rounds(copy))
    assert page.startswith(f"from tick {before.state.t} back to tick {tick} gives up {num} commits:\n")
    assert f"fragment 0: version {before.state.fragments[0].version} back to 2\n" in page
    assert "learner-0: " in page
    assert "the run was finished, and is not any more" in page
    assert read_run(copy).records == before.records


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_nothing_happens_without_a_yes(copy, answer, monkeypatch, capsys):
    before = read_run(copy).records
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert run(["rollback", str(copy), "--to", str(middle(copy))]) == 1
    assert "Go back?" in capsys.readouterr().err
    assert read_run(copy).records == before


def test_a_yes_is_enough(copy, monkeypatch, capsys):
    tick = middle(copy)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert run(["rollback", str(copy), "--to", str(tick)]) == 0
    assert f"the run stands at tick {tick}, epoch 2; start its syncer to go on" in capsys.readouterr().out
    assert read_run(copy).state.t == tick


def test_a_program_reads_what_was_given_up(copy, capsys):
    tick = middle(copy)
    lost = [record for record in rounds(copy) if record.t > tick]
    assert run(["rollback", str(copy), "--to", str(tick), "--yes", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["taken"], said["t"], said["epoch"], said["commits"]) == (True, tick, 2, len(lost))
    assert sum(said["tokens"].values()) == sum(
        p.end - p.start for record in lost for p in record.contributors
    )
    assert run(["replay", str(copy)]) == 0
    assert f"           {len(lost)} commits were rolled back and count no more" in capsys.readouterr().out
