"""docs/results.md says what docs/results/*.json says, and nothing that they do not."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from atoll.cli import lab
from atoll.cli.lab_run import row_json
from atoll.config import RunConfig
from atoll.observe.formats import finite
from atoll.observe.lab_tables import markdown, sentence
from atoll.sim.lab.cell import Cell, Method, Row, Size
from atoll.sim.lab.experiments import EXPERIMENTS, batches
from atoll.sim.lab.experiments.rates import places
from atoll.sim.lab.report import Claim, Picture, Request, Series, Table
from atoll.sim.lab.shelf import Shelf
from atoll.sim.lab.tuned import at_law, cell_for
from docs.results_files import laid_out, write_results
from tests.unit.sim.lab.made_up import drive, made_up

results = importlib.import_module("docs.results")  # mypy takes the folder docs/results for it
DOCS, SCORE, SECTIONS = results.DOCS, results.SCORE, results.SECTIONS
made_files, main, page = results.made_files, results.main, results.page

CURE = "python docs/results.py"
PAGES = ("results.md", "lab.md")
PAIR: tuple[Method, ...] = ("data-parallel", "decoupled")

HOLDS = Claim(text="Asynchrony is free.", value=0.1, low=-0.1, high=0.3, limit=0.5, seeds=5, verdict="holds")
OPEN = Claim(
    text="The gap is halved", value=41.0, low=float("-inf"), high=float("inf"), limit=50.0, seeds=1,
    verdict="not resolved", advice="It would take about 9 seeds.",
)  # fmt: skip
LOST = Claim(text="2 bits are enough", value=3.0, low=2.5, high=3.5, limit=0.3, seeds=5, verdict="fails")

PICTURE = Picture(
    title="Cost of bits", kind="bars", x_label="bits", y_label="loss, %", names=("int4", "int2"),
    series=(Series(name="M = 4", x=(0.0, 1.0), y=(0.1, float("inf")), error=(0.05, float("inf"))),),
)  # fmt: skip


def result(
    name: str, *claims: Claim, size: Size = "tiny", losses: tuple[float, ...] = (2.0,)
) -> dict[str, Any]:
    """What `atoll lab run` would write of an experiment that trained one pair for each loss."""
    rows = []
    for seed, loss in enumerate(losses, start=1):
        for method in PAIR:
            row = made_up(
                cell_for(method, 4, seed, size=size), loss, curve=((1 / 3, loss + 1 / 3), (1.0, loss))
            )
            rows.append(row_json(row))
    table = Table(title="Loss | gap", columns=("method", "loss"), rows=(("a|b", "2.0"),), notes=("Made up.",))
    return finite({
        "experiment": name, "size": size, "seeds": len(losses), "rows": rows, "tables": [asdict(table)],
        "claims": [asdict(claim) for claim in claims], "notes": ["A note."], "figures": {"gap": 1.0},
        "pictures": [{**asdict(PICTURE), "file": "bits.png"}, {**asdict(PICTURE), "file": None}],
        "wall_s": 61.0, "cells": len(rows), "command": f"atoll lab run {name} --size {size}",
    })  # fmt: skip


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path


def keep(docs: Path, one: dict[str, Any]) -> Path:
    path = docs / "results" / f"{one['experiment']}-{one['size']}.json"
    write_results(one, path)
    return path


def test_the_page_in_the_repository_is_what_the_json_gives():
    for path, text in made_files(DOCS).items():
        assert path.read_text("utf-8") == text, f"{path.name} is not what the JSON gives. Cure: {CURE}"


@pytest.mark.parametrize("name", PAGES)
def test_every_link_and_every_picture_leads_somewhere(name: str):
    text = (DOCS / name).read_text("utf-8")
    anchors = {re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in headings(text)}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        assert not file or (DOCS / file).exists(), f"{name} links to {target}"
        assert file or anchor in anchors, f"{name} links to {target}"


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)


def test_every_picture_beside_the_json_is_on_the_page():
    shown = re.findall(r"!\[[^\]]*\]\(results/([^)]+)\)", (DOCS / "results.md").read_text("utf-8"))
    assert sorted(shown) == sorted(path.name for path in (DOCS / "results").glob("*.png"))


def test_every_experiment_of_the_lab_has_its_section():
    assert set(EXPERIMENTS) <= set(SECTIONS), "list it in SECTIONS of docs/results.py"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_an_experiment_reports_is_told_in_full(name: str):
    rows: list[Row] = []

    def train(cell: Cell) -> Row:
        rows.append(made_up(cell, 2.0 + cell.seed / 10 + cell.learners / 100))
        return rows[-1]

    _, report = drive(EXPERIMENTS[name].stages(Request(seeds=2)), train)
    one = {**result(name), **asdict(report), "rows": [row_json(row) for row in rows]}
    text = page([json.loads(laid_out(json.loads(json.dumps(finite(one)))))])
    for table in report.tables:
        assert markdown(table) in text
    for said in [*report.notes, *map(sentence, report.claims)]:
        assert said in text
    assert len(re.findall(r"!\[.*?\]\(results/", text)) == len(report.pictures)


def test_with_no_result_the_page_claims_nothing_and_lists_every_experiment_with_its_command():
    text = page([])
    assert "Nothing was run yet" in text
    assert "holds**" not in text
    for name, planned in SECTIONS.items():
        for size, seeds in planned.runs:
            assert f"`atoll lab run {name} --size {size} --seeds {seeds} --jobs 2`" in text


def test_what_was_run_is_told_and_only_the_rest_is_listed_as_not_run():
    text = page([result("bits", HOLDS, losses=(2.0,) * 5)])
    told, missing = text.split("## Not run yet")
    assert "\n## bits\n" in told
    assert "Nothing was run yet" not in text
    assert "| bits |" not in missing
    assert "| adopt |" in missing
    assert "\n## adopt\n" not in told


def test_a_size_that_is_planned_and_missing_is_listed_though_another_was_run():
    text = page([result("parity", losses=(2.0,) * 5), result("bits", losses=(2.0,) * 4)])
    missing = text.split("## Not run yet")[1]
    assert "atoll lab run parity --size small" in missing
    assert "atoll lab run parity --size tiny" not in missing
    assert "atoll lab run bits --size tiny --seeds 5" in missing  # of fewer seeds than planned


def test_when_all_was_run_nothing_is_missing():
    every = [
        result(name, size=size, losses=(2.0,) * seeds)
        for name, planned in SECTIONS.items()
        for size, seeds in planned.runs
    ]
    assert "Not run yet" not in page(every)
    assert "#not-run-yet" not in page(every)


def test_verdicts_are_those_of_the_data_and_losing_ones_stay():
    text = page([result("bits", HOLDS, LOST), result("closing-the-gap", OPEN)])
    assert "**[3 claims](#all-claims): 1 holds, 1 fails, 1 not resolved.**" in text
    for claim, stem in ((HOLDS, "bits"), (LOST, "bits"), (OPEN, "closing-the-gap")):
        every = text.split("## All claims")[1]
        assert f"| {claim.verdict} | {sentence(claim)} | [{stem}-tiny](#{stem}) † |\n" in every
        assert f"\n- **{claim.verdict}**: {sentence(claim)}\n" in text


def test_what_matters_most_stands_first_with_the_figures_and_verdicts_of_the_claims():
    line = next(one for one in SCORE if one.experiment == "bits")
    claim = replace(LOST, text=f"We say that {line.claim} will do.")
    text = page([result("bits", HOLDS, claim)])
    first = text.split("## ")[0]
    assert f"| {line.asked} | 0.3 % | 3.00 % (2.50..3.50) | 5 | fails | [bits](#bits) |\n" in first
    assert "In short" not in page([result("bits", HOLDS)])  # nothing to say, and nothing said


@pytest.mark.parametrize("line", SCORE, ids=lambda line: line.asked)
def test_every_line_of_the_first_table_is_one_claim_of_the_results(line: Any):
    found = json.loads((DOCS / "results" / f"{line.experiment}-{line.size}.json").read_text("utf-8"))
    assert len([claim for claim in found["claims"] if line.claim in claim["text"]]) == 1


def test_checks_of_the_lab_are_shown_and_not_counted_among_the_claims():
    check = replace(HOLDS, text="Time is kept.", is_check=True)
    text = page([result("bits", HOLDS, LOST, check)])
    assert (
        "**[2 claims](#all-claims): 1 holds, 1 fails, 0 not resolved.** "
        "1 check of the lab itself: none failed." in text
    )
    assert "A check of the lab itself, true nearly by construction: Time is kept: " in text
    failed = page([result("bits", replace(check, verdict="fails"))])
    assert "**No claim was tested yet.** 1 check of the lab itself: 1 failed." in failed


def test_a_result_whose_experiment_asks_for_other_runs_today_is_listed():
    asked, _ = drive(EXPERIMENTS["adopt"].stages(Request(seeds=1)), made_up)
    rows = [row_json(made_up(cell)) for cell in asked]
    whole = {**result("adopt"), "rows": rows}
    assert "To be run again" not in page([whole])
    lacking = {**whole, "rows": rows[1:], "claims": [asdict(HOLDS)]}
    assert f"{sentence(HOLDS)} | [adopt-tiny](#adopt) † |" in page([lacking])
    assert "†" not in page([{**lacking, "rows": rows}])
    older = page([lacking]).split("## To be run again")[1]
    assert (
        f"| adopt-tiny | 1 of {len(rows)} | `atoll lab run adopt --size tiny --seeds 1 --jobs 2` |" in older
    )


def test_a_word_that_is_no_verdict_is_refused():
    odd = result("bits", HOLDS)
    odd["claims"][0]["verdict"] = "splendid"
    with pytest.raises(SystemExit, match="splendid"):
        page([odd])


def test_sections_come_in_a_fixed_order_and_sizes_from_small_to_large():
    three = [result("parity", size="small"), result("parity", size="tiny"), result("sweep")]
    text = page(three)
    heads = [head for head in headings(text) if head.startswith(("parity", "sweep"))]
    assert heads == [
        "parity",
        "parity, tiny",
        "parity, small",
        "sweep",
    ]  # tuning stands behind what rests on it
    assert text == page(three[::-1])


def test_a_section_tells_command_size_seeds_time_table_notes_picture_and_raw_json():
    text = page([result("bits", losses=(2.0, 2.1))])
    assert "```\natoll lab run bits --size tiny\n```" in text
    assert "Size tiny, 2 seeds, 4 training runs: 4 s of one core; about 2 s" in text
    assert "[bits-tiny.json](results/bits-tiny.json)" in text
    assert "| method | loss |\n| :--- | ---: |\n| a\\|b | 2.0 |\n\nMade up.\n" in text
    assert "A note." in text
    assert "![Cost of bits](results/bits-tiny.png)\n\n![Cost of bits](results/bits-tiny-2.png)\n" in text


def test_a_training_run_that_two_experiments_share_is_counted_once():
    text = page([result("bits"), result("adopt")])
    assert "\n**No claim was tested yet.** 2 training runs, 2 s of one core." in text


def test_fairness_tells_how_many_runs_each_method_was_given():
    assert "The sweep was not run yet." in page([result("bits")])
    told = page([result("sweep", losses=(2.0, 2.1, 2.2))])
    assert "- Runs of [sweep-tiny](#sweep): data-parallel 3, decoupled 3." in told


def test_fairness_counts_the_settings_of_each_method_that_only_choose():
    def row(seed: int, **changes: Any) -> dict[str, Any]:
        return row_json(made_up(cell_for("decoupled", 4, seed, **changes)))

    rows = [row(0), row(1001), row(0, eta=0.3), row(0, eta=0.2, codec_up="int8"), row(1, eta=0.1)]
    rows.append(row_json(made_up(cell_for("decoupled", 2, 0))))
    rows.append(row_json(made_up(cell_for("data-parallel", 1, 0))))
    told = page([{**result("bits"), "rows": rows}])
    assert "in all experiments of this page: data-parallel 1, decoupled 3." in told


@pytest.mark.parametrize("path", sorted((DOCS / "results").glob("rates-*.json")), ids=lambda path: path.stem)
def test_rates_that_were_found_best_are_those_that_experiments_take(path: Path):
    """They are copied into tuned.py by hand."""
    found = json.loads(path.read_text("utf-8"))
    for place in places(found["size"]):
        best = found["figures"][f"{place.name} learning rate"]
        taken = at_law(place.task, found["size"], place.settings, place.learners).learning_rate
        assert taken == pytest.approx(best, rel=0.01), place.name


@pytest.mark.parametrize(
    "path", sorted((DOCS / "results").glob("batches-*.json")), ids=lambda path: path.stem
)
def test_batches_that_were_found_best_are_those_that_experiments_take(path: Path):
    """They are copied into tuned.py by hand."""
    found = json.loads(path.read_text("utf-8"))
    for place in batches.places():
        best = found["figures"][f"{place.name} batch"]
        assert place.cell(found["size"], 1).batch == best, place.name


def test_remarks_and_defaults_are_shown_once_written(monkeypatch: pytest.MonkeyPatch):
    for name, empty in {"REMARKS": {}, "DEFAULTS": {}, "MACHINE": ""}.items():
        monkeypatch.setattr(results, name, empty)
    text = page([result("bits")])
    assert "Remark" not in text
    assert "The machine is not named yet." in text
    assert "Not chosen from results yet." in text
    monkeypatch.setattr(results, "REMARKS", {"bits": "Four are enough."})
    monkeypatch.setattr(results, "DEFAULTS", {"outer.momentum": ("not published", "see outer")})
    monkeypatch.setattr(results, "MACHINE", "A made-up machine.")
    text = page([result("bits")])
    assert "**Remark.** Four are enough." in text
    assert f"| `outer.momentum` | `{RunConfig().outer.momentum}` | not published | see outer |" in text
    assert "A made-up machine." in text


def test_json_is_laid_out_with_one_training_run_on_a_line_and_stays_the_same_data():
    one = result("bits", HOLDS, losses=(2.0, 2.1))
    text = laid_out(one)
    lines = [line for line in text.splitlines() if line.startswith('{"task"')]
    assert [json.loads(line.rstrip(","))["seed"] for line in lines] == [1, 1, 2, 2]
    back = json.loads(text)
    assert back["rows"][0]["curve"] == [[0.3333, 2.3333], [1.0, 2.0]]
    for row, kept in zip(one["rows"], back["rows"], strict=True):
        assert {**kept, "curve": None} == json.loads(json.dumps({**row, "curve": None}))
    assert laid_out(back) == text


def test_results_are_taken_in_and_then_check_is_content(docs: Path, capsys: pytest.CaptureFixture[str]):
    run = docs / "bits.json"
    run.write_text(json.dumps(result("bits", HOLDS), indent=1), encoding="utf-8")
    assert main([str(run)], docs) == 0
    assert "results/bits-tiny-2.png: made again" in capsys.readouterr().out
    assert main([], docs) == 0
    assert capsys.readouterr().out == "0 changed.\n"
    assert main(["--check"], docs) == 0
    assert "## bits" in (docs / "results.md").read_text("utf-8")
    kept = json.loads((docs / "results/bits-tiny.json").read_text("utf-8"))
    assert [one["file"] for one in kept["pictures"]] == ["bits-tiny.png", "bits-tiny-2.png"]


def test_what_no_result_shows_is_kept_for_others_to_take(docs: Path, capsys: pytest.CaptureFixture[str]):
    keep(docs, result("bits"))
    shelf = Shelf(docs / "shelf")
    shown, other = cell_for("decoupled", 4, 1), cell_for("decoupled", 8, 1)
    for cell in (shown, other):
        shelf.put(made_up(cell, 1.5))
    assert main(["--rest", str(docs / "shelf")], docs) == 0
    assert "results/unfinished/rows.json: 1 row." in capsys.readouterr().out
    theirs = Shelf(docs / "theirs")
    assert theirs.take(docs / "results/unfinished/rows.json") == (1, 0)
    assert [row.cell for row in theirs.rows()] == [other]
    assert main(["--rest", str(docs / "nowhere")], docs) == 2


def test_check_writes_nothing_and_names_what_differs_or_is_missing(
    docs: Path, capsys: pytest.CaptureFixture[str]
):
    path = keep(docs, result("bits", HOLDS))
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")), indent=1), encoding="utf-8")
    assert main(["--check"], docs) == 1
    said = capsys.readouterr().out
    for name in ("results.md", "results/bits-tiny.json", "results/bits-tiny.png", "results/bits-tiny-2.png"):
        assert f"{name}: differs" in said
    assert sorted(file.name for file in docs.rglob("*.*")) == ["bits-tiny.json"]


def test_check_sees_a_figure_that_was_changed_by_hand(docs: Path):
    keep(docs, result("bits", HOLDS))
    main([], docs)
    page_file = docs / "results.md"
    page_file.write_text(page_file.read_text("utf-8").replace("0.10 %", "0.01 %"), encoding="utf-8")
    assert main(["--check"], docs) == 1


def test_a_file_whose_name_is_not_its_experiment_is_refused(docs: Path):
    keep(docs, result("bits")).rename(docs / "results" / "adopt-tiny.json")
    with pytest.raises(SystemExit, match=r"adopt-tiny\.json holds bits-tiny"):
        main([], docs)


@pytest.mark.parametrize("arguments", [["--chekc"], ["missing.json"], ["--check", "missing.json"]])
def test_what_cannot_be_taken_in_is_refused(
    arguments: list[str], docs: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(arguments, docs) == 2
    assert "--check" in capsys.readouterr().out


def test_the_experiment_of_the_lab_page_runs_and_claims(tmp_path: Path):
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "lab.md").read_text("utf-8"), flags=re.DOTALL)
    (tmp_path / "overlap_example.py").write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("overlap_example", tmp_path / "overlap_example.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    asked, report = drive(
        module.Overlap().stages(Request(seeds=3)),
        lambda cell: made_up(cell, 2.0 + cell.seed / 10 + (cell.overlap_steps == 4) / 1000),
    )
    assert sorted((cell.overlap_steps, cell.seed) for cell in asked) == [
        (tau, seed) for tau in (1, 2, 4) for seed in (1, 2, 3)
    ]
    assert [claim.verdict for claim in report.claims] == ["holds"]
    assert report.tables[0].rows[1][0] == "2"


def test_commands_files_and_settings_that_the_lab_page_names_exist():
    text = (DOCS / "lab.md").read_text("utf-8")
    commands = {one.name or one.callback.__name__ for one in lab.commands.registered_commands if one.callback}
    assert set(re.findall(r"atoll lab (\w+)", text)) == commands
    for path in re.findall(r"`((?:sim|numerics)/[\w/.]+)`", text):
        assert (DOCS.parent / "src/atoll" / path).exists(), path
    for setting in re.findall(r"`(\w+)=\"yours\"`", text):
        assert setting in cell_for("decoupled", 4, 1).settings()
