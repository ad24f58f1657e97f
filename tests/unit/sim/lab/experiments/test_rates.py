"""Three learning rates at every place, no method favoured."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from atoll.sim.lab.cell import SIZES, TASKS, Cell, Row, Size
from atoll.sim.lab.experiments.common import Place
from atoll.sim.lab.experiments.learners import COUNTS
from atoll.sim.lab.experiments.parity import PARITY
from atoll.sim.lab.experiments.rates import RATES_AROUND, places
from atoll.sim.lab.report import Request
from atoll.sim.lab.tuned import RATES, SWEPT, transferred
from tests.unit.sim.lab.made_up import drive, made_up


@pytest.mark.parametrize("size", SIZES)
def test_every_place_gets_three_rates_and_one_seed(size: Size) -> None:
    asked, _ = drive(RATES_AROUND.stages(Request(size=size, seeds=5)), made_up)
    counts = Counter((cell.task, cell.method, cell.learners) for cell in asked)
    assert set(counts.values()) == {3}
    assert {(cell.seed, cell.size) for cell in asked} == {(0, size)}
    assert len({cell.key for cell in asked}) == len(asked)


def test_tiny_covers_what_parity_learners_moe_and_vision_train_beyond_the_sweep() -> None:
    tried = set(places("tiny"))
    needed = {Place(method, m) for method in PARITY.methods for m in PARITY.counts if m != 4}
    needed |= {Place("decoupled", m) for m in COUNTS if m != 4}
    for task in TASKS[1:]:
        needed |= {
            Place("data-parallel", task=task),
            Place("streaming", 4, task),
            Place("decoupled", 4, task),
        }
    assert tried == needed


def test_other_sizes_try_data_parallel_and_decoupled() -> None:
    expected = {Place("data-parallel"), Place("decoupled", 4)}
    assert set(places("small")) == set(places("0.05M")) == expected


def test_rates_lie_around_the_swept_one_and_fall_with_size() -> None:
    def middle(size: Size) -> float:
        asked, _ = drive(RATES_AROUND.stages(Request(size=size)), made_up)
        low, middle, high = sorted(cell.learning_rate for cell in asked if cell.method == "data-parallel")
        assert (low / middle, high / middle) == pytest.approx((0.71, 1.41), abs=0.01)
        return middle

    assert middle("0.05M") > SWEPT["data-parallel"].learning_rate > middle("0.2M") > middle("small")


def test_copying_the_results_does_not_change_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    before, _ = drive(RATES_AROUND.stages(Request()), made_up)
    monkeypatch.setitem(RATES, ("text", "decoupled", 8), 0.5)
    after, _ = drive(RATES_AROUND.stages(Request()), made_up)
    assert before == after


def test_the_best_of_three_is_marked_and_a_diverged_run_is_shown() -> None:
    def train(cell: Cell) -> Row:
        centre = transferred(cell.task, cell.size, cell.method, cell.learners).learning_rate
        return made_up(cell, math.nan if cell.learning_rate > 1.2 * centre else 2 + cell.learning_rate)

    _, report = drive(RATES_AROUND.stages(Request()), train)
    (table,) = report.tables
    for first in range(0, len(table.rows), 3):
        assert [row[-1] for row in table.rows[first : first + 3]] == [
            "best, the lowest tried", "", "",
        ]  # fmt: skip
        assert table.rows[first + 2][3] == "diverged"
    centre = transferred("text", "tiny", "decoupled", 8).learning_rate
    assert report.figures["decoupled M=8 learning rate"] == pytest.approx(centre / math.sqrt(2), rel=0.01)
    assert any("tuned.py" in note for note in report.notes)


def test_a_best_at_the_end_of_the_three_is_told_and_one_in_the_middle_is_not() -> None:
    def train(cell: Cell) -> Row:
        centre = transferred(cell.task, cell.size, cell.method, cell.learners).learning_rate
        best = centre * (math.sqrt(2) if (cell.method, cell.learners) == ("decoupled", 8) else 1)
        return made_up(cell, 2 + abs(cell.learning_rate - best))

    _, report = drive(RATES_AROUND.stages(Request()), train)
    marks = {row[0]: row[-1] for row in report.tables[0].rows if row[-1]}
    assert marks.pop("decoupled M=8") == "best, the highest tried"
    assert set(marks.values()) == {"best"}
    (note,) = [note for note in report.notes if "beyond" in note]
    assert note.endswith("at: decoupled M=8.")


def test_each_task_has_a_picture_of_its_own() -> None:
    _, report = drive(RATES_AROUND.stages(Request()), made_up)
    assert [picture.title.split(", ")[1] for picture in report.pictures] == list(TASKS)
    names = [{series.name for series in picture.series} for picture in report.pictures]
    assert all(name.startswith("moe") for name in names[1])
    assert sum(map(len, names)) == len(places("tiny"))
    assert len(drive(RATES_AROUND.stages(Request(size="small")), made_up)[1].pictures) == 1
