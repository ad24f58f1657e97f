"""Table 1 of the paper beside our simulation."""

from __future__ import annotations

from collections import Counter

import pytest

from atoll.errors import ConfigError
from atoll.sim.fleet.model import Pauses
from atoll.sim.fleet.presets import (
    MAX_RMS_POINTS,
    MAX_WORST_POINTS,
    PRESETS,
    TABLE1,
    TABLE1_CAVEATS,
    Cell,
    cells_of,
    compare,
    fleet_of,
)
from atoll.sim.fleet.simulate import simulate
from atoll.sim.units import DAY, YEAR

DEFAULT = Pauses()


def simulated(pauses=DEFAULT, *, cells=TABLE1, seed=1):
    fleets = [fleet_of(cell, pauses) for cell in cells]
    return simulate(fleets, horizon_s=DAY, repetitions=8, seed=seed)


def test_the_table_has_six_rows_of_five_sizes():
    assert len(TABLE1) == 30
    assert set(Counter(cell.chips for cell in TABLE1).values()) == {6}
    assert Counter((cell.learners, cell.elastic) for cell in TABLE1) == dict.fromkeys(
        [(1, False), *((m, True) for m in (1, 2, 4, 8, 16))], 5
    )


def test_more_chips_are_worse_and_more_learners_better_in_every_row_and_column():
    goodput = {(cell.learners, cell.elastic, cell.chips): cell.goodput_percent for cell in TABLE1}
    sizes = sorted({cell.chips for cell in TABLE1})
    rows = [(1, False), (1, True), (2, True), (4, True), (8, True), (16, True)]
    for row in rows:
        falling = [goodput[(*row, chips)] for chips in sizes]
        assert falling == sorted(falling, reverse=True)
    for chips in sizes:
        rising = [goodput[(*row, chips)] for row in rows]
        assert rising == sorted(rising)


@pytest.mark.parametrize("seed", [1, 2])
def test_our_constants_keep_to_the_paper_as_promised(seed):
    found = compare(simulated(seed=seed))
    assert found.is_kept, f"rms {found.rms:.2f}, worst {found.worst:.2f}"
    assert found.rms <= MAX_RMS_POINTS
    assert abs(found.worst) <= MAX_WORST_POINTS
    assert len(found.residuals) == 30


def test_other_constants_do_not():
    cells = [cell for cell in TABLE1 if cell.chips == 600_000]
    assert not compare(simulated(Pauses(down_s=40.0, outage_s=200.0), cells=cells), cells).is_kept


def test_the_worst_residual_keeps_its_sign():
    results = simulated(cells=TABLE1[:2])
    cells = [
        Cell(chips=150_000, learners=1, elastic=False, goodput_percent=100.0),
        Cell(chips=300_000, learners=1, elastic=False, goodput_percent=57.0),
    ]
    found = compare(results, cells)
    assert found.worst == found.residuals[0] < -20
    assert found.rms == pytest.approx((sum(r**2 for r in found.residuals) / 2) ** 0.5)


def test_a_table_of_another_length_is_not_compared():
    with pytest.raises(ValueError, match="argument 2"):
        compare(simulated(cells=TABLE1[:3]))


def test_the_fleets_are_those_of_the_table():
    fleet = fleet_of(TABLE1[-1], Pauses())
    assert (fleet.chips, fleet.num_learners) == (2_400_000, 16)
    assert all(island.mtbi_s == YEAR and island.pauses.elastic for island in fleet.islands)
    assert not fleet_of(TABLE1[0], Pauses()).islands[0].pauses.elastic


def test_an_unknown_preset_is_refused_with_those_that_are_known():
    assert cells_of("paper-table1") is PRESETS["paper-table1"]
    with pytest.raises(ConfigError, match="paper-table1"):
        cells_of("table-one")


@pytest.mark.parametrize(
    "wrong", [{"chips": 1}, {"learners": 0}, {"goodput_percent": 101.0}, {"uptime_percent": -1.0}]
)
def test_a_cell_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError):
        Cell(**{"chips": 100, "learners": 2, "elastic": True, "goodput_percent": 50.0, **wrong})


def test_the_caveats_say_whose_constants_they_are_and_which_are_pinned():
    text = " ".join(TABLE1_CAVEATS)
    for words in ("fitted by us", "Pinned", "Not pinned", "one reading"):
        assert words in text
