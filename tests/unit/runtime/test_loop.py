from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from atoll.runtime.loop import READ, Loop

PATIENCE_S = 60.0
"""How long a test waits for what must happen; it decides nothing else."""


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop("test")
    yield loop
    loop.stop()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(PATIENCE_S)
    yield ours, theirs
    ours.close()
    theirs.close()


def wait(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S), "it never happened"


def turn(loop: Loop) -> None:
    """Until everything called so far was called."""
    done = threading.Event()
    loop.call(done.set)
    wait(done)


def test_a_turn_serves_sockets_then_calls_then_timers(loop, pair):
    ours, theirs = pair
    order, done = [], threading.Event()
    loop.at(0, order.append, "timer")
    loop.at(1, done.set)
    loop.call(order.append, "call")

    def readable(mask: int) -> None:
        order.append("socket")
        loop.watch(ours, 0, readable)

    theirs.send(b"x")
    loop.watch(ours, READ, readable)
    loop.start()
    wait(done)
    assert order == ["socket", "call", "timer"]


def test_timers_fire_by_time_and_then_by_age_and_a_cancelled_one_never(loop):
    order, done = [], threading.Event()
    loop.at(3, order.append, "late")
    loop.at(2, order.append, "early")
    first = loop.at(3, order.append, "cancelled")
    loop.at(3, order.append, "later")
    loop.at(4, done.set)
    first.cancel()
    loop.start()
    wait(done)
    assert order == ["early", "late", "later"]


def test_a_timer_may_cancel_one_that_is_due_in_the_same_turn(loop):
    fired, done, later = [], threading.Event(), []
    loop.at(1, lambda: later[0].cancel())
    later.append(loop.at(2, fired.append, "second"))
    loop.at(3, done.set)
    loop.start()
    wait(done)
    assert fired == []


def test_a_timer_that_is_always_due_does_not_keep_sockets_waiting(loop, pair):
    ours, theirs = pair
    heard = threading.Event()
    loop.watch(ours, READ, lambda mask: (ours.recv(1), heard.set()))

    def again() -> None:
        if not heard.is_set():
            loop.at(0, again)

    loop.at(0, again)
    loop.start()
    theirs.send(b"x")
    wait(heard)


def test_calls_from_many_threads_all_arrive_each_threads_in_order(loop):
    seen: list[tuple[int, int]] = []
    loop.start()

    def talk(who: int) -> None:
        for number in range(500):
            loop.call(seen.append, (who, number))

    threads = [threading.Thread(target=talk, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    turn(loop)
    for who in range(4):
        assert [number for sender, number in seen if sender == who] == list(range(500))


def test_a_call_wakes_a_loop_that_sleeps(loop):
    """Again and again, so that a lost wake-up would show: nothing else ever wakes this loop."""
    loop.start()
    for _ in range(200):
        turn(loop)


def test_a_callback_that_raises_ends_the_loop_and_is_reported_once():
    errors: list[BaseException] = []
    loop = Loop("test", errors.append)
    loop.start()
    loop.call(lambda: 1 // 0)
    assert loop._thread is not None
    loop._thread.join(PATIENCE_S)
    assert not loop.is_running
    assert [type(error) for error in errors] == [ZeroDivisionError]


@pytest.mark.parametrize("ends", [lambda: 1 // 0, "stop"])
def test_however_the_loop_ends_the_other_side_sees_its_sockets_close(pair, ends):
    ours, theirs = pair
    loop = Loop("test")
    loop.watch(ours, READ, lambda mask: None)
    loop.start()
    if callable(ends):
        loop.call(ends)
    else:
        loop.stop()
    assert theirs.recv(1) == b""


def test_the_loop_may_stop_itself(loop):
    loop.start()
    loop.call(loop.stop)
    assert loop._thread is not None
    loop._thread.join(PATIENCE_S)
    assert not loop.is_running


def test_a_loop_that_never_began_lets_go_of_its_descriptors():
    loop = Loop("test")
    loop.stop()
    assert not loop._pipe.alive
    loop.stop()


def test_the_bell_outlives_the_loop_so_that_a_late_caller_rings_nobody_elses(loop):
    loop.start()
    loop.stop()
    os.fstat(loop._alarm)
    os.fstat(loop._ear)


def test_once_over_nothing_is_called_and_nothing_is_kept(loop):
    loop.start()
    loop.stop()
    called: list[int] = []
    for number in range(100):
        loop.call(called.append, number)
    assert called == []
    assert len(loop._calls) == 0


def test_a_socket_that_is_closed_already_can_be_let_go(loop, pair):
    ours, _ = pair
    ours.close()
    loop.watch(ours, 0, lambda mask: None)


def test_a_forked_child_holds_none_of_the_loops_sockets_and_does_not_disturb_it(loop, pair):
    ours, theirs = pair
    heard = threading.Event()
    loop.watch(ours, READ, lambda mask: (ours.recv(1), heard.set()))
    loop.start()
    turn(loop)
    ear, mouth = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(mouth)
        loop.call(heard.set)
        loop.stop()
        os.read(ear, 1)  # lives until the parent has closed its end
        os._exit(0)
    os.close(ear)
    theirs.send(b"x")
    wait(heard)
    loop.stop()
    assert theirs.recv(1) == b"", "the child keeps the connection open"
    os.close(mouth)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
