"""Ctrl-C and SIGTERM while processes are being started."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from atoll.cli.logs import end_on_sigterm
from atoll.config import RunConfig
from atoll.errors import StoreError
from atoll.runtime.children import run_syncer
from atoll.runtime.forking import undisturbed
from atoll.runtime.keeping import Child
from atoll.runtime.processes import SYNCER, Fleet


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_on_sigterm()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_a_start(number):
    steps = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  (where it is raised is what this is about)
        with undisturbed():
            signal.raise_signal(number)
            steps.append("started")
        steps.append("not reached")
    assert steps == ["started"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)  # as before


def test_a_start_without_a_signal_changes_nothing():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with undisturbed():
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_fleet_that_was_interrupted_before_its_first_process_stops(tmp_path):
    fleet = Fleet(tmp_path, RunConfig(), {}, [1.0])
    fleet.stop()
    fleet.children[SYNCER] = Child(SYNCER, run_syncer, ())
    fleet.stop()


def test_a_run_directory_that_was_deleted_under_its_fleet_is_said_to_be_gone(tmp_path):
    with pytest.raises(StoreError, match="reef is gone"):
        Fleet(tmp_path / "reef", RunConfig(), {}, [1.0]).look_after()


def test_a_fleet_without_a_syncer_is_neither_over_nor_served(tmp_path):
    fleet = Fleet(tmp_path, RunConfig(), {}, [1.0])
    (tmp_path / "url").write_text("of an earlier fleet")
    assert not fleet.is_over
    assert not fleet.is_served
    fleet.children[SYNCER] = Child(SYNCER, run_syncer, ())
    assert fleet.is_served  # since its life began, the address was written
    fleet.children[SYNCER].is_down = True
    assert not fleet.is_served
