"""What a link carries, and which layouts an island allows."""

from __future__ import annotations

import pytest

from atoll.sim.plan.layouts import Share, can_split, fleet_of, layouts_of
from atoll.sim.plan.links import MAX_CHANNELS, channels_for, merge_cores, usable_bits_per_s
from tests.unit.sim.plan.fleets import fleet, island


def test_four_connections_carry_what_was_measured():
    assert channels_for(700e6, 0.1) == 4
    assert channels_for(701e6, 0.1) == 5


def test_a_longer_or_fatter_link_needs_more_connections_up_to_sixteen():
    assert [channels_for(1e9, rtt) for rtt in (0.0, 0.01, 0.05, 0.1)] == [1, 1, 3, 6]
    assert [channels_for(rate, 0.05) for rate in (1e6, 1e9, 2e9)] == [1, 3, 6]
    assert channels_for(100e9, 0.2) == MAX_CHANNELS


def test_a_link_too_long_and_fat_for_sixteen_stays_partly_empty():
    assert usable_bits_per_s(1e9, 0.1) == 1e9
    assert usable_bits_per_s(20e9, 0.1) == pytest.approx(16 * 175e6)
    assert usable_bits_per_s(20e9, 0.0) == 20e9


def test_merging_takes_the_measured_time_of_eight_offers():
    # 32M parameters, eight bf16 offers: 318 ms on one core (measured).
    assert merge_cores(32 * 2**20, 8, 1.0) == pytest.approx(0.318, rel=0.06)


def test_big_islands_are_split_before_small_ones():
    spec = fleet(island("big", chips=256), island("small", chips=64))
    parts = [tuple(share.parts for share in layout) for layout in layouts_of(spec, (1, 1))]
    assert parts == [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4)]


def test_a_part_needs_a_slice_and_the_memory_of_the_model():
    spec = fleet(island("a", chips=32, slice=8, memory_gb=10), params="10B")
    (site,) = spec.sites
    assert [parts for parts in (1, 2, 4, 8) if can_split(spec.model, site, parts)] == [1, 2]
    (roomy,) = fleet(island("a", chips=32, slice=8)).sites
    assert [parts for parts in (1, 2, 4, 8) if can_split(spec.model, roomy, parts)] == [1, 2, 4]
    (odd,) = fleet(island("a", chips=30, slice=1)).sites
    assert [parts for parts in (1, 2, 4, 8) if can_split(spec.model, odd, parts)] == [1, 2]


def test_no_islands_make_no_layout():
    assert layouts_of(fleet(island("a")), (0,)) == []


def test_the_fleet_of_a_layout_has_all_its_chips_and_a_name_for_each_learner():
    spec = fleet(island("a", count=2), island("b"))
    made = fleet_of(spec, (Share(0, 2, 2), Share(1, 1, 1)), quorum=3)
    assert made.chips == 3 * 128
    assert [one.name for one in made.islands] == ["a-0", "a-1", "a-2", "a-3", "b"]
    assert made.quorum == 3
