"""Half and twice the batch at every place, and on while that is better; no method favoured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import pytest

from atoll.sim.lab import tuned
from atoll.sim.lab.cell import Cell, Row, Size
from atoll.sim.lab.experiments.batches import BATCHES, MOST, places
from atoll.sim.lab.experiments.common import Place
from atoll.sim.lab.experiments.parity import PARITY
from atoll.sim.lab.report import Report, Request
from atoll.sim.lab.tuned import TUNING_SEED, at_law
from tests.unit.sim.lab.made_up import drive, made_up


def law_of(cell: Cell) -> tuned.Tuned:
    settings: tuned.Settings = "defaults" if cell.momentum_warmup else "data-parallel"
    return at_law("text", cell.size, settings, cell.learners)


def doublings(cell: Cell) -> float:
    return math.log2(cell.batch / law_of(cell).batch)


def best_at(wanted: Callable[[Cell], float]) -> Callable[[Cell], Row]:
    """Losses with one valley, at so many doublings of the batch."""
    return lambda cell: made_up(cell, 2 + 0.1 * abs(doublings(cell) - wanted(cell)))


def run(train: Callable[[Cell], Row], size: Size = "small") -> tuple[list[Cell], Report]:
    return drive(BATCHES.stages(Request(size=size, seeds=5)), train)


def tried(asked: list[Cell], learners: int) -> list[float]:
    return sorted(doublings(cell) for cell in asked if cell.learners == learners)


def test_data_parallel_and_our_defaults_at_every_m_are_given_half_and_twice_their_batch() -> None:
    asked, report = run(best_at(lambda cell: 0))
    assert set(places()) == {Place("data-parallel"), *(PARITY.decoupled(m) for m in (2, 4, 8))}
    assert Counter(cell.learners for cell in asked) == {1: 3, 2: 3, 4: 3, 8: 3}
    assert {cell.seed for cell in asked} == {TUNING_SEED}
    assert len({cell.key for cell in asked}) == len(asked)
    assert report.figures["decoupled, our defaults M=8 batch"] == 16
    assert not any("still the lowest" in note for note in report.notes)


def test_the_rate_goes_with_the_root_of_the_batch_and_all_else_stays() -> None:
    asked, _ = run(best_at(lambda cell: 0))
    for cell in asked:
        law = law_of(cell)
        expected = law.learning_rate * math.sqrt(cell.batch / law.batch)
        assert cell.learning_rate == pytest.approx(expected, rel=0.01)
        assert (cell.eta, cell.mu, cell.tokens) == (law.eta, law.mu, asked[0].tokens)
        assert (cell.overlap_steps, cell.grace_rule, cell.grace_max_steps) == (2, "slack", 1.0)


def test_the_search_goes_on_beyond_a_best_at_the_end() -> None:
    asked, report = run(best_at(lambda cell: 2 if cell.learners == 1 else 0))
    assert tried(asked, 1) == [-1, 0, 1, 2, 3]
    assert tried(asked, 4) == [-1, 0, 1]
    assert report.figures["data-parallel batch"] == 16
    asked, report = run(best_at(lambda cell: 20))
    assert len(tried(asked, 8)) == MOST
    assert {cell.seed for cell in asked} == {TUNING_SEED}
    assert any("M=8" in note for note in report.notes if "still the lowest or the highest" in note)


def test_no_learner_goes_without_an_example() -> None:
    asked, report = run(best_at(lambda cell: -9), "0.05M")
    assert all(cell.batch >= cell.learners for cell in asked)
    assert {cell.batch % cell.learners for cell in asked} == {0}
    assert tried(asked, 1) == tried(asked, 2) == tried(asked, 8) == [0, 1]
    assert sum("the lowest tried" in row[-1] for row in report.tables[0].rows) == 4


def test_what_was_found_is_taken_with_its_rate_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("decoupled", 8, settings_of="defaults")
    before, _ = run(best_at(lambda cell: 1))
    monkeypatch.setattr(tuned, "DOUBLINGS", {("small", "defaults", 8): 1})
    after, _ = run(best_at(lambda cell: 1))
    assert [cell.key for cell in before] == [cell.key for cell in after]
    (best,) = [cell for cell in before if (cell.learners, cell.batch) == (8, 32)]
    taken = place.cell("small", 1)
    assert (taken.batch, taken.learning_rate) == (best.batch, best.learning_rate)
    followers = Place("streaming", 8, settings_of="defaults"), Place("diloco", 8)
    assert {one.cell("small", 1).batch for one in followers} == {32}
