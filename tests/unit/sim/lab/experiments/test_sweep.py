"""The coordinate search on surfaces that are known, and the sweep of all methods with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.sweep import BATCHES, ETAS, MUS, SWEEP, search
from atoll.sim.lab.report import Request
from atoll.sim.lab.tuned import Tuned
from tests.unit.sim.lab.made_up import drive, made_up

MAX_RUNS = 40
OUTER = ("diloco", "streaming", "decoupled")


def bowl(best: Tuned) -> Callable[[Tuned], float]:
    """A surface with one lowest point; the best rate goes with the root of the batch."""

    def loss(at: Tuned) -> float:
        rate = math.log2(at.learning_rate / best.learning_rate) - math.log2(at.batch / best.batch) / 2
        batch = math.log2(at.batch / best.batch)
        return 2 + 0.1 * rate**2 + 0.05 * batch**2 + 0.2 * (at.eta - best.eta) ** 2 + (at.mu - best.mu) ** 2

    return loss


def walk(
    start: Tuned, loss: Callable[[Tuned], float], *, has_outer: bool = True
) -> tuple[list[Tuned], Tuned]:
    """Every settings tried, in order, and the best."""
    tried: list[Tuned] = []
    steps = search(start, has_outer=has_outer)
    try:
        wanted = next(steps)
        while True:
            tried += wanted
            wanted = steps.send([loss(one) for one in wanted])
    except StopIteration as end:
        return tried, end.value


@pytest.mark.parametrize("rate_at_16", [1e-3, 2.8e-3, 8e-3, 2.2e-2, 6.4e-2])
@pytest.mark.parametrize("batch", BATCHES)
def test_the_search_finds_the_lowest_point_of_a_bowl(rate_at_16: float, batch: int) -> None:
    rate = rate_at_16 * math.sqrt(batch / 16)
    tried, best = walk(Tuned(8e-3, 16, 0.4, 0.9), bowl(Tuned(rate, batch, 0.7, 0.5)))
    assert (best.batch, best.eta, best.mu) == (batch, 0.7, 0.5)
    assert abs(math.log2(best.learning_rate / rate)) <= 0.26  # within half a step of the fine grid
    assert len(tried) == len(set(tried)) <= MAX_RUNS


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_surface_without_an_end_stops_at_the_end_of_every_grid(sign: int) -> None:
    def slope(at: Tuned) -> float:
        return sign * (math.log(at.learning_rate) + 3 * math.log(at.batch) + at.eta + at.mu)

    tried, best = walk(Tuned(8e-3, 16, 0.4, 0.9), slope)
    end = 0 if sign > 0 else -1
    assert (best.batch, best.eta, best.mu) == (BATCHES[end], ETAS[end], MUS[end])
    assert len(tried) == len(set(tried)) <= MAX_RUNS


def test_a_search_that_starts_at_the_best_makes_few_runs() -> None:
    start = Tuned(8e-3, 16, 0.4, 0.9)
    tried, best = walk(start, bowl(start))
    assert best == start
    assert len(tried) == 11  # the start and two neighbours on each of five coordinates
    assert len(walk(start, bowl(start), has_outer=False)[0]) == 7


@pytest.mark.parametrize("end", [math.nan, math.inf])
@pytest.mark.parametrize("is_above", [True, False])
def test_a_diverged_run_is_worse_than_any_other(end: float, is_above: bool) -> None:
    def cliff(at: Tuned) -> float:
        return end if (at.learning_rate > 8e-3) == is_above and at.learning_rate != 8e-3 else 2.0

    assert walk(Tuned(8e-3, 16), cliff, has_outer=False)[1] == Tuned(8e-3, 16)


def train(cell: Cell) -> Row:
    at = Tuned(cell.learning_rate, cell.batch, cell.eta, cell.mu)
    if cell.method == "data-parallel":
        return made_up(cell, bowl(Tuned(4e-3, 8, at.eta, at.mu))(at))
    return made_up(cell, bowl(Tuned(8e-3, 32, 0.4, 0.8))(at))


def test_all_methods_are_swept_side_by_side_and_no_run_is_made_twice() -> None:
    stages = SWEEP.stages(Request(seeds=3))
    first = next(stages)
    assert {cell.method for cell in first} == {"data-parallel", *OUTER}
    asked, report = drive(SWEEP.stages(Request(seeds=3)), train)
    assert len({cell.key for cell in asked}) == len(asked)
    assert {(cell.task, cell.size, cell.seed) for cell in asked} == {("text", "tiny", 0)}
    assert {cell.learners for cell in asked if cell.method in OUTER} == {4}
    assert any("tiny" in note for note in report.notes)
    assert any("favours Data-Parallel" in note for note in report.notes)
    assert not any("beyond" in note for note in report.notes)


def test_equal_surfaces_cost_equal_runs_and_the_best_is_marked() -> None:
    _, report = drive(SWEEP.stages(Request()), train)
    figures = report.figures
    assert figures["diloco runs"] == figures["decoupled runs"] <= MAX_RUNS  # they start alike
    assert figures["data-parallel batch"] == 8
    assert [figures[f"{method} mu"] for method in OUTER] == [0.8, 0.8, 0.8]
    for table in report.tables:
        (best,) = [row for row in table.rows if row[-1] == "best"]
        assert best[4] == min(row[4] for row in table.rows)
        assert f"{len(table.rows)} runs" in table.title


def test_a_diverged_run_stays_in_the_table() -> None:
    def fragile(cell: Cell) -> Row:
        return made_up(cell, math.inf) if cell.learning_rate > 6e-3 else train(cell)

    _, report = drive(SWEEP.stages(Request()), fragile)
    assert all("diverged" in [row[4] for row in table.rows] for table in report.tables)
    assert all(math.isfinite(y) for picture in report.pictures for one in picture.series for y in one.y)


def test_a_best_at_the_end_of_a_grid_is_told_in_the_table_and_in_a_note() -> None:
    def slope(cell: Cell) -> Row:
        if cell.method == "diloco":
            return train(cell)
        return made_up(cell, 2 + cell.batch / 100 + cell.learning_rate - cell.mu)

    _, report = drive(SWEEP.stages(Request()), slope)
    marks = {table.title.split(":")[0]: row[-1] for table in report.tables for row in table.rows if row[-1]}
    assert marks["diloco"] == "best"
    assert marks["data-parallel"] == "best (learning rate and batch at the end of the grid)"
    assert marks["decoupled"] == "best (learning rate and batch and mu at the end of the grid)"
    assert "decoupled: the best batch, 4, is the lowest that was tried: a better one may lie beyond." in (
        report.notes
    )
    assert any(note.startswith("decoupled: the best mu, 0.95, is the highest") for note in report.notes)
    assert not any(note.startswith("diloco:") for note in report.notes)


def test_lock_step_may_walk_to_a_batch_of_one_example() -> None:
    asked, report = drive(SWEEP.stages(Request()), lambda cell: made_up(cell, 2 + cell.batch / 100))
    assert report.figures["data-parallel batch"] == 1
    assert report.figures["decoupled batch"] == 4
    (one, *_) = [cell for cell in asked if cell.batch == 4]
    assert one.key == replace(one, learners=4).key  # M says nothing about Data-Parallel
