"""The experiment on mixed hardware, with made-up rows."""

from __future__ import annotations

import pytest

from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.mixed_hardware import MIXED_HARDWARE, MODES, SLOW
from atoll.sim.lab.report import FINE, Claim, Report, Request
from atoll.sim.lab.tuned import SWEPT, Tuned
from tests.unit.sim.lab.made_up import drive, made_up


def train(cell: Cell) -> Row:
    """Grace is as good as K = 8 but at 4x, and equal weights cost 1 %; without grace 2.5 learners take part,
    and the loss is worse."""
    loss = 2.0 * (1 + 0.01 * cell.seed)
    if cell.method == "streaming":
        return made_up(cell, loss, goodput=(1 + min(cell.fleet.speeds)) / 2)
    if cell.quorum == 8:
        return made_up(cell, loss, participants=8.0)
    if cell.grace_fraction == 0:
        return made_up(cell, loss * 1.05, participants=2.5)
    loss *= 1.01 if cell.max_share < 1 else 1.0
    is_extreme = min(cell.fleet.speeds) == 0.25
    return made_up(cell, loss * (1.02 if is_extreme else 1.001), participants=4.0 if is_extreme else 7.5)


def report_of(seeds: int = 5) -> tuple[list[Cell], Report]:
    return drive(MIXED_HARDWARE.stages(Request(seeds=seeds)), train)


def claims(report: Report, ratio: str) -> list[Claim]:
    return [one for one in report.claims if one.text.startswith(ratio)]


def test_five_modes_are_trained_at_three_speed_ratios() -> None:
    cells, report = report_of(seeds=2)
    assert len(cells) == len({cell.key for cell in cells}) == 2 * 3 * 5 + 3 * 2 * (FINE - 1)
    assert [one.seeds for one in claims(report, "18 % slower") if "within" in one.text] == [
        2 * FINE,
        2 * FINE,
        2,
    ]
    assert {one.seeds for one in claims(report, "2x slower")} == {2}
    assert {cell.learners for cell in cells} == {8}
    assert len({cell.tokens for cell in cells}) == 1


def test_half_of_the_learners_are_slow_and_all_of_them_jitter() -> None:
    cells, _ = report_of(seeds=1)
    assert [cells[5 * i].fleet.speeds for i in range(3)] == [
        (1.0,) * 4 + (slow,) * 4 for slow in (0.82, 0.5, 0.25)
    ]
    assert {cell.fleet.jitter for cell in cells} == {0.1}


def test_the_modes_differ_in_quorum_grace_and_weights_alone() -> None:
    cells, _ = report_of(seeds=1)
    modes = [(cell.method, cell.quorum, cell.grace_fraction, cell.max_share) for cell in cells[:5]]
    assert modes == [
        ("decoupled", 8, 0.8, 1.0), ("decoupled", 1, 0.0, 1.0), ("decoupled", 1, 0.8, 1.0),
        ("decoupled", 1, 0.8, 0.125), ("streaming", 1, 0.8, 1.0),
    ]  # fmt: skip


def test_good_figures_hold_at_18_percent() -> None:
    _, report = report_of()
    assert [one.verdict for one in claims(report, "18 %")] == ["holds"] * 5
    assert claims(report, "18 %")[2].value == pytest.approx(3.0)


def test_losing_results_at_4x_are_told() -> None:
    _, report = report_of()
    assert [one.verdict for one in claims(report, "4x")] == ["holds", "fails", "fails", "fails", "holds"]
    grace = report.tables[2].rows[2]
    assert grace[0] == "K = 1 with grace"
    assert grace[-2].startswith("+2.00 %")


def test_asynchrony_is_held_against_streaming_at_the_same_settings_with_both_goodputs() -> None:
    with_other_settings = Tuned(1e-3, 32, 1.0, 0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SWEPT, "streaming", with_other_settings)
        cells, report = report_of()
    assert len({(cell.learning_rate, cell.batch, cell.eta, cell.mu, cell.tokens) for cell in cells}) == 1
    found = [one for one in report.claims if "asynchrony is free" in one.text]
    assert [one.verdict for one in found] == ["holds", "holds", "fails"]
    assert "(goodput 100.0 %)" in found[1].text
    assert "(goodput 75.0 %)" in found[1].text
    assert found[2].value == pytest.approx(2.0)
    assert report.tables[2].rows[2][-1].startswith("+2.00 %")
    assert report.tables[2].rows[4][-1] == "-"
    assert report.figures["speed_0.5_streaming_goodput"] == pytest.approx(0.75)


def test_what_holds_nearly_by_construction_is_a_check() -> None:
    _, report = report_of(seeds=1)
    checks = [one.text for one in report.claims if one.is_check]
    assert len(checks) == 2 * 3
    assert all("goodput at K = 1" in text or "times the offers" in text for text in checks)


def test_a_goodput_below_99_percent_is_not_claimed() -> None:
    _, report = drive(
        MIXED_HARDWARE.stages(Request(seeds=3)), lambda cell: made_up(cell, 2.0 + cell.seed, goodput=0.98)
    )
    assert claims(report, "18 %")[0].verdict == "fails"


def test_every_ratio_has_a_table_of_all_modes() -> None:
    _, report = report_of(seeds=2)
    assert len(report.tables) == len(SLOW)
    for table in report.tables:
        assert tuple(row[0] for row in table.rows) == MODES
        assert {len(row) for row in table.rows} == {len(table.columns)}
    assert report.tables[1].rows[4][2] == "75.0 ± 0.0"


def test_each_table_says_what_perfect_lock_step_would_reach() -> None:
    _, report = report_of(seeds=1)
    assert [table.notes[0].split()[-2] for table in report.tables] == ["90.1", "66.7", "40.0"]


def test_pictures_have_a_bar_for_each_mode_and_ratio() -> None:
    _, report = report_of(seeds=3)
    assert [len(picture.series) for picture in report.pictures] == [5, 5, 4]
    for picture in report.pictures:
        assert picture.names == tuple(SLOW)
        assert all(len(series.x) == len(series.y) == len(series.error) == 3 for series in picture.series)


def test_what_the_paper_is_believed_to_say_is_labelled_as_our_reading() -> None:
    _, report = report_of(seeds=1)
    assert "likely" in report.notes[0]
    assert report.figures["speed_0.82_participants_ratio"] == pytest.approx(3.0)
