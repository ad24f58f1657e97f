"""`atoll status`: how a run stands, once or continuously."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from atoll.errors import JoinError
from atoll.observe.formats import duration
from atoll.observe.live import Live
from atoll.observe.status_view import render_status
from atoll.runtime.reader import read_status
from atoll.runtime.security.tokens import TOKEN_FILE_VARIABLE, read_token

__all__ = ["status", "token_in"]

WATCH_S = 1.0


def status(
    run: str = typer.Argument(help="A run directory, or the URL of a syncer."),
    watch: bool = typer.Option(False, help="Keep looking, once a second, until the run is finished."),
    token_file: Path | None = typer.Option(
        None, help="For a URL: a file with the read, join or admin token.", show_default="ATOLL_TOKEN"
    ),
    certificate: Path | None = typer.Option(None, help="For a URL with mTLS: the PEM file issued to you."),
    as_json: bool = typer.Option(
        False, "--json", help="One JSON object as the last line; with --watch, one per line."
    ),
) -> None:
    """Show how a run stands: alive, participating, merged, goodput, stalls, bytes, every learner.

    A run directory needs no token: whoever may read it may read the run. If its syncer does not answer,
    its last written status is shown, and said to be old.

    [dim]atoll status runs/gemma-1[/dim]

    [dim]atoll status 'atoll://syncer.example:7700/my-run?key=...' --token-file read.token --watch[/dim]
    """
    token = token_in(token_file)
    if watch:
        _watch(run, token, certificate, as_json)
        return
    found = read_status(run, token, certificate)
    if as_json:
        typer.echo(json.dumps(found))
        return
    console = Console()
    _say_if_old(console, found)
    console.print(render_status(found))


def token_in(path: Path | None) -> str | None:
    """The token in a file; None if no file was named."""
    if path is None:
        return None
    if not str(path).strip():
        raise JoinError("--token-file names no file.", "There is no token to show.", "Name one.")
    return read_token(None, {TOKEN_FILE_VARIABLE: str(path)}, None)


def _watch(run: str, token: str | None, certificate: Path | None, as_json: bool) -> None:
    console = Console(stderr=as_json)
    began_s = time.monotonic()
    try:
        if as_json:
            while True:
                found = read_status(run, token, certificate)
                typer.echo(json.dumps(found))
                if _is_last(found):
                    return
                time.sleep(WATCH_S)
        with Live(console) as live:
            while True:
                found = read_status(run, token, certificate)
                live.update(time.monotonic() - began_s, found)
                if _is_last(found):
                    break
                time.sleep(WATCH_S)
        _say_if_old(console, found)
    except KeyboardInterrupt:
        return


def _is_last(found: dict[str, Any]) -> bool:
    return found.get("state") == "finished" or not found["live"]


def _say_if_old(console: Console, found: dict[str, Any]) -> None:
    if found["live"]:
        return
    words = f"The syncer does not answer. This is its last word, {duration(found['age_s'])} old."
    style = "dim" if found.get("state") == "finished" else "bold yellow"
    console.print(Text(words, style=style))
