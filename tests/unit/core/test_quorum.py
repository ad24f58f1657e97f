"""A round waits, closes or is cancelled, and says why."""

from __future__ import annotations

from typing import Any

from atoll.core.quorum import Cancel, Close, Gathering, Wait, judge

DEADLINE = 1_000


def gathering(offers: dict[str, int], missing: str = "", **values: Any) -> Gathering:
    """A round on fragment 3; learners have names of one letter."""
    defaults: dict[str, Any] = {"min_quorum": 2, "grace_ns": 10, "waits": False} | values
    return Gathering(
        fragment=3,
        deadline_ns=DEADLINE,
        offered_at_ns=offers,
        missing=tuple(missing),
        **defaults,
    )


def test_below_the_quorum_a_round_waits_until_the_fragment_is_due_again():
    assert judge(gathering({"a": 0}, "bc"), 500) == Wait("1 of 2 offers", DEADLINE)
    assert judge(gathering({}, "bc"), 0) == Wait("0 of 2 offers", DEADLINE)


def test_a_round_closes_early_when_nobody_is_missing():
    assert judge(gathering({"b": 5, "a": 0}), 5) == Close("all offered", ("a", "b"))


def test_grace_window_waits_for_a_late_learner_then_goes_on_without_it():
    view = gathering({"a": 0, "b": 5}, "c")
    assert judge(view, 14) == Wait("grace window open for ['c']", wake_at_ns=15)
    assert judge(view, 15) == Close("grace window over, closed without ['c']", ("a", "b"))


def test_the_grace_window_opens_with_the_kth_offer_and_later_offers_do_not_extend_it():
    view = gathering({"a": 0, "b": 5, "c": 14}, "d")
    assert judge(view, 14) == Wait("grace window open for ['d']", wake_at_ns=15)
    assert judge(view, 15) == Close("grace window over, closed without ['d']", ("a", "b", "c"))


def test_the_kth_offer_is_counted_in_order_of_time_and_not_of_name():
    assert judge(gathering({"b": 0, "a": 90}, "c"), 95) == Wait("grace window open for ['c']", 100)


def test_without_a_grace_window_the_quorum_alone_closes_the_round():
    view = gathering({"a": 0, "b": 5}, "c", grace_ns=0)
    assert judge(view, 5) == Close("grace window over, closed without ['c']", ("a", "b"))


def test_a_grace_window_ends_where_the_fragment_is_due_again():
    view = gathering({"a": 0, "b": 995}, "c", grace_ns=50)
    assert judge(view, 999) == Wait("grace window open for ['c']", DEADLINE)
    assert judge(view, DEADLINE) == Close("due again, closed without ['c']", ("a", "b"))


def test_due_again_cancels_a_round_below_its_quorum():
    view = gathering({"a": 0}, "bc")
    assert judge(view, DEADLINE - 1) == Wait("1 of 2 offers", DEADLINE)
    assert judge(view, DEADLINE) == Cancel("due again with 1 of 2 offers")


def test_a_quorum_out_of_reach_cancels_at_once():
    reason = "quorum of 3 out of reach: 1 offered, nobody else is left"
    assert judge(gathering({"a": 0}, min_quorum=3), 0) == Cancel(reason)


def test_a_quorum_that_the_missing_could_still_reach_is_waited_for():
    assert judge(gathering({"a": 0}, "bc", min_quorum=3), 1) == Wait("1 of 3 offers", DEADLINE)
    assert isinstance(judge(gathering({"a": 0}, "b", min_quorum=3), 1), Cancel)


def test_waiting_algorithms_wait_for_everybody_who_is_live():
    view = gathering({"a": 0, "b": 5}, "c", min_quorum=1, waits=True)
    assert judge(view, 999) == Wait("2 of 3 offers", DEADLINE)
    everybody = gathering({"a": 0, "b": 5, "c": 9}, min_quorum=1, waits=True)
    assert judge(everybody, 9) == Close("all offered", ("a", "b", "c"))


def test_waiting_algorithms_go_on_without_the_silent_when_the_fragment_is_due_again():
    view = gathering({"a": 0}, "bc", min_quorum=1, waits=True)
    assert judge(view, DEADLINE) == Close("due again, closed without ['b', 'c']", ("a",))
