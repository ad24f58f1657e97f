"""`atoll syncer`: the syncer of a real fleet, in the foreground."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from atoll.cli import options as opt
from atoll.cli.logs import end_on_sigterm, start_logging
from atoll.cli.settings import RUNS, config_of, new_run_dir, unusable
from atoll.config import RunConfig
from atoll.errors import ConfigError
from atoll.runtime.supervising import Supervised
from atoll.wire.url import DEFAULT_PORT, RunURL, parse

__all__ = ["syncer"]

INTERRUPTED = 130
EVERYWHERE = "0.0.0.0"


def syncer(
    config: opt.ConfigFile = None,
    listen: opt.Listen = f"{EVERYWHERE}:{DEFAULT_PORT}",
    run_dir: opt.RunDir = None,
    name: opt.RunName = None,
    steps: opt.Steps = None,
    settings: opt.Settings = None,
    mtls: opt.Mtls = False,
    issue: opt.Issue = None,
    insecure: opt.Insecure = False,
    advertise: opt.Advertise = None,
    accept_loss: opt.AcceptLoss = False,
    supervise: opt.Supervise = False,
) -> None:
    """Serve a run: learners dial in, offer what they learned, and get the merged model.

    Needs one open port and no GPU. It prints the URL to join by, which
    carries no secret, and where the token is, which does. Stop it with
    Ctrl-C; the same command goes on where it stopped, under the same URL, and
    learners find it again by themselves. With --supervise it comes back by
    itself, within moments, however it dies.

    [dim]atoll syncer --run-dir runs/my-run --steps 10000 --supervise[/dim]
    """
    if issue is not None and run_dir is None and name is None:
        raise ConfigError(
            f"--issue {issue} does not say for which run.",
            "A certificate is good for one run.",
            "Add --run-dir with the directory of the run.",
        )
    place = _place(run_dir, name)
    changes: dict[str, dict[str, Any]] = {}
    if steps is not None:
        changes["budget"] = {"ticks": steps}
    if insecure:  # a run that asks for certificates refuses this: they would be forgotten for good
        changes["security"] = {"tls": False}
    if mtls:
        changes.setdefault("security", {})["mtls"] = True
    if issue is not None:
        _issue(place, name, issue)
        return
    resolved = config_of(place, config, changes, settings or ())
    host, port = _host_and_port(listen)
    # Merges take one core; more threads than free cores would be far slower.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    end_on_sigterm()
    serve = _supervise if supervise else _serve
    try:
        serve(resolved, place, name, host, port, advertise, accept_loss)
    except KeyboardInterrupt:
        typer.echo(f"stopped; what was merged is in {place}, and the same command goes on from there")
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(f"the run is finished; its model: atoll export {place}")


def _serve(
    config: RunConfig,
    place: Path,
    name: str | None,
    host: str,
    port: int,
    advertise: str | None,
    accepts_loss: bool,
) -> None:
    from atoll.runtime.syncer import Syncer

    start_logging()
    serving = Syncer(
        config, place, name=name, listen=host, port=port, advertise=advertise, accepts_loss=accepts_loss
    )
    with serving:
        _tell_how_to_join(place, config, serving.url)
        while not serving.wait(0.5):
            pass


def _supervise(
    config: RunConfig,
    place: Path,
    name: str | None,
    host: str,
    port: int,
    advertise: str | None,
    accepts_loss: bool,
) -> None:
    kept = Supervised(config, place, name, host, port, advertise, accepts_loss, say=typer.echo)
    kept.run(lambda url: _tell_how_to_join(place, config, url))


def _place(run_dir: Path | None, name: str | None) -> Path:
    if run_dir is not None:
        return run_dir
    return RUNS / name if name is not None else new_run_dir(None, "run")


def _host_and_port(listen: str) -> tuple[str, int]:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) >= 1 << 16:
        raise ConfigError(
            f"--listen {listen!r} cannot be read.",
            "Nobody could join.",
            f"Write HOST:PORT, for example {EVERYWHERE}:{DEFAULT_PORT}, or [::]:{DEFAULT_PORT}.",
        )
    return host.strip("[]") or EVERYWHERE, int(port)


def _issue(place: Path, run: str | None, learner: str) -> None:
    from atoll.runtime.security.certificates import ServerIdentity
    from atoll.runtime.security.private import write_private

    path = place / "certificates" / f"{learner}.pem"
    try:
        identity = ServerIdentity.load_or_make(place, run or place.resolve().name)
        write_private(path, b"".join(identity.issue(learner)))
    except OSError as error:
        raise unusable(place, error) from error
    typer.echo(f"{path}")
    typer.echo(f"Take it to {learner} over a safe channel; there: atoll join URL --certificate {path.name}")


def _tell_how_to_join(place: Path, config: RunConfig, url: str) -> None:
    token = place / "tokens" / "join.token"
    secure = config.security
    where = parse(url)
    assert isinstance(where, RunURL)
    typer.echo(f"run {where.run} in {place}\n")
    typer.echo(f"  {url}\n")
    if not secure.tls:
        typer.secho("There is no TLS and no token: anybody who can reach this port may join.", fg="red")
    options = f" --token-file {token.name}" if secure.tls else ""
    options += " --certificate NAME.pem" if secure.mtls else ""
    if secure.tls:
        typer.echo(f"The token is in {token}. Whoever has it may take part; the URL is no secret.")
    if secure.mtls:
        issuing = f"atoll syncer --run-dir {place} --issue NAME"
        typer.echo(f"Each learner needs a certificate for its name: {issuing}")
    typer.echo("On a learner's machine, with a recipe or with a loop of your own:\n")
    typer.echo(f"  atoll join '{url}' gemma --name learner-1{options}")
    typer.echo(f'  learner = atoll.join("{url}", model=model, optimizer=optimizer)\n')
