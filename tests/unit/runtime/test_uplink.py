"""Dialling: what comes late is nobody's, and of several addresses each has its turn."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from atoll.errors import AtollError
from atoll.runtime import uplink as uplink_module
from atoll.runtime.loop import Loop
from atoll.runtime.uplink import Events, Uplink
from atoll.wire import messages as wire
from atoll.wire.frames import MAGIC, pack_header, run_id
from atoll.wire.url import RunURL
from tests.integration.conditions import LIMIT_S, wait_until

RUN = "reef"
MODEL = wire.Model(b"{}", "", bytes(32), bytes(64))


class Diary:
    """Everything that an uplink told its learner."""

    def __init__(self) -> None:
        self.errors: list[AtollError] = []
        self.links: list[tuple[bool, str]] = []
        self.readies: list[wire.Ready] = []
        self.messages: list[wire.Message] = []

    def events(self) -> Events:
        return Events(
            model=lambda accepted: MODEL,
            ready=self.readies.append,
            message=lambda message, content: self.messages.append(message),
            size_of=lambda message: None,
            failed=self.errors.append,
            silent_s=lambda: LIMIT_S,
            link=lambda is_up, reason: self.links.append((is_up, reason)),
        )


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT_S)
        yield listener


@pytest.fixture
def uplink(diary: Diary, listener: socket.socket) -> Iterator[Uplink]:
    loop = Loop("test")
    loop.start()
    url = RunURL("127.0.0.1", listener.getsockname()[1], RUN, "", plain=True)
    uplink = Uplink(loop, url, "", "ada", None, diary.events())
    yield uplink
    assert loop.is_running, "something crashed the loop"
    loop.stop()


def on_loop(uplink: Uplink, what: Any, *args: Any) -> None:
    """Do something on the loop's thread, and wait for it."""
    done = threading.Event()
    uplink.loop.call(what, *args)
    uplink.loop.call(done.set)
    assert done.wait(LIMIT_S)


class Syncer:
    """The other end of a control connection, by hand."""

    def __init__(self, listener: socket.socket) -> None:
        self.sock = listener.accept()[0]
        self.sock.settimeout(LIMIT_S)
        self.sequence = 0
        assert self.sock.recv(1 << 16).startswith(MAGIC)

    def say(self, message: wire.Message) -> None:
        body = wire.encode(message)
        self.sock.sendall(pack_header(wire.kind_of(message), run_id(RUN), 0, 0, self.sequence, body) + body)
        self.sequence += 1

    def let_in(self) -> None:
        self.say(wire.Accepted(1, RUN, "", bytes(32), "session"))
        assert self.sock.recv(1 << 16).startswith(MAGIC)
        self.say(wire.Ready(bytes(32), 1, 4096, 1, 0))


def ready(uplink: Uplink, listener: socket.socket) -> Syncer:
    uplink.start()
    syncer = Syncer(listener)
    syncer.let_in()
    wait_until(lambda: uplink.is_ready)
    return syncer


def test_a_resolver_that_fails_after_a_newer_dial_succeeded_disturbs_nothing(uplink, listener, diary):
    with ready(uplink, listener).sock:
        on_loop(uplink, uplink._unresolved, uplink.num_dials - 1, "late")
        on_loop(uplink, uplink._unresolved, uplink.num_dials, "late")
        on_loop(uplink, uplink._resolved, uplink.num_dials, socket.AF_INET, ("127.0.0.1", 1))
        assert uplink.is_ready
        assert uplink.last_reason == ""
        assert diary.links == [(True, "")]


def test_an_answer_of_a_resolver_whose_dial_was_given_up_is_not_dialled(uplink):
    on_loop(uplink, setattr, uplink, "num_dials", 5)
    on_loop(uplink, uplink._resolved, 4, socket.AF_INET, ("127.0.0.1", 1))
    assert uplink.control is None
    assert uplink.last_reason == ""


def test_of_several_addresses_each_has_its_turn(uplink, listener, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in (nobody, listener.getsockname())
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    with ready(uplink, listener).sock:
        assert uplink.num_dials >= 2


def test_a_broken_link_is_dialled_again_for_ever(uplink, listener, diary):
    syncer = ready(uplink, listener)
    for _ in range(3):
        syncer.sock.close()
        listener_control(listener)
        syncer = Syncer(listener)
        syncer.let_in()
        wait_until(lambda: uplink.is_ready)
    syncer.sock.close()
    wait_until(lambda: len(diary.links) >= 7)
    assert [is_up for is_up, _ in diary.links[:7]] == [True, False] * 3 + [True]
    assert diary.errors == []


def listener_control(listener: socket.socket) -> None:
    """The data connections of the life before stand in the queue: let them go."""
    listener.accept()[0].close()


def test_a_dial_without_an_answer_is_given_up_and_tried_again(uplink, listener, monkeypatch):
    monkeypatch.setattr(uplink_module, "ATTEMPT_S", 0.05)
    uplink.start()
    silent = [listener.accept()[0] for _ in range(3)]
    wait_until(lambda: "no answer within" in uplink.last_reason)
    for sock in silent:
        sock.close()


def test_a_refusal_before_the_first_admission_ends_it(uplink, listener, diary):
    uplink.start()
    syncer = Syncer(listener)
    syncer.say(wire.Rejected("no", False))
    wait_until(lambda: diary.errors)
    assert diary.errors[0].what == "no"
    assert uplink.is_stopped


def test_a_refusal_after_it_does_not(uplink, listener, diary):
    ready(uplink, listener).sock.close()
    listener_control(listener)
    with Syncer(listener).sock as sock:
        again = wire.encode(wire.Rejected("another model", False))
        sock.sendall(pack_header(5, run_id(RUN), 0, 0, 0, again) + again)
        wait_until(lambda: diary.errors)
    assert not uplink.is_stopped
    Syncer(listener).sock.close()


def test_messages_that_nobody_can_take_are_bounded(uplink):
    for number in range(3 * uplink_module.MAX_WAITING):
        uplink.telling.append(wire.Done(str(number)))
    assert len(uplink.telling) == uplink_module.MAX_WAITING


def test_stopping_says_so_when_everything_is_closed(uplink, listener):
    closed = threading.Event()
    syncer = ready(uplink, listener)
    data = listener.accept()[0]
    uplink.stop(closed.set)
    assert data.recv(1 << 16).startswith(MAGIC)  # its Attach, and then nothing more
    assert data.recv(1) == b""
    data.close()
    assert syncer.sock.recv(1) == b""
    syncer.sock.close()
    assert closed.wait(LIMIT_S)
    assert uplink.control is None
    assert uplink.data == []


def test_stopping_what_never_connected_says_so_at_once(uplink):
    closed = threading.Event()
    uplink.stop(closed.set)
    assert closed.wait(LIMIT_S)
