"""Options and arguments of the commands, each with its help: what several share is said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atoll.recipes import RECIPES

__all__ = [
    "AcceptLoss",
    "Advertise",
    "Algorithm",
    "AsJson",
    "Certificate",
    "ConfigFile",
    "Data",
    "Insecure",
    "Issue",
    "Kills",
    "Learners",
    "Listen",
    "Model",
    "Mtls",
    "NewRunDir",
    "RecipeName",
    "Resume",
    "RunDir",
    "RunName",
    "Seed",
    "Settings",
    "Size",
    "Speeds",
    "Steps",
    "Supervise",
    "TokenFile",
]

_ABOUT = "; ".join(f"[bold]{name}[/bold]: {about}" for name, about in RECIPES.items())

# Shared

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object as the last line.")]
ConfigFile = Annotated[Path | None, typer.Option(help="A TOML file with settings of the run.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="One setting, e.g. sync.min_quorum=2 or codec.up=int8. May be repeated."),
]
Steps = Annotated[int | None, typer.Option(help="The budget, in ticks of the run's clock.")]
RecipeName = Annotated[str, typer.Argument(help=f"What to train. {_ABOUT}.")]
Size = Annotated[str, typer.Option(help="tiny (a minute or two), or small (many minutes).")]
Seed = Annotated[int, typer.Option(help="Of the initial weights and of the order of the data.")]
Model = Annotated[str | None, typer.Option(help="Your own model: hf:NAME, or hf:PATH of a folder or config.")]
Data = Annotated[str | None, typer.Option(help="Your own text: a folder, or hf:NAME of a dataset.")]
TokenFile = Annotated[
    Path | None, typer.Option(help="A file with the run's token; else ATOLL_TOKEN or ATOLL_TOKEN_FILE.")
]
Certificate = Annotated[Path | None, typer.Option(help="For a run with mTLS: the PEM file issued to you.")]

# Of `atoll train`

Learners = Annotated[int | None, typer.Option(help="How many learners.", show_default="4")]
Speeds = Annotated[
    str | None,
    typer.Option(help="One per learner, e.g. 1,1,0.5,1: 0.5 takes twice the time for each step."),
]
Kills = Annotated[
    list[str] | None,
    typer.Option(
        "--kill", help="kill -9 somebody: learner-1@40%, learner-1@12s, syncer@50%. May be repeated."
    ),
]
Algorithm = Annotated[
    str | None,
    typer.Option(
        help="decoupled (nobody waits), streaming or diloco (everybody waits).", show_default="decoupled"
    ),
]
NewRunDir = Annotated[
    Path | None,
    typer.Option("--run-dir", help="A new directory for all about the run.", show_default="runs/RECIPE-N"),
]
Resume = Annotated[
    Path | None,
    typer.Option(help="Go on with the run in this directory, after Ctrl-C, a crash or a power cut."),
]
AcceptLossAtResume = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="With --resume: go on although the directory has lost merges it promised to keep.",
    ),
]

# Of `atoll syncer`

Listen = Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one.")]
RunDir = Annotated[
    Path | None,
    typer.Option(help="The run's directory; an existing run goes on.", show_default="runs/NAME"),
]
RunName = Annotated[str | None, typer.Option(help="Of the run.", show_default="that of its directory")]
Mtls = Annotated[bool, typer.Option("--mtls", help="Ask every learner for a certificate (see --issue).")]
Issue = Annotated[str | None, typer.Option(help="Write a certificate for the learner of this name, and end.")]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="No TLS, no token, for this start: whoever can reach the port may join and read."
    ),
]
Advertise = Annotated[
    str | None, typer.Option(help="The host in the URL.", show_default="this machine's address")
]
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss", help="Go on although the directory has lost merges that it promised to keep."
    ),
]
Supervise = Annotated[
    bool,
    typer.Option("--supervise", help="Start the syncer again, at once and under the same URL, if it dies."),
]
