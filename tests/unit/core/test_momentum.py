"""Outer momentum over a run: it rises, stays, falls, and belongs to the round."""

from __future__ import annotations

import pytest

from atoll.core import commands as do
from atoll.core.momentum import momentum_factor
from atoll.core.params import RunParams
from atoll.core.records import RoundRecord, fold
from tests.unit.core.by_hand import SyncerByHand, only, running

TOKENS_OF_A_MERGE = 20
"""Two learners with a step of ten tokens each."""


@pytest.mark.parametrize(
    ("progress", "factor"),
    [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.5, 1.0), (0.8, 1.0), (0.9, 0.5), (1.0, 0.0)],
)
def test_momentum_rises_stays_and_falls(progress: float, factor: float):
    assert momentum_factor(progress, 0.1, 0.2) == pytest.approx(factor)


def test_without_a_share_or_a_budget_momentum_is_always_whole():
    assert [momentum_factor(progress, 0.0, 0.0) for progress in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]
    assert momentum_factor(None, 0.1, 0.2) == 1.0


def test_shares_that_overlap_are_multiplied():
    assert momentum_factor(0.5, 1.0, 1.0) == 0.25


def test_progress_is_that_of_the_nearer_limit_and_never_above_1():
    both = RunParams(num_fragments=2, budget_ticks=100, budget_tokens=1_000)
    assert both.progress(30, 0) == 0.3
    assert both.progress(30, 1_000) == 0.5
    assert both.progress(130, 0) == 1.0
    assert RunParams().progress(10**6, 10**9) is None


def factors(hand: SyncerByHand) -> list[float]:
    return [merge.momentum_factor for merge in only(hand.log, do.Merge)]


def merge_at(hand: SyncerByHand, t: int) -> None:
    hand.merge_round(hand.tick("a", "b", to=t), "a", "b")


def test_a_round_is_merged_at_the_momentum_of_its_tick_and_its_record_says_so():
    hand = running("a", "b", budget_ticks=16, momentum_warmup=0.5, momentum_cooldown=0.25)
    for t in (2, 4, 6):
        merge_at(hand, t)
    assert factors(hand) == [2 / 8, 4 / 8, 6 / 8]
    assert [r.momentum_factor for r in hand.records if isinstance(r, RoundRecord)] == factors(hand)


def test_a_budget_of_tokens_warms_momentum_up_too():
    hand = running("a", "b", budget_tokens=10 * TOKENS_OF_A_MERGE, momentum_warmup=1.0)
    for t in (2, 4):
        merge_at(hand, t)
    assert factors(hand) == [0.0, TOKENS_OF_A_MERGE / hand.params.num_fragments / hand.params.budget_tokens]


def test_a_write_that_is_tried_again_keeps_the_momentum_of_its_merge():
    hand = running("a", "b", budget_ticks=16, momentum_warmup=1.0)
    hand.keep = (do.PutDelta,)
    merge_at(hand, 2)
    hand.answer_kept(ok=False)
    hand.tick("a", "b", to=3)
    hand.fire("put:1", hand.params.retry_ns)
    hand.answer_kept()
    (record,) = [r for r in hand.records if isinstance(r, RoundRecord)]
    assert (record.t, record.momentum_factor) == (3, 2 / 16)


def test_a_run_that_goes_on_with_a_larger_budget_goes_by_that():
    first = running("a", "b", budget_ticks=4, momentum_cooldown=1.0)
    merge_at(first, 2)
    assert factors(first) == [0.5]
    second = SyncerByHand(first.params, stored=fold(first.records))
    second.boot(budget=(16, 0, first.params.drain_ns))
    assert second.machine.rounds.desk.params.progress(2, 0) == 2 / 16
