"""What the sweep found, moved to other sizes and numbers of learners."""

from __future__ import annotations

import math

import pytest

from atoll.sim.lab import tuned
from atoll.sim.lab.cell import SIZES, Method
from atoll.sim.lab.tuned import Tuned, cell_for, is_floored, transferred


@pytest.fixture(autouse=True)
def _swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tuned.SWEPT, "decoupled", Tuned(4e-3, 4, 0.4, 0.9))
    monkeypatch.setattr(tuned, "RATES", {("moe", "decoupled", 4): 1e-3})
    monkeypatch.setattr(tuned, "STEPS", {("small", "defaults", m): -2 for m in (4, 8)})
    monkeypatch.setattr(tuned, "DOUBLINGS", {("small", "defaults", 4): 1})


def test_where_it_was_swept_it_is_what_was_found() -> None:
    assert transferred("text", "tiny", "decoupled", 4) == Tuned(4e-3, 4, 0.4, 0.9)


def test_more_learners_than_examples_make_a_larger_batch_and_a_larger_rate() -> None:
    eight = transferred("text", "tiny", "decoupled", 8)
    assert eight.batch == 8
    assert eight.learning_rate == pytest.approx(4e-3 * math.sqrt(2), rel=1e-3)
    assert transferred("text", "tiny", "decoupled", 2).batch == 4


def test_with_size_the_batch_grows_by_powers_of_two_and_the_rate_falls() -> None:
    found = [transferred("text", size, "decoupled", 2) for size in SIZES]
    assert [one.batch for one in found] == [2, 4, 8, 8, 16]
    rates = [one.learning_rate for one in found]
    assert rates == sorted(rates, reverse=True)
    assert {(one.eta, one.mu) for one in found} == {(0.4, 0.9)}


def test_a_rate_chosen_among_three_takes_the_place_of_the_transferred_one() -> None:
    assert cell_for("decoupled", 4, 1, task="moe").learning_rate == 1e-3
    assert cell_for("decoupled", 4, 1).learning_rate == 4e-3
    moved = transferred("moe", "small", "decoupled", 4)
    found = cell_for("decoupled", 4, 1, task="moe", size="small")
    assert found.learning_rate == pytest.approx(moved.learning_rate / 4, rel=0.01)  # the quarter of tiny
    assert found.batch == moved.batch  # what was tried at small was tried on text


def test_at_another_size_all_with_learners_follow_the_steps_that_our_defaults_found() -> None:
    followers: tuple[Method, ...] = ("decoupled", "streaming", "diloco")
    for method in followers:
        moved = transferred("text", "small", method, 8).learning_rate
        assert cell_for(method, 8, 1, size="small").learning_rate == pytest.approx(moved / 2, rel=0.01)
    lock_step = transferred("text", "small", "data-parallel", 1).learning_rate
    assert cell_for("data-parallel", 1, 1, size="small").learning_rate == lock_step


def test_a_size_that_was_not_tried_takes_the_steps_of_the_next_smaller_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuned, "STEPS", {("0.05M", "defaults", 8): 4, ("0.2M", "defaults", 8): -4})
    for size, factor in zip(SIZES, (4.0, 1.0, 0.25, 0.25, 0.25), strict=True):
        moved = transferred("text", size, "streaming", 8).learning_rate
        rate = cell_for("streaming", 8, 1, size=size).learning_rate
        assert rate == pytest.approx(factor * moved, rel=0.01)


def test_a_batch_that_the_learners_force_is_told() -> None:
    assert [size for size in SIZES if is_floored("text", size, 8)] == ["0.05M", "tiny"]
    assert [size for size in SIZES if is_floored("text", size, 4)] == ["0.05M"]
    assert not any(is_floored("text", size, 2) for size in SIZES)


def test_elastic_takes_the_settings_of_data_parallel() -> None:
    elastic, lock_step = cell_for("elastic", 1, 1), cell_for("data-parallel", 1, 1)
    assert (elastic.batch, elastic.learning_rate) == (lock_step.batch, lock_step.learning_rate)
