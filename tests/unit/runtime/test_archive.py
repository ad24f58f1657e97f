from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from atoll.runtime import archive as archive_module
from atoll.runtime.archive import Archive
from atoll.runtime.loop import Loop
from atoll.runtime.store import MemoryStore
from atoll.runtime.worker import Worker
from atoll.tape.entries import Entry, Milestone
from tests.integration.conditions import LIMIT_S, wait_until
from tests.unit.runtime.store.driver import config


def line(number: int) -> Entry:
    return Entry(number, "syncer", Milestone(str(number)))


class Stubborn(MemoryStore):
    """A disk that refuses or hangs when it is told to."""

    reason = ""

    def __init__(self) -> None:
        super().__init__(config())
        self.may_write = threading.Event()
        self.may_write.set()

    def write_tape(self, lines: list[Entry]) -> str:
        assert self.may_write.wait(LIMIT_S)
        return self.reason or super().write_tape(lines)


@pytest.fixture
def store() -> Stubborn:
    return Stubborn()


@pytest.fixture
def archive(store: Stubborn) -> Iterator[Archive]:
    errors: list[BaseException] = []
    loop = Loop("test", errors.append)
    storing, snapshots = Worker("store", errors.append), Worker("snapshots", errors.append)
    for thread in (loop, storing, snapshots):
        thread.start()
    yield Archive(store, loop, storing, snapshots)
    for worker in (snapshots, storing):
        worker.stop(LIMIT_S)
    loop.stop()
    assert errors == []


def test_lines_are_written_in_order(archive, store):
    archive.flush([line(0), line(1)])
    archive.flush([line(2)])
    wait_until(lambda: list(store.tape) == [line(0), line(1), line(2)])
    wait_until(lambda: not archive.is_flushing)


def test_lines_that_the_disk_refused_come_with_the_next_ones(archive, store):
    store.reason = "no space left"
    archive.flush([line(0)])
    wait_until(lambda: archive.carried)
    store.reason = ""
    archive.flush([line(1)])
    wait_until(lambda: list(store.tape) == [line(0), line(1)])


def test_of_lines_that_nobody_takes_only_the_newest_are_kept(archive, store, monkeypatch):
    monkeypatch.setattr(archive_module, "MAX_CARRIED", 3)
    store.reason = "no space left"
    archive.flush([line(number) for number in range(10)])
    wait_until(lambda: archive.carried == [line(7), line(8), line(9)])


def test_a_disk_that_hangs_is_known_to_hang(archive, store):
    store.may_write.clear()
    archive.flush([line(0)])
    assert archive.is_flushing
    store.may_write.set()
    wait_until(lambda: not archive.is_flushing)
