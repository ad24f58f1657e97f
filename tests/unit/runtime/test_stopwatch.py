from __future__ import annotations

import pytest

from atoll.runtime.stopwatch import KEPT, Stopwatch, percentile, process_cpu_ns


def test_a_step_is_measured_from_boundary_to_boundary_and_its_hold_from_entry_to_exit():
    watch = Stopwatch(began_ns=0)
    watch.enter(1_000, tokens=8)
    watch.leave(1_100)
    watch.enter(2_000, tokens=16)
    watch.leave(2_400)
    assert (watch.num_steps, watch.num_tokens) == (2, 24)
    assert (watch.step_ns, list(watch.steps)) == (1_000, [1_000])
    assert (watch.held_ns, watch.max_held_ns, watch.total_held_ns) == (400, 400, 500)
    assert list(watch.held) == [100, 400]


def test_the_first_step_has_no_length():
    watch = Stopwatch(began_ns=0)
    watch.enter(5, tokens=1)
    watch.leave(6)
    assert watch.step_ns == 0
    assert not watch.steps


def test_stall_is_the_share_of_time_that_was_held():
    watch = Stopwatch(began_ns=0)
    watch.enter(100, tokens=1)
    watch.leave(150)
    assert watch.stall_fraction(1_000) == 0.05
    assert Stopwatch(began_ns=7).stall_fraction(7) == 0.0


def test_memory_is_bounded_and_totals_are_not_lost():
    watch = Stopwatch(began_ns=0)
    for number in range(KEPT + 100):
        watch.enter(10 * number, tokens=1)
        watch.leave(10 * number + 1)
    assert len(watch.held) == len(watch.steps) == KEPT
    assert watch.total_held_ns == watch.num_steps == KEPT + 100


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, 0),
        ([7], 0.0, 7),
        ([7], 1.0, 7),
        ([4, 1, 3, 2], 0.5, 2),
        ([4, 1, 3, 2], 0.51, 3),
        ([4, 1, 3, 2], 1.0, 4),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 101)), 0.5, 50),
    ],
)
def test_a_percentile_is_the_smallest_value_with_that_share_at_or_below_it(values, share, expected):
    assert percentile(values, share) == expected


def test_cpu_time_only_grows():
    first = process_cpu_ns()
    assert sum(range(10_000)) > 0
    assert process_cpu_ns() >= first > 0
