"""A look at a run from outside: its status, over the network or from its directory.

`StatusClient` is a plain blocking client with a deadline on every answer. It compares the syncer's
fingerprint before it shows its token, as learners do. `read_status` also takes a run directory: there it
finds the URL and the read token, and if no syncer answers any more, the last status that one wrote down.
Nothing here needs torch, so `atoll status` answers at once.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import tempfile
import time
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

from atoll.config import RunConfig
from atoll.errors import AtollError, JoinError, StoreError
from atoll.runtime.security.certificates import ServerIdentity
from atoll.runtime.security.tls import check_fingerprint, client_context
from atoll.runtime.security.tokens import read_token
from atoll.wire import messages as wire
from atoll.wire.connection import Role
from atoll.wire.frames import VERSION, Frame, Reader, pack_header, run_id
from atoll.wire.url import LocalURL, RunURL, parse

__all__ = ["StatusClient", "is_url", "read_status"]

ANSWER_S = 10.0
"""Longest wait for an answer, connecting included."""
RECEIVE_BYTES = 1 << 16
SOFTWARE = f"atoll {metadata.version('atoll')}"


class StatusClient:
    """Asks one syncer, as often as you like: `with StatusClient(url, token) as client: client.status()`.

    It connects at the first question. `certificate` is the PEM file that a run with mTLS asks for. Whoever
    does not answer in time, or refuses, is a `JoinError`; the next question then connects anew.
    """

    def __init__(
        self, url: str, token: str | None, certificate: Path | None = None, *, timeout_s: float = ANSWER_S
    ) -> None:
        where = parse(url)
        if isinstance(where, LocalURL):
            raise JoinError(
                "local:// is a run inside a process of its own.",
                "Nobody else can ask it anything.",
                "Name a run directory, or the URL that `atoll syncer` printed.",
            )
        self.url: RunURL = where
        self.token = token or ""
        self.timeout_s = timeout_s
        self._certificate = certificate
        self._line: _Line | None = None

    def status(self) -> dict[str, Any]:
        """How the run stands now."""
        answer = self._ask("reader", wire.StatusAsk(), wire.Status)
        assert isinstance(answer, wire.Status)
        try:
            status = json.loads(answer.body)
        except ValueError:
            status = None
        if not isinstance(status, dict):
            raise self._unreachable("its status is not JSON")
        return status

    def finish(self, reason: str) -> str:
        """End the run with its last rounds; takes the admin token. Returns what the syncer said."""
        answer = self._ask("admin", wire.FinishAsk(reason), wire.Done)
        assert isinstance(answer, wire.Done)
        return answer.reason

    def close(self) -> None:
        """Hang up; a later question connects again."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def __enter__(self) -> StatusClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, role: Role, question: wire.Message, wanted: type) -> wire.Message:
        """One question, one answer of the wanted kind. An admin may read too, a reader only reads."""
        if self._line is not None and self._line.role not in (role, "admin"):
            self.close()
        try:
            if self._line is None:
                self._line = self._open(role)
            answer = self._line.ask(question, self.timeout_s)
        except (OSError, EOFError) as error:
            self.close()
            raise self._unreachable(_reason(error)) from error
        except AtollError:
            self.close()
            raise
        if isinstance(answer, wire.Rejected):
            self.close()
            raise self._refused(answer.reason)
        if not isinstance(answer, wanted):
            self.close()
            raise self._unreachable(f"it answered with {type(answer).__name__}")
        return answer

    def _open(self, role: Role) -> _Line:
        line = _Line(self.url, role, self._certificate, self.timeout_s)
        try:
            opening = wire.Open(VERSION, self.url.run, role, self.token, "", SOFTWARE)
            answer = line.ask(opening, self.timeout_s)
            if isinstance(answer, wire.Rejected):
                raise self._refused(answer.reason)
            line.trust()
        except BaseException:
            line.close()
            raise
        return line

    def _unreachable(self, reason: str) -> JoinError:
        return JoinError(
            f"The syncer at {self.url.host}:{self.url.port} gave no usable answer: {reason}.",
            f"How run {self.url.run} stands is not known.",
            "Check that it is running, the host and port in the URL, and firewalls.",
        )

    def _refused(self, reason: str) -> JoinError:
        return JoinError(
            reason,
            "The syncer did not answer the question.",
            "Take URL and token from the run directory: `url`, and `tokens/read.token` to read.",
        )


class _Line:
    """One connection: frames out, frames in, a deadline for each exchange."""

    def __init__(self, url: RunURL, role: Role, certificate: Path | None, timeout_s: float) -> None:
        self.role = role
        self._run = run_id(url.run)
        self._sequence = 0
        self._reader = Reader(wire.limit_of(wire.kind_of(_ACCEPTED)))  # a wrong run is told in words
        self._sock = socket.create_connection((url.host, url.port), timeout_s)
        try:
            if not url.plain:
                context = client_context(certificate)
                secure: ssl.SSLSocket = context.wrap_socket(self._sock, server_hostname=url.host)
                self._sock = secure
                check_fingerprint(secure.getpeercert(binary_form=True), url.fingerprint)
        except BaseException:
            self._sock.close()
            raise

    def trust(self) -> None:
        """The other side has accepted the token: a status may be large."""
        self._reader.limit, self._reader.run = wire.LARGEST_BYTES, self._run

    def ask(self, message: wire.Message, timeout_s: float) -> wire.Message:
        """Send a message and wait for the next one from the other side."""
        deadline_s = time.monotonic() + timeout_s
        body = wire.encode(message)
        header = pack_header(wire.kind_of(message), self._run, 0, 0, self._sequence, body)
        self._sequence += 1
        self._sock.settimeout(timeout_s)
        self._sock.sendall(header + body)
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"nothing came within {timeout_s:g} s")
            self._sock.settimeout(left_s)
            frame = self._receive()
            if frame is not None:
                return wire.decode(frame.kind, frame.body)

    def _receive(self) -> Frame | None:
        buffer = self._reader.buffer()[:RECEIVE_BYTES]
        num_bytes = self._sock.recv_into(buffer)
        if num_bytes == 0:
            raise EOFError("it hung up")
        return self._reader.advance(num_bytes)

    def close(self) -> None:
        self._sock.close()


_ACCEPTED = wire.Accepted(VERSION, "", "", b"", "")


def is_url(where: str) -> bool:
    """Whether this names a syncer rather than a folder."""
    return "://" in where


def read_status(
    where: str | os.PathLike[str], token: str | None = None, certificate: Path | None = None
) -> dict[str, Any]:
    """The status of the run at a URL or in a run directory.

    `live` says whether its syncer answered. If none did, a run directory still has the last status that was
    written down, with its age in `age_s`. Token and certificate are for URLs: in a directory they are found.
    """
    if is_url(os.fspath(where)):
        with StatusClient(os.fspath(where), read_token(token, os.environ, None), certificate) as client:
            return {**client.status(), "live": True}
    run_dir = Path(where)
    url = _text(run_dir / "url")
    if not url and not (run_dir / "run.db").exists():
        raise StoreError(
            f"There is no run in {run_dir}.",
            "There is nothing to show.",
            "Give the directory of a run, for example runs/gemma-1, or the URL of a syncer.",
        )
    try:
        return {**_ask_locally(run_dir, url), "live": True}
    except AtollError as error:  # not there, not ours any more, or of another version
        return {**_last_status(run_dir, error), "live": False}


def _ask_locally(run_dir: Path, url: str) -> dict[str, Any]:
    """Whoever may read the directory may read the run, so nothing has to be given."""
    secret = _text(run_dir / "tokens" / "read.token")
    if not RunConfig.from_toml(run_dir / "config.toml").security.mtls:
        with StatusClient(url, secret) as client:
            return client.status()
    where = parse(url)
    assert isinstance(where, RunURL)
    identity = ServerIdentity.load_or_make(run_dir, where.run)
    with tempfile.TemporaryDirectory(prefix="atoll-") as folder:  # private to this user
        certificate = Path(folder) / "reader.pem"
        certificate.write_bytes(b"".join(identity.issue("reader")))
        with StatusClient(url, secret, certificate) as client:
            return client.status()


def _last_status(run_dir: Path, error: AtollError) -> dict[str, Any]:
    path = run_dir / "status.json"
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
        age_s = max(0.0, time.time() - path.stat().st_mtime)
    except (OSError, ValueError):
        raise StoreError(
            f"The syncer of {run_dir} does not answer, and left no status behind.",
            error.what,
            "Start it again with `atoll syncer --run-dir`, or look at its log.",
        ) from error
    return {**status, "age_s": round(age_s, 1)}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "TLS failed").replace("_", " ").lower()
    if isinstance(error, TimeoutError):
        return "nothing came in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
