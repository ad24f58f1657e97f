"""What the lab's world measures."""

from __future__ import annotations

from array import array

import pytest

from atoll.sim.lab.world import longest_stop_s
from atoll.sim.scale.ledger import Ledger


def ledger_of(*steps: tuple[int, int]) -> Ledger:
    """Steps as (start, end) in seconds, in the order in which they ended."""
    ledger = Ledger.__new__(Ledger)
    ledger.starts_ns = array("q", [start * 10**9 for start, _ in steps])
    ledger.ends_ns = array("q", [end * 10**9 for _, end in steps])
    return ledger


@pytest.mark.parametrize(
    ("from_s", "expected"),
    [(0, 6.0), (8, 4.0), (12, 3.0), (20, 0.0)],
    ids=["one alone stood still", "part of it", "only later stops", "none after the last"],
)
def test_the_longest_stop_is_counted_from_when_all_have_begun(from_s: int, expected: float):
    # Nobody steps from 6 to 12 and from 15 to 18; 12 to 15 is covered by two learners that overlap.
    ledger = ledger_of((1, 6), (12, 14), (13, 15), (18, 20))
    assert longest_stop_s(ledger, from_s * 10**9) == expected


def test_a_long_step_of_one_learner_covers_what_others_pause():
    assert longest_stop_s(ledger_of((2, 3), (1, 9), (8, 10)), 0) == 0.0
