"""`atoll simulate scale` as a person or a program uses it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from atoll.cli.main import run
from atoll.cli.scale import verdict
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.scale.run import run_scale
from atoll.sim.scale.scenario import from_traces

SMALL = ["simulate", "scale", "--chips", "100k", "--learners", "2", "--merges", "60", "--check", "40"]


def test_it_prints_protocol_and_model_side_by_side(capsys):
    assert run(SMALL) == 0
    out = capsys.readouterr().out
    for text in ("goodput", "fleet model", "agree on goodput", "events", "a second", "learner-1", "digest"):
        assert text in out


def test_json_is_the_last_line_and_the_tables_go_to_stderr(capsys):
    assert run([*SMALL, "--json"]) == 0
    captured = capsys.readouterr()
    (line,) = captured.out.strip().splitlines()
    answer = json.loads(line)
    assert answer["merges"] == answer["merges_asked"] == 60
    assert (answer["chips"], answer["learners"], answer["checked_merges"]) == (100_000, 2, 40)
    assert answer["violations"] == 0
    assert answer["held_s"] == 0
    assert 0 < answer["participation"] <= 1
    assert answer["model"][0]["name"] == "goodput"
    assert "goodput" in captured.err


def test_the_same_seed_gives_the_same_bytes(capsys):
    answers = []
    for seed in ("3", "3", "4"):
        assert run([*SMALL, "--seed", seed, "--json"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != answers[2]


def test_reasons_that_were_not_measured_are_told_as_probable(capsys):
    assert run(SMALL) == 0
    out = capsys.readouterr().out
    assert "probably" in out
    assert "what differs" not in out


def test_a_difference_in_goodput_is_told_with_what_was_lost_with_lives():
    """The syncer is away for the last 20 s of a life, so nothing of that is ever offered."""
    dark = CapacityTrace((0.0, 60.0, 400.0), (64.0, 0.0, 64.0))
    traces = {"a": CapacityTrace((0.0,), (64.0,)), "b": dark}
    result = run_scale(from_traces(traces, merges=150, step_s=1.0, outages=((40.0, 70.0),)))
    words = verdict(result)
    assert "do NOT agree on goodput" in words
    assert f"{100 * result.lost:.2f} points were trained by processes that died before offering it" in words
    assert words.endswith("But for that they agree.")
    assert "points unexplained." in verdict(replace(result, goodput=result.goodput - 0.2))
    assert "agree on goodput (within 1 point)." in verdict(replace(result, goodput=result.model.goodput))


def test_traces_of_a_file_take_the_place_of_a_drawn_fleet(capsys, tmp_path):
    file = tmp_path / "spot.csv"
    file.write_text("time_s,learner,chips\n0,spot-a,512\n0,spot-b,256\n20,spot-b,0\n40,spot-b,128\n")
    arguments = ["--merges", "50", "--check", "0", "--traces", str(file), "--syncer-mtbf", "20s", "--json"]
    assert run(["simulate", "scale", *arguments, "--syncer-down", "5s"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["chips"] == 768
    assert set(answer["merged_tokens"]) == {"spot-a", "spot-b"}
    assert answer["checked_merges"] == 0
    assert answer["syncer_outages"] > 0


def test_shocks_and_outages_of_the_syncer_reach_the_run(capsys):
    more = ["--merges", "200", "--syncer-mtbf", "1m", "--syncer-down", "10s"]
    assert run([*SMALL, *more, "--shock", "site:every=2m,share=1,down=30m", "--seed", "3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["syncer_outages"] > 0
    assert answer["goodput"] < 0.9


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--chips", "-5"], "--chips"),
        (["--learners", "0"], "--learners"),
        (["--learners", "4", "--chips", "2"], "2 chips cannot make 4 learners"),
        (["--mtbi", "0s"], "--mtbi"),
        (["--step", "1ms"], "A step takes 0.001 s"),
        (["--merges", "0"], "--merges"),
        (["--seed", "-3"], "--seed is -3."),
        (["--quorum", "17"], "quorum is 17"),
        (["--traces", "nowhere.csv"], "nowhere.csv"),
        (
            ["--traces", "nowhere.csv", "--chips", "5", "--mtbi", "1y"],
            "--traces was given, and --chips and --mtbi",
        ),
        (["--syncer-down", "5s"], "--syncer-down was given without --syncer-mtbf"),
        (["--shock", "flood"], "--shock is 'flood'"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(capsys, flags, what):
    assert run(["simulate", "scale", *flags]) == 2
    error = capsys.readouterr().err
    assert what in error
    assert "Traceback" not in error
