"""`atoll status`: how a run stands, once or continuously."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from atoll.cli import options as opt
from atoll.cli.judge import read_recipe
from atoll.errors import JoinError
from atoll.observe.formats import duration
from atoll.observe.live import Live
from atoll.observe.status_view import render_status
from atoll.recipes import recipe_from
from atoll.runtime.reader import is_url, read_status
from atoll.runtime.security.tokens import TOKEN_FILE_VARIABLE, read_token

__all__ = ["status", "token_in"]

WATCH_S = 1.0


def status(
    run: Annotated[str, typer.Argument(help="A run directory, or the URL of a syncer.")],
    watch: Annotated[bool, typer.Option("--watch", help="Look once a second until the run is over.")] = False,
    token_file: opt.TokenFile = None,
    certificate: opt.Certificate = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show how a run stands: alive, participating, merged, goodput, stalls, bytes, every learner.

    A run directory needs no token: whoever may read it may read the run. If
    its syncer does not answer, its last written status is shown, and said to
    be old. `--json --watch` prints one object per line.

    [dim]atoll status runs/gemma-1[/dim]

    [dim]atoll status 'atoll://syncer.example:7700/my-run?key=...' --token-file read.token --watch[/dim]
    """
    token = token_in(token_file)
    if watch:
        _watch(run, token, certificate, as_json)
        return
    found = _look(run, token, certificate)
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


def _look(run: str, token: str | None, certificate: Path | None) -> dict[str, Any]:
    """The status, with the unit of the recipe where the run directory knows it."""
    found = read_status(run, token, certificate)
    settings = None if is_url(run) else read_recipe(Path(run))
    return found if settings is None else {**found, "unit": recipe_from(settings).unit}


def _watch(run: str, token: str | None, certificate: Path | None, as_json: bool) -> None:
    console = Console(stderr=as_json)
    began_s = time.monotonic()
    try:
        if as_json:
            while True:
                found = _look(run, token, certificate)
                typer.echo(json.dumps(found))
                if _is_last(found):
                    return
                time.sleep(WATCH_S)
        with Live(console) as live:
            while True:
                found = _look(run, token, certificate)
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
    age = duration(found["age_s"])
    if found.get("state") == "finished":
        console.print(Text(f"The run ended {age} ago. This is how it stood.", style="dim"))
    else:
        console.print(Text(f"The syncer does not answer. Its last word was {age} ago:", style="bold yellow"))
