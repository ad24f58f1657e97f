"""What makes a run at scale, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from atoll.errors import ConfigError
from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.model import SyncerOutages, even_fleet
from atoll.sim.fleet.simulate import simulate
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.scale.scenario import draw_outages, from_fleet, from_traces

ALWAYS = CapacityTrace((0.0,), (8.0,))
CALM = from_traces({"a": ALWAYS, "b": ALWAYS}, merges=10, step_s=1.0)


def test_a_fleet_gives_each_of_its_learners_a_trace_with_its_own_chips_and_pace():
    fleet = even_fleet(100_001, 4, speed_spread=0.5)
    scenario = from_fleet(fleet, merges=100, step_s=2.0, seed=3)
    assert list(scenario.chips.values()) == [float(island.chips) for island in fleet.islands]
    assert list(scenario.step_s.values()) == pytest.approx([2.0, 2.4, 3.0, 4.0])
    assert scenario.fastest_s == 2.0
    assert scenario.until_s > 200.0


def test_the_same_seed_draws_the_same_fleet_and_another_seed_another():
    fleet = even_fleet(100_000, 2)
    first, again, other = (from_fleet(fleet, merges=500, step_s=1.0, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.traces != other.traces


def test_times_of_the_core_are_set_in_steps():
    slow = replace(CALM, step_s={"a": 10.0, "b": 30.0}).params()
    assert slow.heartbeat_ns == 10 * CALM.params().heartbeat_ns
    assert (slow.num_fragments, slow.interval_steps, slow.overlap_steps, slow.min_quorum) == (24, 24, 5, 1)


def test_outages_come_in_order_and_depend_on_their_seed_alone():
    syncer = SyncerOutages(every_s=100.0, down=Delay(mean_s=10.0))
    outages = draw_outages(syncer, 10_000.0, 1)
    assert 60 < len(outages) < 130
    assert all(start < end for start, end in outages)
    assert outages == draw_outages(syncer, 10_000.0, 1) != draw_outages(syncer, 10_000.0, 2)
    assert draw_outages(None, 10_000.0, 1) == ()


def test_outages_are_those_that_the_fleet_simulator_has_in_the_same_repetition():
    syncer = SyncerOutages(every_s=500.0, down=Delay(mean_s=200.0))
    fleet = even_fleet(100, 2, mtbi_s=math.inf, syncer=syncer)
    until_s = 20_000.0
    away = sum(min(end, until_s) - start for start, end in draw_outages(syncer, until_s, 7))
    (result,) = simulate([fleet], horizon_s=until_s, repetitions=1, seed=7)
    assert result.merging == pytest.approx(1 - away / until_s)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"merges": 0}, "0 merges"),
        ({"quorum": 3}, "quorum is 3"),
        ({"quorum": 0}, "quorum is 0"),
        ({"traces": {}}, "0 traces"),
        ({"traces": {"A b": ALWAYS}, "chips": {"A b": 8.0}, "step_s": {"A b": 1.0}}, "'A b'"),
        ({"chips": {"a": 4.0, "b": 8.0}}, "a has 4 chips and its trace up to 8"),
        ({"step_s": {"a": 0.01, "b": 1.0}}, "A step takes 0.01 s"),
        ({"num_fragments": 25}, "P is 25, H 24"),
        ({"until_s": 0.0}, "lasts 0 s"),
        ({"dark_s": 0.0}, "darkness begins after 0 s"),
        ({"outages": ((5.0, 9.0), (8.0, 12.0))}, "overlap"),
        ({"outages": ((9.0, 5.0),)}, "end before they begin"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(change, what):
    with pytest.raises(ConfigError, match=what):
        replace(CALM, **change)


def test_a_trace_without_any_chips_is_nobody():
    with pytest.raises(ConfigError, match="a has 0 chips"):
        from_traces({"a": CapacityTrace((0.0,), (0.0,))}, merges=10, step_s=1.0)


@pytest.mark.parametrize("step_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_step_takes_time(step_s):
    with pytest.raises(ConfigError, match="A step takes"):
        from_traces({"a": ALWAYS}, merges=10, step_s=step_s)
