"""The live view on a terminal, and the lines that a log gets instead."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from atoll.observe.history import History
from atoll.observe.live import Live, render
from tests.unit.observe.frames import draw
from tests.unit.observe.samples import Status, bad_day, crowd, first_moment, history, note


def logged(updates: list[tuple[float, Status]], **settings: Any) -> list[str]:
    file = io.StringIO()
    with Live(Console(file=file, width=40, **({"force_terminal": False} | settings)), every_s=10.0) as live:
        for now_s, status in updates:
            live.update(now_s, status)
    return file.getvalue().splitlines()


def shown(updates: list[tuple[float, Status]], height: int = 24) -> str:
    file = io.StringIO()
    console = Console(
        file=file, width=80, height=height, force_terminal=True, color_system="standard", _environ={}
    )
    with Live(console) as live:
        for now_s, status in updates:
            live.update(now_s, status)
    return file.getvalue()


def bare(text: str) -> str:
    """Without colours and cursor moves."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


@pytest.mark.parametrize("width", [20, 40, 80, 100, 120, 200])
@pytest.mark.parametrize("make", [bad_day, crowd, first_moment, dict], ids=lambda make: make.__name__)
def test_every_status_fits_every_width(make, width: int):
    status = make()
    for past in (History(), history(status)):
        assert max(map(len, draw(render(status, past, width), width).splitlines())) <= width


def test_an_estimate_of_our_own_stands_in_while_the_syncer_has_none():
    status = {**bad_day(), "eta_s": None}
    past = History()
    assert "ETA" not in draw(render(status, past, 80), 80)
    past.add(0.0, {"progress": 0.0})
    past.add(41.0, {"progress": 0.41})
    assert "ETA 59 s" in draw(render(status, past, 80), 80)


def test_a_budget_of_tokens_is_told_in_merged_tokens():
    status = {**bad_day(), "budget_ticks": None, "budget_tokens": 5_000_000}
    assert "t 328, 2.10M of 5.00M tokens merged" in draw(render(status, History(), 80), 80)


def test_a_hundred_percent_is_only_said_when_it_is():
    assert " 99 %" in draw(render({**bad_day(), "progress": 0.9999}, History(), 80), 80)
    assert " 100 %" in draw(render({**bad_day(), "progress": 1.0}, History(), 80), 80)


def test_problems_are_shown_up_to_a_bound():
    text = draw(render({**bad_day(), "problems": [f"trouble {i}" for i in range(9)]}, History(), 80), 80)
    assert text.count("problem: trouble") == 4
    assert "... and 5 more problems" in text


def test_markup_in_a_reason_stays_text():
    status = {**bad_day(), "notes": [note(1.0, "refused", "[red]x[/red]", "[/] is no name")]}
    assert "[red]x[/red] was refused: [/] is no name" in draw(render(status, History(), 80), 80)


def test_a_terminal_gets_the_newest_frame_in_colour():
    text = shown([(0.0, first_moment()), (1.0, bad_day())])
    assert "\x1b[" in text
    assert "learner-1 is back as incarnation 2, healing" in bare(text).splitlines()[-1]


@pytest.mark.parametrize("height", [24, 30, 50])
def test_a_crowd_does_not_outgrow_the_terminal(height: int):
    status = crowd()
    status["notes"] = [note(float(i), "killed", f"learner-{i}", "x" * 200) for i in range(20)]
    for i, one in enumerate(status["notes"]):
        one["reason"] += str(i)
    *_, last = bare(shown([(0.0, status)], height)).split("crowd  training")
    frame = last.strip("\n").splitlines()
    assert len(frame) == height, "no room is wasted, and none is missing"
    assert frame[-1].lstrip().startswith("19 s"), "the newest event is the last line"


def test_a_log_has_no_control_codes_and_no_wrapped_lines():
    lines = logged([(0.0, first_moment()), (48.0, bad_day())])
    assert not re.search(r"[^\x20-\x7e]", "".join(lines))
    assert lines[0].startswith("0 s  waiting 0 %  t 0 of 800  loss -")
    assert lines[-1].endswith("down 49.1 MB  ETA 1 min 12 s")
    assert len(lines[-1]) > 80


def test_a_log_has_a_line_now_and_then_and_each_event_once():
    calm = {**bad_day(), "notes": []}
    killed = {**calm, "notes": [note(12.0, "killed", "learner-1")]}
    lines = logged([(0.0, calm), (5.0, calm), (9.9, killed), (10.0, killed), (15.0, killed), (20.0, killed)])
    assert [line.split("  ")[1] for line in lines] == [
        "training 41 %",
        "learner-1 was killed",
        "training 41 %",
        "training 41 %",
    ]


def test_a_change_of_state_is_logged_at_once():
    calm = {**bad_day(), "notes": []}
    lines = logged([(0.0, calm), (1.0, {**calm, "state": "finished", "progress": 1.0})])
    assert lines[1].split("  ")[1] == "finished 100 %"


def test_an_empty_status_makes_a_line_too():
    assert logged([(0.0, {})])[0].startswith("-  waiting -  t -  loss -  - tokens/s  alive - of -")


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"TERM": "unknown"}])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(environ: dict[str, str]):
    lines = logged([(0.0, bad_day())], force_terminal=True, _environ=environ)
    assert "\x1b" not in "".join(lines)
    assert lines[-1].startswith("48 s  training 41 %")


def test_a_terminal_without_block_characters_gets_lines():
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    with Live(Console(file=file, width=80, force_terminal=True, color_system=None, _environ={})) as live:
        live.update(0.0, bad_day())
    file.flush()
    assert raw.getvalue().splitlines()[-1].startswith(b"48 s  training 41 %")
