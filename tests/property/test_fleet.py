"""What holds of every fleet, however small, large, slow, struck or badly paid its chips are."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.model import Fleet, Island, Pauses, Shock, SyncerOutages
from atoll.sim.fleet.simulate import simulate
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.units import DAY, YEAR

seconds = st.one_of(st.just(0.0), st.floats(1e-3, 1e4))
means = st.one_of(st.just(0.0), st.just(math.inf), st.floats(1e-3, 1e7))
delays = st.builds(
    Delay, mean_s=means, shape=st.sampled_from([1.0, 0.5, 3.0]), power=st.sampled_from([1.0, 0.3, 4.0])
)
pauses = st.builds(
    Pauses,
    elastic=st.booleans(),
    quantum_s=seconds,
    down_s=seconds,
    up_s=seconds,
    returns=delays,
    outage_s=seconds,
    reload_s=seconds,
    checkpoint_s=seconds,
)
shocks = st.builds(
    Shock,
    name=st.just("shock"),
    every_s=st.floats(600, 1e8) | st.just(math.inf),
    share=st.floats(1e-6, 1),
    returns=delays,
    scope=st.sampled_from(["learner", "fleet"]),
)
traces = st.lists(
    st.tuples(st.floats(0, 2e5), st.floats(0, 1e5)), min_size=1, max_size=5, unique_by=lambda row: row[0]
).map(lambda rows: CapacityTrace(*(tuple(column) for column in zip(*sorted(rows), strict=True))))


@st.composite
def islands(draw) -> Island:
    """A learner that fails at most about once a minute, so that it ends."""
    chips = draw(st.integers(1, 10) | st.integers(1, 3_000_000))
    return Island(
        chips=chips,
        mtbi_s=draw(st.floats(60.0 * chips, 1e4 * YEAR) | st.just(math.inf)),
        slice_chips=draw(st.integers(1, 3000)),
        speed=draw(st.floats(0.1, 2)),
        pauses=draw(pauses),
        trace=draw(st.none() | traces),
    )


@st.composite
def fleets(draw) -> Fleet:
    homes = draw(st.lists(islands(), min_size=1, max_size=4))
    outages = st.builds(SyncerOutages, every_s=st.floats(600, 1e8), down=delays)
    return Fleet(
        islands=tuple(homes),
        quorum=draw(st.integers(1, len(homes))),
        shocks=tuple(draw(st.lists(shocks, max_size=2))),
        syncer=draw(st.none() | outages),
    )


horizons = st.floats(1e-3, 3 * DAY)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(fleets(), horizons, st.integers(0, 2**32))
def test_time_and_chips_are_neither_lost_nor_made(fleet, horizon_s, seed):
    (result,) = simulate([fleet], horizon_s=horizon_s, repetitions=3, seed=seed, trace=True)
    assert all(-1e-9 <= share <= 1 + 1e-9 for share in result.shares.values())
    assert sum(result.shares.values()) == pytest.approx(1, abs=1e-9)
    assert result.shares["useful"] == pytest.approx(result.goodput, abs=1e-12)
    assert 0 <= result.participation <= 1
    assert result.uptime[0] == pytest.approx(1, abs=1e-9)
    assert all(-1e-9 <= more <= fewer + 1e-9 for fewer, more in pairwise(result.uptime))
    assert -1e-9 <= result.merging <= result.uptime_quorum + 1e-9
    assert math.isfinite(result.work)
    assert math.isfinite(result.num_failures)
    for goodput in (*result.learner_goodput, *result.samples):
        assert -1e-9 <= goodput <= 1 + 1e-9


@settings(max_examples=50, deadline=None, derandomize=True)
@given(fleets(), horizons, st.integers(0, 2**32))
def test_a_trace_shows_what_was_stepped(fleet, horizon_s, seed):
    (result,) = simulate([fleet], horizon_s=horizon_s, repetitions=1, seed=seed, trace=True)
    assert len(result.traces) == fleet.num_learners
    stepping = 0.0
    for island, trace in zip(fleet.islands, result.traces.values(), strict=True):
        assert max(trace.chips) <= island.chips * (1 + 1e-12)
        steps = CapacityTrace(trace.times_s, tuple(float(chips > 0) for chips in trace.chips))
        stepping += steps.mean(horizon_s)
    shown = sum(trace.mean(horizon_s) for trace in result.traces.values()) / fleet.chips
    assert shown == pytest.approx(result.shares["useful"] + result.shares["redone"], abs=1e-9)
    assert stepping == pytest.approx(sum(result.uptime[1:]), abs=1e-6)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(fleets(), min_size=2, max_size=4), horizons, st.integers(0, 2**32))
def test_a_fleet_meets_the_same_luck_in_any_company_and_any_order(several, horizon_s, seed):
    together = simulate(several, horizon_s=horizon_s, repetitions=3, seed=seed)
    turned = simulate(several[::-1], horizon_s=horizon_s, repetitions=5, seed=seed)
    for fleet, one, other in zip(several, together, reversed(turned), strict=True):
        (alone,) = simulate([fleet], horizon_s=horizon_s, repetitions=3, seed=seed)
        assert one.samples == alone.samples == other.samples[:3]
        assert one.shares == alone.shares
        assert one.uptime == pytest.approx(alone.uptime, abs=1e-9)
        assert one.merging == pytest.approx(alone.merging, abs=1e-9)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(fleets(), horizons, st.floats(0.5, 1))
def test_a_fleet_of_slower_chips_does_the_same_share_of_less_work(fleet, horizon_s, factor):
    slower = replace(
        fleet, islands=tuple(replace(island, speed=island.speed * factor) for island in fleet.islands)
    )
    fast, slow = simulate([fleet, slower], horizon_s=horizon_s, repetitions=2)
    assert slow.samples == fast.samples
    assert slow.work == pytest.approx(fast.work * factor, rel=1e-9)
