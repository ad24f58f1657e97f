"""Every reason for which an offer is not merged."""

from __future__ import annotations

import math
from typing import Any

import pytest

from atoll.core.events import Inspection
from atoll.core.gates import MAX_BLOCKED, MIN_NORMS, NORM_HISTORY, NormGate, Refusal, screen
from atoll.core.members import Session
from atoll.core.messages import NO_VERSION, Header
from atoll.core.params import RunParams
from atoll.core.records import Contribution, StoredFragment

FRAGMENTS = [StoredFragment(4, "d4", "d3"), StoredFragment(7, "e7", "e6")]


def header(**values: Any) -> Header:
    """A good offer of three steps on fragment 0."""
    defaults: dict[str, Any] = {
        "name": "a",
        "incarnation": 1,
        "epoch": 1,
        "round": 9,
        "fragment": 0,
        "base_version": 4,
        "base_digest": "d4",
        "start": 100,
        "end": 400,
        "steps": 3,
        "bases": (4, 7),
    }
    return Header(**(defaults | values))


def judged(
    offer: Header,
    *,
    contribution: Contribution | None = None,
    has_offered: bool = False,
    max_step_tokens: int = 0,
) -> Refusal | None:
    session = Session("a", 1, 0, 0, 0.2, has_offered=has_offered)
    params = RunParams(num_fragments=2, max_step_tokens=max_step_tokens)
    return screen(offer, session, FRAGMENTS, contribution, params)


def test_a_good_offer_on_the_current_version_counts():
    assert judged(header()) is None


def test_a_good_offer_on_the_version_before_counts():
    assert judged(header(base_version=3, base_digest="d3", bases=(3, 6))) is None


@pytest.mark.parametrize(
    ("version", "digest"),
    [(2, "d2"), (5, "d5"), (4, "another history"), (3, "another history"), (NO_VERSION, "")],
)
def test_a_base_that_is_neither_current_nor_the_one_before_is_stale(version, digest):
    refusal = judged(header(base_version=version, base_digest=digest))
    assert refusal == Refusal("stale", f"base {version} is not current 4 or before")


def test_a_version_before_the_first_is_no_base():
    session = Session("a", 1, 0, 0, 0.2)
    offer = header(base_version=NO_VERSION, base_digest="", bases=(0,))
    refusal = screen(offer, session, [StoredFragment(0, "d0", "")], None, RunParams(num_fragments=1))
    assert refusal == Refusal("stale", "base -1 is not current 0 or before")


def test_a_base_older_than_the_learners_own_contribution_would_merge_its_progress_twice():
    offer = header(base_version=3, base_digest="d3")
    assert judged(offer, contribution=Contribution(3, 100, 100)) is None
    assert judged(offer, contribution=Contribution(4, 100, 100)) == Refusal(
        "stale", "base 3 is older than version 4, which contains this learner's progress already"
    )


def test_a_first_offer_needs_every_fragment_to_be_healed():
    refusal = judged(header(bases=(4, 5)))
    assert refusal == Refusal("stale", "not healed: fragment 1 at 5, current 7")


def test_a_base_from_the_future_is_not_healed_either():
    refusal = judged(header(bases=(4, 8)))
    assert refusal == Refusal("stale", "not healed: fragment 1 at 8, current 7")


def test_a_learner_that_has_offered_before_may_lag_on_other_fragments():
    assert judged(header(bases=(4, 5)), has_offered=True) is None


@pytest.mark.parametrize(
    ("counters", "reason"),
    [
        ({"steps": 0}, "implausible counters: 300 tokens in 0 steps"),
        ({"steps": -1}, "implausible counters: 300 tokens in -1 steps"),
        ({"end": 100}, "implausible counters: 0 tokens in 3 steps"),
        ({"end": 50}, "implausible counters: -50 tokens in 3 steps"),
        ({"start": -1}, "implausible counters: 401 tokens in 3 steps"),
    ],
)
def test_implausible_counters_are_rejected(counters, reason):
    assert judged(header(**counters)) == Refusal("rejected", reason)


def test_more_tokens_a_step_than_the_run_allows_are_rejected():
    assert judged(header(), max_step_tokens=100) is None
    refusal = judged(header(), max_step_tokens=99)
    assert refusal == Refusal("rejected", "300 tokens in 3 steps, at most 99 a step")


# Norms


def gate(*norms: float, factor: float = 10.0) -> NormGate:
    new = NormGate(factor)
    new.norms.extend(norms)
    return new


@pytest.mark.parametrize(
    "result",
    [
        Inspection("a", False, 1.0),
        Inspection("a", True, math.nan),
        Inspection("a", True, math.inf),
        Inspection("a", False, math.nan),
    ],
)
@pytest.mark.parametrize("factor", [0.0, 10.0])
def test_a_delta_that_is_not_finite_is_rejected_even_with_the_norm_gate_off(result, factor):
    refusal = gate(factor=factor).judge(result, 1)
    assert refusal == Refusal("rejected", "the delta is not finite")


def test_a_norm_far_above_the_running_median_is_rejected():
    usual = gate(*[2.0] * MIN_NORMS)
    assert usual.judge(Inspection("a", True, 20.0), 1) is None
    refusal = usual.judge(Inspection("a", True, 20.5), 1)
    assert refusal == Refusal("rejected", "norm 20.5 is over 10 x median 2")


def test_too_few_norms_judge_nobody():
    early = gate(*[2.0] * (MIN_NORMS - 1))
    assert early.median == 0.0
    assert early.judge(Inspection("a", True, 1e30), 1) is None


def test_a_median_of_zero_judges_nobody():
    assert gate(*[0.0] * MIN_NORMS).judge(Inspection("a", True, 1.0), 1) is None


def test_a_factor_of_zero_turns_the_gate_off():
    assert gate(*[2.0] * MIN_NORMS, factor=0.0).judge(Inspection("a", True, 1e30), 1) is None


def test_judging_does_not_change_what_is_judged_by():
    usual = gate(*[2.0] * MIN_NORMS)
    usual.judge(Inspection("a", True, 3.0), 1)
    assert list(usual.norms) == [2.0] * MIN_NORMS


def test_the_median_follows_the_norms_of_late():
    moving = gate(*[1.0] * NORM_HISTORY)
    moving.norms.extend([5.0] * (NORM_HISTORY // 2 + 1))
    assert len(moving.norms) == NORM_HISTORY
    assert moving.median == 5.0


def test_an_offer_after_a_long_outage_is_larger_and_no_worse_for_it():
    usual = gate()
    for _ in range(MIN_NORMS):
        usual.passed(Inspection("a", True, 12.0), 4)
    assert usual.median == 6.0
    assert usual.judge(Inspection("a", True, 12.0 * 25), 4 * 25 * 25) is None
    assert usual.judge(Inspection("a", True, 12.0 * 25), 4) is not None


def test_what_everybody_says_for_long_enough_is_believed():
    usual = gate(*[1.0] * MIN_NORMS)
    for number in range(1, MAX_BLOCKED + 1):
        assert usual.judge(Inspection("a", True, 50.0), 1) is not None
        assert usual.judge(Inspection("b", True, 60.0), 1) is not None
        assert usual.nobody_passed({"a", "b"}) == (number == MAX_BLOCKED)
    assert usual.judge(Inspection("a", True, 50.0), 1) is None


def test_one_learner_of_two_is_not_everybody_however_often_it_says_it():
    usual = gate(*[1.0] * MIN_NORMS)
    for _ in range(10 * MAX_BLOCKED):
        assert usual.judge(Inspection("a", True, 50.0), 1) is not None
        assert not usual.nobody_passed({"a", "b"})


def test_an_offer_that_passes_ends_the_agreement_of_those_that_did_not():
    usual = gate(*[1.0] * MIN_NORMS)
    for _ in range(10 * MAX_BLOCKED):
        for name in ("a", "b"):
            usual.judge(Inspection(name, True, 50.0), 1)
        usual.nobody_passed({"a", "b"})
        usual.passed(Inspection("c", True, 1.0), 1)
        assert usual.median == 1.0


def test_nan_from_everybody_changes_nothing():
    usual = gate(*[1.0] * MIN_NORMS)
    for _ in range(10 * MAX_BLOCKED):
        usual.judge(Inspection("a", True, math.nan), 1)
        assert not usual.nobody_passed({"a"})
    assert usual.median == 1.0
