"""Learners simulated one by one come to what the fleet comes to when it is simulated whole."""

from __future__ import annotations

from math import comb

import pytest

from atoll.sim.fleet.model import Fleet
from atoll.sim.fleet.simulate import simulate
from atoll.sim.plan.evaluate import World, muster
from atoll.sim.plan.layouts import Share, island_of
from atoll.sim.plan.pace import at_least, simulate_paces, simulate_whole
from atoll.sim.units import DAY
from tests.unit.sim.plan.fleets import fleet, island

LAYOUT = (Share(0, 2, 2), Share(1, 1, 1))


@pytest.fixture(scope="module")
def failing():
    return fleet(island("a", chips=256, mtbi="3d", count=2), island("b", mtbi="1d", flops="100T"))


def test_equal_learners_make_a_binomial():
    found = at_least(((0.9, 2), (0.9, 3)))
    for k in range(6):
        exact = sum(comb(5, up) * 0.9**up * 0.1 ** (5 - up) for up in range(k, 6))
        assert found[k] == pytest.approx(exact)


def test_goodput_and_uptime_put_together_agree_with_the_whole_fleet(failing):
    crew = muster(World(failing, simulate_paces(failing, 1)), LAYOUT)
    whole, _ = simulate_whole(failing, {LAYOUT: crew.quorum}, [], 2)
    result = whole[LAYOUT]
    assert 0.5 < crew.goodput < 0.99
    assert crew.goodput == pytest.approx(result.goodput, abs=0.01)
    for k in range(1, 6):
        assert crew.uptimes[k] == pytest.approx(result.uptime[k], abs=0.02)


def test_equal_islands_are_simulated_once():
    one, two = fleet(island("a"), batch="2M"), fleet(island("a"), island("b"))  # steps of one length
    assert simulate_paces(two, 1).num_distinct == simulate_paces(one, 1).num_distinct


def test_shocks_in_closed_form_are_what_the_simulator_finds():
    more = '[[shock]]\nname = "site"\nevery = "10d"\nshare = 0.5\nreturns = "8h"\n'
    more += '[[shock]]\nname = "push"\nevery = "20d"\nshare = 1.0\nreturns = "2h"\n'
    spec = fleet(island("a", mtbi="inf"), more=more)
    paces = simulate_paces(spec, 1)
    lone = Fleet(islands=(island_of(spec.sites[0], 1, 1.0),), shocks=spec.shocks)
    (result,) = simulate([lone], horizon_s=2000 * DAY, repetitions=8, seed=3)
    assert paces.goodput(0, 1, 1.0) == pytest.approx(result.goodput, abs=0.01)
    assert paces.uptime(0, 1, 1.0) == pytest.approx(result.uptime_one, abs=0.01)


def test_the_same_seed_gives_the_same_paces(failing):
    first, second = simulate_paces(failing, 5), simulate_paces(failing, 5)
    assert [r.goodput for r in first.learners.values()] == [r.goodput for r in second.learners.values()]
    other = simulate_paces(failing, 6)
    assert [r.goodput for r in first.learners.values()] != [r.goodput for r in other.learners.values()]
