"""A learner's key outlives its process, and one process at a time is the learner."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from atoll.errors import JoinError, ProtocolError
from atoll.runtime.security.identity import LearnerIdentity, StateLock, key_id_of, verify

CHALLENGE = bytes(range(32))


def test_a_restart_finds_the_same_key(tmp_path: Path):
    first = LearnerIdentity.load_or_make(tmp_path / "state")
    again = LearnerIdentity.load_or_make(tmp_path / "state")
    assert (again.key_id, again.public) == (first.key_id, first.public)


def test_without_a_state_dir_every_process_is_somebody_new():
    assert LearnerIdentity.load_or_make(None).key_id != LearnerIdentity.load_or_make(None).key_id


def test_the_key_id_is_a_digest_of_the_public_key():
    identity = LearnerIdentity.load_or_make(None)
    assert identity.key_id == hashlib.blake2b(identity.public, digest_size=16).hexdigest()
    assert identity.key_id == key_id_of(identity.public)
    assert len(identity.public) == 32


def test_a_signature_is_what_the_protocol_says():
    identity = LearnerIdentity.load_or_make(None)
    signature = identity.sign(CHALLENGE, "learner-1")
    message = b"atoll identity" + CHALLENGE + b"learner-1"
    Ed25519PublicKey.from_public_bytes(identity.public).verify(signature, message)
    assert verify(identity.public, signature, CHALLENGE, "learner-1")


def test_a_signature_holds_for_one_key_one_challenge_and_one_name():
    identity, other = LearnerIdentity.load_or_make(None), LearnerIdentity.load_or_make(None)
    signature = identity.sign(CHALLENGE, "learner-1")
    assert not verify(other.public, signature, CHALLENGE, "learner-1")
    assert not verify(identity.public, signature, bytes(32), "learner-1")
    assert not verify(identity.public, signature, CHALLENGE, "learner-2")
    assert not verify(identity.public, signature[:-1] + bytes([signature[-1] ^ 1]), CHALLENGE, "learner-1")


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(33), b"\xff" * 32])
@pytest.mark.parametrize("signature", [b"", bytes(64), bytes(65)])
def test_any_bytes_are_judged_without_an_error(public: bytes, signature: bytes):
    assert not verify(public, signature, CHALLENGE, "\udcff")


def test_the_border_of_challenge_and_name_cannot_be_moved():
    identity = LearnerIdentity.load_or_make(None)
    signature = identity.sign(CHALLENGE, "learner-1")
    assert not verify(identity.public, signature, CHALLENGE + b"l", "earner-1")
    with pytest.raises(ProtocolError, match="32 bytes, this one 33"):
        identity.sign(CHALLENGE + b"x", "learner-1")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def of_another_kind(path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def unreadable(path: Path) -> None:
    """A folder in the file's place cannot be read as a file, not even by root."""
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [cut, empty, of_another_kind, unreadable])
def test_a_damaged_key_is_refused_and_not_replaced(tmp_path: Path, damage: Callable[[Path], None]):
    LearnerIdentity.load_or_make(tmp_path)
    damage(tmp_path / "identity.key")
    for _ in range(2):
        with pytest.raises(JoinError, match=r"identity\.key"):
            LearnerIdentity.load_or_make(tmp_path)


def test_a_state_dir_that_cannot_be_made_is_said_plainly(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    for use in (LearnerIdentity.load_or_make, StateLock):
        with pytest.raises(JoinError, match="cannot be used"):
            use(tmp_path / "file")


def test_a_state_dir_in_use_is_refused_with_the_pid_of_its_user(tmp_path: Path):
    with StateLock(tmp_path), pytest.raises(JoinError) as caught:
        StateLock(tmp_path)
    assert f"{tmp_path} is in use by process {os.getpid()}." == caught.value.what


def test_a_holder_that_has_not_signed_yet_is_another_process(tmp_path: Path):
    with StateLock(tmp_path):
        (tmp_path / "lock").write_text("")
        with pytest.raises(JoinError, match="in use by another process"):
            StateLock(tmp_path)


def test_a_closed_lock_can_be_taken_again_and_closed_twice(tmp_path: Path):
    first = StateLock(tmp_path)
    first.close()
    with StateLock(tmp_path):
        first.close()
        with pytest.raises(JoinError):
            StateLock(tmp_path)


def test_a_refused_lock_leaves_no_open_file(tmp_path: Path):
    with StateLock(tmp_path):
        with pytest.raises(JoinError):
            StateLock(tmp_path)
        targets = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
        assert targets.count(os.path.realpath(tmp_path / "lock")) == 1


def start(script: str, folder: Path) -> subprocess.Popen[str]:
    """Run a script in a process of its own; it may read until we let go of it."""
    command = [sys.executable, "-c", script, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


HOLDER = """
import sys
from pathlib import Path
from atoll.runtime.security.identity import StateLock
StateLock(Path(sys.argv[1]))  # nobody keeps it, nobody closes it
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_held_until_its_process_dies_and_no_longer(tmp_path: Path):
    with start(HOLDER, tmp_path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(JoinError, match=f"process {holder.pid}"):
            StateLock(tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    StateLock(tmp_path).close()


FORKING = """
import os, sys
from pathlib import Path
from atoll.runtime.security.identity import StateLock
folder = Path(sys.argv[1])
lock = StateLock(folder / "kept")
StateLock(folder / "dropped")
reader, writer = os.pipe()
if os.fork() == 0:  # a data loader's worker, which outlives the learner
    lock.close()    # must not unlock the directory of its parent
    os.write(writer, b"x")
    sys.stdin.read()
    os._exit(0)
os.read(reader, 1)
for name in ("kept", "dropped"):
    try:
        StateLock(folder / name)
        print("lost", flush=True)
    except Exception:
        print("held", flush=True)
os._exit(0)
"""


def test_a_forked_worker_neither_releases_nor_keeps_a_lock(tmp_path: Path):
    with start(FORKING, tmp_path) as learner:  # leaving it closes the pipe, which ends the worker
        assert learner.stdout is not None
        assert [learner.stdout.readline() for _ in range(2)] == ["held\n", "held\n"]
        learner.wait()
        for name in ("kept", "dropped"):
            StateLock(tmp_path / name).close()
