"""What may be committed, apart from any store."""

from __future__ import annotations

from atoll.core.records import RoundRecord
from atoll.runtime.store.rules import Expected


def round_on(fragment: int) -> RoundRecord:
    return RoundRecord(1, 1, fragment, 1, f"version of {fragment}", "zeros", 5, ())


def test_two_open_rounds_in_which_nothing_moved_are_both_committed_though_their_deltas_are_equal():
    expected = Expected(epoch=1, has_seed=True)
    expected.deltas["zeros"] += 1
    expected.deltas["zeros"] += 1
    for fragment in (0, 1):
        assert expected.objection(round_on(fragment)) == ""
        expected.committed(round_on(fragment))
    assert "was never put" in expected.objection(round_on(2))
    assert not expected.deltas
