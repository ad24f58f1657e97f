"""Who a learner is: the key to which its name is bound, and that one process at a time is this learner.

A syncer binds a name to the Ed25519 key of whoever first joins under it. At each join it draws a challenge,
and the learner signs it together with its name: a signature is of no use at another join or under another
name. The key lives in the learner's `state_dir`, so a learner that returns is known again; without a
`state_dir` it lasts as long as the process.

Two processes in one `state_dir` would be one learner twice and fence each other off for ever, so a lock
forbids it. The lock is `flock`: the kernel releases it when the process dies, however that happens.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from atoll.errors import JoinError, ProtocolError
from atoll.runtime.security.private import FILE_MODE, write_private

__all__ = ["CHALLENGE_BYTES", "LearnerIdentity", "StateLock", "key_id_of", "verify"]

KEY_FILE = "identity.key"
LOCK_FILE = "lock"
PURPOSE = b"atoll identity"
CHALLENGE_BYTES = 32
"""Fixed, because challenge and name are joined: with a free length one signature could mean two names."""
KEY_ID_BYTES = 16
MAX_PID_BYTES = 20


@dataclass(frozen=True, slots=True)
class LearnerIdentity:
    """A learner's own key. Its repr shows the public part only."""

    key_id: str
    """What the syncer remembers of the key: `Hello.key` of the protocol."""
    public: bytes = field(repr=False)
    """The public key, 32 bytes."""
    _key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def load_or_make(cls, state_dir: Path | None) -> LearnerIdentity:
        """The identity in state_dir, made if there is none; without state_dir a new one that is kept nowhere.

        Hold the directory's `StateLock` meanwhile: two processes could else make two keys.
        """
        if state_dir is None:
            return cls._of(Ed25519PrivateKey.generate())
        path = state_dir / KEY_FILE
        return cls._of(_load(path) if os.path.exists(path) else _make(path))

    @classmethod
    def _of(cls, key: Ed25519PrivateKey) -> LearnerIdentity:
        public = key.public_key().public_bytes_raw()
        return cls(key_id_of(public), public, key)

    def sign(self, challenge: bytes, name: str) -> bytes:
        """Prove to the syncer that drew the challenge that this learner holds the key, for this name only."""
        if len(challenge) != CHALLENGE_BYTES:
            raise ProtocolError(
                f"A challenge has {CHALLENGE_BYTES} bytes, this one {len(challenge)}.",
                "Signed, it could pass for another challenge and another name, so it is not signed.",
                "This is not a syncer of this protocol, or a bug in the wire.",
            )
        return self._key.sign(_message(challenge, name))


def key_id_of(public: bytes) -> str:
    """The short name of a public key: BLAKE2b of 16 bytes, in hex."""
    return hashlib.blake2b(public, digest_size=KEY_ID_BYTES).hexdigest()


def verify(public: bytes, signature: bytes, challenge: bytes, name: str) -> bool:
    """Whether the holder of this public key signed this challenge for this name. Any bytes are taken."""
    if len(challenge) != CHALLENGE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _message(challenge, name))
    except (InvalidSignature, ValueError):
        return False
    return True


class StateLock:
    """Holds a state_dir for this process until `close`, or until the process ends.

    Raises JoinError, with the pid of the holder, if it is held already, be it by this very process.
    """

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / LOCK_FILE
        self._descriptor: int | None = None
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise _unusable(self._path, error) from error
        try:
            self._take(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _held_here.append(self)

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            raise _held(self._path, _holder(descriptor)) from None
        except OSError as error:
            raise _unusable(self._path, error) from error

    def close(self) -> None:
        """Let go. May be called twice. The file stays: removing it could take a lock from its next holder."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            _held_here.remove(self)
            # Unlocked, not only closed: a child of a foreign fork may still have the file open.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _forget(self) -> None:
        """In a forked child: drop the copy of the lock without unlocking the parent's."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> StateLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_held_here: list[StateLock] = []


def _forget_all() -> None:
    while _held_here:
        _held_here.pop()._forget()


# A forked child shares its parent's flock, and a data loader's worker may outlive a killed learner: the
# learner that is restarted in its place would then be refused.
os.register_at_fork(after_in_child=_forget_all)


def _message(challenge: bytes, name: str) -> bytes:
    return PURPOSE + challenge + name.encode("utf-8", "surrogatepass")


def _make(path: Path) -> Ed25519PrivateKey:
    key = Ed25519PrivateKey.generate()
    try:
        write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    except OSError as error:
        raise _unusable(path, error) from error
    return key


def _load(path: Path) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise _unusable(path, error) from error
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise JoinError(
            f"{path} holds no identity key.",
            "The learner could not prove that its name is its own.",
            f"Restore {path.name} from a backup; or delete it, and join under a new name.",
        )
    return key


def _holder(descriptor: int) -> str:
    """Who holds the lock, by the pid in its file; the holder may not have written it yet."""
    text = os.pread(descriptor, MAX_PID_BYTES, 0).decode("ascii", "replace").strip()
    return f"process {text}" if text.isdigit() else "another process"


def _held(path: Path, holder: str) -> JoinError:
    return JoinError(
        f"{path.parent} is in use by {holder}.",
        "Two learners with one state_dir would be one learner twice, and fence each other off.",
        f"Give every learner its own state_dir, or end {holder} first.",
    )


def _unusable(path: Path, error: OSError) -> JoinError:
    return JoinError(
        f"{path} cannot be used: {error.strerror}.",
        "A learner keeps its name, its key and its moments in its state_dir.",
        "Name a state_dir on a local disk that this user may read and write, with space left.",
    )
