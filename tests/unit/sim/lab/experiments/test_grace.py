"""The experiment on grace windows, with made-up rows."""

from __future__ import annotations

from atoll.config import RunConfig
from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.common import FIRST_SCREEN_SEED, SCREEN_SEEDS
from atoll.sim.lab.experiments.grace import CALM, FLEETS, GRACE, OURS, PAPER, WINDOWS, Window
from atoll.sim.lab.report import Report, Request
from atoll.sim.lab.tuned import PAPER_WINDOW
from tests.unit.sim.lab.made_up import drive, made_up


def train(cell: Cell) -> Row:
    """A longer window gains a percent where many are late, and costs a tenth of one elsewhere."""
    is_late = cell.fleet.jitter > 0.2 or 0.25 in cell.fleet.speeds
    by = (-0.01 if is_late else 0.001) * (cell.grace_max_steps > 1) + 0.02 * (cell.overlap_steps == 1)
    return made_up(cell, (2 + 0.1 * cell.seed) * (1 + by + 1e-4 * (cell.seed % 2)), participation=0.9)


def run(seeds: int = 3) -> tuple[list[Cell], Report]:
    return drive(GRACE.stages(Request(seeds=seeds)), train)


def is_of(cell: Cell, window: Window) -> bool:
    return all(getattr(cell, name) == value for name, value in window.settings.items())


def test_every_window_is_screened_on_every_fleet_at_seeds_that_no_claim_uses() -> None:
    asked, report = run()
    screening = [cell for cell in asked if cell.seed >= FIRST_SCREEN_SEED]
    assert len(screening) == SCREEN_SEEDS * len(FLEETS) * len(WINDOWS)
    for window in WINDOWS:
        assert len({cell.fleet for cell in screening if is_of(cell, window)}) == len(FLEETS)
    assert len(asked) == len({cell.key for cell in asked})
    assert all(cell.momentum_warmup > 0 for cell in asked)
    assert [table.title.split(": ")[1] for table in report.tables] == [
        *FLEETS, *(f"{fleet}, as screened" for fleet in FLEETS),
    ]  # fmt: skip
    assert [row[0] for row in report.tables[-1].rows] == [one.name for one in WINDOWS]


def test_ours_the_papers_and_streaming_get_all_seeds_and_more_where_the_claim_is_fine() -> None:
    asked, report = run()
    final = [cell for cell in asked if cell.seed < FIRST_SCREEN_SEED]
    for fleet, (_, found) in FLEETS.items():
        there = [cell for cell in final if cell.fleet == found]
        decoupled = [cell for cell in there if cell.method == "decoupled"]
        seeds = Request(seeds=3).fine_seeds() if fleet == CALM else 3
        for window in (PAPER, OURS):
            assert sum(is_of(cell, window) for cell in decoupled) == seeds
        assert sum(cell.method == "streaming" for cell in there) == 3
    assert {cell.fleet for cell in final if cell.overlap_steps == 1} == {FLEETS[CALM][1]}
    assert [row[0] for row in report.tables[1].rows] == [PAPER.name, OURS.name, "Streaming"]


def test_our_window_must_gain_where_many_are_late_and_cost_little_elsewhere() -> None:
    _, report = run()
    assert [claim.verdict for claim in report.claims] == ["holds"] * 5
    assert [claim.limit for claim in report.claims] == [0.5, 0.0, 0.0, 0.5, 0.0]

    def lose(cell: Cell) -> Row:
        return made_up(cell, 2.0 + 0.1 * cell.grace_max_steps)

    _, losing = drive(GRACE.stages(Request(seeds=3)), lose)
    assert [claim.verdict for claim in losing.claims] == ["fails"] * 5


def test_windows_are_compared_with_the_papers() -> None:
    _, report = run()
    varied = {row[0]: row for row in report.tables[1].rows}
    assert varied["slack, tau 2, at most 1 step"][-2] == "-"
    assert varied["worth, tau 5, at most 4 steps"][-2].startswith("-1.00 %")
    assert varied["Streaming"][-1] == "-"
    assert varied["slack, tau 2, at most 1 step"][-1] != "-"
    assert {row[-1] for row in report.tables[-1].rows} == {"-"}  # nobody waits where windows are screened
    ours, screened = report.pictures
    assert ours.names == screened.names == tuple(FLEETS)
    assert [series.name for series in ours.series] == [OURS.name]
    assert [series.name for series in screened.series] == [one.name for one in WINDOWS[1:]]


def test_our_window_is_the_default_of_a_run() -> None:
    sync = RunConfig().sync
    assert OURS.settings == {name: getattr(sync, name) for name in OURS.settings}
    assert PAPER.settings == PAPER_WINDOW
