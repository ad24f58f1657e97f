from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from atoll.runtime.worker import Worker
from tests.integration.conditions import LIMIT_S, wait_until


@pytest.fixture
def errors() -> list[BaseException]:
    return []


@pytest.fixture
def worker(errors: list[BaseException]) -> Iterator[Worker]:
    worker = Worker("test", errors.append)
    yield worker
    worker.stop(LIMIT_S)


def test_jobs_are_done_one_at_a_time_in_the_order_in_which_they_were_asked_for(worker):
    done: list[int] = []
    for number in range(100):
        worker.do(done.append, number)
    worker.start()
    for number in range(100, 200):
        worker.do(done.append, number)
    worker.stop(LIMIT_S)
    assert done == list(range(200))


def test_stopping_finishes_what_is_queued(worker):
    gate, done = threading.Event(), []
    worker.start()
    worker.do(gate.wait, LIMIT_S)
    worker.do(done.append, 1)
    stopper = threading.Thread(target=worker.stop, args=(LIMIT_S,))
    stopper.start()
    gate.set()
    stopper.join(LIMIT_S)
    assert done == [1]
    assert not worker.is_alive


def test_stopping_waits_no_longer_than_it_may(worker):
    gate = threading.Event()
    worker.start()
    worker.do(gate.wait, LIMIT_S)
    worker.stop(0.01)
    assert worker.is_alive
    gate.set()


def test_a_job_that_raises_ends_the_worker_and_is_reported_once(worker, errors):
    done: list[int] = []
    worker.do(lambda: 1 // 0)
    worker.do(done.append, 1)
    worker.start()
    wait_until(lambda: not worker.is_alive)
    assert [type(error) for error in errors] == [ZeroDivisionError]
    assert done == []


def test_a_worker_may_stop_itself_and_be_stopped_twice(worker):
    worker.start()
    worker.do(worker.stop)
    wait_until(lambda: not worker.is_alive)
    worker.stop()


def test_a_worker_that_never_began_can_be_stopped():
    Worker("test", lambda error: None).stop()
