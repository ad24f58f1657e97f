"""The certificate of a run, made by its syncer and kept for the life of the run.

It is self-signed: what a learner trusts is its fingerprint, the SHA-256 of the certificate's DER, which
stands in the join URL. So it carries no host name, and dates that never matter: a syncer may move, and
clocks of distant islands may be wrong. The key is ECDSA on P-256, which browsers and every TLS library can
check.

The same key is a small authority for mTLS: `ServerIdentity.issue` signs a certificate for one learner, good
for proving a name to this syncer and for nothing else. It cannot issue further certificates.

Key and certificate appear together (`private.write_private_folder`), so a folder with one of them was damaged
later. It is then not replaced in silence: every learner would be turned away by the new fingerprint.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import NoReturn

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from atoll.core.members import NAME
from atoll.errors import JoinError, StoreError
from atoll.runtime.security.private import write_private_folder

__all__ = ["ServerIdentity", "certified_name", "fingerprint_of"]

FOLDER = "tls"
CERTIFICATE_FILE = "certificate.pem"
KEY_FILE = "key.pem"

# Subjects of runs and of learners differ even if the names agree: else a learner called like its run would
# hold a certificate that looks self-signed, and OpenSSL would refuse it.
RUN_KIND = "atoll run"
LEARNER_KIND = "atoll learner"

FOR_EVER = (
    datetime(1970, 1, 1, tzinfo=timezone.utc),
    datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc),  # RFC 5280: no end is known
)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The key and certificate by which learners know a run. Its repr holds nothing secret."""

    run: str
    fingerprint: str
    """SHA-256 of the certificate's DER, in hex: what the join URL carries."""
    certificate_path: Path
    key_path: Path
    _certificate: x509.Certificate = field(repr=False)
    _key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def load_or_make(cls, folder: Path, run: str) -> ServerIdentity:
        """The identity in folder/tls, made if there is none. Folder is the run directory.

        Raises StoreError if the files are damaged, incomplete, or those of another run.
        """
        tls = folder / FOLDER
        if not os.path.exists(tls):
            _make(tls, run)
        certificate_path, key_path = tls / CERTIFICATE_FILE, tls / KEY_FILE
        certificate, key = _load_certificate(certificate_path), _load_key(key_path)
        _check_pair(tls, certificate, key)
        if (found := _common_name(certificate.subject, RUN_KIND)) != run:
            raise StoreError(
                f"{tls} holds the certificate of {f'run {found!r}' if found else 'no run'}, not of {run!r}.",
                "Learners of one run could take this syncer for the other.",
                f"Start the syncer under the run's own name, or delete {tls} and hand out the new join URL.",
            )
        return cls(run, fingerprint_of(_der(certificate)), certificate_path, key_path, certificate, key)

    @property
    def certificate_pem(self) -> bytes:
        """The certificate; it is public."""
        return self._certificate.public_bytes(Encoding.PEM)

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """A certificate and a key, both PEM, that prove a learner's name to this syncer under mTLS.

        The key is not kept here. Both together in one file are what `tls.client_context` takes.
        """
        if not NAME.fullmatch(name):
            raise JoinError(
                f"{name!r} is no name for a learner, so no certificate is issued for it.",
                "The syncer would refuse a learner of that name.",
                f"Choose a name that matches {NAME.pattern}",
            )
        key, subject = ec.generate_private_key(ec.SECP256R1()), _subject(LEARNER_KIND, name)
        issuer_id = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        authority = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id)
        certificate = (
            _builder(subject, self._certificate.subject, key.public_key(), is_authority=False)
            .add_extension(authority, critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM), _key_pem(key)


def fingerprint_of(der: bytes) -> str:
    """SHA-256 of a certificate's DER, in lower-case hex."""
    return hashlib.sha256(der).hexdigest()


def certified_name(peer_der: bytes) -> str:
    """The learner's name in a certificate that the TLS handshake has already verified; else JoinError.

    This reads the name and checks no signature: under mTLS the handshake did, against the run's own
    certificate.
    """
    try:
        found = _common_name(x509.load_der_x509_certificate(peer_der).subject, LEARNER_KIND)
    except ValueError:
        found = None
    if found is None or not NAME.fullmatch(found):
        raise JoinError(
            "The learner's certificate names no learner.",
            "This run uses mTLS: a learner may only use the name in its certificate.",
            "Ask the operator of the run for a certificate issued by its syncer.",
        )
    return found


def _make(tls: Path, run: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(RUN_KIND, run)
    certificate = _builder(subject, subject, key.public_key(), is_authority=True).sign(key, hashes.SHA256())
    files = {CERTIFICATE_FILE: certificate.public_bytes(Encoding.PEM), KEY_FILE: _key_pem(key)}
    try:
        write_private_folder(tls, files)
    except OSError as error:
        raise StoreError(
            f"The run's certificate cannot be written to {tls}: {error.strerror}.",
            "Without it no learner can know this syncer.",
            "Make the run directory writable, with space left, or choose another one.",
        ) from error


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, *, is_authority: bool
) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    constraints = x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(FOR_EVER[0])
        .not_valid_after(FOR_EVER[1])
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        _unusable(path, f"{error.strerror}")
    except ValueError:
        _unusable(path, "it is damaged or cut short")


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        _unusable(path, f"{error.strerror}")
    except (ValueError, UnsupportedAlgorithm):
        _unusable(path, "it is damaged or cut short")
    except TypeError:
        _unusable(path, "it is encrypted")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        _unusable(path, "it is no ECDSA key")
    return key


def _check_pair(tls: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    path = tls / CERTIFICATE_FILE
    try:
        certificate.verify_directly_issued_by(certificate)
        is_of_key = certificate.public_key() == key.public_key()
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        _unusable(path, "it was changed after it was signed")
    if not is_of_key:
        _unusable(path, f"it belongs to another key than {KEY_FILE}")


def _unusable(path: Path, why: str) -> NoReturn:
    raise StoreError(
        f"{path} cannot be used: {why}.",
        "Learners know this run by the certificate in that folder, so none could join.",
        f"Restore {path.parent} from a backup; or delete it, and hand out the next start's join URL.",
    )


def _subject(kind: str, name: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, kind), x509.NameAttribute(NameOID.COMMON_NAME, name)]
    )


def _common_name(subject: x509.Name, kind: str) -> str | None:
    """The one name in a subject of this kind; None if the subject is of another kind or has several names."""
    kinds = [attribute.value for attribute in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    names = [attribute.value for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if kinds != [kind] or len(names) != 1:
        return None
    return names[0] if isinstance(names[0], str) else None


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
