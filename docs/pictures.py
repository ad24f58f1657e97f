"""Draws the pictures of the documentation: python docs/pictures.py [RUN_DIR]

demo.svg comes from a simulated run; train.svg, if a run directory of `make demo` is given, from its
metrics: the live view as it was while a learner was lost.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

from rich.console import Console

from atoll.core.events import Booted, LeaveRequested, Started
from atoll.core.records import RoundRecord
from atoll.observe.history import History
from atoll.observe.live import render
from atoll.sim.demo import run
from atoll.tape.entries import Fault, Stored

LEFT, RIGHT, TOP, LANE = 110, 940, 46, 44
INK, GREY, GREEN, RED, BLUE = "#1f2933", "#9aa5b1", "#2f9e44", "#e03131", "#1971c2"


def demo(seed: int = 7) -> str:
    """The demo as lanes over time: bars are lives, dots are merges, crosses are faults."""
    world = run(seed).world
    entries = list(world.tape)
    end_ns = entries[-1].at_ns
    lanes = {f"learner-{m}": TOP + LANE * (m + 1) for m in range(world.scenario.num_learners)}
    lanes["syncer"] = TOP

    def x(at_ns: int) -> float:
        return LEFT + (RIGHT - LEFT) * at_ns / end_ns

    parts = [_text(LEFT - 12, y + 5, name, "end") for name, y in lanes.items()]
    for name, start, stop in _lives(entries, end_ns):
        parts.append(_bar(x(start), x(stop), lanes[name], GREY if name == "syncer" else BLUE))
    for at_ns, _, item in entries:
        if isinstance(item, Stored) and isinstance(item.record, RoundRecord):
            for name in ("syncer", *(part.name for part in item.record.contributors)):
                parts.append(f'<circle cx="{x(at_ns):.1f}" cy="{lanes[name]}" r="4" fill="{GREEN}"/>')
        elif isinstance(item, Fault):
            y = lanes[item.target.split(",")[0]]
            parts.append(_cross(x(at_ns), y))
            parts.append(_text(x(at_ns) + 8, y - 11, item.kind, "start", RED, 12))
    bottom = TOP + LANE * len(lanes)
    for step in range(0, int(end_ns / 1e9) + 1, 20):
        parts.append(_text(x(int(step * 1e9)), bottom + 4, f"{step} s", "middle", GREY, 12))
    title = "Four learners, one at half speed; faults in red, merges in green (simulated)"
    parts.append(_text(LEFT, 18, title, "start", INK, 15))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 {bottom + 16}" font-family="sans-serif">'
        '<rect width="100%" height="100%" fill="white"/>' + "".join(parts) + "</svg>\n"
    )


def train(run_dir: Path, width: int = 110) -> str:
    """The live view of a real run, at the last moment at which a learner was lost."""
    history, chosen = History(), None
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        status = json.loads(line)
        history.add(status["uptime_s"], status)
        if any(detail["state"] == "lost" for detail in status["learner_details"]):
            chosen = render(status, history, width)
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(chosen)
    return console.export_svg(title="atoll train")


def _lives(entries: list, end_ns: int) -> list[tuple[str, int, int]]:
    """(lane, start, stop) of every life."""
    begun: dict[str, int] = {}
    lives = []
    for at_ns, actor, item in entries:
        name = actor.partition("#")[0]
        if isinstance(item, Started | Booted):
            begun[name] = at_ns
        stops = (isinstance(item, Fault) and item.kind.endswith("crash")) or isinstance(item, LeaveRequested)
        if stops:
            gone = item.target if isinstance(item, Fault) else name
            lives.append((gone, begun.pop(gone), at_ns))
    return lives + [(name, start, end_ns) for name, start in begun.items()]


def _bar(left: float, right: float, y: int, colour: str) -> str:
    where = f'x="{left:.1f}" y="{y - 3}" width="{right - left:.1f}" height="6" rx="3"'
    return f'<rect {where} fill="{colour}" opacity="0.35"/>'


def _cross(x: float, y: int) -> str:
    return f'<path d="M{x - 6:.1f} {y - 6}l12 12m0 -12l-12 12" stroke="{RED}" stroke-width="3" fill="none"/>'


def _text(x: float, y: float, words: str, anchor: str, colour: str = INK, size: int = 14) -> str:
    how = f'text-anchor="{anchor}" fill="{colour}" font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y:.0f}" {how}>{words}</text>'


if __name__ == "__main__":
    target = Path(__file__).with_name("demo.svg")
    target.write_text(demo())
    print(f"wrote {target.name}")
    for run_dir in sys.argv[1:]:
        Path(__file__).with_name("train.svg").write_text(train(Path(run_dir)))
        print("wrote train.svg")
