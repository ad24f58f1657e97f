"""Three learning rates at every place and more beyond a best at the end, no method favoured."""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain

import pytest

from atoll.sim.lab import tuned
from atoll.sim.lab.cell import SIZES, TASKS, Cell, Row, Size
from atoll.sim.lab.experiments.common import Place
from atoll.sim.lab.experiments.learners import COUNTS
from atoll.sim.lab.experiments.parity import PARITY
from atoll.sim.lab.experiments.rates import MOST, RATES_AROUND, places
from atoll.sim.lab.report import Request
from atoll.sim.lab.tuned import RATE_STEP, RATES, SWEPT, Settings, carried, steps_below, transferred
from tests.unit.sim.lab.made_up import drive, made_up


def centred(cell: Cell) -> Row:
    """The rate that the search begins at is the best."""
    return made_up(cell, 2 + abs(math.log(cell.learning_rate / centre_of(cell))))


def centre_of(cell: Cell) -> float:
    settings = settings_of(cell)
    if cell.size == "tiny":
        return transferred(cell.task, cell.size, settings, cell.learners).learning_rate
    rate = carried(cell.task, cell.size, settings, cell.learners).learning_rate
    return rate * RATE_STEP ** steps_below(cell.size, settings, cell.learners)


def settings_of(cell: Cell) -> Settings:
    return "defaults" if cell.momentum_warmup else cell.method


def place_of(cell: Cell) -> tuple[str, Settings, int]:
    return cell.task, settings_of(cell), cell.learners


def test_other_sizes_begin_at_what_tiny_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        RATES, ("text", "defaults", 8), 2 * transferred("text", "tiny", "defaults", 8).learning_rate
    )
    monkeypatch.setattr(tuned, "STEPS", {})
    assert middle_of("small", 8) == pytest.approx(2 * transferred_rate("small", 8), rel=0.01)


def test_a_size_begins_where_the_next_smaller_one_that_was_tried_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuned, "RATES", {})
    steps = {("0.05M", "defaults", 8): 4, ("0.2M", "defaults", 8): -2, ("small", "defaults", 8): 6}
    monkeypatch.setattr(tuned, "STEPS", steps)
    found = {size: middle_of(size, 8) / transferred_rate(size, 8) for size in SIZES if size != "tiny"}
    assert found == pytest.approx({"0.05M": 1, "0.2M": 1, "0.4M": 0.5, "small": 0.5}, rel=0.01)


def test_what_the_next_larger_size_chose_is_tried_too_unless_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps_at(above: int, best: float) -> list[int]:
        """Of Decoupled at 0.2M and M = 8, where `best` is one of two valleys: the deeper."""
        monkeypatch.setattr(tuned, "STEPS", {("0.4M", "defaults", 8): above})

        def train(cell: Cell) -> Row:
            tried = cell.learning_rate / centre_of(cell)
            return made_up(cell, min(2 + abs(math.log(tried)), 1 + abs(math.log(tried / best))))

        asked, _ = drive(RATES_AROUND.stages(Request(size="0.2M")), train)
        ours = [cell for cell in asked if (cell.method, cell.learners) == ("decoupled", 8)]
        return sorted(round(2 * math.log2(cell.learning_rate / centre_of(cell))) for cell in ours)

    nowhere = 1e-9
    assert steps_at(above=0, best=nowhere) == steps_at(above=-1, best=nowhere) == [-1, 0, 1]
    assert steps_at(above=-6, best=nowhere) == [-7, -6, -5, -1, 0, 1]
    assert steps_at(above=-6, best=0.177) == [-7, -6, -5, -4, -1, 0, 1]  # -5 is the best, then -4 beside it
    assert steps_at(above=-2, best=0.5) == [-3, -2, -1, 0, 1]


def middle_of(size: Size, learners: int) -> float:
    """Of the three rates that Decoupled is given first."""
    asked, _ = drive(RATES_AROUND.stages(Request(size=size)), centred)
    ours = [cell for cell in asked if (cell.method, cell.learners) == ("decoupled", learners)]
    return sorted(cell.learning_rate for cell in ours)[1]


def transferred_rate(size: Size, learners: int) -> float:
    return transferred("text", size, "defaults", learners).learning_rate


@pytest.mark.parametrize("size", SIZES)
def test_every_place_gets_three_rates_and_one_seed(size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "STEPS", {})
    asked, _ = drive(RATES_AROUND.stages(Request(size=size, seeds=5)), centred)
    counts = Counter(map(place_of, asked))
    assert set(counts.values()) == {3}
    assert {(cell.seed, cell.size) for cell in asked} == {(0, size)}
    windows = {(cell.overlap_steps, cell.grace_rule, cell.grace_max_steps) for cell in asked}
    assert windows == {(2, "slack", 1.0)}
    assert len({cell.key for cell in asked}) == len(asked)


def test_tiny_covers_what_parity_learners_moe_and_vision_train() -> None:
    tried = set(places("tiny"))
    needed = {Place(method, m) for method in PARITY.methods for m in PARITY.counts}
    needed |= {Place("decoupled", m) for m in COUNTS} | {PARITY.decoupled(m) for m in PARITY.counts}
    needed |= {Place("data-parallel", task=task) for task in TASKS}
    needed |= {Place(method, 4, task) for task in TASKS[1:] for method in ("streaming", "decoupled")}
    needed |= {Place("decoupled", 4, task, "defaults") for task in TASKS[1:]}
    assert tried == needed


def test_other_sizes_try_data_parallel_and_our_defaults() -> None:
    expected = {Place("data-parallel"), *(PARITY.decoupled(m) for m in (2, 4, 8))}
    assert set(places("small")) == set(places("0.05M")) == expected


def test_rates_lie_around_the_swept_one_and_fall_with_size() -> None:
    def middle(size: Size) -> float:
        asked, _ = drive(RATES_AROUND.stages(Request(size=size)), centred)
        low, middle, high = sorted(cell.learning_rate for cell in asked if cell.method == "data-parallel")
        assert (low / middle, high / middle) == pytest.approx((0.71, 1.41), abs=0.01)
        return middle

    assert middle("0.05M") > SWEPT["data-parallel"].learning_rate > middle("0.2M") > middle("small")


def test_copying_the_results_does_not_change_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    before, _ = drive(RATES_AROUND.stages(Request()), made_up)
    monkeypatch.setitem(RATES, ("text", "decoupled", 8), 0.5)
    after, _ = drive(RATES_AROUND.stages(Request()), made_up)
    assert before == after


def test_a_best_at_the_end_is_followed_until_it_is_bracketed() -> None:
    def train(cell: Cell) -> Row:
        best = centre_of(cell) * (2 if place_of(cell) == ("text", "decoupled", 8) else 1)
        return made_up(cell, 2 + abs(math.log(cell.learning_rate / best)))

    asked, report = drive(RATES_AROUND.stages(Request()), train)
    counts = Counter(map(place_of, asked))
    assert counts.pop(("text", "decoupled", 8)) == 5  # 0.71, 1, 1.41, then 2 and 2.83
    assert {cell.seed for cell in asked} == {0}
    assert set(counts.values()) == {3}
    marks = {row[0]: row[-1] for row in report.tables[0].rows if row[-1]}
    assert set(marks.values()) == {"best"}
    centre = transferred("text", "tiny", "decoupled", 8).learning_rate
    assert report.figures["decoupled M=8 learning rate"] == pytest.approx(2 * centre, rel=0.01)
    assert not any("beyond, at" in note for note in report.notes)
    assert any("tuned.py" in note for note in report.notes)


def test_tries_end_and_a_best_that_is_still_at_the_end_is_told() -> None:
    def train(cell: Cell) -> Row:
        rate = cell.learning_rate
        falls = (cell.method, cell.learners) == ("decoupled", 16)
        return made_up(cell, 2 + rate if falls else 2 + abs(math.log(rate / centre_of(cell))))

    asked, report = drive(RATES_AROUND.stages(Request()), train)
    assert sum((cell.method, cell.learners) == ("decoupled", 16) for cell in asked) == MOST
    marks = {row[0]: row[-1] for row in report.tables[0].rows if row[-1]}
    assert marks.pop("decoupled M=16") == "best, the lowest tried"
    assert set(marks.values()) == {"best"}
    (note,) = [note for note in report.notes if "beyond, at" in note]
    assert note.endswith("at: decoupled M=16.")


def test_a_diverged_run_is_shown_and_is_not_the_best() -> None:
    def train(cell: Cell) -> Row:
        high = cell.learning_rate > 1.2 * centre_of(cell)
        return made_up(cell, math.nan) if high else centred(cell)

    _, report = drive(RATES_AROUND.stages(Request()), train)
    (table,) = report.tables
    for first in range(0, len(table.rows), 3):
        assert [row[-1] for row in table.rows[first : first + 3]] == ["", "best", ""]
        assert table.rows[first + 2][3] == "diverged"


def test_each_task_has_a_picture_of_its_own_and_a_crowded_one_is_cut_by_method() -> None:
    _, report = drive(RATES_AROUND.stages(Request()), made_up)
    where = [picture.title.split(", ", 1)[1] for picture in report.pictures]
    labels = ("data-parallel", "diloco", "streaming", "decoupled", "decoupled, our defaults")
    methods = [f"text, tiny, {label}" for label in labels]
    assert where == [*methods, "moe, tiny", "vision, tiny"]
    names = [[series.name for series in picture.series] for picture in report.pictures]
    assert all(name.startswith("moe") for name in names[5])
    assert sorted(chain(*names)) == sorted(place.name for place in places("tiny"))
    assert len(drive(RATES_AROUND.stages(Request(size="small")), made_up)[1].pictures) == 1
