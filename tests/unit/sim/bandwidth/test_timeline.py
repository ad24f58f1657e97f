"""The event model by itself: worked examples, limits, monotony."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from atoll.errors import ConfigError
from atoll.sim.bandwidth.timeline import GRID, on_time_bandwidth, play, thinnest_links
from atoll.sim.bandwidth.traffic import METHODS, Traffic

WAITING = tuple(method for method in METHODS if method != "decoupled")
PLAIN = Traffic(params=1e9, step_s=3.0, bits=16, sites=2, interval_steps=12, fragments=4, overlap_steps=1)
LINKS = np.logspace(6, 14, 60)


def buckets_one_by_one(step_s: float, payload_s: float) -> float:
    """When the last of 128 buckets has left, on a link that was free at the start of the step."""
    free = 0.0
    for bucket in range(1, 129):
        ready = step_s / 3 + bucket / 128 * step_s * 2 / 3
        free = max(free, ready) + payload_s / 128
    return free


@pytest.mark.parametrize("payload_s", [0.01, 1.0, 1.999, 2.0, 2.001, 4.0, 50.0])
def test_a_data_parallel_step_lasts_until_its_last_bucket_has_left(payload_s):
    line = play("data-parallel", PLAIN, [PLAIN.ring_bits / payload_s])
    lasts_s = max(3.0, buckets_one_by_one(3.0, payload_s))
    assert line.cu[0] == pytest.approx(3.0 / lasts_s)
    assert line.stall_s[0] == pytest.approx(lasts_s - 3.0)
    assert line.mean_bits_per_s[0] == pytest.approx(PLAIN.ring_bits / lasts_s)


def test_diloco_waits_once_in_an_interval_and_streaming_at_each_fragment():
    link = PLAIN.ring_bits / 8.0  # the model takes 8 s, a fragment 2 s
    lasts_s = 11 * 3.0 + buckets_one_by_one(3.0, 8.0)
    assert play("diloco", PLAIN, [link]).cu[0] == pytest.approx(36.0 / lasts_s)
    no_overlap = replace(PLAIN, overlap_steps=0)
    lasts_s = 4 * (2 * 3.0 + buckets_one_by_one(3.0, 2.0))
    assert play("streaming", no_overlap, [link]).cu[0] == pytest.approx(36.0 / lasts_s)
    assert play("streaming", PLAIN, [link]).cu[0] == 1.0, "a step of overlap hides it"


def test_a_round_trip_is_waited_for_by_everybody_who_waits():
    far = replace(PLAIN, rtt_s=0.5, overlap_steps=0)
    assert play("data-parallel", far, [1e15]).stall_s[0] == pytest.approx(0.5, rel=1e-3)
    assert play("diloco", far, [1e15]).stall_s[0] == pytest.approx(0.5 / 12, rel=1e-3)
    assert play("streaming", far, [1e15]).stall_s[0] == pytest.approx(0.5 / 3, rel=1e-3)
    assert play("decoupled", far, [1e15]).stall_s[0] == 0.0


def test_waits_that_go_round_in_their_own_rhythm_are_averaged():
    # Five steps pass while a fragment is under way, and 24 is no multiple of five.
    far = Traffic(params=1e6, step_s=1.0, bits=4, sites=2, overlap_steps=4, rtt_s=6.4)
    way_s = buckets_one_by_one(1.0, 1.0) + 6.4
    link = far.ring_bits / 24
    assert play("streaming", far, [link]).cu[0] == pytest.approx(5.0 / way_s, rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_a_faster_link_is_never_worse(method):
    line = play(method, replace(PLAIN, rtt_s=0.1), LINKS)
    for better in (line.cu, line.pace, -line.stall_s, -line.staleness_steps):
        assert (np.diff(better) >= -1e-9).all()


@pytest.mark.parametrize("method", METHODS)
def test_an_endless_link_gives_full_utilisation(method):
    line = play(method, PLAIN, [1e18])
    assert line.cu[0] == pytest.approx(1.0, abs=1e-6)
    assert line.pace[0] == pytest.approx(1.0, abs=1e-6)
    assert line.stall_s[0] == pytest.approx(0.0, abs=1e-6)
    assert line.staleness_steps[0] == 0


@pytest.mark.parametrize("method", METHODS)
def test_no_link_carries_more_than_it_can(method):
    line = play(method, PLAIN, LINKS)
    assert (line.peak_bits_per_s <= LINKS * (1 + 1e-6)).all()
    assert (line.mean_bits_per_s <= line.peak_bits_per_s * (1 + 1e-6)).all()
    assert (line.mean_bits_per_s > 0).all()


def test_many_links_at_once_give_what_each_gives_alone():
    for method in METHODS:
        together = play(method, PLAIN, LINKS[::12])
        for place, link in enumerate(LINKS[::12]):
            alone = play(method, PLAIN, [link])
            assert alone.cu[0] == pytest.approx(together.cu[place], abs=1e-3)
            assert alone.staleness_steps[0] == together.staleness_steps[place]


def test_decoupled_computes_on_any_link_and_pays_in_rounds_and_staleness():
    on_time = PLAIN.model_bits / (PLAIN.interval_steps * PLAIN.step_s)
    line = play("decoupled", PLAIN, [on_time / 10, on_time / 2, on_time, on_time * 100])
    assert line.cu.tolist() == [1.0] * 4
    assert line.pace == pytest.approx([0.1, 0.5, 1.0, 1.0], abs=0.01)
    assert line.mean_bits_per_s[2] == pytest.approx(on_time, rel=0.01)
    assert line.staleness_steps[0] == 30, (
        "30 steps up, the last bucket down: adopted at the 31st, one allowed"
    )
    assert line.staleness_steps[3] == 0


def test_a_round_trip_makes_fragments_of_decoupled_late():
    for rtt_s, late in ((0.0, 0), (2.9, 0), (3.1, 1), (9.1, 3)):  # a step takes 3 s, and one is allowed
        assert play("decoupled", replace(PLAIN, rtt_s=rtt_s), [1e15]).staleness_steps[0] == late


def fragment_by_fragment(traffic: Traffic, link: float, cycles: int = 400) -> float:
    """Rounds held / rounds due: each fragment due every H steps, in one round at most, one link for all."""
    steps, payload_s = traffic.interval_steps, traffic.model_bits / traffic.fragments / link
    due: dict[int, None] = {}
    back_s = [0.0] * traffic.fragments
    free_s, held = 0.0, 0
    for step in range(cycles * steps):
        now_s = step * traffic.step_s
        for fragment in range(traffic.fragments):
            if step % steps == fragment * steps // traffic.fragments:
                due[fragment] = None
        for fragment in list(due):
            if back_s[fragment] <= now_s + 1e-9 and free_s < now_s + traffic.step_s:
                free_s = max(free_s, now_s) + payload_s
                back_s[fragment] = free_s + payload_s / 128 + traffic.rtt_s
                held += 1
                del due[fragment]
    return held / (cycles * traffic.fragments)


@pytest.mark.parametrize("rtt_s", [0.0, 1.0, 33.0, 40.0, 100.0, 400.0])
@pytest.mark.parametrize("speed", [0.3, 1.2, 50.0])
def test_rounds_held_are_those_of_fragments_played_one_by_one(rtt_s, speed):
    far = replace(PLAIN, rtt_s=rtt_s)
    link = speed * PLAIN.model_bits / (PLAIN.interval_steps * PLAIN.step_s)
    line = play("decoupled", far, [link])
    assert line.pace[0] == pytest.approx(fragment_by_fragment(far, link), rel=0.03)
    assert line.mean_bits_per_s[0] == pytest.approx(line.pace[0] * link / speed, rel=0.01)


def test_the_grid_is_that_of_the_paper():
    assert len(GRID) == 50
    assert GRID[0] == pytest.approx(0.1e9)
    assert GRID[-1] == pytest.approx(1e12)
    assert GRID[1:] / GRID[:-1] == pytest.approx(GRID[1] / GRID[0])


@pytest.mark.parametrize("method", METHODS)
def test_the_link_on_the_grid_is_the_first_above_the_thinnest(method):
    cus = (0.5, 0.9)
    for coarse, fine in zip(
        on_time_bandwidth(method, PLAIN, cus), thinnest_links(method, PLAIN, cus), strict=True
    ):
        assert fine * 0.999 <= coarse or coarse == GRID[0]
        assert coarse <= fine * GRID[1] / GRID[0] * 1.001 or coarse == GRID[0]


@pytest.mark.parametrize("method", METHODS)
def test_the_thinnest_link_reaches_the_utilisation_and_a_thinner_one_does_not(method):
    for cu, link in zip((0.6, 0.95), thinnest_links(method, PLAIN, (0.6, 0.95)), strict=True):
        below, at = play(method, PLAIN, [link * 0.999, link]).pace
        assert below < cu <= at


def test_what_no_link_reaches_is_infinite():
    far = replace(PLAIN, rtt_s=3.0)
    assert thinnest_links("data-parallel", far, [0.4, 0.9])[1] == math.inf
    assert thinnest_links("data-parallel", far, [0.4, 0.9])[0] < math.inf
    assert thinnest_links("data-parallel", far, [0.9]) == [math.inf]
    assert on_time_bandwidth("data-parallel", far, [0.9]) == [math.inf]
    assert all(math.isfinite(link) for link in thinnest_links("decoupled", far, [0.9]))


@pytest.mark.parametrize("links", [[0.0], [1e9, -1.0], [math.inf], [math.nan]])
def test_a_link_without_a_speed_is_refused(links):
    with pytest.raises(ConfigError, match="bit/s above 0"):
        play("diloco", PLAIN, links)
