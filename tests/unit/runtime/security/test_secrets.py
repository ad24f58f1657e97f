"""No secret appears in the repr of what holds it."""

from __future__ import annotations

import base64
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from atoll.runtime.security.certificates import ServerIdentity
from atoll.runtime.security.identity import LearnerIdentity, StateLock
from atoll.runtime.security.tls import client_context, server_context
from atoll.runtime.security.tokens import Tokens

# Longer than any repr below, so that none holds one by chance.
WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=24, max_size=256)


@given(WORDS, WORDS, WORDS)
def test_tokens_never_appear_in_a_repr(join: str, read: str, admin: str):
    tokens = Tokens(join=join, read=read, admin=admin)
    for shown in (repr(tokens), str(tokens), f"{tokens!s:>9}", repr([tokens]), repr({"tokens": tokens})):
        assert not any(token in shown for token in (join, read, admin))


def key_material(pem: bytes) -> list[str]:
    """The ways in which a key could show: a line of its PEM, its bytes in hex, in base64 or as a literal."""
    body = [line for line in pem.decode().splitlines() if line and not line.startswith("-----")]
    der = base64.b64decode("".join(body))
    return [*body, der.hex(), der[-32:].hex(), base64.b64encode(der).decode(), repr(der)[2:-1]]


def test_nothing_that_security_hands_out_shows_a_secret(tmp_path: Path):
    server = ServerIdentity.load_or_make(tmp_path, "my-run")
    tokens = Tokens.load_or_make(tmp_path)
    learner = LearnerIdentity.load_or_make(tmp_path / "state")
    cert, key = server.issue("learner-1")
    (tmp_path / "learner.pem").write_bytes(cert + key)
    secrets = [
        tokens.join,
        tokens.read,
        tokens.admin,
        *key_material(key),
        *key_material(server.key_path.read_bytes()),
    ]
    secrets += key_material((tmp_path / "state" / "identity.key").read_bytes())
    with StateLock(tmp_path / "state") as lock:
        contexts = (server_context(server, mtls=True), client_context(tmp_path / "learner.pem"))
        shown = "".join(map(repr, (server, tokens, learner, lock, *contexts)))
    assert server.fingerprint in shown
    assert learner.key_id in shown
    assert [secret for secret in secrets if secret in shown] == []
