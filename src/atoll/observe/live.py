"""The live view of a run: one screen that is drawn again, or lines for a log.

`render` draws a status: how far the run is, its headline numbers with their history, a row per
learner, the last events as sentences. `Live` shows it. On a terminal the screen is drawn in place;
anywhere else (a file, a pipe, a terminal that cannot move its cursor or has no block characters)
every event becomes a line and every so often the state of the run does, without control codes.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.text import Text

from atoll.observe.formats import count, data_size, duration, loss, percent, plain, si
from atoll.observe.history import History, sparkline
from atoll.observe.learners import details_of, learner_table, live_columns
from atoll.observe.notes import Note, fresh, tell
from atoll.observe.parts import (
    Fact,
    Status,
    budget_words,
    event_lines,
    fact_grid,
    head,
    num_alive,
    problem_lines,
    progress_words,
    traffic_facts,
    unit_of,
)

__all__ = ["Live", "render"]

MAX_EVENTS = 6
MAX_ROWS = 16
MIN_ROWS = 3
FIXED_LINES = 13
"""Lines of the view besides learners, events and problems."""
FACTS_WIDTH = 68
MAX_SPARK_WIDTH = 40


def render(status: Status, history: History, width: int, max_rows: int = MAX_ROWS) -> RenderableType:
    """One frame of the live view, `width` characters wide, with at most `max_rows` learners."""
    eta_s = status.get("eta_s")
    parts: list[RenderableType] = [
        head(status, history.eta_s() if eta_s is None else eta_s),
        Text(),
        _facts(status, history, max(0, min(MAX_SPARK_WIDTH, width - FACTS_WIDTH))),
        *problem_lines(status),
        Text(),
    ]
    details = details_of(status)
    if details:
        parts.append(learner_table(details, live_columns(status, width), width, max_rows))
    else:
        parts.append(Text("no learner has joined yet", style="dim"))
    if lines := tell(status.get("notes") or ())[-MAX_EVENTS:]:
        parts += [Text(), event_lines(lines, wrap=False)]
    return Group(*parts)


def _facts(status: Status, history: History, width: int) -> RenderableType:
    losses = Text(sparkline(history.loss.values(), width).ljust(width), style="cyan")
    rates = Text(sparkline(history.tokens_per_s.values(), width, from_zero=True), style="green")
    alive = Text(sparkline(history.alive.values(), width, from_zero=True), style="yellow")
    get, unit = status.get, unit_of(status)
    left: list[Fact] = [
        ("loss", loss(get("loss")), losses),
        (f"{unit}/s", si(get("tokens_per_s")), rates),
        ("alive", num_alive(status), alive),
        ("participating", count(get("participating")), ""),
        ("merged", count(get("merged")), ""),
        ("merges", count(get("merges")), ""),
    ]
    right: list[Fact] = [
        ("goodput", percent(get("goodput")), ""),
        ("participation", percent(get("participation")), ""),
        ("stall", percent(get("stall_fraction"), 2), ""),
        *traffic_facts(status),
        (unit, si(get("tokens")), ""),
    ]
    return fact_grid(left, right)


class Live:
    """Shows statuses as they come: `with Live(console) as live: live.update(now_s, status)`.

    `every_s` is the time between two lines where there is no terminal. Time is an argument.
    """

    def __init__(self, console: Console, every_s: float = 10.0) -> None:
        self.console = console
        self.every_s = every_s
        self.history = History()
        can_draw = console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only
        self._screen = RichLive(console=console, auto_refresh=False) if can_draw else None
        self._notes: list[Note] = []
        self._state: object = None
        self._next_line_s: float | None = None

    def __enter__(self) -> Live:
        if self._screen is not None:
            self._screen.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._screen is not None:
            self._screen.stop()

    def update(self, now_s: float, status: Status) -> None:
        """Show a newer status; what it says of the past is kept for the sparklines."""
        self.history.add(now_s, status)
        if self._screen is None:
            self._print_lines(now_s, status)
        else:
            width, height = self.console.size
            problems = sum(len(line.wrap(self.console, width)) for line in problem_lines(status))
            used = FIXED_LINES + MAX_EVENTS + problems
            frame = render(status, self.history, width, max(MIN_ROWS, height - used))
            self._screen.update(frame, refresh=True)

    def _print_lines(self, now_s: float, status: Status) -> None:
        notes = list(status.get("notes") or ())
        for line in tell(fresh(self._notes, notes)):
            self._print(f"{duration(line.at_s)}  {line.text}")
        self._notes = notes
        is_due = self._next_line_s is None or now_s >= self._next_line_s
        if is_due or status.get("state") != self._state:
            self._state = status.get("state")
            self._next_line_s = now_s + self.every_s
            self._print(_line(status, self.history))

    def _print(self, line: str) -> None:
        text = Text(line)  # no markup, no highlighting, no wrapping: what a log wants
        self.console.print(text, soft_wrap=True, highlight=False)


def _line(status: Status, history: History) -> str:
    """The run in one line of ASCII."""
    eta_s = status.get("eta_s")
    eta_s = history.eta_s() if eta_s is None else eta_s
    parts = [
        duration(status.get("uptime_s")),
        f"{plain(status.get('state') or 'waiting')} {progress_words(status)}",
        budget_words(status),
        f"loss {loss(status.get('loss'))}",
        f"{si(status.get('tokens_per_s'))} {unit_of(status)}/s",
        f"alive {num_alive(status)}",
        f"participating {count(status.get('participating'))}",
        f"merged {count(status.get('merged'))}",
        f"goodput {percent(status.get('goodput'))}",
        f"up {data_size(status.get('bytes_up'))}",
        f"down {data_size(status.get('bytes_down'))}",
    ]
    return "  ".join([*parts, *([f"ETA {duration(eta_s)}"] if eta_s is not None else [])])
