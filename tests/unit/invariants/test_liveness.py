"""A grace window is overdue once the longest that the run allows has passed, by the slowest step."""

from __future__ import annotations

import pytest

from atoll.core.params import RunParams
from atoll.invariants.liveness import Liveness


def overdue(before_ns: int, **params: float) -> list[int]:
    """Fragments that are overdue if the last turn was then: one round, quorum at 100, steps of 10."""
    liveness = Liveness(RunParams(**params))  # type: ignore[arg-type]  # fields of one type are passed on
    liveness.step_ns = {"a": 10, "b": 4}
    liveness.offered_at = {3: {"a": 100}}
    liveness.turn_ns = before_ns
    return [p for p, _ in liveness.overdue_grace(before_ns + 1)]


@pytest.mark.parametrize(("most", "ends_ns"), [(1.0, 110), (2.5, 125)])
def test_a_window_may_last_as_long_as_the_run_allows_and_no_longer(most, ends_ns):
    assert overdue(ends_ns, grace_max_steps=most) == []
    assert overdue(ends_ns + 1, grace_max_steps=most) == [3]


def test_without_a_quorum_there_is_no_window():
    assert overdue(1000, min_quorum=2) == []
