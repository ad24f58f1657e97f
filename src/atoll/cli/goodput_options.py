"""The options of `atoll simulate goodput`, each with its help.

Amounts are text, read by `atoll.sim.units`: 1.2M, 17.5s, 1y. What was not given is None, so that a preset
or a measured run can tell a choice from a default; the defaults themselves are those of `sim/fleet/model.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Checkpoint",
    "Chips",
    "Days",
    "Down",
    "Elastic",
    "Elasticity",
    "Fit",
    "FromRun",
    "Learners",
    "Mtbi",
    "Outage",
    "Plot",
    "Preset",
    "Price",
    "Quorum",
    "Reload",
    "Repetitions",
    "Return",
    "ReturnPower",
    "ReturnShape",
    "Seed",
    "Shocks",
    "Slice",
    "SpeedSpread",
    "Step",
    "SyncerDown",
    "SyncerMtbf",
    "Timeline",
    "Traces",
    "Up",
    "WriteTraces",
]

_FLEET = "The fleet"
_PAUSES = "What a failure costs"
_MORE = "What else goes wrong"
_STUDY = "The study"
_OUT = "What comes out"

Chips = Annotated[
    str | None,
    typer.Option(help="One or several: 150k,1.2M.", show_default="150k,1.2M", rich_help_panel=_FLEET),
]
Learners = Annotated[
    str | None,
    typer.Option(
        help="How many share the chips: 1 is Data-Parallel.",
        show_default="1,2,4,8,16",
        rich_help_panel=_FLEET,
    ),
]
Mtbi = Annotated[
    str | None,
    typer.Option(
        help="Mean time between interruptions of one chip; inf: none (null in JSON).",
        show_default="1y",
        rich_help_panel=_FLEET,
    ),
]
Slice = Annotated[
    str | None,
    typer.Option(help="Chips that leave and return together.", show_default="256", rich_help_panel=_FLEET),
]
SpeedSpread = Annotated[
    str | None,
    typer.Option(
        help="How much slower the slowest learner is, e.g. 0.18.", show_default="0", rich_help_panel=_FLEET
    ),
]
Quorum = Annotated[
    int | None,
    typer.Option(help="K: fewest learners that may merge.", show_default="1", rich_help_panel=_FLEET),
]
Elastic = Annotated[
    bool | None,
    typer.Option(
        "--elastic/--no-elastic",
        help="A learner that loses a slice goes on without it, or stops as a whole.",
        show_default="elastic",
        rich_help_panel=_FLEET,
    ),
]
Elasticity = Annotated[
    str | None,
    typer.Option(help="elastic, none, or both to compare.", show_default="elastic", rich_help_panel=_FLEET),
]

Step = Annotated[
    str | None,
    typer.Option(help="One step: the one in flight ends first.", show_default="5s", rich_help_panel=_PAUSES),
]
Down = Annotated[
    str | None,
    typer.Option(help="Standing still to shrink.", show_default="17.5s", rich_help_panel=_PAUSES),
]
Up = Annotated[
    str | None, typer.Option(help="Standing still to grow.", show_default="13s", rich_help_panel=_PAUSES)
]
Return = Annotated[
    str | None,
    typer.Option(
        "--return",
        help="Mean time until a slice, or a spare, is back.",
        show_default="70s",
        rich_help_panel=_PAUSES,
    ),
]
ReturnShape = Annotated[
    str | None,
    typer.Option(
        help="Of the return delay: below 1, few slices are away very long.",
        show_default="1",
        rich_help_panel=_PAUSES,
    ),
]
ReturnPower = Annotated[
    str | None,
    typer.Option(
        help="Of the return delay: above 1, hardly any is back at once.",
        show_default="1",
        rich_help_panel=_PAUSES,
    ),
]
Outage = Annotated[
    str | None,
    typer.Option(
        help="Not elastic: until the learner steps again.", show_default="82s", rich_help_panel=_PAUSES
    ),
]
Reload = Annotated[
    str | None,
    typer.Option(
        help="Not elastic: reading the checkpoint, on top.", show_default="0s", rich_help_panel=_PAUSES
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        help="Not elastic: time between checkpoints; the work since the last is done again.",
        show_default="0s: nothing is lost",
        rich_help_panel=_PAUSES,
    ),
]

Shocks = Annotated[
    list[str] | None,
    typer.Option(
        "--shock",
        help="Many slices at once: rack, power, site, push (illustrative numbers), or your own: "
        "rack:every=30d,share=0.1,down=1h[,scope=learner|fleet]. May be repeated.",
        rich_help_panel=_MORE,
    ),
]
Traces = Annotated[
    Path | None,
    typer.Option(
        help="Chips that a spot market grants: a CSV with time_s,learner,chips.", rich_help_panel=_MORE
    ),
]
SyncerMtbf = Annotated[
    str | None,
    typer.Option(
        help="Mean time between outages of the syncer.", show_default="never", rich_help_panel=_MORE
    ),
]
SyncerDown = Annotated[
    str | None,
    typer.Option(help="How long one lasts; learners train on.", show_default="1min", rich_help_panel=_MORE),
]

Days = Annotated[
    str | None, typer.Option(help="Simulated time.", show_default="7, for a table 1", rich_help_panel=_STUDY)
]
Repetitions = Annotated[
    int | None,
    typer.Option(help="Of the same fleet with other luck.", show_default="8", rich_help_panel=_STUDY),
]
Seed = Annotated[int, typer.Option(help="The same seed, the same bits.", rich_help_panel=_STUDY)]
Preset = Annotated[
    str | None,
    typer.Option(help="paper-table1: 30 fleets beside the paper's.", rich_help_panel=_STUDY),
]
FromRun = Annotated[
    Path | None,
    typer.Option(
        help="Take times measured in a real run: its directory. What it cannot tell stays the default.",
        rich_help_panel=_STUDY,
    ),
]
Fit = Annotated[
    Path | None,
    typer.Option(
        help="Find the constants that fit your table, and which of them it pins: a CSV with "
        "chips,learners,elastic,goodput_percent[,uptime_percent].",
        rich_help_panel=_STUDY,
    ),
]

Price = Annotated[
    str | None,
    typer.Option(help="Money per chip and hour: says what is wasted.", rich_help_panel=_OUT),
]
Plot = Annotated[
    Path | None,
    typer.Option(help="Goodput by chips and learners, as a picture (.svg).", rich_help_panel=_OUT),
]
Timeline = Annotated[
    Path | None,
    typer.Option(help="A week of one fleet, as a picture (.svg).", rich_help_panel=_OUT),
]
WriteTraces = Annotated[
    Path | None,
    typer.Option(help="Chips at work of one fleet over time, as CSV.", rich_help_panel=_OUT),
]
