"""`atoll simulate bandwidth`: what the links between sites must carry, by method."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from atoll.cli.options import AsJson
from atoll.errors import ConfigError
from atoll.sim.bandwidth.traffic import Traffic
from atoll.sim.units import read_count, read_duration, read_number, read_rate

__all__ = ["bandwidth"]

DEFAULTS = {
    "params": "12B",
    "step": "1.5s",
    "sites": "4",
    "bits": "16,4",
    "rtt": "0s",
    "cu": "0.5,0.8,0.9,0.95,0.99",
    "interval": "24",
    "fragments": "24",
    "overlap": "2",
}

Preset = Annotated[
    str | None,
    typer.Option(help="Recompute what was published: streaming-table4, headline. Takes no other settings."),
]
Params = Annotated[str | None, typer.Option(help="Parameters: 12B.", show_default=DEFAULTS["params"])]
Step = Annotated[
    str | None, typer.Option(help="One inner step without waiting: 1.5s.", show_default=DEFAULTS["step"])
]
Sites = Annotated[
    str | None, typer.Option(help="Sites that train one model.", show_default=DEFAULTS["sites"])
]
Bits = Annotated[
    str | None,
    typer.Option(help="Per parameter on the wire, one or several: 16,4.", show_default=DEFAULTS["bits"]),
]
Rtt = Annotated[
    str | None, typer.Option(help="Round trip between sites: 60ms.", show_default=DEFAULTS["rtt"])
]
Cu = Annotated[
    str | None,
    typer.Option(help="Compute utilisations asked for, each below 1.", show_default=DEFAULTS["cu"]),
]
Interval = Annotated[
    str | None,
    typer.Option(
        help="H: steps between two synchronisations of a fragment.", show_default=DEFAULTS["interval"]
    ),
]
Fragments = Annotated[
    str | None,
    typer.Option(
        help="P: fragments, for streaming and decoupled; at most H.", show_default=DEFAULTS["fragments"]
    ),
]
Overlap = Annotated[
    str | None,
    typer.Option(help="tau: steps that a fragment may take on its way.", show_default=DEFAULTS["overlap"]),
]
Bandwidth = Annotated[
    str | None, typer.Option("--bandwidth", help="What becomes of each method on this link: 2Gbit/s.")
]
Plot = Annotated[
    Path | None, typer.Option(help="Draw utilisation against bandwidth into this file: OUT.svg.")
]


def bandwidth(
    preset: Preset = None,
    params: Params = None,
    step: Step = None,
    sites: Sites = None,
    bits: Bits = None,
    rtt: Rtt = None,
    cu: Cu = None,
    interval: Interval = None,
    fragments: Fragments = None,
    overlap: Overlap = None,
    link: Bandwidth = None,
    as_json: AsJson = False,
    plot: Plot = None,
) -> None:
    """What the links between sites must carry: Data-Parallel, DiLoCo, Streaming and Decoupled.

    An event model plays steps, buckets and one link for each site, and says which link reaches which compute
    utilisation. With --bandwidth it says what becomes of each method on yours.
    """
    settings = {
        "params": params,
        "step": step,
        "sites": sites,
        "bits": bits,
        "rtt": rtt,
        "cu": cu,
        "interval": interval,
        "fragments": fragments,
        "overlap": overlap,
        "bandwidth": link,
    }
    given = {name: text for name, text in settings.items() if text is not None}
    console = Console(stderr=as_json)
    answer = _own(given, console, plot) if preset is None else _published(preset, given, console, plot)
    if as_json:
        typer.echo(json.dumps(answer))


def _own(given: dict[str, str], console: Console, plot: Path | None) -> dict[str, object]:
    from atoll.cli.bandwidth_study import tell

    texts = DEFAULTS | given
    link = read_rate(given["bandwidth"], "--bandwidth") if "bandwidth" in given else None
    if link is not None and link < 1:
        raise ConfigError(
            f"--bandwidth is {link:g} bit/s.",
            "Not a bit would pass in a second.",
            "Write for example 50Mbit/s or 2.5Gbit/s.",
        )
    return tell(_read_traffics(texts), _read_cus(texts["cu"]), link, console, plot)


def _published(name: str, given: dict[str, str], console: Console, plot: Path | None) -> dict[str, object]:
    from atoll.cli.bandwidth_presets import tell
    from atoll.sim.bandwidth.presets import check_preset

    check_preset(name)
    for option in given:
        raise ConfigError(
            f"--preset {name} was given with --{option}.",
            "A preset is a published setting; changed, it would prove nothing.",
            f"Leave out --{option}, or leave out --preset.",
        )
    return tell(name, console, plot)


def _read_traffics(texts: dict[str, str]) -> list[Traffic]:
    """One for each width in bits."""
    widths = [read_number(part, "--bits", above=True) for part in _parts(texts["bits"], "--bits", "16,4")]
    params, step_s = read_count(texts["params"], "--params"), read_duration(texts["step"], "--step")
    sites, interval = read_count(texts["sites"], "--sites"), read_count(texts["interval"], "--interval")
    fragments = read_count(texts["fragments"], "--fragments")
    overlap = read_count(texts["overlap"], "--overlap", least=0)
    rtt_s = read_duration(texts["rtt"], "--rtt", zero=True)
    return [
        Traffic(params, step_s, width, sites, interval, fragments, overlap, rtt_s)
        for width in dict.fromkeys(widths)
    ]


def _read_cus(text: str) -> list[float]:
    cus = [read_number(part, "--cu", above=True) for part in _parts(text, "--cu", DEFAULTS["cu"])]
    for cu in cus:
        if cu >= 1:
            raise ConfigError(
                f"--cu is {cu:g}.",
                "It is the share of time spent computing, and no link is so fast that nothing is lost.",
                "Give numbers above 0 and below 1; 0.9 is 90 %.",
            )
    return sorted(set(cus))


def _parts(text: str, name: str, example: str) -> list[str]:
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(
            f"{name} is empty.", "There is nothing to compute.", f"Write for example {example}."
        )
    return parts
