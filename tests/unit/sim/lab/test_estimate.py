"""What a plan promises is what is trained; what finished rows teach makes it better."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.sim.lab.bench import run_stages
from atoll.sim.lab.cell import Cell
from atoll.sim.lab.estimate import FIRST_S, Costs, Meter, Plan, cost_s, plan, plans
from atoll.sim.lab.report import Request
from atoll.sim.lab.shelf import Shelf
from tests.unit.sim.lab import fakes
from tests.unit.sim.lab.fakes import Race, cell_at
from tests.unit.sim.lab.made_up import made_up

REQUEST = Request(seeds=2)
CELL = cell_at("decoupled", 4, 1)


@pytest.fixture
def shelf(tmp_path, monkeypatch) -> Shelf:
    monkeypatch.setenv(fakes.TRAINED, str(tmp_path / "trained"))
    return Shelf(tmp_path / "cells")


def tokens_per_s(cell) -> float:
    return cell.tokens / cost_s(cell)


@pytest.mark.parametrize(
    ("cell", "slow", "fast"),
    [
        (cell_at("data-parallel", 1, 1, batch=1), 9_300, 41_000),
        (cell_at("decoupled", 4, 1, batch=4), 12_000, 48_000),
        (cell_at("decoupled", 8, 1, batch=8), 20_000, 54_000),
    ],
)
def test_the_formula_lies_between_what_two_machines_measured(cell: Cell, slow: float, fast: float):
    assert slow < tokens_per_s(cell) < fast


def test_a_cell_costs_more_with_more_tokens_learners_or_steps():
    dearer = [
        replace(CELL, tokens=2 * CELL.tokens),
        replace(CELL, learners=8),
        replace(CELL, batch=CELL.batch // 2),
        cell_at("decoupled", 4, 1, size="0.2M"),
    ]
    assert all(cost_s(cell) > cost_s(CELL) for cell in dearer)
    assert cost_s(replace(CELL, method="data-parallel")) < cost_s(CELL)


@pytest.mark.parametrize(("task", "size"), [("moe", "tiny"), ("moe", "small"), ("vision", "tiny")])
def test_every_task_has_a_cost(task, size):
    assert 1 < cost_s(cell_at("decoupled", 4, 1, task=task, size=size)) < 36_000


def test_finished_rows_scale_the_formula_by_their_median():
    others = [cell_at("streaming", 4, seed) for seed in (1, 2, 3)]
    rows = [made_up(cell, cpu_s=times * cost_s(cell)) for cell, times in zip(others, (2, 3, 40), strict=True)]
    costs = Costs.of([*rows, made_up(CELL, cpu_s=cost_s(CELL) / 2)])
    assert costs.cost_s(others[0]) == pytest.approx(3 * cost_s(others[0]))
    assert costs.cost_s(replace(CELL, seed=9)) == pytest.approx(cost_s(CELL) / 2)
    unknown = cell_at("diloco", 4, 1)
    assert costs.cost_s(unknown) == pytest.approx(2.5 * cost_s(unknown))  # the median of all four
    assert Costs.of([]).cost_s(CELL) == cost_s(CELL)


def test_a_plan_counts_what_is_trained(shelf):
    before = plan(Race(), REQUEST, shelf)
    _, rows = run_stages(Race(), REQUEST, shelf, jobs=1, train=fakes.TRAIN)
    assert before.to_train == before.cells == len(fakes.trained())
    assert before.kept == 0
    after = plan(Race(), REQUEST, shelf)
    assert (after.kept, after.to_train, after.cost_s, after.wall_s(2)) == (before.cells, 0, 0.0, 0.0)
    assert len({row.cell.key for row in rows}) == before.cells


def test_a_plan_counts_what_an_interrupted_run_has_left(shelf):
    cells = [cell_at("decoupled", 4, 1), cell_at("data-parallel", 8, 2)]
    for cell in cells:
        shelf.put(made_up(cell))
    found = plan(Race(), REQUEST, shelf)
    assert found.kept == 2
    assert found.cells == plan(Race(), REQUEST, None).cells


def test_kept_rows_steer_later_stages(shelf):
    class Adaptive:
        name = about = "adaptive"

        def stages(self, request):
            (row,) = yield [CELL]
            if row.heldout_loss > 5:
                yield [replace(CELL, seed=seed) for seed in range(2, 9)]
            return None

    assert plan(Adaptive(), REQUEST, shelf).cells == 1
    shelf.put(made_up(CELL, 6.0))
    assert plan(Adaptive(), REQUEST, shelf).cells == 8


def test_an_experiment_may_need_no_cell(shelf):
    class Idle:
        name = about = "idle"

        def stages(self, request):
            return None
            yield []

    assert plan(Idle(), REQUEST, shelf) == Plan((), 0)


def test_a_later_experiment_is_not_charged_for_the_cells_of_an_earlier_one():
    first, second = plans([Race(), Race(rates=(2e-3, 16e-3))], REQUEST, None)
    assert first.kept == 0
    assert second.to_train == 2  # the new rate, for two seeds
    assert (second.kept, second.shared, second.cells) == (0, 6, 8)


def test_wall_time_is_that_of_the_longest_first_stage_by_stage():
    found = Plan(((3.0, 1.0, 2.0), (4.0,)), kept=1)
    assert found.wall_s(1) == found.cost_s == 10.0
    assert found.wall_s(2) == 3.0 + 4.0
    assert found.wall_s(8) == 3.0 + 4.0
    assert (found.cells, found.to_train) == (5, 4)


def test_a_meter_begins_with_the_estimate_and_ends_with_the_pace():
    cells = [replace(CELL, seed=seed, tokens=10 * CELL.tokens) for seed in range(1, 5)]
    one_s = cost_s(cells[0])
    meter = Meter(total_s=4 * one_s, jobs=2, started_s=100.0)
    assert meter.share == 0.0
    assert meter.left_s(100.0) == pytest.approx(2 * one_s)
    meter.reached(cells[0], 0.5)
    meter.reached(cells[0], 1.0)
    meter.reached(cells[1], 0.5)
    assert meter.share == pytest.approx(1.5 / 4)
    late_s = 1000 * FIRST_S  # far slower than estimated
    assert meter.left_s(100.0 + late_s) == pytest.approx(late_s * 2.5 / 1.5, rel=0.5)
    for cell in cells:
        meter.reached(cell, 1.0)
    assert (meter.share, meter.left_s(100.0 + late_s)) == (1.0, 0.0)
    assert Meter(total_s=0.0, jobs=2, started_s=0.0).share == 1.0


def test_a_meter_takes_in_what_was_asked_for_beyond_the_plan():
    cells = [replace(CELL, seed=seed) for seed in range(1, 5)]
    meter = Meter(total_s=2 * cost_s(cells[0]), jobs=1, started_s=0.0)
    for cell in cells[:2]:
        meter.asked(cell)
        meter.reached(cell, 1.0)
    assert (meter.share, meter.left_s(1.0)) == (1.0, 0.0)
    for cell in cells[2:]:
        meter.asked(cell)
    assert meter.share == pytest.approx(0.5)
    assert meter.left_s(1.0) > 0


def test_a_run_of_several_stages_may_differ_from_its_plan_unless_all_is_there():
    assert Plan(((3.0,), (4.0,)), kept=1).may_differ
    assert not Plan(((3.0, 4.0),), kept=1).may_differ
    assert not Plan(((), ()), kept=9).may_differ


@pytest.mark.parametrize("cpu_s", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_row_without_a_time_teaches_nothing(shelf, cpu_s):
    shelf.put(made_up(CELL, cpu_s=cpu_s))
    shelf.put(made_up(replace(CELL, seed=2), cpu_s=3 * cost_s(CELL)))
    assert Costs.of(shelf.rows()).cost_s(CELL) == pytest.approx(3 * cost_s(CELL))
