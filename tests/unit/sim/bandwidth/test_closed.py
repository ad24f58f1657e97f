"""The closed forms: against the event model, at their limits, and back again."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.errors import ConfigError
from atoll.sim.bandwidth.closed import (
    mean_bits_per_s,
    most_rounds,
    needed_bits_per_s,
    peak_bits_per_s,
    scavenging,
    staleness_steps,
    syncer_bits_per_s,
    utilisation,
)
from atoll.sim.bandwidth.timeline import play, thinnest_links
from atoll.sim.bandwidth.traffic import METHODS, Traffic

WAITING = tuple(method for method in METHODS if method != "decoupled")
CUS = (0.5, 0.9, 0.99)
SCHEDULES = [  # H, P, tau: one fragment a step or every few steps, little overlap or much
    (24, 24, 2),
    (24, 24, 0),
    (24, 12, 1),
    (24, 24, 8),
    (48, 24, 3),
    (100, 10, 1),
]
PLAIN = Traffic(params=1e9, step_s=1.0, sites=4)

traffics = st.builds(
    Traffic,
    params=st.floats(1e6, 1e12),
    step_s=st.floats(0.01, 60.0),
    bits=st.sampled_from([4, 8, 16, 32]),
    sites=st.integers(2, 64),
    interval_steps=st.just(24),
    fragments=st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]),
    overlap_steps=st.integers(0, 12),
    rtt_s=st.sampled_from([0.0, 0.01, 0.1]),
)


@pytest.mark.parametrize(("interval", "fragments", "overlap"), SCHEDULES)
@pytest.mark.parametrize("rtt_s", [0.0, 0.3])
@pytest.mark.parametrize("method", METHODS)
def test_the_formula_for_a_link_is_within_1_percent_of_the_event_model(
    method, rtt_s, interval, fragments, overlap
):
    traffic = Traffic(5e9, 1.5, 16, 3, interval, fragments, overlap, rtt_s)
    for cu, played in zip(CUS, thinnest_links(method, traffic, CUS), strict=True):
        formula = needed_bits_per_s(method, traffic, cu)
        assert formula == played or formula == pytest.approx(played, rel=0.01), cu


@pytest.mark.parametrize("method", WAITING)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(traffic=traffics, speed=st.floats(0.01, 300.0))
def test_the_formula_for_utilisation_is_within_1_percent_of_the_event_model(method, traffic, speed):
    link = speed * mean_bits_per_s("streaming", traffic)
    played = float(play(method, traffic, [link]).cu[0])
    assert utilisation(method, traffic, link) == pytest.approx(played, rel=0.01)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(traffic=traffics, cu=st.floats(0.05, 0.999), method=st.sampled_from(WAITING))
def test_utilisation_is_the_inverse_of_the_link_needed(traffic, cu, method):
    link = needed_bits_per_s(method, traffic, cu)
    if math.isinf(link):
        assert utilisation(method, traffic, 1e30) < cu + 1e-9
    else:
        assert utilisation(method, traffic, link) == pytest.approx(cu, abs=1e-6)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(traffic=traffics, speed=st.floats(0.05, 50.0))
def test_staleness_is_what_the_event_model_shows_or_one_step_less_when_a_round_waits(traffic, speed):
    link = speed * mean_bits_per_s("decoupled", traffic)
    played = int(play("decoupled", traffic, [link]).staleness_steps[0])
    # The 128th of a fragment on its way back may cross a boundary, and so may the wait for a full link.
    bucket_steps = traffic.model_bits / traffic.fragments / link / 128 / traffic.step_s
    formula = staleness_steps(traffic, link)
    assert formula <= played <= formula + 1 + math.ceil(bucket_steps)


def test_the_formulas_by_hand():
    traffic = Traffic(
        params=1e9, step_s=1.0, bits=16, sites=2, interval_steps=100, fragments=20, overlap_steps=1
    )
    assert needed_bits_per_s("data-parallel", traffic, 0.5) == pytest.approx(16e9 / (2 - 1 / 3))
    assert needed_bits_per_s("diloco", traffic, 0.5) == pytest.approx(16e9 / (100 + 2 / 3))
    assert needed_bits_per_s("streaming", traffic, 0.9) == pytest.approx(0.8e9 / (5 / 0.9 - 5 + 1 + 2 / 3))
    assert needed_bits_per_s("decoupled", traffic, 0.9) == pytest.approx(0.9 * 16e9 / 100)
    full = replace(traffic, interval_steps=20)  # a fragment every step: the link is never free
    assert needed_bits_per_s("streaming", full, 0.9) == pytest.approx(0.9 * 16e9 / 20)


def test_more_sites_send_more_around_a_ring_and_no_more_to_a_syncer():
    two, many = replace(PLAIN, sites=2), replace(PLAIN, sites=1000)
    for method in WAITING:
        ratio = needed_bits_per_s(method, many, 0.9) / needed_bits_per_s(method, two, 0.9)
        assert ratio == pytest.approx(2 * (1 - 1 / 1000))
    assert needed_bits_per_s("decoupled", many, 0.9) == needed_bits_per_s("decoupled", two, 0.9)
    assert syncer_bits_per_s(two) == 4 * mean_bits_per_s("decoupled", two), "two sites, in and out"
    assert syncer_bits_per_s(many) == 500 * syncer_bits_per_s(two)


@pytest.mark.parametrize("method", METHODS)
def test_more_utilisation_needs_a_faster_link(method):
    needed = [needed_bits_per_s(method, PLAIN, cu / 100) for cu in range(1, 101)]
    assert needed == sorted(needed)
    assert len(set(needed)) == len(needed)


@pytest.mark.parametrize("method", METHODS)
def test_an_endless_link_gives_full_utilisation_without_round_trips(method):
    assert utilisation(method, PLAIN, math.inf) == 1.0


def test_round_trips_bound_the_methods_that_wait_and_not_decoupled():
    far = replace(PLAIN, rtt_s=0.1)  # four sites: the ring passes three round trips
    assert utilisation("data-parallel", far, 1e30) == pytest.approx(1 / 1.3)
    assert utilisation("diloco", far, 1e30) == pytest.approx(24 / 24.3)
    assert needed_bits_per_s("data-parallel", far, 0.8) == math.inf
    assert utilisation("streaming", far, 1e30) == 1.0, "two steps of overlap hide it"
    assert utilisation("streaming", replace(far, overlap_steps=0), 1e30) == pytest.approx(1 / 1.3)
    assert needed_bits_per_s("decoupled", far, 0.8) == needed_bits_per_s("decoupled", PLAIN, 0.8)


def test_decoupled_never_waits_and_grows_stale_instead():
    on_time = needed_bits_per_s("decoupled", PLAIN, 1.0)
    assert staleness_steps(PLAIN, on_time) == 0
    assert staleness_steps(PLAIN, on_time / 2) == 0, "tau allows two steps"
    assert staleness_steps(PLAIN, on_time / 3) == 1
    assert staleness_steps(PLAIN, on_time / 30) == 28
    assert staleness_steps(replace(PLAIN, rtt_s=1.5), on_time) == 1
    assert utilisation("decoupled", PLAIN, on_time / 30) == 1.0


def test_a_syncer_that_publishes_whole_fragments_sends_them_twice():
    on_time = needed_bits_per_s("decoupled", PLAIN, 1.0)  # a fragment in one step
    assert staleness_steps(PLAIN, on_time, whole=True) == 0, "up in one step, down in another: tau"
    assert staleness_steps(PLAIN, on_time / 2) == 0
    assert staleness_steps(PLAIN, on_time / 2, whole=True) == 2
    assert staleness_steps(replace(PLAIN, rtt_s=1.5), on_time, whole=True) == 2, "one round trip, not two"


@pytest.mark.parametrize("rtt_s", [0.0, 0.5])
def test_on_a_link_of_its_peak_nothing_is_late(rtt_s):
    traffic = replace(PLAIN, rtt_s=rtt_s, interval_steps=96)
    for whole in (False, True):
        peak = peak_bits_per_s("decoupled", traffic, whole=whole)
        assert staleness_steps(traffic, peak, whole=whole) == 0
        assert staleness_steps(traffic, peak * 0.99, whole=whole) == 1
    assert peak == pytest.approx(2 * peak_bits_per_s("decoupled", traffic))


@pytest.mark.parametrize("fragments", [1, 4, 24])
@pytest.mark.parametrize("rtt_s", [0.0, 20.0, 23.0, 24.5, 25.5, 29.5, 99.5])
def test_a_fragment_has_one_round_at_a_time_by_formula_and_by_events(rtt_s, fragments):
    far = replace(PLAIN, rtt_s=rtt_s, fragments=fragments)  # 24 steps of one second
    cus = (0.2, 0.5, 0.8, 0.9, 0.99)
    for cu, played in zip(cus, thinnest_links("decoupled", far, cus), strict=True):
        formula = needed_bits_per_s("decoupled", far, cu)
        assert formula == played or formula == pytest.approx(played, rel=0.01), cu
        assert math.isinf(formula) == (most_rounds(far) < cu), "a round trip alone is too long"


def test_a_round_trip_longer_than_the_interval_costs_rounds_on_any_link():
    assert most_rounds(PLAIN) == most_rounds(replace(PLAIN, rtt_s=24.0)) == 1.0
    assert most_rounds(replace(PLAIN, rtt_s=48.0)) == 0.5
    assert needed_bits_per_s("decoupled", replace(PLAIN, rtt_s=3600.0), 0.01) == math.inf
    near = needed_bits_per_s("decoupled", replace(PLAIN, rtt_s=23.0), 0.99)
    assert near == pytest.approx(PLAIN.model_bits / 24 / 1.0), "a second is left for the fragment"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(traffic=traffics, method=st.sampled_from(METHODS))
def test_the_peak_is_never_below_the_mean(traffic, method):
    assert peak_bits_per_s(method, traffic) >= mean_bits_per_s(method, traffic) * (1 - 1e-9)


def test_streaming_lowers_the_peak_and_decoupled_flattens_it():
    few = replace(PLAIN, interval_steps=96)
    assert peak_bits_per_s("diloco", few) == pytest.approx(peak_bits_per_s("data-parallel", few))
    assert peak_bits_per_s("streaming", few) == pytest.approx(peak_bits_per_s("diloco", few) / 24 / 4)
    assert peak_bits_per_s("decoupled", PLAIN) == mean_bits_per_s("decoupled", PLAIN)
    assert peak_bits_per_s("decoupled", replace(PLAIN, overlap_steps=0)) == math.inf
    assert peak_bits_per_s("decoupled", few) == pytest.approx(2 * mean_bits_per_s("decoupled", few))


@pytest.mark.parametrize(("extra", "time"), [(0.0, 1.0), (0.25, 0.90), (0.5, 0.83), (1.0, 0.75), (3.0, 0.62)])
def test_scavenging_gives_the_papers_times(extra, time):
    assert abs(scavenging(extra) - time) <= 0.0051, "the paper prints two decimals"


@pytest.mark.parametrize("cu", [0.0, -0.5, 1.5, math.nan])
def test_a_utilisation_beyond_its_bounds_is_refused(cu):
    with pytest.raises(ConfigError, match="share of time spent computing"):
        needed_bits_per_s("diloco", PLAIN, cu)


@pytest.mark.parametrize("link", [0.0, -1.0, math.nan])
def test_a_link_that_carries_nothing_is_refused(link):
    with pytest.raises(ConfigError, match="ever arrive"):
        utilisation("diloco", PLAIN, link)
    with pytest.raises(ConfigError, match="ever arrive"):
        staleness_steps(PLAIN, link)


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="data-parallel, diloco, streaming, decoupled"):
        mean_bits_per_s("gossip", PLAIN)


def test_less_than_no_extra_compute_is_refused():
    with pytest.raises(ConfigError, match="extra compute"):
        scavenging(-0.1)
