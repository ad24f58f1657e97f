"""The books, with hand-made messages and a machine that is driven by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atoll.config import BudgetConfig, RunConfig, SyncConfig
from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.records import RoundRecord
from atoll.runtime.books import NOTES_KEPT, Books
from atoll.wire import messages as wire
from tests.unit.core.by_hand import SyncerByHand, contributor, running

SECOND = 1_000_000_000
TICKS = 100


def books_of(ticks: int = TICKS, tokens: int = 0) -> Books:
    sync = SyncConfig(num_fragments=2, interval_steps=4, min_quorum=2)
    return Books(RunConfig(sync=sync, budget=BudgetConfig(ticks=ticks, tokens=tokens)), "reef", 0)


def report(name: str, clock: int, tokens: int = 0, incarnation: int = 1, step_ns: int = SECOND) -> msg.Report:
    return msg.Report(name, incarnation, 1, clock + 1, clock, tokens, step_ns, 0, -1, 0, ())


def header(name: str, incarnation: int = 1) -> msg.Header:
    return msg.Header(name, incarnation, 1, 1, 0, 0, "", 0, 10, 1, (0, 0))


def telemetry(name: str, **values: Any) -> wire.Telemetry:
    fields: dict[str, Any] = {
        "name": name, "incarnation": 1, "loss": 2.0, "step": 10, "tokens": 100, "tokens_per_s": 50.0,
        "held_ns": SECOND, "step_ns": SECOND, "held_max_ns": 5, "cpu_ns": 20, "wall_ns": 10 * SECOND,
        "overwritten": 0, "offered": 1, "memory_bytes": 1, "device": "cpu", "note": "",
    }  # fmt: skip
    return wire.Telemetry(**(fields | values))


def commit(*names: str, fragment: int = 0, t: int = 4) -> RoundRecord:
    parts = tuple(contributor(name) for name in names)
    return RoundRecord(1, 1, fragment, 1, "", "", t, parts)


def status(books: Books, hand: SyncerByHand | None = None, now_ns: int = 0) -> dict[str, Any]:
    machine = hand.machine if hand is not None else None
    shown = books.status(machine, hand.now_ns if hand is not None else now_ns, (30, 40))
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown, "plain JSON, as every reader wants it"
    return shown


def row(shown: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in shown["learner_details"] if row["name"] == name)


def with_learners(*names: str) -> tuple[Books, SyncerByHand]:
    """A run in which everybody is healed, and books that know it."""
    hand, books = running(*names), books_of()
    for shard, name in enumerate(names):
        books.admitted(name, 1, shard, f"host:{shard}", 0)
    return books, hand


# States


def test_before_anybody_came_the_run_waits():
    shown = status(books_of())
    assert (shown["state"], shown["t"], shown["merges"], shown["alive"]) == ("waiting", 0, 0, 0)
    assert shown["goodput"] is None
    assert shown["participation"] is None
    assert shown["bits_per_param"] == {"up": None, "down": None}
    assert (shown["bytes_up"], shown["bytes_down"]) == (30, 40)


def test_a_healed_learner_trains_until_it_leaves_or_falls_silent():
    books, hand = with_learners("ada", "bob", "cid")
    assert [row(status(books, hand), name)["state"] for name in ("ada", "bob", "cid")] == ["training"] * 3
    hand.hear(msg.Leave("ada", 1, hand.epoch))
    hand.now_ns += 4 * SECOND
    hand.report("bob", 1)
    hand.now_ns += 4 * SECOND
    shown = status(books, hand)
    assert row(shown, "ada")["state"] == "left"
    assert row(shown, "bob")["state"] == "training"
    assert row(shown, "cid")["state"] == "lost"
    assert (shown["learners"], shown["alive"]) == (3, 1)


def test_a_learner_without_every_fragment_is_healing():
    books, hand = with_learners("ada", "bob")
    hand.report("bob", 1, versions=[0, msg.NO_VERSION])
    assert row(status(books, hand), "bob")["state"] == "healing"


def test_the_run_is_training_then_draining_then_finished():
    books, hand = with_learners("ada", "bob")
    assert status(books, hand)["state"] == "training"
    commands = hand.handle(ev.FinishRequested(hand.now_ns, "enough"))
    assert status(books, hand)["state"] == "draining"
    commands += hand.fire("beat", after_ns=61 * SECOND)  # nobody answers, so the deadline ends it
    hand.report("ada", 1)
    for command in commands:
        books.commanded(command, hand.now_ns)
    shown = status(books, hand)
    assert (shown["state"], shown["progress"], shown["eta_s"]) == ("finished", 1.0, 0.0)
    assert row(shown, "ada")["state"] == "finished"


# Counting


def test_steps_and_tokens_are_counted_from_the_first_report_of_a_life():
    books, hand = with_learners("ada")
    for clock in range(50, 61):
        books.heard(report("ada", clock, tokens=8 * (clock - 50)), t=clock)
    shown = status(books, hand)
    assert row(shown, "ada")["steps"] == shown["learner_steps"] == 10
    assert row(shown, "ada")["tokens"] == shown["tokens"] == 80


def test_what_a_life_had_not_offered_when_it_died_is_not_kept():
    books = books_of()
    books.admitted("ada", 1, 0, "", 0)
    for clock in range(11):
        books.heard(report("ada", clock, tokens=clock), t=clock)
    books.heard(header("ada"), t=10)
    for clock in range(11, 31):
        books.heard(report("ada", clock, tokens=clock), t=clock)
    books.admitted("ada", 2, 0, "", 40 * SECOND)
    book = books.learners["ada"]
    assert book.kept_steps == 11, "the header answers the boundary after the last report"
    assert (book.past_steps, book.past_tokens) == (30, 30)
    books.heard(report("ada", 50, incarnation=2), t=50)
    books.heard(report("ada", 55, tokens=5, incarnation=2), t=55)
    assert (book.life_steps, book.tokens) == (5, 5)
    shown = status(books, now_ns=100 * SECOND)
    assert shown["learner_steps"] == 35
    assert shown["goodput"] == pytest.approx((11 + 5) / 100)


def test_steps_stay_counted_when_an_operator_goes_back_and_the_clock_with_it():
    books = books_of()
    books.admitted("ada", 1, 0, "", 0)
    for clock in range(50, 101):
        books.heard(report("ada", clock, tokens=clock - 50), t=clock)
    books.heard(header("ada"), t=100)
    books.heard(report("ada", 20, tokens=50), t=20)
    book = books.learners["ada"]
    assert (book.clock, book.life_steps) == (20, 50)
    for clock in range(21, 31):
        books.heard(report("ada", clock, tokens=clock + 30), t=clock)
    assert book.life_steps == 60
    books.heard(report("ada", 5, tokens=60), t=5)
    books.heard(report("ada", 9, tokens=64), t=9)
    shown = status(books)
    assert row(shown, "ada")["steps"] == shown["learner_steps"] == 64
    books.admitted("ada", 2, 0, "", SECOND)
    assert (book.past_steps, book.kept_steps) == (64, 51), "what it had offered before counts as kept"


def test_a_life_that_offered_nothing_keeps_nothing():
    books = books_of()
    books.admitted("ada", 1, 0, "", 0)
    books.heard(report("ada", 0), t=0)
    books.heard(report("ada", 9), t=9)
    books.admitted("ada", 2, 0, "", SECOND)
    assert books.learners["ada"].kept_steps == 0


def test_a_welcome_of_the_same_life_changes_no_count():
    books = books_of()
    books.admitted("ada", 1, 0, "", 0)
    books.heard(report("ada", 0), t=0)
    books.heard(report("ada", 9, tokens=90), t=9)
    books.admitted("ada", 1, 0, "elsewhere:1", 5)
    book = books.learners["ada"]
    assert (book.life_steps, book.tokens, book.past_steps, book.admitted_ns) == (9, 90, 0, 0)
    assert book.address == "elsewhere:1"


def test_nobody_is_counted_who_was_not_admitted_or_speaks_for_another_life():
    books = books_of()
    books.heard(report("stranger", 5), t=5)
    assert books.learners == {}
    books.admitted("ada", 2, 0, "", 0)
    books.heard(report("ada", 7, tokens=7, incarnation=1), t=7)
    assert books.learners["ada"].tokens == 0


def test_goodput_is_useful_time_over_all_time_since_the_first_admission():
    books = books_of()
    books.admitted("ada", 1, 0, "", 0)
    books.admitted("bob", 1, 1, "", 50 * SECOND)
    for clock in range(81):
        books.heard(report("ada", clock), t=clock)
    for clock in range(11):
        books.heard(report("bob", clock, step_ns=2 * SECOND), t=clock)
    assert status(books, now_ns=100 * SECOND)["goodput"] == pytest.approx((80 + 20) / (100 + 50))


def test_goodput_is_at_most_one_and_stands_still_at_the_end():
    books = books_of()
    books.admitted("ada", 1, 0, "", 0)
    for clock in range(11):
        books.heard(report("ada", clock), t=clock)
    assert status(books, now_ns=5 * SECOND)["goodput"] == 1.0
    books.commanded(do.Note("finished", -1, "", "budget"), 20 * SECOND)
    assert status(books, now_ns=20 * SECOND)["goodput"] == pytest.approx(0.5)
    assert status(books, now_ns=900 * SECOND)["goodput"] == pytest.approx(0.5)


def test_one_slow_step_does_not_change_the_median():
    books = books_of()
    books.admitted("ada", 1, 0, "", 0)
    for clock, step_ns in enumerate([SECOND, SECOND, 900 * SECOND, SECOND, SECOND]):
        books.heard(report("ada", clock + 1, step_ns=step_ns), t=0)
    assert books.learners["ada"].median_step_ns == SECOND


def test_participation_is_offers_merged_over_places_in_rounds_that_ended():
    books, hand = with_learners("ada", "bob", "cid")
    opened = do.Opened(0, 1, 4, 4, ("ada", "bob", "cid"), 3)
    books.commanded(opened, 0)
    assert status(books, hand)["participation"] is None, "a round that is open says nothing yet"
    books.committed(commit("ada", "bob"))
    assert status(books, hand)["participation"] == pytest.approx(2 / 3)
    books.commanded(opened, 0)
    books.commanded(do.Note("cancelled", 0, "", "no quorum"), 0)
    assert status(books, hand)["participation"] == pytest.approx(2 / 6)


def test_participating_and_merged_are_those_of_the_last_cycle():
    books, hand = with_learners("ada", "bob", "cid")
    hand.machine.desk.schedule.t = 20
    books.heard(header("ada"), t=18)
    books.heard(msg.Abstain("bob", 1, 1, 1, 0, "nothing"), t=16)
    books.heard(header("cid"), t=15)
    books.committed(commit("ada", t=17))
    books.committed(commit("cid", t=15, fragment=1))
    shown = status(books, hand)
    assert (shown["alive"], shown["participating"], shown["merged"]) == (3, 2, 1)


def test_the_fate_of_offers_is_counted_by_learner():
    books, hand = with_learners("ada", "bob")
    for reason in ("late: no body in time", "stale: old base", "the delta is not finite"):
        books.commanded(do.Note("dropped", 0, "ada", reason), 0)
    books.committed(commit("ada", "bob"))
    shown = row(status(books, hand), "ada")
    assert (shown["late"], shown["rejected"], shown["merged_offers"]) == (1, 1, 1)


def test_lag_is_counted_in_ticks_behind_t():
    books, hand = with_learners("ada", "bob")
    hand.machine.desk.schedule.t = 20
    hand.machine.desk.schedule.shifts["bob"] = 5
    books.heard(report("ada", 17), t=20)
    books.heard(report("bob", 17), t=20)
    shown = status(books, hand)
    assert (row(shown, "ada")["lag_steps"], row(shown, "bob")["lag_steps"]) == (3, 0)


# What learners tell of themselves


def test_stall_is_time_held_over_all_time_also_of_lives_that_ended():
    books, hand = with_learners("ada", "bob")
    books.heard(telemetry("ada", held_ns=1 * SECOND, wall_ns=10 * SECOND), t=0)
    books.heard(telemetry("bob", held_ns=0, wall_ns=10 * SECOND), t=0)
    assert status(books, hand)["stall_fraction"] == pytest.approx(1 / 20)
    books.admitted("ada", 2, 0, "", 0)
    books.heard(telemetry("ada", incarnation=2, held_ns=2 * SECOND, wall_ns=10 * SECOND), t=0)
    assert status(books, hand)["stall_fraction"] == pytest.approx(3 / 30)


def test_the_loss_of_the_run_is_weighted_by_pace():
    books, hand = with_learners("ada", "bob")
    books.heard(telemetry("ada", loss=1.0, tokens_per_s=30.0), t=0)
    books.heard(telemetry("bob", loss=5.0, tokens_per_s=10.0), t=0)
    assert status(books, hand)["loss"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    "values",
    [
        {"loss": float("nan")},
        {"loss": float("inf"), "tokens_per_s": float("nan")},
        {"tokens_per_s": float("-inf")},
        {"loss": 1e300, "tokens_per_s": 1e300},
        {"loss": -1e38, "tokens_per_s": 1e38},
        {"step": -1, "held_ns": -5, "wall_ns": -1, "cpu_ns": -1, "held_max_ns": -3},
        {"step": 0},
        {"loss": None},
    ],
    ids=str,
)
def test_telemetry_that_cannot_be_leaves_a_status_that_can_be_read(values):
    books, hand = with_learners("ada")
    books.heard(telemetry("ada", **values), t=0)
    shown = row(status(books, hand), "ada")
    assert shown["held_total_ms"] >= 0
    assert shown["tokens_per_s"] >= 0


# Progress and notes


def test_progress_is_the_larger_share_of_the_two_budgets():
    books, hand = books_of(ticks=100, tokens=1000), running("ada", "bob")
    hand.machine.desk.schedule.t = 25
    assert status(books, hand)["progress"] == 0.25
    hand.machine.desk.state.merged_tokens = 2 * 700
    assert status(books, hand)["progress"] == 0.7
    hand.machine.desk.state.merged_tokens = 2 * 5000
    assert status(books, hand)["progress"] == 1.0


def test_pace_and_time_left_come_from_the_last_seconds():
    books, hand = with_learners("ada")
    for second in range(21):
        hand.now_ns = second * SECOND
        hand.machine.desk.schedule.t = 2 * second
        books.learners["ada"].tokens = 100 * second
        shown = status(books, hand)
    assert shown["tokens_per_s"] == pytest.approx(100)
    assert shown["eta_s"] == pytest.approx((TICKS - 40) / 2)


def test_notes_for_people_are_kept_and_the_others_are_not():
    books = books_of()
    books.commanded(do.Note("admitted", -1, "ada", "incarnation 1"), 3 * SECOND)
    books.commanded(do.Note("closed", 0, "", "all offered"), 3 * SECOND)
    assert status(books)["notes"] == [
        {"at_s": 3.0, "kind": "admitted", "who": "ada", "reason": "incarnation 1"}
    ]
    for number in range(200):
        books.commanded(do.Note("lost", -1, f"learner-{number}", "silent"), number)
    kept = status(books)["notes"]
    assert len(kept) == NOTES_KEPT
    assert kept[-1]["who"] == "learner-199"


def test_damage_is_a_problem_that_stays_in_sight():
    books = books_of()
    books.commanded(do.Note("damage", -1, "", "delta 7 is missing"), 0)
    assert status(books)["problems"] == ["delta 7 is missing"]


def test_bits_per_parameter_are_those_of_bodies_and_publishes():
    books = books_of()
    books.body_bits, books.body_values = 1600, 100
    books.publish_bits, books.publish_values = 800, 200
    assert status(books)["bits_per_param"] == {"up": 16.0, "down": 4.0}


# Guards and healing


def test_a_quarantined_learner_is_alive_and_said_to_be_out():
    books, hand = with_learners("ada", "bob")
    hand.machine.strikes.counts["ada"] = 4
    hand.machine.strikes.until_ns["ada"] = hand.now_ns + SECOND
    shown = status(books, hand)
    assert row(shown, "ada")["state"] == "quarantined"
    assert (row(shown, "ada")["strikes"], row(shown, "bob")["strikes"]) == (4, 0)
    assert shown["alive"] == 2


def test_where_a_life_found_its_optimizer_state_is_told():
    books, hand = with_learners("ada")
    hand.machine.desk.sessions["ada"].moments = "peer"
    assert row(status(books, hand), "ada")["moments"] == "peer"
    books.commanded(do.Note("moments", -1, "ada", "peer: from bob"), 0)
    assert status(books, hand)["notes"][-1]["kind"] == "moments"
