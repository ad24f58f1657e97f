"""A slower pace: steps are stretched, what disturbs one of them is not."""

from __future__ import annotations

import pytest

from atoll.runtime.pace import NUM_RECENT, Pace


def test_at_half_the_speed_a_step_lasts_twice_as_long() -> None:
    pace = Pace(0.5)
    assert [0.01 + pace.rest_s(0.01) for _ in range(5)] == pytest.approx([0.02] * 5)


def test_at_full_speed_nobody_rests() -> None:
    assert Pace(1.0).rest_s(0.01) == Pace(2.0).rest_s(0.01) == 0.0


def test_a_disturbed_step_lasts_longer_by_the_disturbance_alone() -> None:
    pace = Pace(0.1)
    for _ in range(5):
        pace.rest_s(0.01)
    assert 0.05 + pace.rest_s(0.05) == pytest.approx(0.1 + 0.04)


def test_steps_that_stay_longer_become_the_usual() -> None:
    pace = Pace(0.5)
    for step_s in [0.01] * NUM_RECENT + [0.04] * NUM_RECENT:
        rest_s = pace.rest_s(step_s)
    assert rest_s == pytest.approx(0.04)
