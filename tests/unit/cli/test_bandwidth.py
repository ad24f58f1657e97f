"""`atoll simulate bandwidth` as a person or a program uses it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from atoll.cli.main import run

pytestmark = pytest.mark.usefixtures("eighty_columns")
COMMAND = ["simulate", "bandwidth"]


@pytest.fixture
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def told(capsys, *flags):
    assert run([*COMMAND, *flags]) == 0
    return " ".join(capsys.readouterr().out.split())


def answer(capsys, *flags):
    assert run([*COMMAND, *flags, "--json"]) == 0
    out = capsys.readouterr().out
    assert len(out.strip().splitlines()) == 1, "the tables go to stderr"
    return json.loads(out)


def test_it_answers_for_a_model_of_ones_own(capsys):
    flags = ["--params", "12B", "--step", "1.5s", "--sites", "4", "--bits", "4,16", "--cu", "0.5,0.9"]
    found = answer(capsys, *flags)
    rows = {(row["method"], row["bits"], row["cu"]): row for row in found["rows"]}
    assert len(rows) == 4 * 2 * 2
    assert rows["decoupled", 4, 0.9]["gbps"] == pytest.approx(0.9 * 12 * 4 / (24 * 1.5), rel=0.01)
    assert rows["data-parallel", 16, 0.9]["gbps"] == pytest.approx(250, rel=0.02)
    for row in rows.values():
        assert row["closed_gbps"] == pytest.approx(row["gbps"], rel=0.01)
    assert found["largest_difference"] < 0.01
    assert {load["method"] for load in found["loads"]} == {method for method, _, _ in rows}
    assert found["syncer"][0]["gbps"] == pytest.approx(2 * 4 * 12 * 4 / 36)
    assert found["link"] == []
    assert found["settings"][1]["bits"] == 16


def test_what_no_link_reaches_is_null_for_programs_and_never_for_people(capsys):
    flags = ["--rtt", "60ms", "--cu", "0.9", "--bits", "16"]
    rows = {row["method"]: row["gbps"] for row in answer(capsys, *flags)["rows"]}
    assert rows["data-parallel"] is None
    assert rows["decoupled"] > 0
    text = told(capsys, *flags)
    assert "never" in text
    assert "passes M - 1 round trips" in text
    assert "Data-Parallel cannot compute 90% of the time on any link" in text


def test_people_read_tables_and_what_they_mean(capsys):
    text = told(capsys, "--cu", "0.9")
    for part in (
        "12B parameters at 4 sites, a step of 1.5 s, H = 24, P = 24, tau = 2",
        "Gbit/s per site and direction",
        "apart",
        "on average",
        "With 4 bits the syncer of Decoupled carries 10.7 Gbit/s",
        "Decoupled with 4 bits holds 90% of its rounds on 1.2 Gbit/s and never waits.",
        "207 times as much",
    ):
        assert part in text


def test_a_given_link_shows_who_waits_and_who_grows_stale(capsys):
    flags = ["--bandwidth", "2Gbit/s", "--bits", "16", "--cu", "0.9"]
    rows = {row["method"]: row for row in answer(capsys, *flags)["link"]}
    assert rows["data-parallel"]["cu"] < 0.02
    assert rows["decoupled"]["cu"] == 1.0
    assert rows["decoupled"]["pace"] == pytest.approx(2 / (12 * 16 / 36), rel=0.01)
    late = rows["decoupled"]["staleness_steps"], rows["decoupled"]["bucketwise_staleness_steps"]
    assert late == (4, 1), "a fragment takes 4 s, a step 1.5 s: 8 s there and back, or 4 s at once"
    text = told(capsys, *flags)
    assert "On a link of 2 Gbit/s" in text
    assert "4 (1)" in text
    assert "the paper's formula, which publishes bucket by bucket, gives the figure in brackets" in text


def test_a_round_trip_that_limits_decoupled_is_said_to(capsys):
    flags = ["--bits", "4", "--cu", "0.9,0.99", "--bandwidth", "2Gbit/s"]
    found = answer(capsys, *flags, "--rtt", "1h")
    assert {row["gbps"] for row in found["rows"]} == {None}
    assert found["link"][3]["pace"] == pytest.approx(24 / 2401)
    text = told(capsys, *flags, "--rtt", "1h")
    assert "it cannot hold 90% of its rounds: a fragment has one round at a time" in text
    assert "at most 1.0% of the rounds are held, on any link" in text
    assert "holds 90% of its rounds on" not in text
    assert "the round trip is what limits" in told(capsys, *flags, "--rtt", "35s")
    near = told(capsys, *flags, "--rtt", "60ms")
    assert "the round trip is what limits" not in near
    assert "Not counted" not in near


def test_each_width_is_told_once(capsys):
    found = answer(capsys, "--bits", "16,16.0,16", "--cu", "0.9,0.9")
    assert len(found["rows"]) == 4
    assert len(found["settings"]) == 1


def test_the_preset_of_table_4_lists_every_miss_with_both_values(capsys):
    found = answer(capsys, "--preset", "streaming-table4")
    assert found["preset"] == "streaming-table4"
    assert found["cells"] == 75
    assert found["agreeing"] >= found["must_agree"] == 70
    assert len(found["misses"]) == 75 - found["agreeing"]
    assert {"method", "bits", "cu", "gbps", "paper_gbps", "agrees"} <= found["rows"][0].keys()
    text = told(capsys, "--preset", "streaming-table4")
    assert "71 of 75 cells are within one link of the paper's grid" in text
    assert "1B, Data-Parallel, 0.99: the paper 569 Gbit/s, ours 268, 4 links apart" in text
    assert "Nothing is fitted." in text
    assert "Inferred by us" in text
    assert "…" not in text, "every cell fits"


def test_the_preset_of_the_headline_says_what_is_inferred(capsys):
    found = answer(capsys, "--preset", "headline")
    assert [row["paper_gbps"] for row in found["rows"]] == [198.0, 0.84, 104.0, 1.7]
    assert all(row["agrees"] for row in found["rows"] + found["ratios"])
    assert [row["ours"] for row in found["ratios"]] == pytest.approx([242.1, 60.5], rel=0.005)
    assert [row["paper"] for row in found["scavenging"]] == [0.90, 0.83, 0.75, 0.62]
    assert found["misses"] == []
    text = told(capsys, "--preset", "headline")
    assert "Inferred by us: a utilisation of 0.9" in text
    assert "…" not in text


@pytest.mark.parametrize(
    "flags",
    [
        ["--cu", "0.5,0.9"],
        ["--rtt", "1h", "--cu", "0.9"],
        ["--preset", "headline"],
        ["--preset", "streaming-table4"],
    ],
)
def test_it_draws_utilisation_against_bandwidth(capsys, tmp_path, flags):
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.svg"
    assert "Drawn: " in told(capsys, *flags, "--plot", str(path))
    assert path.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--preset", "table-5"], "Choose one of: streaming-table4, headline."),
        (["--preset", "headline", "--sites", "4"], "--preset headline was given with --sites."),
        (["--cu", "1.5"], "--cu is 1.5."),
        (["--cu", "0"], "--cu is 0."),
        (["--cu", ","], "--cu is empty."),
        (["--params", "-12B"], "--params is -1.2e+10."),
        (["--params", "many"], "--params is 'many'."),
        (["--step", "0s"], "--step is 0."),
        (["--sites", "1"], "a ring of one carries nothing"),
        (["--bits", "0"], "--bits is 0."),
        (["--bits", ""], "--bits is empty."),
        (["--fragments", "48"], "Set fragments to 24 or less"),
        (["--bandwidth", "fast"], "--bandwidth is 'fast'."),
        (["--rtt", "-1s"], "--rtt is -1."),
        (["--params", "1e300"], "--params is 1e+300."),
        (["--sites", "5k"], "Give at most 4096."),
        (["--interval", "1e9", "--fragments", "1e9"], "Give at most 10,000."),
        (["--bandwidth", "1e-300"], "--bandwidth is 1e-300 bit/s."),
    ],
)
def test_nonsense_is_refused_in_a_sentence(capsys, flags, what):
    assert run([*COMMAND, *flags]) == 2
    error = capsys.readouterr().err
    assert what in error
    assert "Traceback" not in error


def test_its_help_imports_neither_numpy_nor_torch():
    code = (
        "import sys; from atoll.cli.main import run; run(['simulate', 'bandwidth', '--help']);"
        "sys.exit(bool({'numpy', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "bandwidth" in done.stdout
