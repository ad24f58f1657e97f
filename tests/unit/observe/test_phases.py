"""Before, during and after a kill, from counters."""

from __future__ import annotations

from typing import Any

import pytest

from atoll.observe.phases import Kill, kill_tables
from tests.unit.observe.samples import KILL, samples

Row = dict[str, Any]


def sample(at_s: float, **steps: float | None) -> Row:
    """Each learner holds 1 ms and uses 10 ms of CPU in each of its steps."""
    details = [
        {
            "name": name,
            "steps": num,
            "held_total_ms": num,
            "cpu_total_ms": None if num is None else 10.0 * num,
        }
        for name, num in steps.items()
    ]
    return {"at_s": at_s, "learner_details": details}


def rows(table: Row) -> dict[str, Row]:
    return {row["phase"]: row for row in table["rows"]}


def test_survivors_that_notice_nothing_have_the_same_numbers_in_every_phase():
    (table,) = kill_tables(samples(), [KILL])
    assert table["event"] == "learner-1 killed at 40 %"
    assert table["survivors"] == ["learner-0", "learner-2"]
    assert [(row["phase"], row["seconds"]) for row in table["rows"]] == [
        ("before", 20.0),
        ("during", 12.0),
        ("after", 20.0),
    ]
    for row in table["rows"]:
        assert row["steps_per_s"] == pytest.approx(15.0)
        assert row["held_ms"] == pytest.approx(0.12)
        assert row["cpu_ms"] == pytest.approx(95.0)


def test_a_slower_phase_shows():
    steps = [
        10.0 * s if s <= 10 else 100 + 5.0 * (s - 10) if s <= 20 else 150 + 10.0 * (s - 20) for s in range(31)
    ]
    found = [sample(float(s), a=num, b=0.0) for s, num in enumerate(steps)]
    (table,) = kill_tables(found, [Kill("b", 10.0, 20.0, "")])
    assert [row["steps_per_s"] for row in table["rows"]] == [10.0, 5.0, 10.0]


def test_per_step_numbers_are_sums_over_the_survivors_divided_by_their_steps():
    first, last = sample(0.0, a=0, b=0, c=0), sample(10.0, a=30, b=10, c=99)
    for row, held_ms, cpu_ms in zip(last["learner_details"], (60, 60, 0), (300, 500, 0), strict=True):
        row |= {"held_total_ms": held_ms, "cpu_total_ms": cpu_ms}
    (table,) = kill_tables([first, last], [Kill("c", 10.0, None, "")])
    assert rows(table)["before"] == {
        "phase": "before", "seconds": 10.0, "steps_per_s": 4.0, "held_ms": 3.0, "cpu_ms": 20.0,
    }  # fmt: skip


def test_a_victim_that_never_returns_has_no_phase_after():
    (table,) = kill_tables(samples(), [Kill("learner-1", 40.0, None, "")])
    assert [(row["phase"], row["seconds"]) for row in table["rows"]] == [("before", 20.0), ("during", 60.0)]


def test_a_learner_that_began_anew_is_no_survivor():
    found = [sample(float(s), a=s, b=s if s < 15 else s - 15, c=0) for s in range(31)]
    (table,) = kill_tables(found, [Kill("c", 10.0, 20.0, "")])
    assert table["survivors"] == ["a"]


def test_a_learner_that_is_dead_meanwhile_is_no_survivor_even_if_it_stays_in_the_list():
    found = [sample(float(s), a=s, b=min(s, 12), c=min(s, 10)) for s in range(31)]
    kills = [Kill("c", 10.0, 20.0, "first"), Kill("b", 12.0, None, "second")]
    first, second = kill_tables(found, kills)
    assert first["survivors"] == second["survivors"] == ["a"]
    assert rows(first)["during"]["steps_per_s"] == 1.0


def test_calm_phases_end_where_another_kill_or_return_begins():
    found = [sample(float(s), a=s, b=s, c=s, d=s) for s in range(101)]
    kills = [Kill("b", 40.0, 50.0, "first"), Kill("c", 56.0, 60.0, "second")]
    first, second = kill_tables(found, kills)
    assert rows(first)["before"]["seconds"] == 20.0
    assert rows(first)["after"]["seconds"] == 6.0
    assert rows(second)["before"]["seconds"] == 6.0
    assert rows(second)["after"]["seconds"] == 20.0


def test_the_phase_before_begins_when_everybody_has_joined():
    found = [sample(float(s), a=s, v=s) if s < 4 else sample(float(s), a=s, b=s, v=s) for s in range(21)]
    (table,) = kill_tables(found, [Kill("v", 10.0, 15.0, "")])
    assert table["survivors"] == ["a", "b"]
    assert rows(table)["before"]["seconds"] == 6.0


def test_a_learner_whose_counters_are_unknown_is_not_there_yet():
    found = [sample(float(s), a=s, b=None if s < 5 else s, v=s) for s in range(21)]
    (table,) = kill_tables(found, [Kill("v", 10.0, 15.0, "")])
    assert rows(table)["before"]["seconds"] == 5.0


def test_samples_in_any_order_give_the_same_tables():
    assert kill_tables(samples()[::-1], [KILL]) == kill_tables(samples(), [KILL])


@pytest.mark.parametrize("found", [[], [sample(10.0, a=1, v=1)], [sample(30.0, a=1)], [{"at_s": 10.0}]])
def test_too_few_samples_tell_nothing_and_say_so(found: list[Row]):
    (table,) = kill_tables(found, [Kill("v", 10.0, 20.0, "x")])
    for row in table["rows"]:
        assert (row["seconds"], row["steps_per_s"], row["held_ms"], row["cpu_ms"]) == (0.0, None, None, None)


def test_survivors_that_stand_still_have_no_cost_per_step():
    found = [sample(float(s), a=5, v=1) for s in range(31)]
    (table,) = kill_tables(found, [Kill("v", 10.0, 20.0, "")])
    assert rows(table)["during"]["steps_per_s"] == 0.0
    assert rows(table)["during"]["held_ms"] is None


def test_steps_whose_cost_nobody_has_told_yet_have_no_cost_and_not_none_at_all():
    found = [sample(float(s), a=s, b=s) for s in range(31)]
    for during in found[10:21]:  # the syncer is away; reports are heard again before telemetry is
        for detail in during["learner_details"]:
            detail |= {"held_total_ms": 10.0, "cpu_total_ms": 100.0}
    (table,) = kill_tables(found, [Kill("syncer", 10.0, 20.0, "")])
    told = rows(table)["during"]
    assert (told["steps_per_s"], told["held_ms"], told["cpu_ms"]) == (2.0, None, None)
    assert rows(table)["before"]["cpu_ms"] == rows(table)["before"]["held_ms"] * 10 == 10.0
    found[20]["learner_details"][0] |= {"held_total_ms": 15.0, "cpu_total_ms": 180.0}
    (table,) = kill_tables(found, [Kill("syncer", 10.0, 20.0, "")])
    told = rows(table)["during"]
    assert (told["held_ms"], told["cpu_ms"]) == (0.5, 8.0), "of the one who has told, per step of its own"


def test_no_kill_is_no_table():
    assert kill_tables(samples(), []) == []
