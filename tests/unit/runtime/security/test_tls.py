"""Whom the two ends let in, shown by handshakes in memory."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from atoll.errors import JoinError, StoreError
from atoll.runtime.security.certificates import ServerIdentity, certified_name
from atoll.runtime.security.tls import check_fingerprint, client_context, server_context
from tests.unit.runtime.security.handshake import Pair


@pytest.fixture
def identity(tmp_path: Path) -> ServerIdentity:
    return ServerIdentity.load_or_make(tmp_path / "run", "my-run")


def issued(identity: ServerIdentity, path: Path, name: str = "learner-1") -> Path:
    path.write_bytes(b"".join(identity.issue(name)))
    return path


def test_a_learner_with_the_right_fingerprint_gets_through(identity: ServerIdentity):
    pair = Pair(client_context(None), server_context(identity, mtls=False)).shake()
    check_fingerprint(pair.shown, identity.fingerprint)
    assert pair.client.version() == pair.server.version() == "TLSv1.3"
    assert pair.say(b"hello") == b"hello"


def test_the_fingerprint_may_be_written_in_capitals(identity: ServerIdentity):
    pair = Pair(client_context(None), server_context(identity, mtls=False)).shake()
    check_fingerprint(pair.shown, identity.fingerprint.upper())


def test_the_syncer_of_another_run_is_found_out_by_its_fingerprint(tmp_path: Path, identity: ServerIdentity):
    other = ServerIdentity.load_or_make(tmp_path / "other", "my-run")
    pair = Pair(client_context(None), server_context(other, mtls=False)).shake()
    with pytest.raises(JoinError) as caught:
        check_fingerprint(pair.shown, identity.fingerprint)
    assert identity.fingerprint in caught.value.what
    assert other.fingerprint in caught.value.what
    assert "no token was sent" in caught.value.so_what


@pytest.mark.parametrize("expected", ["", "missing", "ü", "0" * 64])
def test_no_certificate_agrees_with_no_fingerprint(expected: str):
    with pytest.raises(JoinError):
        check_fingerprint(None, expected)


def test_one_changed_byte_of_a_certificate_changes_its_fingerprint(identity: ServerIdentity):
    shown = Pair(client_context(None), server_context(identity, mtls=False)).shake().shown
    assert shown is not None
    for place in (0, len(shown) // 2, len(shown) - 1):
        tampered = bytearray(shown)
        tampered[place] ^= 1
        with pytest.raises(JoinError, match="fingerprint"):
            check_fingerprint(bytes(tampered), identity.fingerprint)


def test_a_copied_certificate_without_its_key_convinces_nobody(tmp_path: Path, identity: ServerIdentity):
    thief = ServerIdentity.load_or_make(tmp_path / "thief", "my-run")
    thief.certificate_path.write_bytes(identity.certificate_pem)
    with pytest.raises(StoreError, match="key values mismatch"):
        server_context(thief, mtls=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_client_of_tls_1_2_is_refused(identity: ServerIdentity):
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol"):
        Pair(old, server_context(identity, mtls=False)).shake()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_server_of_tls_1_2_is_refused(identity: ServerIdentity):
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.load_cert_chain(identity.certificate_path, identity.key_path)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol"):
        Pair(client_context(None), old).shake()


def test_no_session_tickets_are_sent(identity: ServerIdentity):
    pair = Pair(client_context(None), server_context(identity, mtls=False)).shake()
    assert pair.down.pending == 0


@pytest.mark.parametrize("name", ["learner-1", "my-run", "n" * 64])
def test_under_mtls_the_syncer_learns_the_certified_name(tmp_path: Path, identity: ServerIdentity, name: str):
    cert = issued(identity, tmp_path / "learner.pem", name)
    pair = Pair(client_context(cert), server_context(identity, mtls=True)).shake()
    shown = pair.server.getpeercert(binary_form=True)
    assert shown is not None
    assert certified_name(shown) == name
    assert pair.say(b"hello") == b"hello"


def test_under_mtls_a_learner_without_a_certificate_is_refused(identity: ServerIdentity):
    with pytest.raises(ssl.SSLError, match=r"(?i)did not return a certificate"):
        Pair(client_context(None), server_context(identity, mtls=True)).shake()


@pytest.mark.parametrize("other_run", ["my-run", "other"])
def test_under_mtls_the_certificate_of_another_run_is_refused(
    tmp_path: Path, identity: ServerIdentity, other_run: str
):
    other = ServerIdentity.load_or_make(tmp_path / "other", other_run)
    cert = issued(other, tmp_path / "learner.pem")
    with pytest.raises(ssl.SSLCertVerificationError):
        Pair(client_context(cert), server_context(identity, mtls=True)).shake()


def test_under_mtls_a_self_made_certificate_is_refused(tmp_path: Path, identity: ServerIdentity):
    forger = ServerIdentity.load_or_make(tmp_path / "forger", "my-run")
    cert = tmp_path / "forged.pem"
    cert.write_bytes(forger.certificate_pem + forger.key_path.read_bytes())
    with pytest.raises(ssl.SSLCertVerificationError):
        Pair(client_context(cert), server_context(identity, mtls=True)).shake()


def test_without_mtls_a_certificate_is_not_asked_for(tmp_path: Path, identity: ServerIdentity):
    cert = issued(identity, tmp_path / "learner.pem")
    pair = Pair(client_context(cert), server_context(identity, mtls=False)).shake()
    assert pair.server.getpeercert(binary_form=True) is None


def test_a_learner_certificate_that_cannot_be_loaded_is_named(tmp_path: Path, identity: ServerIdentity):
    without_key = tmp_path / "half.pem"
    without_key.write_bytes(identity.issue("learner-1")[0])
    noise = tmp_path / "noise.pem"
    noise.write_bytes(b"noise")
    for path in (without_key, noise, tmp_path / "missing.pem"):
        with pytest.raises(JoinError) as caught:
            client_context(path)
        assert str(path) in caught.value.what


def test_a_learner_key_under_a_password_is_refused_and_nobody_is_asked_for_it(
    tmp_path: Path, identity: ServerIdentity
):
    cert, key_pem = identity.issue("learner-1")
    key = load_pem_private_key(key_pem, None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word"))
    path = tmp_path / "locked.pem"
    path.write_bytes(cert + locked)
    with pytest.raises(JoinError, match=r"locked\.pem cannot be loaded"):
        client_context(path)
