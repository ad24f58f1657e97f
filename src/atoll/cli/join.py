"""`atoll join`: one learner of a recipe against a syncer somewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli import options as opt
from atoll.cli.logs import end_on_sigterm, start_logging
from atoll.cli.settings import parse_speeds
from atoll.cli.status import token_in
from atoll.recipes import load_recipe
from atoll.runtime.children import run_learner
from atoll.wire.url import LocalURL, parse

__all__ = ["join"]

INTERRUPTED = 130
LEARNERS = Path("learners")

Name = Annotated[str | None, typer.Option(help="Of this learner.", show_default="made from its key")]
StateDir = Annotated[
    Path | None,
    typer.Option(
        help="Where name, key, data cursor and optimizer state are kept between two lives.",
        show_default="learners/RUN/NAME if there is a --name",
    ),
]


def join(
    url: Annotated[str, typer.Argument(help="What `atoll syncer` printed. Quote it.")],
    recipe: opt.RecipeName = "gemma",
    size: opt.Size = "tiny",
    name: Annotated[
        str | None, typer.Option(help="Of this learner.", show_default="made from its key")
    ] = None,
    state_dir: StateDir = None,
    token_file: opt.TokenFile = None,
    certificate: opt.Certificate = None,
    speed: Annotated[str, typer.Option(help="0.5 takes twice the time for each step.")] = "1",
    seed: opt.Seed = 0,
    model: opt.Model = None,
    data: opt.Data = None,
) -> None:
    """Take part in a run with a recipe: train, offer, adopt, until the run is over.

    Everything about the run comes from its syncer; a wrong token, fingerprint
    or model is refused at the door with a sentence. If the connection breaks,
    training goes on and the syncer is dialled again. Torch uses one thread
    unless OMP_NUM_THREADS says otherwise.

    [dim]atoll join 'atoll://syncer.example:7700/my-run?key=sha256-...' gemma --token-file join.token[/dim]
    """
    where = parse(url)
    chosen = load_recipe(recipe, size, seed=seed, model=model, data=data)
    (pace,) = parse_speeds(speed, 1, "--speed")
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
