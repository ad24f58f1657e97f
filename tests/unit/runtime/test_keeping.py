"""When a child that died is started again, and when it is given up."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from atoll.errors import StoreError
from atoll.runtime.keeping import (
    ERRORS_S,
    LAST_PAUSE_S,
    MAX_ERRORS,
    STEADY_S,
    Child,
    address_mark,
    listening_s,
    wait_for_an_end,
)

NOW_S = 1_000_000.0
KILLED = -int(signal.SIGKILL)


@dataclass
class Ended:
    """A process that is over."""

    exitcode: int
    pid: int | None = None


def child(**more: Any) -> Child:
    return Child("ada", lambda: None, (), **more)


def dies(victim: Child, code: int, at_s: float, life_s: float = 0.1) -> float:
    """Let it die after such a life; returns how long it is to wait for the next. Nobody is started here."""
    victim.process, victim.is_down, victim.began_s = Ended(code), False, at_s - life_s  # type: ignore[assignment]
    victim._ended(code, at_s)
    return victim.due_s - at_s


def test_after_a_long_life_the_next_one_begins_at_once():
    assert dies(child(), KILLED, NOW_S, STEADY_S) == 0.0


def test_whoever_dies_again_and_again_waits_longer_each_time_but_not_for_ever():
    victim = child()
    pauses = [dies(victim, KILLED, NOW_S + number) for number in range(9)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == LAST_PAUSE_S
    assert dies(victim, KILLED, NOW_S + 100, STEADY_S) == 0.0
    assert dies(victim, KILLED, NOW_S + 101) == 0.5


def test_who_was_killed_on_purpose_stays_dead_for_as_long_as_it_should():
    victim = child(down_s=6.0)
    victim.was_killed = True
    assert dies(victim, KILLED, NOW_S) == 6.0
    assert victim.num_short == 0


def test_errors_of_its_own_are_borne_a_few_times(tmp_path: Path):
    log_path = tmp_path / "ada.log"
    log_path.write_text("StoreError: no space left\n")
    victim = child(log_path=log_path)
    for number in range(MAX_ERRORS - 1):
        dies(victim, 2, NOW_S + number)
    with pytest.raises(StoreError, match="ada cannot be kept running: StoreError: no space left"):
        dies(victim, 2, NOW_S + MAX_ERRORS)


def test_errors_of_long_ago_are_forgotten():
    victim = child()
    for number in range(3 * MAX_ERRORS):
        dies(victim, 2, NOW_S + number * ERRORS_S / 2)
    assert len(victim.errors_s) == 2


def test_signals_are_borne_for_ever():
    victim = child()
    for number in range(3 * MAX_ERRORS):
        dies(victim, KILLED, NOW_S + number)
    assert victim.is_down


def test_a_child_that_ended_as_it_should_is_done():
    victim = child()
    victim.process = Ended(0)  # type: ignore[assignment]
    assert victim.look(NOW_S) == []
    assert victim.is_done
    assert victim.look(NOW_S + 100) == []
    assert not victim.kill()


def test_a_death_is_told_once():
    victim = child(began_s=NOW_S)
    victim.process = Ended(KILLED)  # type: ignore[assignment]
    (event,) = victim.look(NOW_S)
    assert (event.kind, event.who, event.reason) == ("died", "ada", "ended by SIGKILL")
    assert victim.look(NOW_S) == []


def test_waiting_for_nobody_ends():
    wait_for_an_end([], 0.0)
    wait_for_an_end([child()], 0.0)


def test_a_syncer_that_listens_is_known_by_its_address(tmp_path: Path):
    assert address_mark(tmp_path) == (0, 0)
    assert listening_s(tmp_path) == 0.0
    (tmp_path / "url").write_text("atoll://reef")
    before = address_mark(tmp_path)
    (tmp_path / "url.part").write_text("atoll://reef")
    (tmp_path / "url.part").replace(tmp_path / "url")
    assert address_mark(tmp_path) != before
    assert listening_s(tmp_path) == (tmp_path / "url").stat().st_mtime_ns / 1e9
