"""A run keeps its certificate, and says so plainly when it cannot."""

from __future__ import annotations

import hashlib
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from atoll.errors import JoinError, StoreError
from atoll.runtime.security.certificates import ServerIdentity, certified_name, fingerprint_of

PLAIN = NoEncryption()


def der(pem: bytes) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem.decode())


def test_a_restart_finds_the_same_certificate(tmp_path: Path):
    first = ServerIdentity.load_or_make(tmp_path, "my-run")
    again = ServerIdentity.load_or_make(tmp_path, "my-run")
    assert again.fingerprint == first.fingerprint
    assert again.certificate_pem == first.certificate_pem == first.certificate_path.read_bytes()


def test_two_runs_have_different_fingerprints(tmp_path: Path):
    one, other = (ServerIdentity.load_or_make(tmp_path / side, "same") for side in "ab")
    assert one.fingerprint != other.fingerprint


def test_the_fingerprint_is_the_sha256_of_the_certificate(tmp_path: Path):
    identity = ServerIdentity.load_or_make(tmp_path, "my-run")
    assert identity.fingerprint == hashlib.sha256(der(identity.certificate_pem)).hexdigest()
    assert identity.fingerprint == fingerprint_of(der(identity.certificate_pem))


@pytest.mark.parametrize("name", ["r" * 64, "7", "a.b_c-d"])
def test_every_name_that_a_run_may_have_gets_a_certificate(tmp_path: Path, name: str):
    assert ServerIdentity.load_or_make(tmp_path, name).run == name


def test_a_certificate_does_not_expire_and_can_issue_leaves_only(tmp_path: Path):
    identity = ServerIdentity.load_or_make(tmp_path, "my-run")
    certificate = x509.load_pem_x509_certificate(identity.certificate_pem)
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)
    assert certificate.not_valid_after_utc.year == 9999
    assert certificate.not_valid_before_utc.year == 1970


def test_a_learner_certificate_proves_a_name_and_can_issue_nothing(tmp_path: Path):
    identity = ServerIdentity.load_or_make(tmp_path, "my-run")
    pem, key_pem = identity.issue("learner-1")
    certificate = x509.load_pem_x509_certificate(pem)
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(identity.certificate_pem))
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert not constraints.ca
    assert list(usages) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    assert load_pem_private_key(key_pem, None).public_key() == certificate.public_key()
    assert certified_name(der(pem)) == "learner-1"


@pytest.mark.parametrize("name", ["", "Upper", "-dash", "a/b", "n" * 65, "ünder", "a\n"])
def test_no_certificate_is_issued_for_what_is_no_name(tmp_path: Path, name: str):
    with pytest.raises(JoinError, match="no name for a learner"):
        ServerIdentity.load_or_make(tmp_path, "my-run").issue(name)


def test_a_certificate_that_names_no_learner_is_refused(tmp_path: Path):
    identity = ServerIdentity.load_or_make(tmp_path, "my-run")
    learner = der(identity.issue("learner-1")[0])
    for wrong in (der(identity.certificate_pem), learner[:-9], b"", b"\x30\x00"):
        with pytest.raises(JoinError, match="names no learner"):
            certified_name(wrong)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def noise(path: Path) -> None:
    path.write_bytes(bytes(range(256)))


def unreadable(path: Path) -> None:
    """A folder in the file's place cannot be read as a file, not even by root."""
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("file", ["key.pem", "certificate.pem"])
@pytest.mark.parametrize("damage", [Path.unlink, cut, empty, noise, unreadable])
def test_a_damaged_folder_is_refused_with_the_file_named(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
):
    ServerIdentity.load_or_make(tmp_path, "my-run")
    damage(tmp_path / "tls" / file)
    before = sorted((tmp_path / "tls").iterdir())
    with pytest.raises(StoreError) as caught:
        ServerIdentity.load_or_make(tmp_path, "my-run")
    assert str(tmp_path / "tls" / file) in caught.value.what
    assert "Restore" in caught.value.now_what
    assert sorted((tmp_path / "tls").iterdir()) == before, "a damaged folder is evidence, and stays"


def test_a_tampered_certificate_is_refused(tmp_path: Path):
    identity = ServerIdentity.load_or_make(tmp_path, "my-run")
    changed = der(identity.certificate_pem).replace(b"my-run", b"my-fun")
    identity.certificate_path.write_text(ssl.DER_cert_to_PEM_cert(changed))
    with pytest.raises(StoreError, match="changed after it was signed"):
        ServerIdentity.load_or_make(tmp_path, "my-fun")


def test_a_certificate_of_another_key_is_refused(tmp_path: Path):
    one, other = (ServerIdentity.load_or_make(tmp_path / side, "same") for side in "ab")
    shutil.copy(other.certificate_path, one.certificate_path)
    with pytest.raises(StoreError, match="another key"):
        ServerIdentity.load_or_make(tmp_path / "a", "same")


def test_a_key_of_another_kind_or_under_a_password_is_refused(tmp_path: Path):
    path = ServerIdentity.load_or_make(tmp_path, "my-run").key_path
    key = load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")))
    with pytest.raises(StoreError, match="encrypted"):
        ServerIdentity.load_or_make(tmp_path, "my-run")
    path.write_bytes(
        rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, PLAIN)
    )
    with pytest.raises(StoreError, match="no ECDSA key"):
        ServerIdentity.load_or_make(tmp_path, "my-run")


def test_the_folder_of_another_run_is_refused(tmp_path: Path):
    ServerIdentity.load_or_make(tmp_path, "one")
    with pytest.raises(StoreError, match="run 'one', not of 'other'"):
        ServerIdentity.load_or_make(tmp_path, "other")


def test_a_folder_that_cannot_be_written_is_said_plainly(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        ServerIdentity.load_or_make(tmp_path / "file", "my-run")
