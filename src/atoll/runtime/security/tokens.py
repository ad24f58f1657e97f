"""Three secrets of a run: to join, to read, to administer.

The syncer makes them once and keeps them in `tokens/` of its run directory. Each may do what the weaker
ones may: admin > join > read. A program that connects takes its token from an argument, from ATOLL_TOKEN,
from the file that ATOLL_TOKEN_FILE names, or, on the syncer's own machine, from the run directory. Tokens
are compared in constant time, and appear in no repr and in no error.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from atoll.errors import JoinError, StoreError
from atoll.runtime.security.private import write_private_folder

__all__ = ["TOKEN_FILE_VARIABLE", "TOKEN_VARIABLE", "Tokens", "read_token"]

TOKEN_VARIABLE = "ATOLL_TOKEN"
TOKEN_FILE_VARIABLE = "ATOLL_TOKEN_FILE"

FOLDER = "tokens"
KINDS = ("join", "read", "admin")
NUM_RANDOM_BYTES = 24
MAX_LENGTH = 256
SHAPE = re.compile(rf"[!-~]{{1,{MAX_LENGTH}}}")
"""One printable word. A key or a data file named by mistake is not one, and is never sent to anybody."""
NO_TOKEN = f"this is no token, which is one printable word of at most {MAX_LENGTH} characters"
MAX_FILE_BYTES = 4 * MAX_LENGTH  # white space included

SUFFICES = {
    "learner": ("join", "admin"),
    "reader": ("read", "join", "admin"),
    "admin": ("admin",),
}


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a run, as its syncer holds them. Its repr shows none."""

    join: str = field(repr=False)
    read: str = field(repr=False)
    admin: str = field(repr=False)

    @classmethod
    def load_or_make(cls, folder: Path) -> Tokens:
        """The tokens in folder/tokens, made if there are none. Folder is the run directory."""
        place = folder / FOLDER
        if not os.path.exists(place):
            _make(place)
        return cls(**{kind: _load(_path(folder, kind)) for kind in KINDS})

    def role_allows(self, role: str, token: str) -> bool:
        """Whether this token suffices for the role: learner, reader or admin; no other role exists.

        Every token is compared, whatever the role and the outcome, so the time taken tells nothing.
        """
        offered = token.encode("utf-8", "surrogatepass")
        agreeing = {kind for kind in KINDS if hmac.compare_digest(offered, getattr(self, kind).encode())}
        return not agreeing.isdisjoint(SUFFICES.get(role, ()))


def read_token(explicit: str | None, environment: Mapping[str, str], run_dir: Path | None) -> str | None:
    """The token to present: explicit, else ATOLL_TOKEN, else the file in ATOLL_TOKEN_FILE, else run_dir's.

    From a run directory it is the join token, which also suffices to read. White space around a token is
    dropped; a blank value counts as none. None if there is no token anywhere. Raises JoinError if a file
    that should be there cannot be read, or if what was found cannot be a token.
    """
    for text, source in ((explicit, "The token given"), (environment.get(TOKEN_VARIABLE), TOKEN_VARIABLE)):
        if text and (token := text.strip()):
            return _accepted(token, "" if SHAPE.fullmatch(token) else NO_TOKEN, source)
    if named := environment.get(TOKEN_FILE_VARIABLE, "").strip():
        path = Path(os.path.expanduser(named))
        return _accepted(*_content(path), f"{TOKEN_FILE_VARIABLE}: {path}")
    if run_dir is not None and os.path.exists(run_dir / FOLDER):
        path = _path(run_dir, "join")
        return _accepted(*_content(path), f"{path}")
    return None


def _path(folder: Path, kind: str) -> Path:
    return folder / FOLDER / f"{kind}.token"


def _make(place: Path) -> None:
    files = {f"{kind}.token": f"{secrets.token_urlsafe(NUM_RANDOM_BYTES)}\n".encode() for kind in KINDS}
    try:
        write_private_folder(place, files)
    except OSError as error:
        raise StoreError(
            f"The run's tokens cannot be written to {place}: {error.strerror}.",
            "Without them no learner can join.",
            "Make the run directory writable, with space left, or choose another one.",
        ) from error


def _load(path: Path) -> str:
    token, problem = _content(path)
    if problem:
        raise StoreError(
            f"{path} cannot be used: {problem}.",
            "Nobody could present the token that it should hold.",
            f"Restore it; or delete {path.parent}, and hand out the new tokens.",
        )
    return token


def _accepted(token: str, problem: str, source: str) -> str:
    if problem:
        raise JoinError(
            f"{source}: {problem}.",
            "Without its token the syncer lets nobody in; what was found has not been sent.",
            f"Set {TOKEN_VARIABLE} to the run's token, or {TOKEN_FILE_VARIABLE} to a file that holds it.",
        )
    return token


def _content(path: Path) -> tuple[str, str]:
    """The token in a file, and what is wrong with it, without a byte of what may be another secret."""
    try:
        with path.open("rb") as file:
            token = file.read(MAX_FILE_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        return "", f"it cannot be read ({error.strerror})"
    return token, "" if SHAPE.fullmatch(token) else NO_TOKEN
