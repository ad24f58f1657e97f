"""`atoll join`: one learner of a recipe against a syncer somewhere."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from atoll.cli.logs import end_on_sigterm, start_logging
from atoll.cli.settings import parse_speeds
from atoll.cli.status import token_in
from atoll.recipes import load_recipe
from atoll.runtime.processes import run_learner
from atoll.wire.url import LocalURL, parse

__all__ = ["join"]

INTERRUPTED = 130
LEARNERS = Path("learners")


def join(
    url: str = typer.Argument(help="What `atoll syncer` printed. Quote it."),
    recipe: str = typer.Argument("gemma", help="What the run trains; see `atoll train --help`."),
    size: str = typer.Option("tiny", help="tiny or small, as the run."),
    name: str | None = typer.Option(None, help="Of this learner.", show_default="made from its key"),
    state_dir: Path | None = typer.Option(
        None,
        help="Where name, key and data cursor are kept between two lives.",
        show_default="learners/RUN/NAME if there is a --name",
    ),
    token_file: Path | None = typer.Option(
        None, help="A file with the join token.", show_default="ATOLL_TOKEN"
    ),
    certificate: Path | None = typer.Option(None, help="For mTLS: the PEM file issued to this name."),
    speed: str = typer.Option("1", help="0.5 takes twice the time for each step."),
    seed: int = typer.Option(0, help="Of the initial weights, if this learner is the first."),
    model: str | None = typer.Option(None, help="Your own model: hf:NAME, or hf:PATH of a folder or config."),
    data: str | None = typer.Option(None, help="Your own text: a folder, or hf:NAME of a dataset."),
) -> None:
    """Take part in a run with a recipe: train, offer, adopt, until the run is over.

    Everything about the run comes from its syncer; a wrong token, fingerprint or model is refused at the
    door with a sentence. If the connection breaks, training goes on and the syncer is dialled again.
    Torch uses one thread unless OMP_NUM_THREADS says otherwise.

    [dim]atoll join 'atoll://syncer.example:7700/my-run?key=sha256-...' gemma --token-file join.token[/dim]
    """
    where = parse(url)
    chosen = load_recipe(recipe, size, seed=seed, model=model, data=data)
    (pace,) = parse_speeds(speed, 1)
    if state_dir is None and name is not None and not isinstance(where, LocalURL):
        state_dir = LEARNERS / where.run / name
    token = token_in(token_file)
    # More threads than free cores are far slower than one, and whose cores are free is not ours to know.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    start_logging()
    end_on_sigterm()
    typer.echo(chosen.describe(), err=True)
    try:
        run_learner(
            chosen.settings(),
            str(where),
            token,
            name,
            str(state_dir) if state_dir is not None else None,
            pace,
            str(certificate) if certificate is not None else None,
        )
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
