from __future__ import annotations

import math

from atoll.sim.lab.experiments.losses import bars, mean_loss, rank_of, shown_loss
from atoll.sim.lab.paired import interval_of
from atoll.sim.lab.tuned import cell_for
from tests.unit.sim.lab.made_up import made_up

CELL = cell_for("decoupled", 4, 1)


def test_a_run_without_a_finite_end_makes_its_arm_infinitely_bad() -> None:
    rows = [made_up(CELL, 2.0), made_up(CELL, math.nan)]
    assert mean_loss(rows) == math.inf
    assert shown_loss(rows) == "not finite"
    assert mean_loss(rows[:1]) == 2.0
    assert shown_loss([*rows[:1], made_up(CELL, 3.0)]) == "2.500 ± 0.707"


def test_what_did_not_end_is_ranked_last() -> None:
    found = [interval_of([math.nan]), interval_of([1.0]), interval_of([-2.0, 0.0])]
    assert sorted(found, key=rank_of) == [found[2], found[1], found[0]]


def test_bars_carry_half_their_interval_and_nothing_where_there_is_none() -> None:
    sure, single = interval_of([1.0, 2.0, 3.0]), interval_of([1.0])
    picture = bars("T", names=["a", "b"], groups={"M": [sure, single]}, x_label="x", y_label="y")
    (series,) = picture.series
    assert (series.x, series.y) == ((0.0, 1.0), (2.0, 1.0))
    assert series.error[0] == sure.high - 2.0
    assert math.isnan(series.error[1])
    assert bars("T", names=["b"], groups={"M": [single]}, x_label="x", y_label="y").series[0].error == ()
