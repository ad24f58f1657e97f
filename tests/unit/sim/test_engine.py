"""Virtual time runs in order, and chance comes from named branches."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.sim.engine import Chance, Engine

Seen = list[Any]


def test_calls_run_in_order_of_time_and_see_their_own_time():
    engine, seen = Engine(), Seen()
    for at_ns in (30, 10, 20):
        engine.at(at_ns, lambda: seen.append(engine.now_ns))
    engine.run(100)
    assert seen == [10, 20, 30]
    assert engine.num_events == 3


def test_equal_times_run_in_the_order_of_being_scheduled():
    engine, seen = Engine(), Seen()
    for name in "dacb":
        engine.at(5, seen.append, name)
    engine.run(5)
    assert seen == list("dacb")


def test_at_equal_times_a_lower_priority_number_runs_first():
    engine, seen = Engine(), Seen()
    engine.at(5, seen.append, "later", priority=1)
    engine.at(5, seen.append, "usual")
    engine.at(5, seen.append, "sooner", priority=-1)
    engine.run(5)
    assert seen == ["sooner", "usual", "later"]


def test_what_a_call_schedules_for_now_runs_after_what_waits_already():
    engine, seen = Engine(), Seen()

    def first() -> None:
        seen.append("first")
        engine.after(0, seen.append, "third")

    engine.at(5, first)
    engine.at(5, seen.append, "second")
    engine.run(5)
    assert seen == ["first", "second", "third"]


def test_nothing_is_scheduled_in_the_past():
    engine, seen = Engine(), Seen()
    engine.at(50, lambda: engine.at(10, lambda: seen.append(engine.now_ns)))
    engine.run(100)
    assert seen == [50]


def test_a_run_stops_at_its_time_and_goes_on_from_there():
    engine, seen = Engine(), Seen()
    engine.at(10, seen.append, "a")
    engine.at(11, seen.append, "b")
    engine.run(10)
    assert (seen, engine.now_ns) == (["a"], 10)
    engine.after(0.9, seen.append, "at ten")
    engine.run(20)
    assert (seen, engine.now_ns) == (["a", "at ten", "b"], 20)


def test_a_run_stops_right_after_the_call_that_makes_stop_true():
    engine, seen = Engine(), Seen()
    for at_ns in range(1, 6):
        engine.at(at_ns, seen.append, at_ns)
    engine.run(100, stop=lambda: len(seen) == 2)
    assert (seen, engine.now_ns) == ([1, 2], 2)


def test_calls_that_cannot_be_compared_may_share_a_time():
    engine = Engine()
    engine.at(1, lambda x: None, object())
    engine.at(1, lambda x: None, object())
    engine.run(1)
    assert engine.num_events == 2


# Chance


def draws(seed: int | str, name: str) -> list[float]:
    branch = Chance(seed).branch(name)
    return [branch.random() for _ in range(5)]


def test_a_branch_is_the_same_for_the_same_seed_and_name():
    assert draws(7, "network") == draws(7, "network")


@pytest.mark.parametrize(("seed", "name"), [(8, "network"), (7, "disk"), (7, "network/1")])
def test_another_seed_or_another_name_is_another_stream(seed, name):
    assert draws(seed, name) != draws(7, "network")


def test_one_more_draw_on_a_branch_changes_nothing_on_another():
    calm, busy = Chance(7), Chance(7)
    greedy = busy.branch("network")
    for _ in range(100):
        greedy.random()
    assert busy.branch("disk").random() == calm.branch("disk").random()
