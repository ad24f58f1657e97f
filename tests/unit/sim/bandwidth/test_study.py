"""All methods beside each other."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from atoll.sim.bandwidth.closed import mean_bits_per_s
from atoll.sim.bandwidth.study import Need, curve, loads, needs, on_link, whole_range
from atoll.sim.bandwidth.timeline import GRID, thinnest_links
from atoll.sim.bandwidth.traffic import METHODS, Traffic

WIDE = Traffic(params=1e9, step_s=1.0, bits=16)
NARROW = Traffic(params=1e9, step_s=1.0, bits=4)


def test_every_method_answers_for_every_width_and_utilisation():
    found = needs([WIDE, NARROW], [0.5, 0.9])
    assert [(need.method, need.bits, need.cu) for need in found] == [
        (method, bits, cu) for method in METHODS for bits in (16, 4) for cu in (0.5, 0.9)
    ]
    assert max(need.difference for need in found) < 0.01


def test_a_quarter_of_the_bits_needs_a_quarter_of_the_link():
    found = {(need.method, need.bits): need.bits_per_s for need in needs([WIDE, NARROW], [0.9])}
    for method in METHODS:
        assert found[method, 16] == pytest.approx(4 * found[method, 4], rel=1e-3)


@pytest.mark.parametrize(
    ("played", "formula", "difference"),
    [(100.0, 99.0, 0.01), (math.inf, math.inf, 0.0), (math.inf, 1.0, math.inf), (1.0, math.inf, math.inf)],
)
def test_the_difference_is_that_of_the_formula_from_the_event_model(played, formula, difference):
    assert Need("diloco", 16, 0.9, played, formula).difference == pytest.approx(difference)


def test_loads_and_links_name_each_method_once_for_each_width():
    assert [(load.method, load.bits) for load in loads([WIDE, NARROW])] == [
        (method, bits) for method in METHODS for bits in (16, 4)
    ]
    rows = on_link([WIDE], 1e9)
    assert [row.method for row in rows] == list(METHODS)
    assert rows[0].cu < rows[1].cu < rows[2].cu == 1.0
    assert rows[3].staleness_steps == 0


def test_a_picture_shows_every_need():
    found = needs([WIDE], [0.5, 0.99])
    links = whole_range([*found, Need("diloco", 16, 0.9, math.inf, math.inf)])
    assert links[0] < min(need.bits_per_s for need in found)
    assert links[-1] > max(need.bits_per_s for need in found)


def test_the_line_of_decoupled_begins_where_it_holds_its_rounds():
    on_time = mean_bits_per_s("decoupled", WIDE)
    links = on_time * np.array([0.1, 0.5, 0.95, 10.0])
    (enough,) = thinnest_links("decoupled", WIDE, [0.9])
    rates = [rate for rate, cu in curve("decoupled", WIDE, links) if cu == 1.0]
    assert rates == [enough, *links[2:]], "the figure of the table, not the next link that is drawn"
    assert [rate for rate, _ in curve("decoupled", WIDE, links[2:])] == list(links[2:])
    assert curve("decoupled", WIDE, links[:2]) == []


def test_the_lines_of_the_others_pass_through_the_link_that_the_table_names():
    links = np.array([1e8, 1e13])
    for method in METHODS[:3]:
        (enough,) = thinnest_links(method, WIDE, [0.9])
        link, cu = curve(method, WIDE, links)[1]
        assert link == enough
        assert cu == pytest.approx(0.9, abs=1e-3)


def test_what_a_link_makes_late_is_told_as_ours_and_as_the_papers():
    link = mean_bits_per_s("decoupled", WIDE) / 2
    late = [(row.staleness_steps, row.bucketwise_staleness_steps) for row in on_link([WIDE], link)]
    assert late == [(0, 0), (0, 0), (0, 0), (2, 0)]


def test_where_no_link_is_fast_enough_a_picture_shows_the_papers_links():
    far = replace(WIDE, rtt_s=3600.0)
    links = whole_range(needs([far], [0.9]))
    assert (links[0], links[-1]) == (pytest.approx(GRID[0] / 3), pytest.approx(3 * GRID[-1]))
    assert curve("decoupled", far, links) == []
