"""Whoever is not let in reads a sentence that says why, and nobody inside is disturbed."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import atoll
from atoll.runtime.joining import _Joining
from atoll.runtime.security.certificates import ServerIdentity
from atoll.wire import frames
from atoll.wire import messages as wire
from atoll.wire.url import RunURL, parse
from tests.integration.conditions import LIMIT_S, wait_until
from tests.integration.peer import Peer
from tests.integration.programs import Task, config, model


@pytest.fixture(scope="module")
def syncer(tmp_path_factory) -> Iterator[atoll.Syncer]:
    """A run with one learner in it."""
    with atoll.Syncer(config(), tmp_path_factory.mktemp("runs") / "reef") as syncer:
        learner = atoll.join(syncer.url, model=model(), name="inside")
        yield syncer
        assert not learner.ended
        assert syncer.error is None
        learner.leave()
        wait_until(lambda: syncer.status()["learner_details"][0]["state"] == "left")


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Iterator[atoll.Syncer]:
    settings = config(security={"tls": False}, network={"max_learners": 1})
    with atoll.Syncer(settings, tmp_path_factory.mktemp("runs") / "open") as syncer:
        yield syncer
        assert syncer.error is None


def url_of(syncer: atoll.Syncer) -> RunURL:
    url = parse(syncer.url)
    assert isinstance(url, RunURL)
    return url


def refusal(url: object, net: nn.Module | None = None, **options: object) -> str:
    """The sentence that a user reads."""
    options = {"name": "outside", **options}
    with pytest.raises(atoll.AtollError) as caught:
        atoll.join(str(url), model=net or model(), **options)  # type: ignore[arg-type]
    return str(caught.value)


@contextmanager
def dialling(url: object, token: str = "") -> Iterator[Callable[[], str]]:
    """A join that does not get on; yields what its user would read if the time were up now."""
    where = parse(str(url))
    assert isinstance(where, RunURL)
    joining = _Joining(where, token, model(), None, None, None, timeout_s=10 * LIMIT_S)
    task = Task(joining.run, "outside", None)
    wait_until(lambda: hasattr(joining, "uplink"))
    try:
        yield lambda: str(joining._too_late())
    finally:
        joining.error = atoll.JoinError("enough")
        with pytest.raises(atoll.JoinError, match="enough"):
            task.result()


def test_a_wrong_token(syncer):
    assert "token is wrong for the role learner: check ATOLL_TOKEN" in refusal(syncer.url, token="guess")


def test_a_token_that_may_only_read(syncer):
    assert "token is wrong for the role learner" in refusal(syncer.url, token=syncer.tokens.read)


def test_no_token(syncer, monkeypatch):
    monkeypatch.delenv("ATOLL_TOKEN", raising=False)
    monkeypatch.delenv("ATOLL_TOKEN_FILE", raising=False)
    elsewhere = replace(url_of(syncer), host="localhost")  # of our own syncer join would know the token
    assert "There is no token for run reef" in refusal(elsewhere)


def test_another_fingerprint(syncer):
    wrong = replace(url_of(syncer), fingerprint="ab" * 32)
    assert "but the join URL says abab" in refusal(wrong, token=syncer.token)


def test_no_key_in_the_url(syncer):
    assert "has no key" in refusal(syncer.url.partition("?")[0])


def test_another_run(syncer):
    wrong = replace(url_of(syncer), run="atoll")
    assert "serves run 'reef', not 'atoll': check the URL" in refusal(wrong, token=syncer.token)


def test_a_bad_name(syncer):
    assert "'Ada Lovelace' does not match" in refusal(syncer.url, name="Ada Lovelace")


def test_a_name_that_a_live_learner_with_another_key_has(syncer):
    assert "inside is in use by a live learner with another key" in refusal(syncer.url, name="inside")


def test_another_model_and_its_first_tensor(syncer):
    other = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))
    sentence = refusal(syncer.url, other)
    assert "not the model of the run: 2.weight (float32, shape [3, 10])" in sentence
    assert "shape [2, 10]" in sentence


def test_a_model_of_another_type(syncer):
    assert "0.weight (bfloat16, shape [10, 6])" in refusal(syncer.url, model().bfloat16())


def test_a_model_with_fewer_values_than_the_run_has_fragments(syncer):
    assert "fragments" in refusal(syncer.url, nn.Linear(1, 1, bias=False))


def test_a_model_with_nothing_to_train(syncer):
    frozen = model().requires_grad_(False)
    assert "rainable" in refusal(syncer.url, frozen)


def test_a_model_on_the_meta_device(syncer):
    assert "meta device" in refusal(syncer.url, model().to("meta"))


def test_weights_that_are_not_finite_cannot_begin_a_run():
    spoiled = model()
    with torch.no_grad():
        next(spoiled.parameters())[0] = float("nan")
    with atoll.Syncer(config()) as syncer:
        assert "initial weights not finite" in refusal(syncer.url, spoiled)
        atoll.join(syncer.url, model=model(), name="sound").leave()


def test_nobody_at_the_address():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = RunURL("127.0.0.1", port, "reef", "00" * 32)
    with dialling(url) as sentence:
        wait_until(lambda: "Connection refused" in sentence())
        assert f"The syncer at 127.0.0.1:{port} could not be reached within 600 s" in sentence()


def test_a_host_that_does_not_exist():
    with dialling(RunURL("no-such-host.invalid", 7700, "reef", "00" * 32)) as sentence:
        wait_until(lambda: "no-such-host.invalid cannot be resolved" in sentence())


def test_somebody_who_never_answers():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(LIMIT_S)
        url = RunURL("127.0.0.1", silent.getsockname()[1], "reef", "00" * 32)
        with dialling(url) as sentence, silent.accept()[0]:
            assert "could not be reached within 600 s: no answer" in sentence()


def test_time_that_is_up_is_an_error(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = RunURL("127.0.0.1", silent.getsockname()[1], "reef", "00" * 32)
        sentence = refusal(url, token="x", timeout_s=0.1, state_dir=tmp_path)
        assert "could not be reached within 0.1 s" in sentence
        refusal(url, token="x", timeout_s=0.1, state_dir=tmp_path)  # the state_dir was let go


def test_a_learner_without_tls_at_a_port_with_tls(syncer):
    url = replace(url_of(syncer), plain=True, fingerprint="")
    assert "This syncer speaks TLS, and the other side does not: use its atoll:// URL" in refusal(url)


def test_a_learner_with_tls_at_a_port_without(plain):
    url = replace(url_of(plain), plain=False, fingerprint="00" * 32)
    sentence = refusal(url, token="x")
    assert "does not speak TLS 1.3" in sentence
    assert "atoll+plain://" in sentence


def test_a_plain_url_shows_no_token_to_anybody(plain):
    """Whoever listens on the wire would read it, and a run without TLS asks for none."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT_S)
        url = replace(url_of(plain), port=listener.getsockname()[1])
        task = Task(refusal, url, token="a-secret-word")
        with listener.accept()[0] as sock:
            said = sock.recv(1 << 16)
            sock.sendall(b"thank you")
        task.result()
    assert said.startswith(frames.MAGIC)
    assert b"a-secret-word" not in said


def test_a_run_that_is_full(plain):
    first = atoll.join(plain.url, model=model(), name="first")
    with dialling(plain.url) as sentence:
        wait_until(lambda: "The run is full: network.max_learners is 1" in sentence())
    first.leave()
    wait_until(lambda: not plain._shell.links)
    atoll.join(plain.url, model=model(), name="second").leave()


def test_another_version_of_the_protocol_in_the_opening(syncer):
    with Peer(syncer.url, syncer.token, "future") as peer:
        answer = peer.ask(replace(peer.opening, protocol=frames.VERSION + 1))
    assert isinstance(answer, wire.Rejected)
    assert "Protocol version 2 is not 1, which this syncer speaks" in answer.reason


def test_another_version_of_the_protocol_in_the_frames(syncer):
    with Peer(syncer.url, syncer.token, "future") as peer:
        body = wire.encode(peer.opening)
        header = bytearray(frames.pack_header(1, peer.run, 0, 0, 0, body))
        header[4] = frames.VERSION + 1
        peer.control.sendall(bytes(header) + body)
        answer = peer.hear(wire.Rejected)
    assert "another version of the protocol: version 2, here it is 1" in answer.reason


def test_a_syncer_of_another_version_is_recognised_by_a_learner():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = RunURL("127.0.0.1", listener.getsockname()[1], "reef", "", plain=True)
        answer = bytearray(frames.pack_header(5, 0, 0, 0, 0, b""))
        answer[4] = frames.VERSION + 1

        def serve() -> None:
            sock = listener.accept()[0]
            sock.recv(1 << 16)
            sock.sendall(answer)

        task = Task(serve)
        assert "another version of the protocol: version 2" in refusal(url)
        task.result()


@pytest.mark.parametrize("protocol", ["tls", "plain"])
@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\nHost: reef\r\n\r\n",
        b"\x00" * 100_000,
        b"ATOL",
        b"ATOL" + b"\xff" * 44,
        frames.pack_header(1, 0, 0, 0, 0, b"not msgpack") + b"not msgpack",
        frames.pack_header(99, 0, 0, 0, 0, b"") + b"",
        frames.pack_header(10, 0, 0, 0, 0, b"\x90") + b"\x90",
    ],
    ids=["http", "zeros", "half", "header", "no message", "no kind", "ask first"],
)
def test_garbage_at_the_door_harms_nobody(request, protocol, words):
    """Spoken inside TLS and without it; whatever it is, the syncer hangs up and goes on."""
    syncer = request.getfixturevalue({"tls": "syncer", "plain": "plain"}[protocol])
    url = url_of(syncer)
    with socket.create_connection((url.host, url.port), LIMIT_S) as sock:
        sock.sendall(words)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass
    if protocol == "tls":
        with Peer(syncer.url, syncer.token, "garbage") as peer:
            peer.control.sendall(words)
            peer.hang_up()
    assert syncer.status()["run"] == syncer.name


def test_a_tls_client_that_speaks_http_is_told_off_in_our_own_words(syncer):
    with Peer(syncer.url, syncer.token, "browser") as peer:
        peer.control.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert "does not speak Atoll" in peer.hear(wire.Rejected).reason


def test_a_stranger_may_not_send_much_before_it_has_shown_its_token(syncer):
    with Peer(syncer.url, syncer.token, "loud") as peer:
        peer.control.sendall(frames.pack_header(1, peer.run, 0, 0, 0, bytes(1 << 20)))
        assert "at most 65536 are allowed" in peer.hear(wire.Rejected).reason


def test_a_manifest_that_is_none(syncer):
    for words in (b"{", b"[]", b"{}", b'{"storages": 1}', b"[" * 100_000, b"\xff"):
        with Peer(syncer.url, syncer.token, "odd") as peer:
            peer.open()
            peer.say(peer.model_message(words))
            assert "anifest" in peer.hear(wire.Rejected).reason


def test_an_identity_key_that_is_not_proven(syncer):
    with Peer(syncer.url, syncer.token, "thief") as peer:
        peer.open()
        peer.say(replace(peer.model_message(b"{}"), signature=bytes(64)))
        assert "signature does not prove" in peer.hear(wire.Rejected).reason


def test_a_model_that_is_shown_twice_makes_one_learner(syncer):
    with Peer(syncer.url, syncer.token, "twice") as peer:
        peer.open()
        shown = peer.model_message()
        peer.say(shown, shown)
        peer.hear(wire.Rejected, wire.Ready)
    wait_until(lambda: "twice" not in syncer._shell.links)


def test_a_data_connection_without_its_secret(syncer):
    with Peer(syncer.url, syncer.token, "data") as peer:
        answer = peer.ask(wire.Attach("00" * 16, bytes(32)))
    assert isinstance(answer, wire.Rejected)
    assert "no such session" in answer.reason


# mTLS


@pytest.fixture(scope="module")
def strict(tmp_path_factory) -> Iterator[tuple[atoll.Syncer, Path]]:
    folder = tmp_path_factory.mktemp("runs")
    with atoll.Syncer(config(security={"mtls": True}), folder / "strict") as syncer:
        for name in ("ada", "bob"):
            (folder / f"{name}.pem").write_bytes(b"".join(syncer._identity.issue(name)))
        other = ServerIdentity.load_or_make(folder / "other", "strict")
        (folder / "foreign.pem").write_bytes(b"".join(other.issue("ada")))
        yield syncer, folder
        assert syncer.error is None


def test_mtls_lets_in_whom_its_certificate_names(strict):
    syncer, folder = strict
    learner = atoll.join(syncer.url, model=model(), name="ada", certificate=folder / "ada.pem")
    assert learner.incarnation >= 1
    learner.leave()


def test_mtls_without_a_certificate(strict):
    assert "asks for a certificate (mTLS), and this learner showed none" in refusal(strict[0].url)


def test_mtls_with_a_certificate_of_another_run(strict):
    syncer, folder = strict
    sentence = refusal(syncer.url, name="ada", certificate=folder / "foreign.pem")
    assert "does not accept this learner's certificate" in sentence


def test_mtls_with_somebody_elses_certificate(strict):
    syncer, folder = strict
    sentence = refusal(syncer.url, name="ada", certificate=folder / "bob.pem")
    assert "The certificate is for 'bob', not for 'ada'" in sentence


def test_mtls_with_a_file_that_is_no_certificate(strict, tmp_path):
    (tmp_path / "empty.pem").write_bytes(b"")
    sentence = refusal(strict[0].url, name="ada", certificate=tmp_path / "empty.pem")
    assert "empty.pem cannot be loaded" in sentence


def test_an_old_tls_is_not_spoken(syncer):
    url = url_of(syncer)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection((url.host, url.port), LIMIT_S) as sock, pytest.raises(ssl.SSLError):
        context.wrap_socket(sock)
