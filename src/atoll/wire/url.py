"""Join URLs: where a run is, and how to know that it is the right one.

    atoll://syncer.example:7700/my-run?key=sha256-9f86d0...     TLS; `key` is the certificate's fingerprint
    atoll+plain://localhost:7700/my-run                         no TLS, asked for by name
    local://                                                    an in-process syncer

A URL carries no secret, so it may stand in scripts and logs. The fingerprint in it is what makes the
token safe: it is sent only to the holder of that certificate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from atoll.core.members import NAME
from atoll.errors import JoinError

__all__ = ["DEFAULT_PORT", "RUN_NAME", "LocalURL", "RunURL", "parse"]

DEFAULT_PORT = 7700
RUN_NAME = NAME
"""What a run may be called: the same as a learner."""

_HOST = re.compile(r"\[[0-9a-fA-F:.]+(%[\w.-]+)?\]|[\w.-]+", re.ASCII)
_KEY = re.compile(r"sha256-([0-9a-fA-F]{64})")
_EXAMPLE = "atoll://HOST:7700/RUN?key=sha256-..."
_COPY = f"Copy the whole URL that `atoll syncer` printed: {_EXAMPLE}"


@dataclass(frozen=True, slots=True)
class RunURL:
    """A run on a syncer. `str` gives the URL back."""

    host: str
    port: int
    run: str
    fingerprint: str
    """SHA-256 of the certificate in DER, as 64 lower-case hex digits; empty if plain."""
    plain: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.plain:
            return f"atoll+plain://{host}:{self.port}/{self.run}"
        return f"atoll://{host}:{self.port}/{self.run}?key=sha256-{self.fingerprint}"


@dataclass(frozen=True, slots=True)
class LocalURL:
    """A run of this process alone."""

    def __str__(self) -> str:
        return "local://"


def parse(text: str) -> RunURL | LocalURL:
    """Read a join URL, or raise a `JoinError` that says what is wrong with it."""
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        raise JoinError(
            f"{_shown(text)} is no join URL: it has no scheme.",
            "It does not say how to reach the run.",
            f"Write {_EXAMPLE}, or local:// to train in this process alone.",
        )
    if scheme == "local" and not rest:
        return LocalURL()
    if scheme not in ("atoll", "atoll+plain"):
        raise JoinError(
            f"{_shown(text)} is no join URL: Atoll does not speak {scheme!r}.",
            "Nobody would answer in a way that a learner understands.",
            f"Write {_EXAMPLE}, or local:// (and nothing after it) to train in this process alone.",
        )
    address, _, query = rest.partition("?")
    place, _, run = address.partition("/")
    host, port = _host_and_port(text, place)
    if not run:
        raise JoinError(
            f"{_shown(text)} names no run.",
            "A syncer serves one run, and checks that it is the one meant.",
            _COPY,
        )
    if not RUN_NAME.fullmatch(run):
        raise JoinError(
            f"{run[:100]!r} cannot be the name of a run: names match {RUN_NAME.pattern}.",
            "No syncer serves a run of this name.",
            "Check the part of the URL after the port.",
        )
    plain = scheme == "atoll+plain"
    return RunURL(host, port, run, _fingerprint(text, query, plain=plain), plain)


def _host_and_port(text: str, place: str) -> tuple[str, int]:
    match = _HOST.match(place)
    host = match.group() if match else ""
    rest = place[len(host) :]
    if not host or "@" in place or (rest and not rest.startswith(":")):
        raise JoinError(
            f"{_shown(text)} has no host that can be dialled.",
            "There is nobody to join.",
            "Write a name or an address before the port, an IPv6 address in brackets: atoll://[::1]:7700/RUN",
        )
    digits = rest[1:]
    if not rest:
        return host.strip("[]"), DEFAULT_PORT
    if not re.fullmatch(r"[0-9]{1,5}", digits) or not 0 < int(digits) < 2**16:
        raise JoinError(
            f"{_shown(text)} has the port {digits[:20]!r}.",
            "Ports are numbers from 1 to 65535, so nothing can be dialled.",
            f"Write the port that the syncer listens on, or leave it out for {DEFAULT_PORT}.",
        )
    return host.strip("[]"), int(digits)


def _fingerprint(text: str, query: str, *, plain: bool) -> str:
    """The key in the query; there must be one with TLS and none without, and nothing else."""
    name, _, value = query.partition("=")
    if plain and not query:
        return ""
    if plain:
        raise JoinError(
            f"{_shown(text)} asks for no TLS and has a key.",
            "Without TLS there is no certificate to compare the key with.",
            "Drop the key, or write atoll:// instead of atoll+plain://.",
        )
    if not query:
        raise JoinError(
            f"{_shown(text)} has no key.",
            "The token would go to whoever answers at that address.",
            f"{_COPY} (or atoll+plain://, if the run has no TLS).",
        )
    match = _KEY.fullmatch(value)
    if name != "key" or not match:
        raise JoinError(
            f"{_shown(text)} is not followed by ?key=sha256- and 64 hex digits.",
            "The syncer's certificate could not be checked. (A token does not belong in a URL.)",
            _COPY,
        )
    return match.group(1).lower()


def _shown(text: str) -> str:
    """The URL without the parts in which somebody may have put a secret, and not at any length."""
    return repr(re.sub(r"//[^/]*@", "//...@", text.strip().partition("?")[0])[:200])
