"""`atoll simulate` as a person or a program uses it."""

from __future__ import annotations

import json

import pytest

from atoll.cli.main import run
from tests.chaos.bugs import BUGS


def last_line(capsys):
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def test_protocol_prints_one_json_object_as_the_last_line(capsys):
    assert run(["simulate", "protocol", "--seeds", "3", "--start", "7", "--jobs", "1", "--json"]) == 0
    answer = last_line(capsys)
    assert answer["seeds"] == 3
    assert answer["violations"] == 0
    assert answer["merges"] >= 90
    assert 0 < answer["participation"] <= 1
    assert sum(answer["faults"].values()) > 0
    assert len(answer["digest"]) == 32


def test_the_same_seeds_give_the_same_digest(capsys):
    digests = []
    for _ in range(2):
        run(["simulate", "protocol", "--seeds", "2", "--jobs", "1", "--json"])
        digests.append(last_line(capsys)["digest"])
    assert digests[0] == digests[1]


def test_a_failing_seed_prints_the_command_that_repeats_it_and_a_short_story(capsys):
    bug = next(bug for bug in BUGS if bug.name == "quorum-off-by-one")
    seed = str(bug.known_seed)
    with bug.applied():
        assert run(["simulate", "protocol", "--seeds", "1", "--start", seed, "--jobs", "1"]) == 1
    out = capsys.readouterr().out
    assert f"atoll simulate protocol --start {seed} --seeds 1" in out
    assert "shrunk to" in out
    assert "BROKEN I3" in out


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--seeds", "0"], "--seeds is 0."),
        (["--jobs", "-1"], "--jobs is -1."),
        (["--start", "-5"], "--start is -5."),
    ],
)
def test_nonsense_is_refused_in_a_sentence(capsys, flags, what):
    assert run(["simulate", "protocol", *flags]) == 2
    error = capsys.readouterr().err
    assert what in error
    assert "Traceback" not in error


def test_the_demo_tells_a_story_in_which_tokens_add_up(capsys):
    assert run(["simulate", "demo", "--json"]) == 0
    captured = capsys.readouterr()
    facts = json.loads(captured.out.strip().splitlines()[-1])
    assert facts["violations"] == 0
    assert facts["adds_up"] is True
    assert facts["epochs"] == 2
    story = captured.err
    for words in ("learner-crash", "syncer-crash", "is admitted (incarnation 2)", "the run is finished"):
        assert words in story
    assert "WRONG" not in story


def test_help_teaches(capsys):
    assert run(["simulate", "protocol", "--help"]) == 0
    assert "invariant" in capsys.readouterr().out
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("atoll 0.")
