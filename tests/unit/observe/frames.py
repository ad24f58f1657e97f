"""Every page as text, read as a diff. Regenerate on purpose: python -m tests.unit.observe.frames"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from rich.console import Console, RenderableType

from atoll.observe.history import History
from atoll.observe.live import Live, render
from atoll.observe.status_view import render_status
from atoll.observe.summary import render_summary
from tests.unit.observe import samples

GOLDEN = Path(__file__).with_name("golden")


def draw(page: RenderableType, width: int) -> str:
    """A page as plain text, without the spaces at the ends of lines."""
    console = Console(file=io.StringIO(), record=True, width=width, force_terminal=False, color_system=None)
    console.print(page)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines()) + "\n"


def log() -> str:
    """What a file gets of the first moment and of the bad day."""
    file = io.StringIO()
    with Live(Console(file=file, width=80, force_terminal=False), every_s=10.0) as live:
        live.update(0.0, samples.first_moment())
        live.update(48.0, samples.bad_day())
    return file.getvalue()


def live(status: samples.Status, width: int, max_rows: int = 16) -> str:
    return draw(render(status, samples.history(status), width, max_rows), width)


FRAMES: dict[str, Callable[[], str]] = {
    "live_80": lambda: live(samples.bad_day(), 80),
    "live_110": lambda: live(samples.bad_day(), 110),
    "live_crowd_80": lambda: live(samples.crowd(), 80),
    "live_first_80": lambda: draw(render(samples.first_moment(), History(), 80), 80),
    "log": log,
    "status_80": lambda: draw(render_status(samples.bad_day()), 80),
    "status_first_80": lambda: draw(render_status(samples.first_moment()), 80),
    "status_110": lambda: draw(render_status(samples.bad_day()), 110),
    "summary_80": lambda: draw(render_summary(samples.summary()), 80),
    "summary_110": lambda: draw(render_summary(samples.summary()), 110),
}


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, frame in FRAMES.items():
        (GOLDEN / f"{name}.txt").write_text(frame(), encoding="utf-8")
        print(f"wrote {name}.txt")
