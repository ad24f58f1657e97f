"""What a search found, as it is drawn."""

from __future__ import annotations

import math

import pytest

from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.common import Place
from atoll.sim.lab.experiments.tries import picture_of
from tests.unit.sim.lab.made_up import made_up

HERE, THERE = Place("data-parallel"), Place("decoupled", 4)


def rate(cell: Cell) -> float:
    return cell.learning_rate


def tried(place: Place, *losses: float) -> list[Row]:
    """At the rates 1, 2, ..."""
    return [
        made_up(place.cell("tiny", 0, learning_rate=float(x)), loss) for x, loss in enumerate(losses, start=1)
    ]


def test_each_try_is_drawn_by_how_many_percent_it_is_above_the_best_of_its_place() -> None:
    tries = {HERE: tried(HERE, 4.0, 2.0, 2.1), THERE: tried(THERE, 5.0, math.nan, 6.0, math.inf)}
    picture = picture_of("Rates", tries, rate, "learning rate")
    assert (picture.x_label, picture.y_label) == ("learning rate", "held-out loss above the best (%)")
    here, there = picture.series
    assert (here.name, there.name) == (HERE.name, THERE.name)
    assert (here.x, there.x) == ((1.0, 2.0, 3.0), (1.0, 3.0))  # what blew up has no place above anything
    assert here.y == pytest.approx((100.0, 0.0, 5.0))
    assert there.y == pytest.approx((0.0, 20.0))
