"""What the sweep found, moved to other sizes and numbers of learners."""

from __future__ import annotations

import math

import pytest

from atoll.sim.lab import tuned
from atoll.sim.lab.cell import SIZES
from atoll.sim.lab.tuned import Tuned, cell_for, transferred


@pytest.fixture(autouse=True)
def _swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tuned.SWEPT, "decoupled", Tuned(4e-3, 4, 0.4, 0.9))
    monkeypatch.setattr(tuned, "RATES", {("text", "small", "decoupled", 8): 1e-3})


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
    assert cell_for("decoupled", 8, 1, size="small").learning_rate == 1e-3
    assert cell_for("decoupled", 4, 1, size="small").learning_rate != 1e-3


def test_elastic_takes_the_settings_of_data_parallel() -> None:
    elastic, lock_step = cell_for("elastic", 1, 1), cell_for("data-parallel", 1, 1)
    assert (elastic.batch, elastic.learning_rate) == (lock_step.batch, lock_step.learning_rate)
