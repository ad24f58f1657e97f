"""TLS contexts of both ends: version 1.3 only, trust by fingerprint.

TLS proves that the peer holds the key of the certificate it shows; whether it is the right certificate is
for us to say. A client therefore accepts any certificate in the handshake and then calls
`check_fingerprint`, before it sends anything. Under mTLS the syncer accepts only learner certificates that
it issued itself; in TLS 1.3 a client whose certificate is refused learns so at its first read, not in its
handshake.
"""

from __future__ import annotations

import hmac
import ssl
from pathlib import Path

from atoll.errors import JoinError, StoreError
from atoll.runtime.security.certificates import ServerIdentity, fingerprint_of

__all__ = ["check_fingerprint", "client_context", "server_context"]


def server_context(identity: ServerIdentity, mtls: bool) -> ssl.SSLContext:
    """The syncer's end. With mtls, a peer without a certificate issued by this identity is refused."""
    context = _only_tls13(ssl.PROTOCOL_TLS_SERVER)
    # Learners keep their connections and never resume one. Unread tickets would also turn a close into a
    # reset, which can destroy data on its way to a peer that only ever sends.
    context.num_tickets = 0
    try:
        context.load_cert_chain(identity.certificate_path, identity.key_path)
    except OSError as error:  # ssl.SSLError is one
        raise StoreError(
            f"The certificate in {identity.certificate_path.parent} cannot be loaded: {_reason(error)}.",
            "Without it no learner can know this syncer.",
            "The folder changed since the syncer started: restore it, then start again.",
        ) from error
    if mtls:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=identity.certificate_pem.decode("ascii"))
    return context


def client_context(cert: Path | None) -> ssl.SSLContext:
    """A learner's or reader's end; cert is one PEM file with certificate and key, for mTLS.

    It checks neither authority nor host name: trust is by fingerprint alone. Call `check_fingerprint` with
    `getpeercert(binary_form=True)` right after the handshake, before the first byte is sent.
    """
    context = _only_tls13(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if cert is not None:
        try:
            # An empty password, because without one OpenSSL would ask for it at the terminal.
            context.load_cert_chain(cert, password="")
        except OSError as error:
            raise JoinError(
                f"The learner's certificate {cert} cannot be loaded: {_reason(error)}.",
                "A run with mTLS would not let this learner in.",
                "Name one PEM file that holds the certificate and the plain key that the syncer issued.",
            ) from error
    return context


def check_fingerprint(peer_der: bytes | None, expected: str) -> None:
    """Return if the peer's certificate has this fingerprint (hex, any case), else raise JoinError."""
    found = fingerprint_of(peer_der) if peer_der is not None else ""
    if not found or not hmac.compare_digest(found.encode(), expected.lower().encode()):
        raise JoinError(
            f"The syncer's fingerprint is {found or 'missing'}, but the join URL says {expected}.",
            "Another program answers at this address, or the run has a new key; no token was sent.",
            "Take the join URL from the syncer's own output. If it is the same, somebody is in between.",
        )


def _only_tls13(side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    return context


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):  # OpenSSL's words look like KEY_VALUES_MISMATCH
        return (error.reason or "no PEM").replace("_", " ").lower()
    return f"{error.strerror}"
