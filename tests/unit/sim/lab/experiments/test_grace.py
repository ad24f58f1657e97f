"""The experiment on grace windows, with made-up rows."""

from __future__ import annotations

from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.grace import CALM, FLEETS, GRACE, WINDOWS, Window
from atoll.sim.lab.report import Report, Request
from tests.unit.sim.lab.made_up import drive, made_up


def train(cell: Cell) -> Row:
    """A longer window gains a percent where steps differ, and costs a tenth of one where they do not."""
    is_calm = not cell.fleet.speeds and cell.fleet.jitter < 0.1
    by = (0.001 if is_calm else -0.01) * (cell.grace_max_steps - 1) - 0.02 * cell.grace_min_steps
    return made_up(cell, (2 + 0.1 * cell.seed) * (1 + by + 1e-4 * (cell.seed % 2)), participation=0.9)


def run(seeds: int = 3) -> tuple[list[Cell], Report]:
    return drive(GRACE.stages(Request(seeds=seeds)), train)


def test_every_window_and_streaming_is_trained_on_every_fleet() -> None:
    asked, report = run()
    assert len(asked) == len({cell.key for cell in asked}) == 3 * (len(FLEETS) * (len(WINDOWS) + 1) + 2)
    for window in WINDOWS:
        fleets = [cell.fleet for cell in asked if is_of(cell, window)]
        assert len(set(fleets)) == len(FLEETS)
    assert {cell.fleet for cell in asked if cell.overlap_steps == 1} == {FLEETS[CALM][1]}
    assert all(cell.momentum_warmup > 0 for cell in asked)
    assert [table.title.split(": ")[1] for table in report.tables] == list(FLEETS)
    assert [row[0] for row in report.tables[1].rows] == [*(one.name for one in WINDOWS), "Streaming"]


def is_of(cell: Cell, window: Window) -> bool:
    return all(getattr(cell, name) == value for name, value in window.settings.items())


def test_the_long_window_must_gain_where_steps_differ_and_cost_little_where_they_do_not() -> None:
    _, report = run()
    assert [claim.verdict for claim in report.claims] == ["holds"] * 4
    assert [claim.limit for claim in report.claims] == [0.5, 0.0, 0.0, 0.0]

    def lose(cell: Cell) -> Row:
        return made_up(cell, 2.0 + 0.1 * cell.grace_max_steps + 0.1 * cell.grace_min_steps)

    _, losing = drive(GRACE.stages(Request(seeds=3)), lose)
    assert [claim.verdict for claim in losing.claims] == ["fails"] * 4


def test_windows_are_compared_with_the_usual_one() -> None:
    _, report = run()
    varied = {row[0]: row for row in report.tables[1].rows}
    assert varied["tau 2, at most 1 step"][-1] == "-"
    assert varied["tau 3, at most 2 steps"][-1].startswith("-1.00 %")
    (picture,) = report.pictures
    assert picture.names == tuple(FLEETS)
    assert [series.name for series in picture.series] == [one.name for one in WINDOWS[1:]]
