"""The pages of `atoll status` and of the end of `atoll train`; and every page as on record."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from atoll.observe.status_view import render_status
from atoll.observe.summary import Summary, render_summary
from tests.unit.observe.frames import FRAMES, GOLDEN, draw
from tests.unit.observe.samples import bad_day, crowd, detail, first_moment, summary

NOTHING = Summary(status={}, run_dir="runs/x", heldout_start=None, heldout_end=None, wall_s=0.0)


@pytest.mark.parametrize("name", FRAMES)
def test_the_page_is_the_one_on_record(name: str):
    on_record = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    assert FRAMES[name]() == on_record, "meant? python -m tests.unit.observe.frames, and read the diff"


def test_no_page_on_record_is_without_its_frame():
    assert {file.stem for file in GOLDEN.iterdir()} == set(FRAMES)


@pytest.mark.parametrize("width", [20, 40, 80, 100, 120, 200])
@pytest.mark.parametrize("make", [bad_day, crowd, first_moment, dict], ids=lambda make: make.__name__)
def test_a_status_fits_every_width(make, width: int):
    text = draw(render_status(make()), width)
    assert max(map(len, text.splitlines())) <= width


def test_a_status_page_limits_its_rows_when_asked():
    assert "and 190 more" in draw(render_status(crowd(), max_rows=10), 80)
    assert "learner-117 " in draw(render_status(crowd()), 80)


def test_a_status_says_what_a_crash_would_cost():
    status = {**bad_day(), "durability": {"mode": "snapshot", "crash_cost": "up to 40 merges"}}
    assert "durability snapshot: up to 40 merges" in draw(render_status(status), 80)
    assert "durability cycle\n" in draw(render_status({"durability": {"mode": "cycle"}}), 80)
    assert "durability" not in draw(render_status({"durability": None}), 80)


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("end", [summary(), NOTHING], ids=["bad day", "nothing known"])
def test_a_summary_fits_every_width(end: Summary, width: int):
    text = draw(render_summary(end), width)
    assert max(map(len, text.splitlines())) <= width


def test_the_json_has_the_keys_that_were_promised():
    found = summary().to_json()
    promised = {
        "run_dir", "algorithm", "learners", "steps", "learner_steps", "tokens", "merges", "heldout_loss",
        "goodput", "participation", "bytes_up", "bytes_down", "bits_per_param", "stall_fraction",
        "violations",
    }  # fmt: skip
    assert promised <= found.keys()
    assert found["heldout_loss"] == {"start": 5.5461, "end": 2.2874}
    assert found["bits_per_param"] == {"up": 4.25, "down": 4.25}
    assert (found["steps"], found["learners"], found["violations"]) == (800, 4, 0)
    assert [row["phase"] for row in found["kills"][0]["rows"]] == ["before", "during", "after"]


def test_the_json_is_plain_and_has_no_nan():
    end = dataclasses.replace(summary(), heldout_end=math.nan)
    end.status["learner_details"][0]["loss"] = math.inf
    found = json.loads(json.dumps(end.to_json(), allow_nan=False))
    assert found["heldout_loss"]["end"] is None
    assert found["learner_details"][0]["loss"] is None
    assert NOTHING.to_json()["bits_per_param"] == {"up": None, "down": None}
    assert NOTHING.to_json()["learners"] == 0


def test_violations_are_counted_and_told_up_to_a_bound():
    end = dataclasses.replace(summary(), violations=tuple(f"I{i} broke" for i in range(12)))
    text = draw(render_summary(end), 80)
    assert text.count("broken: I") == 10
    assert "... and 2 more" in text
    assert end.to_json()["violations"] == 12
    assert end.to_json()["violation_reasons"][0] == "I0 broke"


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        (5.5, 2.25, "held-out loss 5.500 -> 2.250\n"),
        (2.0, 2.0, "held-out loss 2.000 -> 2.000  (no better than at the start)"),
        (2.0, math.nan, "held-out loss 2.000 -> nan  (no better than at the start)"),
        (None, 2.0, "held-out loss 2.000\n"),
        (2.0, None, "held-out loss not measured"),
    ],
)
def test_the_headline_says_whether_the_loss_fell(start: float | None, end: float | None, words: str):
    changed = dataclasses.replace(summary(), heldout_start=start, heldout_end=end)
    assert words in draw(render_summary(changed), 80)


def test_the_budget_sentence_says_who_trained_how_much():
    assert summary().budget == (
        "The budget was 800 ticks. learner-0 trained on 672k tokens, learner-1 on 289k, "
        "learner-2 on 672k, learner-3 on 336k."
    )


def test_the_budget_of_a_crowd_is_told_as_a_range():
    details = [detail(f"learner-{i}", tokens=1000 * (i + 1)) for i in range(16)]
    status = {"learner_details": details, "budget_tokens": 5_000_000}
    sentence = dataclasses.replace(summary(), status=status).budget
    assert (
        sentence == "The budget was 5.00M merged tokens. 16 learners trained on 1.00k to 16.0k tokens each."
    )


def test_a_run_without_a_budget_or_any_report_says_so():
    assert NOTHING.budget == "The budget was open. No learner reported any tokens."


def test_a_kill_without_numbers_has_a_table_of_dashes():
    kills: tuple[dict[str, Any], ...] = (
        {"event": "a killed at 5 %", "rows": [{"phase": "before"}, {"phase": "during"}]},
        {},
    )
    text = draw(render_summary(dataclasses.replace(summary(), kills=kills)), 80)
    held = next(line for line in text.splitlines() if line.startswith("held ms per step"))
    assert held.split()[-2:] == ["-", "-"]
