"""What the parent of a fleet shows: one clock, everybody's news, and counters that survive a syncer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from atoll.cli.watch import Watch
from atoll.config import RunConfig
from atoll.recipes import load_recipe
from atoll.runtime.processes import Event, Fleet

BEGAN_S = 1_000_000.0


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    fleet = Fleet(tmp_path, RunConfig(), load_recipe("vit-digits").settings(), [1.0, 1.0])
    return Watch(fleet, "images", BEGAN_S)


def detail(
    name: str, clock: int, *, incarnation: int = 1, state: str = "training", **more: Any
) -> dict[str, Any]:
    counters = {"held_total_ms": 2.0 * clock, "cpu_total_ms": 10.0 * clock, "device": "cpu"}
    return {"name": name, "state": state, "incarnation": incarnation, "clock": clock, **counters, **more}


def publish(watch: Watch, at_s: float, *details: dict[str, Any], **status: Any) -> None:
    """What the syncer would write down at that time of the fleet."""
    path = watch.fleet.run_dir / "status.json"
    status = {"epoch": 1, "state": "training", "uptime_s": at_s - 5.0, "notes": [], **status}
    path.write_text(json.dumps({**status, "learner_details": details}), encoding="utf-8")
    os.utime(path, (BEGAN_S + at_s, BEGAN_S + at_s))
    assert watch.look(BEGAN_S + at_s)


def test_before_the_first_status_there_is_nothing_to_show(watch):
    assert not watch.look(BEGAN_S)
    assert watch.status == {}


def test_a_status_is_taken_in_once(watch):
    publish(watch, 10.0)
    assert not watch.look(BEGAN_S + 10.2)
    assert len(watch.samples) == 1
    assert watch.status["unit"] == "images"


def test_a_status_that_is_half_written_is_left_for_later(watch):
    (watch.fleet.run_dir / "status.json").write_text('{"epoch": 1, "st', encoding="utf-8")
    assert not watch.look(BEGAN_S + 1.0)
    assert watch.status == {}


def test_all_times_are_on_the_clock_of_the_fleet(watch):
    watch.fleet.events.append(Event(BEGAN_S + 9.0, "killed", "learner-1", "kill -9"))
    publish(watch, 10.0, notes=[{"at_s": 1.0, "kind": "admitted", "who": "learner-0", "reason": ""}])
    assert [(note["at_s"], note["kind"]) for note in watch.status["notes"]] == [
        (6.0, "admitted"),  # the syncer began 5 s after the fleet
        (9.0, "killed"),
    ]
    assert watch.status["uptime_s"] == 10.0


def test_notes_of_an_earlier_syncer_are_kept(watch):
    publish(watch, 10.0, notes=[{"at_s": 1.0, "kind": "admitted", "who": "learner-0", "reason": ""}])
    back = {"at_s": 0.5, "kind": "admitted", "who": "learner-0", "reason": "again"}
    publish(watch, 30.0, epoch=2, uptime_s=2.0, notes=[back])
    assert [note["at_s"] for note in watch.status["notes"]] == [6.0, 28.5]


def test_a_note_keeps_its_time_however_late_the_status_was_written(watch):
    note = {"at_s": 1.0, "kind": "admitted", "who": "learner-0", "reason": ""}
    publish(watch, 10.0, notes=[note], epoch=0)
    publish(watch, 11.25, notes=[note], uptime_s=6.0)  # a quarter of a second late
    assert [told["at_s"] for told in watch.status["notes"]] == [6.0]


def test_training_begins_with_the_first_status_that_says_so(watch):
    publish(watch, 10.0, state="seeding")
    assert watch.training_s is None
    publish(watch, 11.0)
    publish(watch, 12.0)
    assert watch.training_s == 11.0


def test_a_learner_takes_part_once_it_trains_and_the_syncer_once_anybody_does(watch):
    publish(watch, 10.0, detail("learner-0", 0, state="healing"))
    assert not watch.trains("learner-0")
    assert not watch.trains("syncer")
    publish(watch, 11.0, detail("learner-0", 1), detail("learner-1", 0, state="lost"))
    assert watch.trains("learner-0")
    assert not watch.trains("learner-1")
    assert watch.trains("syncer")


def test_survivors_are_compared_before_during_and_after_a_kill(watch):
    for second in range(10):
        publish(watch, 10.0 + second, detail("learner-0", 10 * second), detail("learner-1", 10 * second))
    watch.killed("learner-1", "40 %", BEGAN_S + 19.5)
    for second in range(10, 20):
        publish(watch, 10.0 + second, detail("learner-0", 10 * second), detail("learner-1", 90, state="lost"))
    for second in range(20, 30):
        reborn = detail("learner-1", 200 + second, incarnation=2)
        publish(watch, 10.0 + second, detail("learner-0", 10 * second), reborn)
    (table,) = watch.kills()
    assert table["event"] == "learner-1 killed at 40 %, back after 10 s"
    assert table["survivors"] == ["learner-0"]
    assert [row["phase"] for row in table["rows"]] == ["before", "during", "after"]
    assert [row["steps_per_s"] for row in table["rows"]] == [10.0] * 3
    assert [(row["held_ms"], row["cpu_ms"]) for row in table["rows"]] == [(2.0, 10.0)] * 3


def test_a_victim_that_never_came_back_has_no_after(watch):
    publish(watch, 10.0, detail("learner-0", 1), detail("learner-1", 1))
    watch.killed("learner-1", "12 s", BEGAN_S + 10.5)
    publish(watch, 12.0, detail("learner-0", 21), detail("learner-1", 1, state="lost"))
    (table,) = watch.kills()
    assert table["event"] == "learner-1 killed at 12 s"
    assert [row["phase"] for row in table["rows"]] == ["before", "during"]


def test_counters_go_on_where_a_syncer_that_came_back_begins_anew(watch):
    for second in range(5):
        publish(watch, 10.0 + second, detail("learner-0", 10 * second), detail("learner-1", 10 * second))
    watch.killed("syncer", "50 %", BEGAN_S + 14.0)
    publish(watch, 20.0, epoch=2)  # it is back and has heard from nobody
    publish(watch, 21.0, detail("learner-0", 110), epoch=2)
    publish(watch, 22.0, detail("learner-0", 120), detail("learner-1", 120), epoch=2)
    publish(watch, 24.0, detail("learner-0", 140), detail("learner-1", 140), epoch=2)
    (table,) = watch.kills()
    assert table["event"] == "syncer killed at 50 %, back after 8 s"  # when it listened is not known
    assert table["survivors"] == ["learner-0", "learner-1"]
    assert [row["steps_per_s"] for row in table["rows"]] == [20.0, 20.0, 20.0]


def test_a_counter_that_the_syncer_has_forgotten_in_part_does_not_fall(watch):
    publish(watch, 10.0, detail("learner-0", 10, held_total_ms=900.0))  # 880 of them in an earlier life
    publish(watch, 11.0, detail("learner-0", 20, held_total_ms=920.0))
    publish(watch, 20.0, detail("learner-0", 110, held_total_ms=220.0), epoch=2, uptime_s=2.0)
    publish(watch, 21.0, detail("learner-0", 120, held_total_ms=240.0), epoch=2, uptime_s=3.0)
    assert [sample["learner_details"][0]["held_total_ms"] for sample in watch.samples] == [0, 20, 20, 40]
    assert [sample["learner_details"][0]["steps"] for sample in watch.samples] == [0, 10, 100, 110]


def test_a_learner_that_has_not_told_how_it_goes_is_not_counted(watch):
    publish(watch, 10.0, detail("learner-0", 5), detail("learner-1", 0, device=None))
    assert [row["name"] for row in watch.samples[-1]["learner_details"]] == ["learner-0"]


def test_a_status_that_an_earlier_fleet_left_behind_is_not_news(watch):
    watch.since_s = BEGAN_S + 100.0
    path = watch.fleet.run_dir / "status.json"
    path.write_text(json.dumps({"epoch": 1, "state": "training"}), encoding="utf-8")
    os.utime(path, (BEGAN_S + 99.0, BEGAN_S + 99.0))
    assert not watch.look(BEGAN_S + 101.0)
    assert watch.training_s is None
    publish(watch, 102.0)
    assert watch.training_s == 102.0


def test_what_the_syncer_finds_wrong_is_shown(watch):
    publish(watch, 10.0, problems=["offers of learner-0 are rejected"])
    assert watch.status["problems"] == ["offers of learner-0 are rejected"]


def write(path: Path, at_s: float) -> None:
    """A file of the syncer's, written at that time of the fleet."""
    path.parent.mkdir(exist_ok=True)
    path.touch()
    os.utime(path, (BEGAN_S + at_s, BEGAN_S + at_s))


def test_how_soon_a_killed_syncer_listens_and_merges_is_read_from_its_files(watch):
    run_dir = watch.fleet.run_dir
    publish(watch, 10.0, detail("learner-0", 10))
    write(run_dir / "url", 2.0)
    write(run_dir / "deltas" / "old.safetensors", 10.5)
    watch.killed("syncer", "30 %", BEGAN_S + 11.0)
    watch.look(BEGAN_S + 11.2)
    assert watch.kills()[0]["event"] == "syncer killed at 30 %"
    write(run_dir / "url", 11.8)
    watch.look(BEGAN_S + 12.0)
    (table,) = watch.kills()
    assert table["event"] == "syncer killed at 30 %, listening after 0.8 s"
    assert (table["kill_to_listening_s"], table["listening_to_merge_s"]) == (pytest.approx(0.8), None)
    write(run_dir / "deltas" / "second.safetensors", 14.0)
    write(run_dir / "deltas" / "first.safetensors", 13.3)
    write(run_dir / "deltas" / "half.part", 12.0)
    watch.look(BEGAN_S + 14.2)
    (table,) = watch.kills()
    assert table["event"] == "syncer killed at 30 %, listening after 0.8 s, next merge 1.5 s later"
    assert table["killed_s"] == pytest.approx(11.0)
    assert table["listening_to_merge_s"] == pytest.approx(1.5)


def test_an_outage_is_measured_from_the_last_word_to_the_first(watch):
    """Nobody counts in between: steps between the last status and the kill are no steps of the outage."""
    for second in range(5):
        publish(watch, 10.0 + second, detail("learner-0", 10 * second))
    watch.killed("syncer", "50 %", BEGAN_S + 14.9)
    publish(watch, 16.0, detail("learner-0", 60), epoch=2)
    publish(watch, 17.0, detail("learner-0", 70), epoch=2)
    (table,) = watch.kills()
    assert [row["seconds"] for row in table["rows"]] == [4.0, 2.0, 1.0]
    assert [row["steps_per_s"] for row in table["rows"]] == [10.0, 10.0, 10.0]
