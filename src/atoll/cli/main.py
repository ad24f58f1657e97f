"""`atoll`: the command line. Each subcommand has a file of its own, and none imports torch to be listed."""

from __future__ import annotations

import sys

import typer

from atoll import __version__
from atoll.cli import export, fsck, join, lab, plan, replay, rollback, simulate, status, syncer, train
from atoll.errors import AtollError

__all__ = ["app", "run"]

cli = typer.Typer(
    name="atoll",
    help="Train one model on many unreliable islands of compute.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
cli.command()(train.train)
cli.command()(syncer.syncer)
cli.command()(join.join)
cli.command()(status.status)
cli.command()(export.export)
cli.command()(fsck.fsck)
cli.command()(replay.replay)
cli.command()(rollback.rollback)
cli.command()(plan.plan)
cli.add_typer(simulate.commands, name="simulate")
cli.add_typer(lab.commands, name="lab")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"atoll {__version__}")
        raise typer.Exit


@cli.callback()
def options(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
    ),
) -> None:
    """Train one model on many unreliable islands of compute."""


def app() -> None:
    """The console script: an AtollError is told in its own words, without a traceback."""
    sys.exit(run())


def run(arguments: list[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    try:
        cli(arguments, prog_name="atoll", standalone_mode=True)
    except AtollError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        return 2
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 1
    return 0
