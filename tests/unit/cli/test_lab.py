"""`atoll lab` as a person or a program uses it, with a trainer that costs nothing."""

from __future__ import annotations

import builtins
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atoll.cli.main import run
from atoll.sim.lab import bench, experiments
from atoll.sim.lab.cell import Cell
from atoll.sim.lab.estimate import plan
from atoll.sim.lab.report import Request, Stages
from atoll.sim.lab.shelf import Shelf
from atoll.sim.lab.sizes import shape_of
from tests.unit.sim.lab import fakes
from tests.unit.sim.lab.fakes import Race
from tests.unit.sim.lab.made_up import made_up

RUN = ["lab", "run", "race", "--seeds", "1", "--jobs", "1"]
CELLS = plan(Race(), Request(seeds=1), None).cells


@pytest.fixture(autouse=True)
def lab(tmp_path, monkeypatch):
    """A lab with one experiment, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(fakes.TRAINED, str(tmp_path / "trained"))
    monkeypatch.setattr(bench, "TRAIN", fakes.TRAIN)
    with_race(monkeypatch)
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)  # which the command takes for itself


def with_race(monkeypatch, **changes) -> None:
    races = [Race(**changes), Race(name="relay", rates=(2e-3, 5e-3))]
    monkeypatch.setattr(experiments, "EXPERIMENTS", {race.name: race for race in races})


def answer_of(capsys) -> dict[str, Any]:
    (line,) = capsys.readouterr().out.strip().splitlines()
    return json.loads(line, parse_constant=pytest.fail)


def test_an_experiment_ends_in_tables_claims_a_picture_and_json(lab, capsys):
    assert run(RUN) == 0  # although its claim fails: that is a finding
    told = capsys.readouterr()
    assert f"{CELLS} cells, 0 of them kept in runs/lab. To train: {CELLS}, about" in told.out
    assert told.out.index("To train") < told.out.index("Race")
    for words in (
        "decoupled",
        "fails",
        "Decoupled is close",
        "Made up.",
        "Picture: runs/lab/race-tiny/race.png",
    ):
        assert words in told.out
    assert max(map(len, told.out.splitlines()[1:])) <= 100
    assert told.err.count("finished: ") == CELLS
    assert f"{CELLS} of {CELLS} cells, 100 %, 0 s left" in told.err
    place = lab / "runs/lab/race-tiny"
    assert (place / "race.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((place / "race.json").read_text(), parse_constant=pytest.fail)
    assert written["command"] == "atoll lab run race --size tiny --seeds 1 --jobs 1"


def test_json_is_one_line_with_every_row_and_its_settings(lab, capsys):
    assert run([*RUN, "--json"]) == 0
    found = answer_of(capsys)
    assert (found["experiment"], found["size"], found["seeds"]) == ("race", "tiny", 1)
    assert (found["cells"], found["from_shelf"], found["cpu_s"]) == (CELLS, 0, CELLS)
    assert found["wall_s"] > 0
    row = found["rows"][-1]
    cell = Cell.of(row["cell"])
    assert (row["method"], row["learners"], row["seed"]) == ("decoupled", 4, 1)
    assert (row["key"], row["heldout_loss"]) == (cell.key, fakes.loss_of(cell))
    assert found["figures"]["never"] is None  # JSON has no NaN
    assert found["claims"][0]["high"] is None
    assert found["tables"][0]["title"] == "Race"
    assert found["pictures"][0]["file"] == "race.png"
    assert json.loads((lab / "runs/lab/race-tiny/race.json").read_text()) == found


def test_a_second_run_trains_nothing_and_again_trains_all(capsys):
    answers = []
    for more in ([], [], ["--again"]):
        assert run([*RUN, "--json", *more]) == 0
        answers.append(answer_of(capsys))
    assert [found["from_shelf"] for found in answers] == [0, CELLS, 0]
    assert len(fakes.trained()) == 2 * CELLS
    assert answers[0]["rows"] == answers[1]["rows"] == answers[2]["rows"]


def test_an_interrupt_is_130_and_the_same_command_goes_on(capsys, monkeypatch):
    with_race(monkeypatch, fate=fakes.INTERRUPTS)
    assert run(RUN) == 130
    told = capsys.readouterr().err
    assert "Interrupted. What is finished is kept: the same command goes on." in told
    done = told.count("finished: ")
    with_race(monkeypatch)
    assert run([*RUN, "--json"]) == 0
    assert answer_of(capsys)["from_shelf"] == done
    with_race(monkeypatch, fate=fakes.INTERRUPTS)
    assert run([*RUN, "--again"]) == 130
    assert "the same command without --again goes on" in capsys.readouterr().err


def test_a_cell_that_fails_is_exit_code_1_and_stops_no_other_experiment(capsys, monkeypatch):
    with_race(monkeypatch, fate=fakes.RAISES)
    assert run(["lab", "run", "all", "--seeds", "1", "--json"]) == 1
    told = capsys.readouterr()
    assert "race: CellError: 2 of 4 cells could not be trained" in told.err
    assert "ValueError: this cell never works" in told.err
    assert "the same command trains only what is missing" in told.err
    assert [found["experiment"] for found in json.loads(told.out)["experiments"]] == ["relay"]


def test_all_runs_everything_and_shared_cells_once(lab, capsys):
    assert run(["lab", "run", "all", "--seeds", "1", "--out", "found"]) == 0
    told = capsys.readouterr().out
    assert f"2 experiments at tiny, seeds: 1. {CELLS + 1} cells, 0 of them kept" in told
    assert "relay" in told
    assert len(fakes.trained()) == len(set(fakes.trained())) == CELLS + 1
    assert (lab / "found/race/race.json").exists()
    assert json.loads((lab / "found/relay/relay.json").read_text())["from_shelf"] == 3


def test_a_dry_run_tells_the_cost_and_trains_nothing(lab, capsys):
    assert run([*RUN, "--dry-run", "--json"]) == 0
    found = answer_of(capsys)
    assert (found["cells"], found["from_shelf"]) == (CELLS, 0)
    assert 0 < found["wall_s"] == found["cpu_s"]
    assert fakes.trained() == []
    assert not (lab / "runs").exists()


def test_what_results_decide_is_foreseen_as_more_or_less(lab, capsys):
    words = "Results decide what is asked for next: it may be more or less."
    assert run([*RUN, "--dry-run"]) == 0
    assert words in capsys.readouterr().out
    assert run(RUN) == 0
    capsys.readouterr()
    assert run([*RUN, "--dry-run"]) == 0
    assert words not in capsys.readouterr().out  # all is there


@pytest.mark.parametrize("cells", ["taken", "taken/shelf"])
@pytest.mark.parametrize("command", [[*RUN, "--dry-run"], ["lab", "list"]])
def test_what_cannot_be_a_shelf_is_refused_once_by_commands_that_train_nothing(lab, capsys, command, cells):
    (lab / "taken").write_text("")
    assert run([*command, "--cells", cells]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert f"StoreError: {cells} cannot be read as a directory: Not a directory." in told.err
    assert "left out" not in told.err
    assert [file.name for file in lab.iterdir()] == ["taken"]


@pytest.mark.parametrize("more", [[], ["--again"], ["--dry-run"]])
def test_a_directory_in_the_place_of_a_row_is_refused_before_anything_is_trained(lab, capsys, more):
    key = fakes.cell_at("decoupled", 4, 1).key
    (lab / f"runs/lab/{key[:2]}/{key}.json").mkdir(parents=True)
    assert run([*RUN, *more]) == 2
    assert f"{key}.json is a directory, where the row of a cell belongs" in capsys.readouterr().err
    assert fakes.trained() == []


def test_other_places_are_used_and_named_in_the_command(lab, capsys):
    assert run([*RUN, "--cells", "my cells", "--out", "found", "--json"]) == 0
    found = answer_of(capsys)
    assert found["command"].endswith("--jobs 1 --cells 'my cells' --out found")
    assert (lab / "found/race.json").exists()
    assert len(Shelf(lab / "my cells").rows()) == CELLS


def test_without_matplotlib_all_but_the_picture_is_there(lab, capsys, monkeypatch):
    real = builtins.__import__

    def missing(name, *rest, **more):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert run([*RUN, "--json"]) == 0
    told = capsys.readouterr()
    assert "matplotlib, which is not installed" in told.err
    assert json.loads(told.out)["pictures"][0]["file"] is None
    assert (lab / "runs/lab/race-tiny/race.json").exists()


def test_the_list_names_every_experiment_with_its_cells(capsys):
    assert run(["lab", "list", "--json"]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out)["experiments"]
    assert [one["name"] for one in found] == ["race", "relay"]
    assert found[0]["cells"] == plan(Race(), Request(), None).cells
    assert found[0]["wall_s"] > 0
    assert "decoupled against data-parallel, for tests" in told.err


class OfOneStage(Race):
    """An experiment whose cells do not follow from results."""

    def stages(self, request: Request) -> Stages:
        return self._report(request, (yield [fakes.cell_at("decoupled", 4, seed) for seed in range(1, 8)]))


def test_the_list_counts_about_where_results_decide_what_is_asked_for_next(capsys, monkeypatch):
    two = {"race": Race(), "dash": OfOneStage(name="dash", about="dash")}
    monkeypatch.setattr(experiments, "EXPERIMENTS", two)
    assert run(["lab", "list", "--json"]) == 0
    told = capsys.readouterr()
    assert [one["may_differ"] for one in json.loads(told.out)["experiments"]] == [True, False]
    race, dash = (line for line in told.err.splitlines() if line.startswith(("  race", "  dash")))
    assert f" about {plan(Race(), Request(), None).cells} " in race
    assert " about " not in dash
    assert "About: results decide" in told.err


def test_one_kept_row_is_shown_by_the_first_letters_of_its_key(lab, capsys):
    row = made_up(fakes.cell_at("decoupled", 4, 7), 2.125)
    Shelf(lab / "runs/lab").put(row)
    assert run(["lab", "show", row.cell.key[:6], "--json"]) == 0
    told = capsys.readouterr()
    assert "2.125" in told.err
    assert json.loads(told.out)["cell"] == json.loads(json.dumps(row.cell.settings()))
    assert run(["lab", "show", "nothing"]) == 2
    assert "no row" in capsys.readouterr().err


def test_a_row_is_trained_again_and_its_bits_compared(lab, capsys):
    shelf, cell = Shelf(lab / "runs/lab"), fakes.cell_at("decoupled", 4, 7)
    shelf.put(made_up(cell, fakes.loss_of(cell), digest=cell.key))
    assert run(["lab", "rerun", cell.key]) == 0
    assert "The same bits as before." in capsys.readouterr().out
    shelf.put(replace(made_up(cell), digest="other"))
    assert run(["lab", "rerun", cell.key, "--json"]) == 1
    assert answer_of(capsys)["same_bits"] is False
    assert fakes.trained() == [cell.key] * 2
    assert shelf.named(cell.key).digest == "other"  # what is kept stays


def test_a_row_that_cannot_be_trained_again_says_why(lab, capsys):
    cell = fakes.cell_at("decoupled", 4, fakes.REFUSES)
    Shelf(lab / "runs/lab").put(made_up(cell))
    assert run(["lab", "rerun", cell.key]) == 1
    assert "No model of this size." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rase"], "Did you mean race?"),
        (["xyzzy"], "The lab has race, relay."),
        (["race", "--size", "huge"], "Take one of 0.05M, tiny"),
        (["race", "--seeds", "0"], "--seeds is 0"),
        (["race", "--jobs", "-1"], "--jobs is -1"),
        (["race", "--out", "taken"], "taken/race.json cannot be written: "),
        (["race", "--out", "found"], "found/race.json cannot be written: Is a directory."),
        (["race", "--cells", "taken", "--out", "elsewhere"], "taken cannot be written: "),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_trained(lab, capsys, arguments, words):
    (lab / "taken").write_text("")
    (lab / "found/race.json").mkdir(parents=True)
    assert run(["lab", "run", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert fakes.trained() == []


class Obstructed(Race):
    """While it runs, somebody makes a directory where its JSON belongs."""

    def stages(self, request: Request) -> Stages:
        report = yield from super().stages(request)
        Path("found/race.json").mkdir(exist_ok=True)  # a plan walks the stages too
        return report


def test_a_result_that_cannot_be_written_is_told_in_words_and_costs_no_training(lab, capsys, monkeypatch):
    monkeypatch.setattr(experiments, "EXPERIMENTS", {"race": Obstructed()})
    assert run([*RUN, "--out", "found"]) == 2
    told = capsys.readouterr()
    assert "Decoupled is close" in told.out
    assert "StoreError: found/race.json cannot be written: " in told.err
    assert "its cells are kept in runs/lab" in told.err
    assert sorted(file.name for file in (lab / "found").iterdir()) == ["race.json", "race.png"]
    with_race(monkeypatch)
    assert run([*RUN, "--out", "elsewhere"]) == 0
    assert len(fakes.trained()) == CELLS


class OfTwoSizes(Race):
    """An experiment on models that are tiny or small."""

    def stages(self, request: Request) -> Stages:
        shape_of("moe", request.size)
        return super().stages(request)


def test_all_leaves_out_what_has_no_model_of_the_size_and_says_so(capsys, monkeypatch):
    two = {"race": OfTwoSizes(), "relay": Race(name="relay")}
    monkeypatch.setattr(experiments, "EXPERIMENTS", two)
    assert run(["lab", "run", "all", "--size", "0.2M", "--seeds", "1", "--json"]) == 0
    told = capsys.readouterr()
    assert "race is left out: The lab has no moe model of size 0.2M." in told.err
    assert [found["experiment"] for found in json.loads(told.out)["experiments"]] == ["relay"]
    assert run([*RUN, "--size", "0.2M"]) == 2
    assert "Choose one of tiny, small." in capsys.readouterr().err


def test_sizes_between_tiny_and_small_are_known(capsys):
    assert run([*RUN, "--size", "0.2M", "--dry-run", "--json"]) == 0
    assert answer_of(capsys)["size"] == "0.2M"


def test_help_list_and_plans_import_no_torch(lab):
    code = (
        "import sys\n"
        "from atoll.cli.main import run\n"
        "for line in (['--help'], ['lab', 'list'], ['lab', 'run', 'all', '--dry-run']):\n"
        "    assert run(line) == 0\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_results_of_others_are_taken_in_and_not_trained_again(lab, capsys):
    assert run([*RUN, "--cells", "theirs"]) == 0
    assert run(["lab", "take", "theirs/race-tiny/race.json"]) == 0
    assert f"{CELLS} rows more in runs/lab" in capsys.readouterr().err
    assert run(["lab", "take", "theirs/race-tiny/race.json"]) == 0
    assert "0 rows more" in capsys.readouterr().err
    assert run([*RUN, "--json"]) == 0
    assert answer_of(capsys)["from_shelf"] == CELLS
    assert Shelf(lab / "runs/lab").rows() == Shelf(lab / "theirs").rows()


@pytest.mark.parametrize("spoil", ["missing", "not JSON", "other settings", "wrong type"])
def test_a_result_that_cannot_be_believed_is_refused_whole(lab, capsys, spoil):
    assert run([*RUN, "--cells", "theirs"]) == 0
    file = lab / "theirs/race-tiny/race.json"
    result = json.loads(file.read_text())
    if spoil == "other settings":
        result["rows"][-1]["cell"]["seed"] += 1
    if spoil == "wrong type":
        result["rows"][-1]["cpu_s"] = "x"
    file.write_text("{" if spoil == "not JSON" else json.dumps(result))
    if spoil == "missing":
        file.unlink()
    assert run(["lab", "take", str(file)]) == 2
    assert "cannot be taken in" in capsys.readouterr().err
    assert Shelf(lab / "runs/lab").rows() == []
