"""Cells are trained once, kept at once, and the same whoever trains them."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.sim.lab.bench import CellError, Progress, describe, run_stages, train_cells
from atoll.sim.lab.estimate import Costs
from atoll.sim.lab.report import Request
from atoll.sim.lab.shelf import Shelf
from tests.unit.sim.lab import fakes
from tests.unit.sim.lab.fakes import TRAIN, Race, cell_at, trained
from tests.unit.sim.lab.made_up import drive, made_up

ROOT = Path(__file__).resolve().parents[4]
REQUEST = Request(seeds=2)
CELLS = [cell_at("decoupled", 4, seed) for seed in range(1, 6)]


@pytest.fixture(autouse=True)
def written_down(tmp_path, monkeypatch):
    monkeypatch.setenv(fakes.TRAINED, str(tmp_path / "trained"))


@pytest.fixture
def shelf(tmp_path) -> Shelf:
    return Shelf(tmp_path / "cells")


def calm(cell):
    return made_up(cell, fakes.loss_of(cell.plain()))


def test_an_experiment_is_carried_out_and_every_cell_trained_once(shelf):
    events: list[Progress] = []
    report, rows = run_stages(Race(), REQUEST, shelf, jobs=2, on_progress=events.append, train=TRAIN)
    asked, expected = drive(Race().stages(REQUEST), calm)
    assert [row.cell for row in rows] == list(dict.fromkeys(asked))
    assert report.tables == expected.tables
    keys = trained()
    assert sorted(keys) == sorted({cell.key for cell in asked})
    assert len(keys) < len(rows) < len(asked)  # one Data-Parallel run for all M, and some asked for twice
    assert len([one for one in events if one.what == "finished"]) == len(keys)
    assert multiprocessing.active_children() == []


def test_rows_are_the_same_for_one_job_and_for_two(tmp_path):
    answers = [
        run_stages(Race(), REQUEST, Shelf(tmp_path / str(jobs)), jobs=jobs, train=TRAIN)[1] for jobs in (1, 2)
    ]
    assert answers[0] == answers[1]


def test_rows_come_back_in_the_order_asked_with_the_cells_asked(shelf):
    cells = [cell_at("data-parallel", 8, 3), *reversed(CELLS), cell_at("data-parallel", 2, 3), CELLS[0]]
    rows = train_cells(cells, shelf, jobs=2, train=TRAIN)
    assert [row.cell for row in rows] == cells
    assert [row.heldout_loss for row in rows] == [fakes.loss_of(cell.plain()) for cell in cells]
    assert len(trained()) == 6


def test_whole_seeds_are_trained_first_and_the_longest_cells_of_a_seed(shelf):
    """So that whole pairs are there if it is interrupted, and nobody waits long for the last cell."""
    short = cell_at("decoupled", 4, 1)
    long = replace(short, tokens=2 * short.tokens)
    cells = [replace(cell, seed=seed) for cell in (short, long) for seed in (2, 1)]
    train_cells(cells, shelf, jobs=1, train=TRAIN)
    assert trained() == [cells[at].key for at in (3, 1, 2, 0)]


def test_what_is_on_the_shelf_is_not_trained(shelf):
    shelf.put(made_up(CELLS[2], 1.25))
    events: list[Progress] = []
    rows = train_cells(CELLS, shelf, jobs=1, on_progress=events.append, train=TRAIN)
    assert rows[2].heldout_loss == 1.25
    assert CELLS[2].key not in trained()
    assert [one.cell for one in events if one.what == "kept"] == [CELLS[2]]
    asked_for = {one.cell for one in events if one.what == "asked"}
    assert asked_for == {cell.plain() for cell in CELLS} - {CELLS[2]}


def test_nothing_is_started_when_all_is_kept(shelf):
    for cell in CELLS:
        shelf.put(made_up(cell))
    assert train_cells(CELLS, shelf, jobs=2, train="nobody:nothing") == [made_up(cell) for cell in CELLS]


def test_progress_is_told_cell_by_cell_in_hundredths(shelf):
    events: list[Progress] = []
    train_cells(CELLS[:1], shelf, jobs=1, on_progress=events.append, train=TRAIN)
    assert [one.what for one in events] == [
        "asked", "started", *["share"] * (len(events) - 3), "finished",
    ]  # fmt: skip
    shares = [one.share for one in events]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert 90 <= len(shares) <= 102  # the trainer spoke a thousand times


def test_an_interrupt_loses_nothing_that_was_finished(shelf):
    def stop(progress: Progress) -> None:
        finished.extend([progress.cell.key] * (progress.what == "finished"))
        if len(finished) == 2:
            raise KeyboardInterrupt

    finished: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_stages(Race(), REQUEST, shelf, jobs=1, on_progress=stop, train=TRAIN)
    assert multiprocessing.active_children() == []
    assert trained() == finished
    _, rows = run_stages(Race(), REQUEST, shelf, jobs=1, train=TRAIN)
    assert len(trained()) == len(set(trained())) == len({row.cell.key for row in rows})


def test_a_signal_ends_cells_in_flight_and_the_next_try_trains_the_rest(shelf):
    long = replace(cell_at("decoupled", 4, fakes.INTERRUPTS), tokens=1 << 30)
    with pytest.raises(KeyboardInterrupt):
        train_cells([long], shelf, jobs=1, train=TRAIN)
    assert multiprocessing.active_children() == []
    assert shelf.find(long) is None
    assert len(train_cells(CELLS, shelf, jobs=1, train=TRAIN)) == 5


@pytest.mark.parametrize(
    ("fate", "words"),
    [
        (fakes.RAISES, "ValueError: this cell never works"),
        (fakes.REFUSES, "ModelError: No model of this size."),
        (fakes.DIES, "want of memory"),
        (fakes.ENDS, "SystemExit: 3"),
    ],
)
def test_a_cell_that_fails_is_named_after_all_others_are_kept(shelf, fate, words):
    broken = cell_at("decoupled", 4, fate)
    with pytest.raises(CellError, match="1 of 6 cells") as caught:
        train_cells([*CELLS, broken], shelf, jobs=1, train=TRAIN)
    assert describe(broken) in str(caught.value)
    assert words in str(caught.value)
    assert broken.key in trained()
    assert all(shelf.find(cell) for cell in CELLS)
    assert multiprocessing.active_children() == []


def test_every_cell_that_failed_is_named(shelf):
    broken = [cell_at("decoupled", 4, fate) for fate in (fakes.RAISES, fakes.DIES)]
    with pytest.raises(CellError, match="2 of 2 cells") as caught:
        train_cells(broken, shelf, jobs=2, train=TRAIN)
    assert all(cell.key in str(caught.value) for cell in broken)


def test_a_trainer_that_cannot_be_found_is_an_error_with_its_name(shelf):
    with pytest.raises(CellError, match="No module named 'nobody'"):
        train_cells(CELLS[:1], shelf, jobs=1, train="nobody:nothing")


def test_a_failure_in_a_later_stage_keeps_the_stages_before(shelf):
    with pytest.raises(CellError):
        run_stages(Race(rates=(2e-3,), fate=fakes.RAISES), REQUEST, shelf, jobs=1, train=TRAIN)
    assert len(shelf.rows()) == 4  # two seeds of both methods in the first stage


def test_what_finished_rows_teach_decides_what_is_longest(shelf):
    slow, fast = cell_at("streaming", 4, 1), cell_at("decoupled", 4, 1)
    costs = Costs({("text", "tiny", "streaming"): 9.0})

    class Pair:
        name = about = "pair"

        def stages(self, request):
            yield [fast, slow]
            return None

    run_stages(Pair(), REQUEST, shelf, jobs=1, costs=costs, train=TRAIN)
    assert trained() == [slow.key, fast.key]


def test_children_end_with_a_parent_that_is_killed(tmp_path):
    """They share its standard output, which ends only when nobody holds it any more."""
    code = (
        "from pathlib import Path\n"
        "from atoll.sim.lab.bench import train_cells\n"
        "from atoll.sim.lab.shelf import Shelf\n"
        "from tests.unit.sim.lab.fakes import KILLS, TRAIN, cell_at\n"
        f"shelf = Shelf(Path({str(tmp_path)!r}))\n"
        "train_cells([cell_at('decoupled', 4, KILLS)], shelf, jobs=1, train=TRAIN)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == -9, done.stderr
