"""Syncers of this very process: `join(syncer.url)` finds its token here, and needs none from the user."""

from __future__ import annotations

__all__ = ["forget", "register", "token_of"]

_tokens: dict[str, str] = {}


def register(url: str, token: str) -> None:
    """A syncer listens in this process."""
    _tokens[url] = token


def forget(url: str) -> None:
    """It has stopped."""
    _tokens.pop(url, None)


def token_of(url: str) -> str | None:
    """The join token of a syncer in this process."""
    return _tokens.get(url)
