"""The fleet model's figures, as integrals of traces."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.model import Shock, even_fleet
from atoll.sim.fleet.simulate import simulate
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.scale.figures import figures_of, uptime_of_steps

TRACES = {
    "a": CapacityTrace((0.0, 50.0), (10.0, 0.0)),
    "b": CapacityTrace((0.0, 20.0, 30.0), (30.0, 0.0, 15.0)),
}
CHIPS = {"a": 10.0, "b": 30.0}


def test_goodput_is_chips_at_work_over_all_chips():
    got = figures_of(TRACES, CHIPS, until_s=100.0, dark_s=20.0)
    assert got.goodput == pytest.approx((10 * 50 + 30 * 20 + 15 * 70) / (40 * 100))


def test_uptime_counts_learners_that_have_chips_at_work():
    got = figures_of(TRACES, CHIPS, until_s=100.0, dark_s=20.0)
    assert got.uptime == pytest.approx((1.0, 1.0, 0.4))
    assert got.stepping == pytest.approx((0.5 + 0.9) / 2)


def test_who_is_in_the_dark_does_not_live_and_who_pauses_does():
    got = figures_of(TRACES, CHIPS, until_s=100.0, dark_s=20.0)
    assert got.participation == pytest.approx((50 + 90) / (50 + 100))


def test_nothing_merges_while_the_syncer_is_away_or_the_quorum_is():
    got = figures_of(TRACES, CHIPS, until_s=100.0, quorum=2, dark_s=20.0, outages=((40.0, 45.0),))
    assert got.merging == pytest.approx(0.4 - 0.05)


@pytest.mark.parametrize("seed", [1, 2])
def test_over_the_whole_horizon_they_are_those_of_the_fleet_simulator(seed):
    shocks = (Shock(name="site", every_s=9000.0, share=1.0, returns=Delay(mean_s=900.0)),)
    fleet = even_fleet(400_000, 4, shocks=shocks)
    result = simulate([fleet], horizon_s=20_000.0, repetitions=1, seed=seed, trace=True)[0]
    chips = dict.fromkeys(result.traces, 100000.0)
    got = figures_of(result.traces, chips, until_s=20_000.0, dark_s=300.0)
    assert got.goodput == pytest.approx(result.goodput, abs=1e-6)
    assert got.uptime == pytest.approx(result.uptime, abs=1e-6)


def test_uptime_of_steps_counts_overlapping_steps_and_no_gap_between_two():
    starts, ends = np.array([0, 10, 5]), np.array([10, 20, 8])
    assert uptime_of_steps(starts, ends, 40, 1) == pytest.approx(0.5)
    assert uptime_of_steps(starts, ends, 40, 2) == pytest.approx(3 / 40)
