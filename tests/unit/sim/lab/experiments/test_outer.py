from __future__ import annotations

import math

import pytest

from atoll.sim.lab.cell import Cell, Row
from atoll.sim.lab.experiments.common import Place
from atoll.sim.lab.experiments.outer import (
    INTERVALS,
    MOST_RATES,
    OUTER,
    RATE_STEPS,
    Setting,
    default_at,
    grid,
    plain_at,
)
from atoll.sim.lab.report import Report, Request
from atoll.sim.lab.tuned import RATE_STEP, TUNING_SEED, Settings, tuned
from tests.unit.sim.lab.made_up import drive, made_up

Costs = dict[Setting, float]


def setting_of(cell: Cell) -> Setting:
    by_defaults = cell.grace_rule == "worth"
    return Setting(cell.interval_steps, cell.eta, cell.mu, cell.merge_rule, by_defaults)


def is_default(cell: Cell) -> bool:
    return setting_of(cell).is_default


LOW, HIGH = RATE_STEPS[4]


def step_of(cell: Cell) -> int:
    settings: Settings = "defaults" if setting_of(cell).by_defaults else "decoupled"
    factor = cell.learning_rate / tuned("text", "tiny", settings, 4).learning_rate
    return round(math.log(factor, RATE_STEP))


def rivals(steps: int) -> list[Setting]:
    return [one for one in grid(steps) if not one.is_default and not one.is_plain]


def train(cell: Cell, costs: Costs) -> Row:
    """Everything costs 5 % more than the default but for what `costs` says; seeds differ by a tenth of 2.
    A learning rate other than the highest that all are tried at costs 1 % more."""
    setting = setting_of(cell)
    cost = costs.get(setting, 0.0 if setting.is_default else 5.0) + (step_of(cell) != HIGH)
    wobble = 0.01 * (cell.seed % 3) * (not setting.is_default)
    return made_up(cell, (2 + 0.02 * cell.seed) * (1 + (cost + wobble) / 100))


def report_of(costs: Costs | None = None, seeds: int = 5) -> tuple[list[Cell], Report]:
    return drive(OUTER.stages(Request(seeds=seeds)), lambda cell: train(cell, costs or {}))


def test_the_default_and_plain_averaging_are_tried_at_every_interval() -> None:
    for steps in INTERVALS:
        assert sum(setting.is_default for setting in grid(steps)) == 1
        assert sum(setting.is_plain for setting in grid(steps)) == 1
        assert {setting.merge_rule for setting in grid(steps)} == {"rda", "mean"}
    beside = {one for steps in INTERVALS for one in grid(steps) if one.by_defaults and not one.is_default}
    assert {one.interval_steps for one in beside} == {4}  # so the best other at H = 24 is a fixed one
    assert all("else as our defaults" in one.name for one in beside)


def test_the_seed_for_tuning_chooses_and_no_claim_uses_it() -> None:
    first, second, third, *_ = rivals(4)
    asked, _ = report_of({first: -1.0, second: -0.5, third: 1.0})
    num_tried = sum(len(RATE_STEPS[steps]) * len(grid(steps)) for steps in INTERVALS)
    screened, beyond = asked[:num_tried], [cell for cell in asked[num_tried:] if cell.seed == TUNING_SEED]
    final = asked[num_tried + len(beyond) :]
    assert {setting_of(cell) for cell in screened} == {one for steps in INTERVALS for one in grid(steps)}
    assert {cell.seed for cell in screened} == {TUNING_SEED}
    tried = {(cell.interval_steps, step_of(cell)) for cell in screened}
    assert tried == {(steps, by) for steps, all_tried in RATE_STEPS.items() for by in all_tried}
    assert {setting_of(cell) for cell in beyond} == {setting_of(cell) for cell in final}
    assert {step_of(cell) for cell in beyond} == {HIGH + 1}
    again = {setting_of(cell) for cell in final if cell.interval_steps == 4}
    assert again == {first, second, default_at(4), plain_at(4)}
    seeds = {one: {cell.seed for cell in final if setting_of(cell) == one} for one in map(setting_of, final)}
    fine = {default_at(4), plain_at(4)}
    assert all(found == set(range(1, 21 if one in fine else 6)) for one, found in seeds.items())
    assert {step_of(cell) for cell in final} == {HIGH}


@pytest.mark.parametrize("steps", INTERVALS)
def test_finalists_rates_and_the_rival_are_those_of_the_seed_for_tuning_whatever_comes_later(
    steps: int,
) -> None:
    chosen, second, third, better = rivals(steps)[:4]

    def fickle(cell: Cell) -> Row:
        """At the seed for tuning in the order of their names and best at HIGH; at all others neither."""
        tuning = {chosen: -3.0, second: -2.0, third: -1.0}
        later = {chosen: 3.0, second: -2.0, better: -9.0}
        is_tuning = cell.seed == TUNING_SEED
        cost = (tuning if is_tuning else later).get(setting_of(cell), 1.0)
        return made_up(cell, 2 * (1 + (cost + abs(step_of(cell) - (HIGH if is_tuning else LOW))) / 100))

    asked, report = drive(OUTER.stages(Request(seeds=2)), fickle)
    final = [cell for cell in asked if cell.seed != TUNING_SEED and cell.interval_steps == steps]
    assert {setting_of(cell) for cell in final} == {chosen, second, third, default_at(steps), plain_at(steps)}
    assert {step_of(cell) for cell in final} == {HIGH}
    ours, theirs = 1 + (1.0 + HIGH - LOW) / 100, 1 + (3.0 + HIGH - LOW) / 100
    found = report.figures[f"default_against_best_h{steps}_percent"]
    assert found == pytest.approx(-100 * (theirs / ours - 1))
    assert chosen.name in report.claims[-1].text or steps != 24


def test_who_is_given_all_seeds_is_not_asked_again_once_some_had_more_rates() -> None:
    first, second, third = rivals(24)[:3]

    def train(cell: Cell) -> Row:
        """Plain averaging is fourth of the rates that all are tried at, and best of all far beyond them."""
        setting, step = setting_of(cell), step_of(cell)
        if setting.is_plain:
            return made_up(cell, 2.5 - 0.1 * step)
        return made_up(cell, {first: 2.1, second: 2.2, third: 2.3}.get(setting, 3.0) + 0.1 * (step != HIGH))

    asked, _ = drive(OUTER.stages(Request(seeds=1)), train)
    best = {step_of(cell) for cell in asked if cell.seed and setting_of(cell) == plain_at(24)}
    assert best == {MOST_RATES - 2}  # from -1 on
    final = {setting_of(cell) for cell in asked if cell.seed and cell.interval_steps == 24}
    assert final == {first, second, third, default_at(24), plain_at(24)}


def test_nobody_is_judged_at_the_edge_of_what_was_tried_but_only_so_far() -> None:
    def far(cell: Cell) -> Row:
        """The lower the better for plain averaging; others are best three steps above the tuned rate."""
        step = step_of(cell)
        return made_up(cell, 2.0 + 0.1 * (step if setting_of(cell).is_plain else abs(step - 3)))

    asked, report = drive(OUTER.stages(Request(seeds=2)), far)
    plain = [cell for cell in asked if setting_of(cell) == plain_at(24)]
    assert [step_of(cell) for cell in plain if not cell.seed] == [-1, 0, 1, -2, -3, -4]
    assert len({cell.key for cell in plain if not cell.seed}) == MOST_RATES
    assert {step_of(cell) for cell in plain if cell.seed} == {-4}
    assert {step_of(cell) for cell in asked if cell.seed and is_default(cell)} == {3}
    lines = {row[0]: row for row in report.tables[1].rows}
    assert len(lines[plain_at(24).name]) == len(report.tables[1].columns) == 14
    assert lines[plain_at(24).name][1:6] == ("0.25", "1.600", "1.700", "1.800", "1.900")
    assert lines[default_at(24).name][2:5] == ("-", "-", "-")


def test_each_setting_takes_the_learning_rate_that_suits_it() -> None:
    def hot(cell: Cell) -> Row:
        wanted = LOW if setting_of(cell).is_plain else HIGH
        return made_up(cell, 2.0 if step_of(cell) == wanted else 2.5)

    asked, report = drive(OUTER.stages(Request(seeds=2)), hot)
    assert {step_of(cell) for cell in asked if cell.seed and setting_of(cell).is_plain} == {LOW}
    assert {step_of(cell) for cell in asked if cell.seed and not setting_of(cell).is_plain} == {HIGH}
    (line,) = [row for row in report.tables[1].rows if row[0].startswith("plain")]
    assert line[1:8] == ("0.71", "2.500", "2.000", "2.500", "2.500", "-", "2")


def test_no_more_fragments_than_steps_and_at_most_twelve() -> None:
    asked, _ = report_of(seeds=1)
    assert {(cell.interval_steps, cell.num_fragments) for cell in asked} == {(4, 4), (24, 12), (96, 12)}


def test_one_seed_resolves_nothing() -> None:
    _, report = report_of(seeds=1)
    assert {claim.verdict for claim in report.claims} == {"not resolved"}


def test_claims_hold_when_the_defaults_win() -> None:
    _, report = report_of()
    assert {claim.verdict for claim in report.claims} == {"holds"}
    assert [claim.seeds for claim in report.claims] == [20, 5]


def test_a_setting_that_is_better_by_less_than_the_spread_leaves_the_claim_standing() -> None:
    rival = rivals(24)[0]
    _, report = report_of({rival: -0.5})
    claim = report.claims[-1]
    assert claim.verdict == "holds"
    assert claim.value == pytest.approx(0.5, abs=0.02)
    assert claim.limit == pytest.approx(100 * 0.0316 / 2.06, abs=0.01)
    assert rival.name in claim.text
    _, report = report_of({rival: -4.0})
    assert report.claims[-1].verdict == "fails"


def test_our_defaults_have_their_schedule_window_and_rate_and_the_grid_has_none_of_them() -> None:
    asked, _ = report_of(seeds=1)
    for cell in asked:
        is_ours = setting_of(cell).by_defaults
        assert (cell.momentum_warmup > 0, cell.overlap_steps > 2) == (is_ours, is_ours)
    ours = [cell for cell in asked if cell.interval_steps == 24 and cell.seed == 1 and is_default(cell)]
    assert [cell.key for cell in ours] == [Place("decoupled", 4, settings_of="defaults").cell(
        "tiny", 1, learning_rate=ours[0].learning_rate).key]  # fmt: skip


def test_plain_averaging_that_is_better_at_four_steps_fails_the_first_claim() -> None:
    _, report = report_of({plain_at(4): -9.0})
    assert report.claims[0].verdict == "fails"
    assert report.figures["default_against_best_h4_percent"] == pytest.approx(9.0, abs=0.05)


def test_tables_hold_everything_that_was_tried_and_what_blew_up_is_last() -> None:
    wild = rivals(4)[-1]
    _, report = report_of({wild: math.nan})
    assert [len(table.rows) for table in report.tables] == [len(grid(steps)) for steps in INTERVALS]
    first = report.tables[0]
    assert first.rows[0][0] == default_at(4).name
    assert first.rows[-1] == (wild.name, "0.71", "not finite", "not finite", "-", "0", "-", "-")
    assert {row[5] for row in first.rows} == {"0", "5", "20"}
