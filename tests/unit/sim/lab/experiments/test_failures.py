"""The experiment on failures, with made-up rows."""

from __future__ import annotations

from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.failures import (
    DEATHS,
    ELASTIC,
    FAILURES,
    FRESH,
    PAUSES,
    STEADY,
    published,
)
from atoll.sim.lab.report import FINE, Claim, Report, Request
from atoll.sim.units import YEAR
from tests.unit.sim.lab.made_up import drive, made_up


def train(cell: Cell, dying: float = 2.003, stop_s: float = 0.0) -> Row:
    """Losses vary by seed, alike in every arm; goodput is a little below the model's."""
    loss = 2.0 * (1 + 0.01 * cell.seed)
    if cell.method == "elastic":
        return made_up(cell, loss, goodput=0.55, model_goodput=0.56, longest_stop_s=17.5)
    if not cell.fleet.chips:
        return made_up(cell, loss)
    lives = 300 if cell.fleet.has_deaths else 8
    loss *= dying / 2 if cell.fleet.has_deaths else 1.001
    goodput = 0.84 if cell.fleet.has_deaths else 0.88 + 0.001 * cell.seed
    return made_up(
        cell, loss, goodput=goodput, model_goodput=0.889, longest_stop_s=stop_s, incarnations=lives
    )


def report_of(seeds: int = 5, dying: float = 2.003, stop_s: float = 0.0) -> tuple[list[Cell], Report]:
    return drive(FAILURES.stages(Request(seeds=seeds)), lambda cell: train(cell, dying, stop_s))


def claim(report: Report, *words: str) -> Claim:
    (found,) = [one for one in report.claims if all(word in one.text for word in words)]
    return found


def test_six_arms_are_trained_for_every_seed_on_equal_tokens() -> None:
    cells, report = report_of(seeds=3)
    assert len(cells) == len({cell.key for cell in cells}) == 6 * 3 + 2 * 3 * (2 * FINE - 1)
    assert len({cell.tokens for cell in cells}) == 1
    assert {cell.seed for cell in cells if cell.method != "decoupled"} == {1, 2, 3}
    assert {one.seeds for one in report.claims} == {6 * FINE, 3}  # deaths: no fine claim


def test_the_failing_arms_share_the_chips_of_the_paper() -> None:
    cells, _ = report_of(seeds=1)
    failing = [cell for cell in cells if cell.fleet.chips]
    assert {(cell.fleet.chips, cell.fleet.mtbi_s) for cell in failing} == {(1_200_000, YEAR)}
    methods = [(cell.method, cell.fleet.has_deaths) for cell in failing]
    assert methods == [("elastic", False), ("decoupled", False), ("decoupled", True), ("decoupled", True)]
    assert [cell.fleet.loses_moments for cell in failing] == [False, False, False, True]


def test_decoupled_runs_differ_in_nothing_but_what_befalls_them() -> None:
    cells, _ = report_of(seeds=1)
    rest = [cell.settings() for cell in cells if cell.method == "decoupled"]
    for settings in rest:
        assert settings.pop("fleet")["step_s"] == 5.0
    assert len(rest) == 4
    assert all(one == rest[0] for one in rest)


def test_goodput_near_the_model_and_the_loss_of_calm_runs_are_claimed() -> None:
    _, report = report_of()
    assert claim(report, PAUSES, "goodput").verdict == "holds"
    assert claim(report, PAUSES, "loss").verdict == "holds"
    assert claim(report, PAUSES, "stand still").verdict == "holds"


def test_elastic_data_parallel_stands_beside_without_a_claim() -> None:
    """Its steps are made from the model's own trace, so that it agrees proves nothing."""
    _, report = report_of()
    assert not [one for one in report.claims if ELASTIC in one.text]


def test_goodput_far_from_the_model_is_not_claimed() -> None:
    _, report = report_of()
    far = claim(report, f"{DEATHS}:", "goodput")
    assert far.verdict == "fails"
    assert far.unit == "points"
    assert abs(far.value - 4.9) < 1e-9


def test_a_loss_above_the_limit_fails_and_stays_in_the_table() -> None:
    _, report = report_of(dying=2.04)
    assert claim(report, f"{DEATHS}:", "loss").verdict == "fails"
    for name in (DEATHS, FRESH):
        (line,) = [row for row in report.tables[0].rows if row[0] == name]
        assert "+2.00 %" in line[6]


def test_a_stop_of_all_learners_beyond_a_step_is_told() -> None:
    _, report = report_of(stop_s=5.5)
    assert claim(report, PAUSES, "stand still").verdict == "fails"
    _, report = report_of(stop_s=5.0)
    assert claim(report, PAUSES, "stand still").verdict == "holds"


def test_published_goodput_stands_only_where_the_paper_prints_it() -> None:
    assert (published(ELASTIC), published(PAUSES)) == (58.0, 88.0)
    assert published(STEADY) is published(DEATHS) is None
    _, report = report_of(seeds=2)
    assert [row[4] for row in report.tables[0].rows] == ["-", "58", "-", "88", "-", "-"]


def test_elastic_data_parallel_is_compared_with_itself_in_the_table() -> None:
    _, report = report_of(seeds=2)
    by_name = {row[0]: row for row in report.tables[0].rows}
    assert by_name[ELASTIC][6].startswith("+0.00 %")
    assert by_name[STEADY][6] == "-"


def test_pictures_show_runs_model_and_paper_at_the_same_places() -> None:
    _, report = report_of(seeds=2)
    goodput, losses = report.pictures
    assert [series.x for series in goodput.series] == [(0, 1, 2, 3, 4, 5), (1, 3, 4, 5), (1, 3)]
    assert goodput.series[2].is_reference
    assert goodput.names[1] == ELASTIC
    assert STEADY not in losses.names
    assert len(losses.names) == len(losses.series[0].y) == 5


def test_one_seed_makes_a_report_without_claims_that_rest_on_a_spread() -> None:
    _, report = report_of(seeds=1)
    assert claim(report, PAUSES, "loss").verdict == "not resolved"
    assert report.figures["decoupled_goodput"] == 0.881
