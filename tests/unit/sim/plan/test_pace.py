"""Learners simulated one by one come to what the fleet comes to when it is simulated whole."""

from __future__ import annotations

from math import comb

import pytest

from atoll.sim.fleet.model import Fleet
from atoll.sim.fleet.simulate import simulate
from atoll.sim.plan.evaluate import World, muster
from atoll.sim.plan.fleet_file import parse_fleet
from atoll.sim.plan.layouts import Share, fleet_of, island_of
from atoll.sim.plan.pace import Group, Shocked, at_least, simulate_paces, simulate_whole
from atoll.sim.units import DAY
from tests.unit.sim.plan.fleets import fleet, island, text

UNSHOCKED = Shocked(goodput=1.0, island=1.0, fleet=1.0)
LAYOUT = (Share(0, 2, 2), Share(1, 1, 1))


@pytest.fixture(scope="module")
def failing():
    return fleet(island("a", chips=256, mtbi="3d", count=2), island("b", mtbi="1d", flops="100T"))


def test_equal_learners_make_a_binomial():
    found = at_least((Group(2, 1, 0.9, UNSHOCKED), Group(1, 3, 0.9, UNSHOCKED)))
    for k in range(6):
        exact = sum(comb(5, up) * 0.9**up * 0.1 ** (5 - up) for up in range(k, 6))
        assert found[k] == pytest.approx(exact)


def test_an_island_is_dark_with_all_its_learners_and_the_fleet_with_all_islands():
    site = Group(2, 2, 0.9, Shocked(1.0, island=0.8, fleet=1.0))
    found = at_least((site,))
    assert found[1] == pytest.approx(1 - (0.2 + 0.8 * 0.01) ** 2)
    assert found[4] == pytest.approx((0.8 * 0.81) ** 2)
    push = at_least((Group(2, 2, 1.0, Shocked(1.0, island=1.0, fleet=0.7)),))
    assert push == pytest.approx((1.0, 0.7, 0.7, 0.7, 0.7))
    never = at_least((Group(2, 1, 1.0, Shocked(0.0, island=1.0, fleet=0.0)),))
    assert never == (1.0, 0.0, 0.0)


def test_islands_that_recover_from_a_push_at_different_times_keep_their_own_uptime():
    quick, slow = (Group(1, 1, 1.0, Shocked(1.0, island=1.0, fleet=left)) for left in (0.8, 0.6))
    assert at_least((quick, slow)) == pytest.approx((1.0, 0.8, 0.6))


def test_shocks_of_the_fleet_put_together_agree_with_the_whole_fleet():
    more = '[[shock]]\nname = "push"\nevery = "5d"\nshare = 1.0\nreturns = "1d"\nscope = "fleet"\n'
    more += '[[shock]]\nname = "site"\nevery = "10d"\nshare = 1.0\nreturns = "1d"\n'
    spec = fleet(island("a", mtbi="inf"), island("b", mtbi="inf"), more=more)
    layout = (Share(0, 1, 1), Share(1, 1, 1))
    crew = muster(World(spec, simulate_paces(spec, 1)), layout)
    (result,) = simulate([fleet_of(spec, layout)], horizon_s=4000 * DAY, repetitions=8, seed=3)
    assert crew.uptimes[1] == pytest.approx(result.uptime[1], abs=0.02)
    assert crew.uptimes[2] == pytest.approx(result.uptime[2], abs=0.03)
    assert crew.uptimes[1] < 0.9


def test_shocks_of_an_island_that_is_not_elastic_agree_too():
    more = '[[shock]]\nname = "site"\nevery = "10d"\nshare = 0.5\nreturns = "8h"\n'
    spec = fleet(island("a", mtbi="inf", elastic=False, outage="1h"), more=more)
    crew = muster(World(spec, simulate_paces(spec, 1)), (Share(0, 1, 1),))
    (result,) = simulate([fleet_of(spec, (Share(0, 1, 1),))], horizon_s=2000 * DAY, repetitions=8, seed=3)
    assert crew.goodput == pytest.approx(result.goodput, abs=0.01)
    assert crew.uptimes[1] == pytest.approx(result.uptime_one, abs=0.01)


def test_learners_of_one_island_are_without_a_grant_together(tmp_path):
    (tmp_path / "spot.csv").write_text("time_s,learner,chips\n0,a,128\n864000,a,0\n1728000,a,0\n")
    spec = parse_fleet(text(island("a", trace="spot.csv")), folder=tmp_path)
    layout = (Share(0, 1, 2),)
    crew = muster(World(spec, simulate_paces(spec, 1)), layout)
    whole, _ = simulate_whole(spec, {layout: 1}, [], 1)
    for k in (1, 2):
        assert crew.uptimes[k] == pytest.approx(whole[layout].uptime[k], abs=0.005)
        assert crew.uptimes[k] == pytest.approx(0.5, abs=0.005)


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
    assert at_least((paces.group(0, 1, 1, 1.0),))[1] == pytest.approx(result.uptime_one, abs=0.01)


def test_the_same_seed_gives_the_same_paces(failing):
    first, second = simulate_paces(failing, 5), simulate_paces(failing, 5)
    assert [r.goodput for r in first.learners.values()] == [r.goodput for r in second.learners.values()]
    other = simulate_paces(failing, 6)
    assert [r.goodput for r in first.learners.values()] != [r.goodput for r in other.learners.values()]
