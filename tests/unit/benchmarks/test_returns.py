"""Kills that are planned, and returns that are read from tapes written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.records import Contributor, RoundRecord
from atoll.tape.entries import Entry
from benchmarks.returns import Return, came_back, plan

NAMES = ["learner-0", "learner-1", "learner-2", "learner-3"]


def test_ten_kills_are_eight_of_learners_and_two_of_the_syncer():
    kills = plan(10, NAMES, seed=0)
    who = [kill.partition("@")[0] for kill in kills]
    assert [index for index, name in enumerate(who) if name == "syncer"] == [3, 6]
    assert all(who.count(name) == 2 for name in NAMES)
    assert (kills[0].partition("@")[2], kills[-1].partition("@")[2]) == ("5.0%", "85.0%")


def test_nobody_is_killed_twice_before_all_were_killed_once():
    who = [kill.partition("@")[0] for kill in plan(10, NAMES, seed=3)]
    assert sorted([name for name in who if name != "syncer"][:4]) == NAMES


def test_the_seed_decides_whom():
    assert plan(10, NAMES, seed=1) == plan(10, NAMES, seed=1)
    assert len({tuple(plan(10, NAMES, seed)) for seed in range(5)}) > 1


@pytest.mark.parametrize("num", [0, 1, 4])
def test_few_kills_spare_the_syncer(num):
    kills = plan(num, NAMES, seed=0)
    assert len(kills) == num
    assert not any(kill.startswith("syncer") for kill in kills)


def tape(*events):
    return [Entry(event.at_ns, "ada#1", event) for event in events]


def stepped(at_ns, steps=1):
    return ev.Stepped(at_ns, 8 * steps, 1, 0, steps)


def welcome(t):
    return ev.Received(0, msg.Welcome(1, 7, 2, t, 0, False))


def publish(at_ns, merged_upto):
    return ev.Received(at_ns, msg.Publish(1, 2, 0, 1, 5, "d", 4, "c", "none", "", merged_upto, 10))


def merge(t, name, incarnation):
    part = Contributor(name, incarnation, 0, 8, 1, 4, 1.0)
    return RoundRecord(1, 1, 0, 5, "d", "e", t, (part,))


def test_steps_are_counted_from_the_welcome_to_the_first_merged_offer():
    entries = tape(
        welcome(100),
        ev.MomentsRestored(1, "own", "saved at tick 98"),
        publish(2, merged_upto=0),
        stepped(3),
        stepped(4, steps=2),
        publish(5, merged_upto=24),
        stepped(6),
        publish(7, merged_upto=32),
    )
    rounds = [merge(99, "ada", 1), merge(101, "bob", 2), merge(104, "ada", 2), merge(110, "ada", 2)]
    assert came_back("ada", 2, entries, rounds) == Return("ada", 2, 3, 4, "own", "saved at tick 98")


def test_a_life_that_ended_before_anything_of_it_was_merged_says_so():
    entries = tape(welcome(100), publish(2, merged_upto=0), stepped(3))
    assert came_back("ada", 2, entries, [merge(99, "ada", 1)]) == Return("ada", 2, None, None, "none", "")


def test_state_of_which_a_part_started_fresh_is_not_all_its_own():
    whole = Return("ada", 2, 3, 4, "own", "saved 5 ticks ago at tick 95")
    assert whole.is_own
    assert not replace(whole, reason="but 19 parameters start fresh: nothing was saved").is_own
    assert not replace(whole, moments="peer").is_own
