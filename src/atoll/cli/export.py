"""`atoll export`: the global model of a run as files that others can load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli import judge
from atoll.cli import options as opt

__all__ = ["export"]


def export(
    run: Annotated[Path, typer.Argument(help="A run directory; its syncer may be running.")],
    out: Annotated[Path | None, typer.Option(help="Where to write.", show_default="RUN/model")] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Write what is left of a run that has lost merges.")
    ] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Write the newest merged weights of a run as safetensors.

    [dim]atoll export runs/gemma-1 --out gemma[/dim]

    A run of a recipe also gets its config.json, so the folder loads with
    transformers:

    [dim]AutoModelForCausalLM.from_pretrained("runs/gemma-1/model")[/dim]

    For any other model, model.safetensors is its state dict; tied weights
    stand there under each of their names, and float buffers as the mean over
    the learners. Frozen parameters are not in it: they never leave the
    learners. A damaged run whose newest weights cannot be had is refused.
    """
    settings, folder = judge.read_recipe(run), str(out or run / "model")
    found = judge.export(settings, str(run), folder, accepts_loss=accept_loss)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        typer.echo(f"{found['tensors']} tensors, {found['values']:,} values, after {found['merges']} merges:")
        typer.echo(f"{found['path']}/model.safetensors")
        if found["lost"]:
            _show_loss(found["versions"], found["lost"])
        if found["missing"]:
            typer.echo(f"frozen, so not in the file: {', '.join(found['missing'])}")
            typer.echo(
                "Build the model with your own frozen weights, then load_state_dict(..., strict=False)."
            )


def _show_loss(versions: list[int], lost: list[str]) -> None:
    held = ", ".join(f"fragment {p} at version {version}" for p, version in enumerate(versions))
    typer.echo(f"not the newest weights, which are lost: {held}")
    for problem in lost:
        typer.echo(f"lost: {problem}")
