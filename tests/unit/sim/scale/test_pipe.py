"""Links without troubles."""

from __future__ import annotations

import pytest

from atoll.sim.scale.world import Pipe

MS = 1_000_000


def test_a_small_message_is_late_by_the_latency_and_its_jitter():
    pipe = Pipe(100 * MS, 1e6)
    assert pipe.delay_ns(0, 0, 0.0) == 75 * MS
    assert pipe.delay_ns(0, 0, 1.0) == 125 * MS


def test_content_takes_its_time_and_queues_behind_what_was_put_in_before():
    pipe = Pipe(100 * MS, 1e6)
    assert pipe.delay_ns(0, 50_000, 0.5) == pytest.approx(150 * MS)
    assert pipe.delay_ns(10 * MS, 50_000, 0.5) == pytest.approx(190 * MS)
    assert pipe.free_ns == 100 * MS


def test_a_small_message_never_waits_for_content():
    pipe = Pipe(100 * MS, 1e6)
    pipe.delay_ns(0, 5_000_000, 0.5)
    assert pipe.delay_ns(0, 0, 0.5) == 100 * MS


def test_a_pipe_that_was_idle_owes_nothing():
    pipe = Pipe(100 * MS, 1e6)
    pipe.delay_ns(0, 50_000, 0.5)
    assert pipe.delay_ns(900 * MS, 50_000, 0.5) == pytest.approx(150 * MS)
