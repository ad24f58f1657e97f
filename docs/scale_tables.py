"""The tables of docs/scale.md: for each the commands that are run, and how their answers become a table.

A command is run as a user would run it, with --json, and its last line is read. Whatever a table says is in
that line; a difference or a formula beside it is computed here, and its column says so.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.sim.fleet.trace import read_traces
from atoll.sim.units import DAY

__all__ = ["TABLES", "Source", "between", "page_with", "run"]

ROOT = Path(__file__).resolve().parents[1]
HOURS_PER_YEAR = 8766
SPOT, SPOT_DAYS, SPOT_CHIPS = "docs/scale-spot.csv", 7, 2048
NAMES = {
    "data-parallel": "Data-Parallel",
    "diloco": "DiLoCo",
    "streaming": "Streaming",
    "decoupled": "Decoupled",
    "ratio of the two": "ratio of the two, decoupled with",
}
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a table comes from."""

    commands: tuple[str, ...]
    render: Callable[[list[Answer]], str]


def run(command: str) -> Answer:
    """What a command answers: the JSON object that is the last line of its output."""
    arguments = [sys.executable, "-m", *shlex.split(command), "--json"]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command}\nended with {done.returncode}:\n{done.stderr}")
    answer: Answer = json.loads(done.stdout.splitlines()[-1])
    return answer


def page_with(page: str, name: str, answers: Sequence[Answer] | None = None) -> str:
    """The page with one table made again, from answers at hand or from its commands."""
    source = TABLES[name]
    found = list(answers) if answers is not None else [run(command) for command in source.commands]
    commands = "\n".join(source.commands)
    old = between(page, name)
    return page.replace(
        f"<!-- {name} -->{old}<!-- /{name} -->",
        f"<!-- {name} -->\n```\n{commands}\n```\n\n{source.render(found)}\n<!-- /{name} -->",
    )


def between(page: str, name: str) -> str:
    """What stands between the marks of a table."""
    return page.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def _count(value: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _span(seconds: float) -> str:
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _who(cell: Answer) -> str:
    if cell["learners"] > 1:
        return f"{cell['learners']} learners"
    return "Data-Parallel, elastic by slice" if cell["elastic"] else "Data-Parallel, not elastic"


def _table1(answers: list[Answer]) -> str:
    """Ours (theirs, difference), a row for each number of learners."""
    (answer,) = answers
    rows: dict[str, list[str]] = {}
    for cell, theirs, residual in zip(
        answer["cells"], answer["theirs_percent"], answer["residuals"], strict=True
    ):
        text = f"{cell['goodput_percent']:.1f} ({theirs:g}, {round(residual, 1) + 0.0:+.1f})"
        rows.setdefault(_who(cell), []).append(text)
    sizes = dict.fromkeys(_count(cell["chips"]) for cell in answer["cells"])
    body = _table(["", *sizes], [[who, *cells] for who, cells in rows.items()])
    worst = max(cell["stderr"] for cell in answer["cells"])
    ours = answer["constants"]
    return body + (
        f"\nDistance: rms {answer['rms']:.2f} points, worst {answer['worst']:+.2f};"
        f" the standard error of a cell is at most {worst:.1f}."
        f" Constants (ours): step {ours['quantum_s']:g} s, shrinking {ours['down_s']:g} s,"
        f" growing {ours['up_s']:g} s, a slice of {ours['slice_chips']} chips is back after"
        f" {ours['return_s']:g} s on average,"
        f" outage of a learner that is not elastic {ours['outage_s']:g} s.\n"
    )


def _pinned(answers: list[Answer]) -> str:
    """Each constant with the range that the table allows."""
    (answer,) = answers
    fit = answer["fit"]
    rows = []
    for constant in fit["constants"]:
        verdict = "**yes**" if constant["pinned"] else "no"
        verdict += ", the search ended at its bound" if constant["open"] else ""
        span = f"{_span(constant['low'])} .. {_span(constant['high'])}"
        rows.append([constant["name"], _span(constant["best"]), span, verdict])
    return _table(["constant", "best", "possible", "pinned by the table"], rows) + (
        f"\nPossible: until the rms of the fit rises by {fit['slack_points']:g} points.\n"
    )


def _rule(answers: list[Answer]) -> str:
    """Cells with the same chips for each learner beside each other; ours and the paper's."""
    (answer,) = answers
    groups: dict[int, list[tuple[Answer, float]]] = {}
    for cell, theirs in zip(answer["cells"], answer["theirs_percent"], strict=True):
        if cell["elastic"]:
            groups.setdefault(cell["chips"] // cell["learners"], []).append((cell, theirs))
    rows = []
    for chips, group in sorted(groups.items()):
        if len(group) > 1:
            ours = [cell["goodput_percent"] for cell, _ in group]
            theirs = [value for _, value in group]
            learners = ", ".join(str(cell["learners"]) for cell, _ in group)
            rows.append(
                [
                    _count(chips),
                    learners,
                    f"{min(ours):.1f} .. {max(ours):.1f}",
                    f"{min(theirs):g} .. {max(theirs):g}",
                ]
            )
    return _table(["chips for each learner", "learners M", "simulated, %", "published, %"], rows)


def _uptime(answers: list[Answer]) -> str:
    """Uptime beside its formula, which takes one learner's own share of time from participation."""
    plain, quorum = answers
    rows = []
    for cell in plain["cells"]:
        steps = cell["participation_percent"] / 100
        formula = 100 * (1 - (1 - steps) ** cell["learners"])
        rows.append(
            [
                str(cell["learners"]),
                f"{cell['goodput_percent']:.1f} ± {cell['stderr']:.1f}",
                f"{cell['uptime_percent']:.2f}",
                f"{formula:.2f}",
                f"{cell['participation_percent']:.1f}",
            ]
        )
    (half,) = quorum["cells"]
    header = ["M", "goodput, %", "somebody steps, %", "1 - (1-u)^M, estimated", "participation, %"]
    return _table(header, rows) + (
        f"\nAt least {half['quorum']} of the {half['learners']} step"
        f" {half['uptime_quorum_percent']:.2f} % of the time.\n"
    )


def _shocks(answers: list[Answer]) -> str:
    """What failures that come together cost alone: chips otherwise never fail."""
    rows = []
    for answer in answers:
        shock = answer["settings"]["shocks"][0]
        whom = "every learner at once" if shock["scope"] == "fleet" else "a learner"
        every_s, down_s, share = shock["every_s"], shock["down_s"], shock["share"]
        rows.append(
            [
                f"{shock['name']}: {100 * share:g} % of {whom}, every {_span(every_s)}, for {_span(down_s)}",
                f"{100 * share * down_s / (every_s + down_s):.3f}",
                *(f"{100 - cell['goodput_percent']:.3f} ± {cell['stderr']:.3f}" for cell in answer["cells"]),
                *(f"{(100 - cell['uptime_percent']) / 100 * HOURS_PER_YEAR:.2f}" for cell in answer["cells"]),
            ]
        )
    header = [
        "shock",
        "goodput lost, estimated",
        "simulated, M = 1",
        "M = 16",
        "nobody steps, M = 1",
        "M = 16",
    ]
    return _table(header, rows) + (
        "\nGoodput lost in points; nobody steps in hours of a year. A learner is one site; chips fail in no"
        " other way.\n"
    )


def _syncer(answers: list[Answer]) -> str:
    rows = []
    for answer in answers:
        (cell,) = answer["cells"]
        away = answer["settings"]["syncer"]
        rows.append(
            [
                f"every {_span(away['every_s'])} for {_span(away['down_s'])}" if away else "never",
                f"{cell['goodput_percent']:.2f} ± {cell['stderr']:.2f}",
                f"{cell['merging_percent']:.2f}",
            ]
        )
    return _table(["the syncer is away", "goodput, %", "merging can go on, % of the time"], rows)


def _spot(answers: list[Answer]) -> str:
    (answer,) = answers
    (cell,) = answer["cells"]
    shares = cell["shares_percent"]
    traces = read_traces(ROOT / SPOT)
    rows = []
    for m, value in enumerate(cell["learner_goodput_percent"]):
        trace = traces.get(f"learner-{m}")
        granted = 100 * trace.mean(SPOT_DAYS * DAY) / SPOT_CHIPS if trace else 100.0
        rows.append([f"learner-{m}", f"{granted:.1f}", f"{value:.1f}"])
    lost = ", ".join(f"{name} {share:.1f} %" for name, share in shares.items() if share >= 0.05)
    rows.append(["fleet", "", f"{cell['goodput_percent']:.1f}"])
    return _table(["", "granted, % of its chips", "goodput, %"], rows) + (
        f"\nWhere the time went: {lost}. Somebody steps {cell['uptime_percent']:.2f} % of the time.\n"
    )


def _steps(count: int) -> str:
    return f"{count or 'no'} step{'s' if count > 1 else ''}"


def _twelve(answers: list[Answer]) -> str:
    (answer,) = answers
    cus = sorted({row["cu"] for row in answer["rows"]})
    rows = []
    for load, link in zip(answer["loads"], answer["link"], strict=True):
        same = [r for r in answer["rows"] if (r["method"], r["bits"]) == (load["method"], load["bits"])]
        needs = ["never" if row["gbps"] is None else f"{row['gbps']:.3g}" for row in same]
        late = (
            f"{100 * link['pace']:.0f} % of rounds, {_steps(link['staleness_steps'])} late"
            if load["method"] == "decoupled"
            else f"waits {_span(link['stall_s'])} a step"
            if link["stall_s"]
            else "waits for nothing"
        )
        rows.append(
            [
                f"{NAMES[load['method']]}, {load['bits']:g} bits",
                *needs,
                f"{100 * link['cu']:.1f} % busy; {late}",
            ]
        )
    table = _table(["Gbit/s for a utilisation of", *(f"{cu:g}" for cu in cus), "on 2 Gbit/s"], rows)
    syncer = ", ".join(f"{row['gbps']:g} Gbit/s with {row['bits']:g} bits" for row in answer["syncer"])
    return table + (
        "\nSimulated, per site and direction. Decoupled never waits: its columns are the share of its rounds"
        f" that it holds. Its syncer carries {syncer}, in and out over all sites. *never*: the round trips"
        f" alone take more. The closed forms are at most {100 * answer['largest_difference']:.1f} % apart.\n"
    )


def _table4(answers: list[Answer]) -> str:
    (answer,) = answers
    lines: dict[tuple[str, str], list[str]] = {}
    for row in answer["rows"]:
        mark = "" if row["agrees"] else " **miss**"
        lines.setdefault((row["model"], row["column"]), []).append(
            f"{row['gbps']:.3g} ({row['paper_gbps']:g}){mark}"
        )
    table = _table(
        ["", "", "50 %", "80 %", "90 %", "95 %", "99 %"], [[*key, *cells] for key, cells in lines.items()]
    )
    misses = "".join(
        f"- {row['model']}, {row['column']}, {100 * row['cu']:g} %: published {row['paper_gbps']:g} Gbit/s,"
        f" ours {row['gbps']:.3g}, {abs(row['links_apart'])} links"
        f" {'below' if row['links_apart'] < 0 else 'above'}\n"
        for row in answer["misses"]
    )
    agreeing = f"{answer['agreeing']} of {answer['cells']} cells agree"
    return f"{table}\nGbit/s, ours (published), by utilisation. {agreeing}. The misses:\n\n{misses}"


def _headline(answers: list[Answer]) -> str:
    (answer,) = answers
    rows = [
        [
            f"{NAMES[row['method']]}, {row['bits']} bits, Gbit/s",
            f"{row['paper_gbps']:g}",
            f"{row['gbps']:.4g}",
        ]
        for row in answer["rows"]
    ]
    rows += [
        [f"{NAMES[row['method']]} {row['bits']} bits, times", f"{row['paper']:g}", f"{row['ours']:.4g}"]
        for row in answer["ratios"]
    ]
    return _table(["", "published", "simulated"], rows)


def _scavenging(answers: list[Answer]) -> str:
    (answer,) = answers
    rows = [
        [f"+{row['extra']:.0%}".replace("%", " %"), f"{row['paper']:.2f}", f"{row['time']:.3f}"]
        for row in answer["scavenging"]
    ]
    return _table(["extra compute", "published", "estimated"], rows)


def _plans(answers: list[Answer]) -> str:
    rows = []
    for command, answer in zip(TABLES["plans"].commands, answers, strict=True):
        chosen, expected, other = answer["recommendation"], answer["expected"], answer["lock_step"]
        keys = ("learners", "quorum", "interval", "fragments", "overlap", "codec", "channels")
        rows.append(
            [
                Path(command.split()[-1]).stem,
                ", ".join(str(chosen[key]) for key in keys),
                f"{100 * expected['goodput']:.2f} %",
                _count(expected["tokens_per_s"]),
                _span(expected["time_s"]),
                _span(other["time_s"]),
                f"{answer['times_faster']:.1f}",
                f"{other['best_island_alone']['time_s'] / expected['time_s']:.1f}",
            ]
        )
    header = [
        "fleet",
        "M, K, H, P, tau, codec, channels",
        "goodput",
        "tokens/s",
        "time to the loss",
        "lock-step",
        "times faster",
        "than the best island alone",
    ]
    return _table(header, rows)


def _core(answers: list[Answer]) -> str:
    """What the machines came to beside what the fleet model says; nothing that depends on this machine."""
    (answer,) = answers
    rows = [
        [
            row["name"],
            *(f"{row[key]:,.4g}" for key in ("protocol", "model")),
            f"{round(row['difference'], 4) + 0.0:+.4f}"
            if row["model"] <= 1
            else f"{row['difference']:+,.0f}",
        ]
        for row in answer["model"]
    ]
    fates = ", ".join(f"{name} {100 * share:.1f} %" for name, share in answer["fates"].items())
    return _table(["", "protocol", "fleet model", "difference"], rows) + (
        f"\nSimulated: {answer['merges']:,} merges of {answer['rounds']:,} rounds in"
        f" {_span(answer['simulated_s'])} of virtual time, {answer['participants']:.1f} offers in a merge on"
        f" average, {answer['learner_steps']:,} steps of learners."
        f" Held by the protocol: {answer['held_s']:g} s."
        f" {answer['staleness_steps']:.2f} steps from snapshot to adoption. Tokens: {fates}."
        f" Invariants: {answer['violations']} violations in {answer['checks']:,} checks over the first"
        f" {answer['checked_merges']:,} merges.\n"
    )


GOODPUT = "atoll simulate goodput"
TOGETHER = "--mtbi inf --chips 1.6M --learners 1,16 --days 36525 --repetitions 64"

TABLES = {
    "table1": Source((f"{GOODPUT} --preset paper-table1",), _table1),
    "pinned": Source((f"{GOODPUT} --fit docs/scale-table1.csv",), _pinned),
    "rule": Source((f"{GOODPUT} --preset paper-table1",), _rule),
    "uptime": Source(
        (
            f"{GOODPUT} --chips 2.4M --learners 1,2,4,8,16 --days 1 --repetitions 16",
            f"{GOODPUT} --chips 2.4M --learners 16 --quorum 8 --days 1 --repetitions 16",
        ),
        _uptime,
    ),
    "shocks": Source(
        tuple(f"{GOODPUT} {TOGETHER} --shock {name}" for name in ("rack", "power", "site", "push")), _shocks
    ),
    "syncer": Source(
        tuple(
            f"{GOODPUT} --chips 150k --learners 8 --days 365 --repetitions 4{away}"
            for away in ("", " --syncer-mtbf 7d --syncer-down 1min", " --syncer-mtbf 7d --syncer-down 6h")
        ),
        _syncer,
    ),
    "spot": Source(
        (f"{GOODPUT} --chips 8192 --learners 4 --traces {SPOT} --days {SPOT_DAYS} --repetitions 16",),
        _spot,
    ),
    "twelve": Source(
        ("atoll simulate bandwidth --params 12B --step 2s --sites 4 --rtt 60ms --bandwidth 2Gbit/s",), _twelve
    ),
    "table4": Source(("atoll simulate bandwidth --preset streaming-table4",), _table4),
    "headline": Source(("atoll simulate bandwidth --preset headline",), _headline),
    "scavenging": Source(("atoll simulate bandwidth --preset headline",), _scavenging),
    "plans": Source(
        tuple(
            f"atoll plan examples/fleets/{name}.toml"
            for name in ("four-regions", "eight-data-centres", "spot-gpus")
        ),
        _plans,
    ),
    "core": Source(
        ("atoll simulate scale --chips 2.4M --learners 16 --merges 10000 --mtbi 1y --step 1s",), _core
    ),
}
