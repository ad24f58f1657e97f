"""Constants from a table, and which of them it pins."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from atoll.errors import ConfigError
from atoll.sim.fleet import fit as fitting
from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.fit import SLACK_POINTS, fit_table, read_table
from atoll.sim.fleet.model import Pauses, even_fleet
from atoll.sim.fleet.presets import TABLE1, Cell
from atoll.sim.fleet.simulate import simulate
from atoll.sim.units import DAY, YEAR

TRUTH = Pauses(quantum_s=4.0, down_s=40.0, up_s=25.0, returns=Delay(mean_s=200.0), outage_s=300.0)
SIZES = ((120_000, 2), (480_000, 1))
RIGID = Cell(chips=480_000, learners=1, elastic=False, goodput_percent=50.0)


def table(pauses, *, elastic, uptime=False):
    """What a fleet with these pauses shows, with other luck than the fit has."""
    fleets = [even_fleet(n, m, pauses=replace(pauses, elastic=elastic)) for n, m in SIZES]
    results = simulate(fleets, horizon_s=DAY, repetitions=8, seed=99)
    return [
        Cell(
            chips=n,
            learners=m,
            elastic=elastic,
            goodput_percent=100 * result.goodput,
            uptime_percent=100 * result.uptime_one if uptime else None,
        )
        for (n, m), result in zip(SIZES, results, strict=True)
    ]


@pytest.fixture(scope="module")
def elastic_fit():
    """Of elastic cells and one that is not."""
    return fit_table([*table(TRUTH, elastic=True, uptime=True), RIGID], seed=3)


@pytest.fixture(scope="module")
def rigid_fit():
    return fit_table(table(TRUTH, elastic=False), seed=3)


def by_name(fit):
    return {constant.name: constant for constant in fit.constants}


def test_the_outage_of_a_table_is_found_and_pinned(rigid_fit):
    (outage,) = rigid_fit.constants
    assert outage.name == "outage"
    assert outage.low <= outage.best <= outage.high
    assert outage.best == pytest.approx(TRUTH.outage_s, rel=0.05)
    assert outage.is_pinned
    assert rigid_fit.pauses.outage_s == outage.best


def test_a_table_without_elastic_cells_says_nothing_about_shrinking(rigid_fit):
    assert rigid_fit.pauses.down_s == Pauses().down_s
    assert rigid_fit.pauses.returns == Pauses().returns


def test_what_a_failure_costs_is_found_and_pinned_however_it_is_divided(elastic_fit):
    found = by_name(elastic_fit)["pause per failure"]
    returned_late = math.exp(-(TRUTH.down_s + TRUTH.quantum_s / 2) / TRUTH.returns.mean_s)
    assert found.low * 0.95 <= TRUTH.down_s + TRUTH.up_s * returned_late <= found.high * 1.05
    assert found.is_pinned


def test_constants_that_trade_against_each_other_are_not_called_pinned(elastic_fit):
    found = by_name(elastic_fit)
    assert not found["up"].is_pinned
    assert not found["step"].is_pinned
    assert found["up"].high > 1.5 * found["up"].low


def test_every_range_holds_its_best_value(elastic_fit):
    assert elastic_fit.rms < 1.0
    assert len(elastic_fit.constants) == 7
    for constant in elastic_fit.constants:
        assert constant.low <= constant.best <= constant.high


def test_the_outage_is_that_of_the_step_which_the_elastic_cells_have_found(elastic_fit):
    assert abs(elastic_fit.pauses.quantum_s - Pauses().quantum_s) > 0.5  # otherwise this shows nothing
    fleet = even_fleet(RIGID.chips, pauses=replace(elastic_fit.pauses, elastic=False))
    search = fitting._Search([RIGID], fitting._RIGID, YEAR, 256, Pauses(), seed=3)
    (result,) = simulate([fleet], horizon_s=search._horizon_s, repetitions=search._repetitions, seed=3)
    assert 100 * result.goodput == pytest.approx(50, abs=0.05)


def test_a_table_of_few_sizes_is_simulated_for_a_shorter_time():
    one, all_ = (
        fitting._Search(cells, fitting._ELASTIC, YEAR, 256, Pauses(), 1)
        for cells in (TABLE1[5:6], TABLE1[5:])
    )
    assert one._horizon_s * 150_000 / YEAR == pytest.approx(fitting.FEWEST_FAILURES)
    assert all_._horizon_s * 2_400_000 / YEAR == pytest.approx(fitting.FAILURES)
    assert fitting.FEWEST_FAILURES * one._repetitions <= fitting.FAILURES * all_._repetitions


def test_a_constant_that_ends_at_the_bound_of_the_search_is_open():
    # Goodput of nearly 0 with hardly any failures: no outage that is looked for is long enough.
    cells = [Cell(chips=100, learners=1, elastic=False, goodput_percent=0.0)]
    (outage,) = fit_table(cells).constants
    assert outage.is_open
    assert not outage.is_pinned


def test_progress_is_told_and_the_same_seed_gives_the_same_fit(rigid_fit):
    said: list[str] = []
    assert fit_table(table(TRUTH, elastic=False), seed=3, say=said.append) == rigid_fit
    assert "tries, rms" in said[0]
    assert f"within {SLACK_POINTS} points" in said[-1]


def test_chips_that_never_fail_fit_nothing():
    with pytest.raises(ConfigError, match="never fail"):
        fit_table(TABLE1, mtbi_s=math.inf)


def test_a_table_is_read_as_people_write_it(tmp_path):
    file = tmp_path / "table.csv"
    file.write_text(
        "chips,learners,elastic,goodput_percent,uptime_percent\n150k,1,no,72,\n1.2M, 4, YES, 82, 99.9\n"
    )
    assert read_table(file) == (
        Cell(chips=150_000, learners=1, elastic=False, goodput_percent=72.0),
        Cell(chips=1_200_000, learners=4, elastic=True, goodput_percent=82.0, uptime_percent=99.9),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not begin with"),
        ("chips,learners,goodput_percent\n", "does not begin with"),
        ("chips,learners,elastic,goodput_percent\n", "no rows"),
        ("chips,learners,elastic,goodput_percent\n150k,1,perhaps,72\n", "line 2"),
        ("chips,learners,elastic,goodput_percent\n150k,1,yes\n", "line 2"),
        ("chips,learners,elastic,goodput_percent\n150k,1,yes,many\n", "goodput_percent in line 2"),
        ("chips,learners,elastic,goodput_percent\n-5,1,yes,72\n", "chips in line 2"),
        ("chips,learners,elastic,goodput_percent\n150k,1,yes,172\n", "172"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_with_the_place(tmp_path, text, why):
    file = tmp_path / "table.csv"
    file.write_text(text)
    with pytest.raises(ConfigError, match=why):
        read_table(file)


def test_a_table_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)cannot be read.*Check the path"):
        read_table(tmp_path / "none.csv")


def test_a_point_of_the_search_is_one_learner_of_each_size():
    search = fitting._Search(TABLE1[5:], fitting._ELASTIC, YEAR, 256, Pauses(), 1)
    assert len(search._sizes) == 9
    assert search.num_numbers == 25
    assert search._weights.sum() == 25
