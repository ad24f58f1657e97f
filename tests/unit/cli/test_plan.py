"""`atoll plan` as a person or a program uses it."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from atoll.cli.main import run
from atoll.config import RunConfig
from tests.unit.sim.plan.fleets import island, text

FLEETS = Path(__file__).resolve().parents[3] / "examples" / "fleets"
EXAMPLES = sorted(path.name for path in FLEETS.glob("*.toml"))


def plan(capsys, *arguments: str) -> tuple[dict[str, Any], str]:
    """The JSON and the tables."""
    assert run(["plan", *arguments, "--json"]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out.strip().splitlines()[-1]), captured.err


def test_there_are_three_examples():
    assert EXAMPLES == ["eight-data-centres.toml", "four-regions.toml", "spot-gpus.toml"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_plans_with_all_keys_and_fits_the_screen(capsys, name):
    answer, tables = plan(capsys, str(FLEETS / name))
    settings = {"learners", "quorum", "interval", "fragments", "overlap", "codec", "channels"}
    assert settings <= answer["recommendation"].keys()
    expected = answer["expected"]
    assert {
        "goodput",
        "uptime",
        "tokens_per_s",
        "staleness_steps",
        "time_s",
        "cost",
        "links",
    } <= expected.keys()
    assert 0 < expected["goodput"] <= 1
    assert 0 < expected["uptime"] <= 1
    assert 0 < expected["participation"] <= 1
    assert expected["goodput"] == pytest.approx(expected["goodput_whole"], abs=0.01)
    for link in expected["links"]:
        assert 0 < link["needed_gbps"] <= link["available_gbps"]
    assert answer["times_faster"] == pytest.approx(answer["lock_step"]["time_s"] / expected["time_s"])
    assert answer["arithmetic"][-1]["value"] == answer["times_faster"]
    assert len(answer["candidates"]) == 5
    assert all(settings <= candidate.keys() for candidate in answer["candidates"])
    assert {"change", "flips", "time_s"} <= answer["sensitivity"][0].keys()
    assert {"island", "worth_its_link", "why", "time_with_s", "time_without_s"} <= answer["islands"][0].keys()
    assert max(len(line) for line in tables.splitlines()) <= 100
    assert "…" not in tables


def test_the_twelve_billion_example_says_how_many_times_faster_and_shows_the_arithmetic(capsys):
    answer, tables = plan(capsys, str(FLEETS / "four-regions.toml"))
    assert answer["recommendation"]["learners"] == 4
    assert answer["times_faster"] > 20
    assert f"{answer['times_faster']:.3g} times faster than lock-step over those links" in tables
    assert "12B x 16 bit x 1.5 (ring of 4)" in tables
    assert "more than 20 times" in tables
    assert "from a blog" in " ".join(tables.split())
    for words in ("Simulated", "Closed forms", "rules of ours"):
        assert words in " ".join(tables.split())


def test_the_office_behind_a_home_line_is_not_worth_it(capsys):
    answer, _ = plan(capsys, str(FLEETS / "spot-gpus.toml"))
    verdicts = {row["island"]: row["worth_its_link"] for row in answer["islands"]}
    assert verdicts == {"spot-big": True, "spot-small": True, "reserved": True, "office": False}


@lru_cache(maxsize=1)
def small() -> str:
    return text(island("a"), island("b"), island("dear", price=9.0))


@pytest.fixture
def fleet_file(tmp_path) -> str:
    path = tmp_path / "fleet.toml"
    path.write_text(small())
    return str(path)


def test_the_config_is_one_that_a_syncer_takes(capsys, fleet_file):
    answer, tables = plan(capsys, fleet_file)
    config = RunConfig.from_toml(answer["config"])
    chosen = answer["recommendation"]
    assert config.sync.num_learners == chosen["learners"]
    assert config.sync.min_quorum == chosen["quorum"]
    assert config.sync.interval_steps == chosen["interval"]
    assert config.sync.num_fragments == chosen["fragments"]
    assert config.sync.overlap_steps == chosen["overlap"]
    assert (config.codec.up, config.codec.down) == (chosen["codec"], chosen["codec"])
    assert config.network.data_connections == chosen["channels"]
    assert config.budget.ticks > 0
    shown = tables[tables.index("[sync]") : tables.index("Simulated")]
    assert RunConfig.from_toml(shown).sync == config.sync


def test_money_leaves_out_what_is_dear(capsys, fleet_file):
    by_time, _ = plan(capsys, fleet_file)
    by_money, _ = plan(capsys, fleet_file, "--money")
    assert (by_time["objective"], by_money["objective"]) == ("time", "money")
    assert {row["island"]: row["used"] for row in by_money["islands"]} == {"a": 1, "b": 1, "dear": 0}
    assert by_money["expected"]["cost"] < by_time["expected"]["cost"]
    assert by_money["expected"]["time_s"] > by_time["expected"]["time_s"]


def test_where_one_island_alone_is_cheapest_no_syncer_is_paid_for(capsys):
    answer, tables = plan(capsys, str(FLEETS / "four-regions.toml"), "--money")
    chosen, alone = answer["recommendation"], answer["lock_step"]["best_island_alone"]
    assert chosen["verdict"] == "train on texas alone, no syncer needed"
    assert (chosen["learners"], chosen["needs_syncer"], chosen["interval"]) == (1, False, None)
    assert answer["expected"]["cost"] == pytest.approx(alone["cost"])
    assert answer["config"] is None
    assert "train on texas alone, no syncer needed" in tables
    assert "atoll syncer --config" not in tables
    assert max(len(line) for line in tables.splitlines()) <= 100


def test_amounts_as_large_as_can_be_are_not_printed_digit_by_digit(capsys, tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text(text(island("a", price=1e15, flops="1M"), island("b", price=1e15), params="1000T"))
    _, tables = plan(capsys, str(path))
    assert max(len(word) for word in tables.replace("─", " ").split()) < 40


def test_the_same_seed_gives_the_same_answer(capsys, fleet_file):
    first, second = (plan(capsys, fleet_file, "--seed", "4") for _ in range(2))
    assert first == second


def test_the_example_is_a_fleet_that_plans(capsys, tmp_path):
    assert run(["plan", "--example"]) == 0
    path = tmp_path / "example.toml"
    path.write_text(capsys.readouterr().out)
    answer, _ = plan(capsys, str(path))
    assert answer["expected"]["time_s"] > 0


def test_a_fleet_without_prices_has_no_money(capsys, tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text(text(island("a", price=None), island("b", price=None)))
    answer, _ = plan(capsys, str(path))
    assert answer["expected"]["cost"] == 0
    assert not any("money" in change["change"] for change in answer["sensitivity"])


@pytest.mark.parametrize(
    ("content", "flags", "what"),
    [
        ("", [], "has no islands"),
        (text(island("a", chips=-1)), [], "island a: chips is -1"),
        (text(island("a", mtbi=0)), [], "island a: mtbi is 0"),
        (text(island("a"), params="1e300"), [], "model: params is 1e+300"),
        (
            text(island("a"), more='[[shock]]\nname = "x"\nevery = 1\nshare = 1\nreturns = "1y"\n'),
            [],
            "No plan works on this fleet",
        ),
        (text(island("a", price=None)), ["--money"], "island a has no price"),
        (text(island("a")), ["--seed", "-1"], "--seed is -1"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(capsys, tmp_path, content, flags, what):
    path = tmp_path / "fleet.toml"
    path.write_text(content)
    assert run(["plan", str(path), *flags]) == 2
    error = capsys.readouterr().err
    assert what in error
    assert "Traceback" not in error


def test_no_file_and_a_missing_file_are_refused(capsys, tmp_path):
    assert run(["plan"]) == 2
    assert "No fleet file is given" in capsys.readouterr().err
    assert run(["plan", str(tmp_path / "none.toml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_help_teaches(capsys):
    assert run(["plan", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--money" in shown
    assert "lock-step" in shown
