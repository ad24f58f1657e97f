"""`atoll simulate goodput` as a person or a program uses it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from atoll.cli.goodput_from_run import stayed, take
from atoll.cli.goodput_shocks import ILLUSTRATIONS, read_shock
from atoll.cli.goodput_study import Row, read_study
from atoll.cli.main import run
from atoll.errors import ConfigError
from atoll.observe.run_times import Measured, RunTimes
from atoll.sim.fleet.model import Pauses
from atoll.sim.fleet.trace import read_traces
from atoll.sim.units import DAY, HOUR, YEAR

SMALL = ["--chips", "20k", "--days", "1", "--repetitions", "4"]


def goodput(*flags):
    return run(["simulate", "goodput", *flags])


def answer(capsys, *flags):
    assert goodput(*flags, "--json") == 0
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def study(**given):
    return read_study({"seed": 1, **given})


def times(**found):
    nothing = dict.fromkeys(("step_s", "restart_s", "rejoin_s", "merge_s", "syncer_restart_s"))
    return RunTimes(run="reef", learners=4, wall_s=600.0, **{**nothing, **found})


def measured(mean_s, count=3):
    return Measured(mean_s=mean_s, median_s=mean_s, min_s=mean_s, max_s=mean_s, count=count)


# What comes out


def test_every_cell_says_where_all_of_its_time_went(capsys):
    found = answer(capsys, *SMALL, "--learners", "1,4", "--elasticity", "both")
    shapes = [(cell["chips"], cell["learners"], cell["elastic"]) for cell in found["cells"]]
    assert shapes == [(20_000, m, elastic) for elastic in (False, True) for m in (1, 4)]
    for cell in found["cells"]:
        assert sum(cell["shares_percent"].values()) == pytest.approx(100)
        assert cell["goodput_percent"] == pytest.approx(cell["shares_percent"]["useful"])
        assert cell["goodput_percent"] <= cell["uptime_percent"] <= 100
        assert 0 < cell["stderr"] < 5
        assert len(cell["learner_goodput_percent"]) == cell["learners"]
    assert found["settings"]["mtbi_s"] == YEAR
    assert found["settings"]["seed"] == 1


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(capsys):
    once, again = (answer(capsys, *SMALL, "--learners", "2") for _ in range(2))
    assert json.dumps(once) == json.dumps(again)
    other = answer(capsys, *SMALL, "--learners", "2", "--seed", "2")
    assert other["cells"][0]["goodput_percent"] != once["cells"][0]["goodput_percent"]


def test_a_person_gets_a_table_and_what_would_help(capsys):
    assert goodput(*SMALL, "--learners", "1,4") == 0
    out = capsys.readouterr().out
    for words in ("20k", "goodput", "uptime", "±", "20k chips, one learner", "What would help most there"):
        assert words in out
    assert max(len(line) for line in out.splitlines()[:8]) <= 100


def test_elastic_learners_are_found_to_help_those_that_are_not(capsys):
    assert goodput("--chips", "600k", "--learners", "1", "--no-elastic", "--days", "0.5") == 0
    assert "elastic learners (+" in capsys.readouterr().out


def test_columns_appear_with_what_they_are_about(capsys):
    flags = ["--learners", "4", "--quorum", "2", "--syncer-mtbf", "6h", "--speed-spread", "0.18"]
    assert goodput(*SMALL, *flags) == 0
    out = capsys.readouterr().out
    for name in ("2 up", "merging", "work"):
        assert name in out
    (cell,) = answer(capsys, *SMALL, *flags)["cells"]
    assert cell["merging_percent"] < cell["uptime_quorum_percent"] <= cell["uptime_percent"]
    assert cell["work_chips"] == pytest.approx(20_000 * 0.91 * cell["goodput_percent"] / 100, rel=0.02)


def test_a_single_repetition_has_no_error_to_tell(capsys):
    found = answer(capsys, "--chips", "20k", "--learners", "2", "--days", "1", "--repetitions", "1")
    assert found["cells"][0]["stderr"] is None


@pytest.mark.parametrize(
    "flags",
    [
        ["--mtbi", "inf"],
        ["--return", "inf"],
        ["--syncer-mtbf", "inf"],
        ["--shock", "none:every=inf,share=1,down=inf"],
        ["--repetitions", "1"],
    ],
)
def test_json_has_null_for_what_never_happens_and_no_infinity(capsys, flags):
    assert goodput("--chips", "20k", "--learners", "2", "--days", "0.2", *flags, "--json") == 0
    line = capsys.readouterr().out.strip().splitlines()[-1]
    assert "Infinity" not in line
    assert "NaN" not in line
    found = json.loads(line)
    if "--mtbi" in flags:
        assert found["settings"]["mtbi_s"] is None


def test_money_is_chip_time_without_useful_steps(capsys):
    found = answer(capsys, *SMALL, "--learners", "1,4", "--price", "2.5")
    for cell in found["cells"]:
        share = 1 - cell["goodput_percent"] / 100
        assert cell["wasted_per_day"] == pytest.approx(share * 20_000 * 24 * 2.5)
        assert cell["wasted"] == pytest.approx(cell["wasted_per_day"])
    assert goodput(*SMALL, "--learners", "1,4", "--price", "2.5") == 0
    out = capsys.readouterr().out
    assert "wasted by 4 learners" in out
    assert "by 1 learner" in out


def test_the_papers_table_comes_with_the_distance_and_whose_constants_they_are(capsys):
    assert goodput("--preset", "paper-table1", "--days", "0.5", "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out.strip().splitlines()[-1])
    assert len(found["cells"]) == len(found["residuals"]) == len(found["theirs_percent"]) == 30
    assert found["rms"] <= 1.6
    assert found["worst"] in found["residuals"]
    assert found["whose_constants"] == "fitted by us"
    assert set(found["constants"]) > {"down_s", "up_s", "return_s", "outage_s"}
    for words in ("fitted by us", "Pinned by the table", "Not pinned", "rms"):
        assert words in captured.err
    first = found["cells"][0]
    assert first["goodput_percent"] - found["theirs_percent"][0] == pytest.approx(found["residuals"][0])


def test_the_papers_table_says_what_is_wasted_at_a_price(capsys):
    assert goodput("--preset", "paper-table1", "--days", "0.05", "--repetitions", "2", "--price", "2") == 0
    out = capsys.readouterr().out
    assert "At 2 per chip and hour" in out
    assert "2.4M chips: " in out
    assert "by 1 learner (not elastic)" in out


def test_a_shock_that_hardly_ever_comes_is_said_to_be_too_rare(capsys):
    assert goodput(*SMALL, "--learners", "2", "--shock", "site") == 0
    assert "Shock site comes about" in capsys.readouterr().out


def test_a_shock_costs_goodput(capsys):
    calm = answer(capsys, *SMALL, "--learners", "2")
    struck = answer(capsys, *SMALL, "--learners", "2", "--shock", "flood:every=6h,share=1,down=1h")
    assert struck["cells"][0]["goodput_percent"] < calm["cells"][0]["goodput_percent"] - 5
    assert struck["settings"]["shocks"][0]["name"] == "flood"


def test_traces_go_out_and_come_in_again(capsys, tmp_path):
    out = tmp_path / "traces.csv"
    assert goodput(*SMALL, "--learners", "2", "--write-traces", str(out)) == 0
    assert sorted(read_traces(out)) == ["learner-0", "learner-1"]
    spot = tmp_path / "spot.csv"
    spot.write_text("time_s,learner,chips\n0,learner-1,5000\n")
    found = answer(capsys, *SMALL, "--learners", "2", "--mtbi", "inf", "--traces", str(spot))
    assert found["cells"][0]["goodput_percent"] == pytest.approx(75, abs=0.1)
    assert found["settings"]["traces"] == ["learner-1"]


def test_pictures_are_written_where_asked(tmp_path):
    pytest.importorskip("matplotlib")
    plot, timeline = tmp_path / "plot.svg", tmp_path / "week.svg"
    assert goodput(*SMALL, "--learners", "2", "--plot", str(plot), "--timeline", str(timeline)) == 0
    assert "<svg" in plot.read_text()
    assert "<svg" in timeline.read_text()


def test_a_table_of_ones_own_is_fitted_and_told_with_ranges(capsys, tmp_path):
    file = tmp_path / "mine.csv"
    rows = "200k,1,no,66\n400k,1,no,50\n800k,1,no,33\n"
    file.write_text("chips,learners,elastic,goodput_percent\n" + rows)
    assert goodput("--fit", str(file), "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out.strip().splitlines()[-1])
    (outage,) = found["fit"]["constants"]
    assert outage["name"] == "outage"
    assert 70 < outage["low"] < outage["best"] < outage["high"] < 90
    assert outage["pinned"] is True
    assert found["rms"] < 1
    assert "fit: " in captured.err
    assert "Pinned by your table: outage." in captured.err


# What is asked


def test_without_any_option_the_model_has_its_own_defaults():
    asked = study()
    assert asked.pauses == Pauses()
    assert len(asked.rows) == 10
    assert asked.rows[0] == Row(150_000, 1, True)


def test_amounts_are_read_as_people_write_them():
    asked = study(
        chips="1.2M", learners="4", mtbi="2y", slice_chips="64", down="1min", return_mean="0", checkpoint="1h"
    )
    assert asked.mtbi_s == 2 * YEAR
    assert asked.slice_chips == 64
    assert (asked.pauses.down_s, asked.pauses.checkpoint_s) == (60, HOUR)
    assert asked.pauses.returns.mean_s == 0
    fleet = asked.fleet(Row(1_200_000, 4, False))
    assert fleet.num_learners == 4
    assert not fleet.islands[0].pauses.elastic


def test_a_shock_is_an_illustration_or_written_out():
    assert read_shock("push") == ILLUSTRATIONS["push"]
    assert read_shock("push").scope == "fleet"
    own = read_shock("rack:every=30d, share=0.1, down=1h, scope=fleet")
    assert (own.name, own.every_s, own.share, own.returns.mean_s) == ("rack", 30 * DAY, 0.1, HOUR)
    assert own.scope == "fleet"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("meteor", "rack, power, site, push"),
        ("rack:every=30d,down=1h", "has no share"),
        ("rack:every=30d", "has no share and no down"),
        ("rack:every=30d,share=0.1,down=1h,share=0.2", "cannot be read"),
        ("rack:every=30d,share=0.1,down=1h,colour=red", "cannot be read"),
        ("rack:every=30d,share=2,down=1h", "takes 2"),
        ("rack:every=0,share=0.1,down=1h", "every of --shock"),
        ("rack:every=30d,share=0.1,down=1h,scope=moon", "moon"),
    ],
)
def test_a_shock_that_says_too_little_or_nonsense_is_refused(text, why):
    with pytest.raises(ConfigError, match=why):
        read_shock(text)


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--chips", "-5"], "--chips is -5"),
        (["--chips", ""], "--chips is empty"),
        (["--chips", "3", "--learners", "8"], "3 chips cannot make 8 learners"),
        (["--mtbi", "0"], "--mtbi is 0"),
        (["--mtbi", "soon"], "--mtbi is 'soon'"),
        (["--down", "-3s"], "--down is -3"),
        (["--down", "inf"], "down_s is inf"),
        (["--learners", "0"], "--learners is 0"),
        (["--quorum", "4", "--learners", "8,2"], "The quorum is 4 and the fleet has 2 learners"),
        (["--speed-spread", "1.5"], "speed spread is 1.5"),
        (["--days", "0"], "--days is 0"),
        (["--repetitions", "0"], "--repetitions is 0"),
        (["--repetitions", "1000000"], "--repetitions is 1000000"),
        (["--seed", "-1"], "--seed is -1"),
        (["--price", "-1"], "--price is -1"),
        (["--elasticity", "some"], "--elasticity is 'some'"),
        (["--elastic", "--elasticity", "both"], "--elastic and --elasticity were given"),
        (["--preset", "table-one"], "Use paper-table1"),
        (["--preset", "paper-table1", "--chips", "5"], "--preset and --chips were given"),
        (["--preset", "paper-table1", "--shock", "rack"], "--preset and --shock were given"),
        (["--fit", "t.csv", "--return", "5s"], "--fit and --return were given"),
        (["--fit", "none.csv"], "none.csv cannot be read"),
        (["--from-run", "nowhere"], "nowhere"),
        (["--syncer-down", "1min"], "without --syncer-mtbf"),
        (["--timeline", "w.svg", "--learners", "1,2"], "shows one fleet, and 4 were asked for"),
        (["--plot", "no/such/place.svg"], "cannot be written"),
        (["--traces", "none.csv"], "none.csv cannot be read"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(capsys, flags, what):
    assert goodput(*flags) == 2
    error = capsys.readouterr().err
    assert what in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--chips", "1e300"], "--chips is 1e+300"),
        (["--slice-chips", "1e300"], "--slice-chips is 1e+300"),
        (["--slice-chips", "0"], "--slice-chips is 0"),
        (["--learners", "1e9", "--chips", "1e12"], "--learners is 1e+09"),
        (["--down", "1e300s"], "--down is 1e300s"),
        (["--price", "inf"], "--price is inf"),
        (["--price", "1e300"], "--price is 1e+300"),
        (["--days", "1e300", "--mtbi", "inf"], "--days is 1e+300"),
        (["--days", "inf"], "--days is inf"),
        (["--seed", str(2**64)], "--seed is"),
        (["--shock", "rack", "--shock", "rack:every=3d,share=0.1,down=1h"], "--shock rack was given twice"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_the_name_of_its_option(capsys, flags, what):
    assert goodput(*flags) == 2
    error = capsys.readouterr().err
    assert what in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--checkpoint", "1h"], "--checkpoint given, and all learners are elastic"),
        (["--elastic", "--outage", "1h", "--reload", "1min"], "--outage and --reload given"),
        (["--no-elastic", "--down", "5s"], "--down given, and no learner is elastic"),
        (["--elasticity", "none", "--return", "5s"], "--return given, and no learner is elastic"),
    ],
)
def test_a_constant_of_learners_that_are_not_there_is_refused(capsys, flags, what):
    assert goodput(*SMALL, "--learners", "2", *flags) == 2
    assert what in " ".join(capsys.readouterr().err.split())
    flags = [flag for flag in flags if flag not in ("--elastic", "--no-elastic", "--elasticity", "none")]
    assert goodput(*SMALL, "--learners", "2", *flags, "--elasticity", "both") == 0


@pytest.mark.parametrize("option", ["--fit", "--traces"])
def test_a_file_that_is_not_there_is_a_matter_of_its_path(capsys, option):
    assert goodput(option, "none.csv") == 2
    assert "Check the path" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "what"),
    [("0,spot-a,5", "learner-0 to learner-1"), ("0,learner-0,50000", "which has 10000")],
)
def test_grants_to_nobody_or_beyond_a_learners_chips_are_refused(capsys, tmp_path, row, what):
    spot = tmp_path / "spot.csv"
    spot.write_text(f"time_s,learner,chips\n{row}\n")
    assert goodput("--chips", "20k", "--learners", "2", "--traces", str(spot)) == 2
    assert what in capsys.readouterr().err


# Times of a real run


def test_times_of_a_run_become_constants():
    run_times = times(
        step_s=measured(2.0, 4),
        restart_s=measured(30.0),
        rejoin_s=measured(5.0),
        merge_s=measured(1.0, 90),
        syncer_restart_s=measured(8.0, 1),
    )
    completed, taken, said = take(run_times, {"seed": 1, "syncer_mtbf": "7d"})
    asked = read_study(completed)
    assert asked.pauses.quantum_s == 2
    assert asked.pauses.outage_s == 30
    assert asked.pauses.returns.mean_s == 30
    assert any("merged again 5 s after" in line for line in said)
    assert asked.syncer is not None
    assert asked.syncer.down.mean_s == 9
    assert {one.option: one.count for one in taken} == {
        "step": 4, "outage": 3, "return_mean": 3, "syncer_down": 1,
    }  # fmt: skip
    assert (asked.pauses.down_s, asked.pauses.up_s) == (Pauses().down_s, Pauses().up_s)


def test_constants_that_a_run_cannot_tell_are_named_with_their_values_and_what_hangs_on_them():
    completed, _, said = take(times(step_s=measured(0.046)), {"seed": 1, "up": "20s"})
    assert stayed(completed) == {"down": 17.5, "return_mean": 70.0, "outage": 82.0}
    assert any("the defaults" in line and "shrink 17.5 s, return 1.17 min" in line for line in said)
    assert any("decide the answer" in line and "--down and --up" in line for line in said)


@pytest.mark.parametrize("given", [{"elastic": False}, {"elasticity": "none"}, {"down": "1s", "up": "1s"}])
def test_the_pauses_decide_nothing_where_they_are_given_or_nobody_is_elastic(given):
    _, _, said = take(times(step_s=measured(2.0)), given)
    assert not any("decide the answer" in line for line in said)


def test_what_became_of_rejoining_and_of_rounds_is_said():
    _, _, said = take(times(rejoin_s=measured(5.0), merge_s=measured(0.5)), {})
    assert any("merged again 5 s after" in line and "told and not simulated" in line for line in said)
    assert any("A round took 500 ms" in line and "syncer's absence only" in line for line in said)


def test_what_was_given_goes_before_what_was_measured():
    completed, taken, _ = take(times(step_s=measured(2.0), restart_s=measured(30.0)), {"outage": "1min"})
    assert completed["outage"] == "1min"
    assert [one.option for one in taken] == ["step", "return_mean"]


def test_how_long_the_syncer_is_away_does_not_say_how_often():
    completed, _, said = take(times(syncer_restart_s=measured(8.0)), {})
    assert "syncer_down" not in completed
    assert any("--syncer-mtbf" in line for line in said)


def test_a_run_in_which_nobody_died_says_so():
    completed, taken, said = take(times(step_s=measured(2.0)), {})
    assert "outage" not in completed
    assert [one.option for one in taken] == ["step"]
    assert any(line.startswith("Nobody died in this run") for line in said)


# The door


def test_listing_the_commands_imports_no_numpy():
    code = "import atoll.cli.main, sys; sys.exit('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr or "the command line imports numpy before a command is run"


def test_help_names_every_option(capsys):
    assert goodput("--help") == 0
    out = capsys.readouterr().out
    for option in (
        "--chips",
        "--return-shape",
        "--shock",
        "--from-run",
        "--fit",
        "--write-traces",
        "--price",
    ):
        assert option in out
