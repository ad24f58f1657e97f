"""Arms are asked for in pairs, and places know their cells."""

from __future__ import annotations

import math
from dataclasses import astuple, fields, replace

import pytest

from atoll.config import RunConfig
from atoll.errors import ConfigError
from atoll.sim.lab.experiments import EXPERIMENTS
from atoll.sim.lab.experiments.common import (
    Place,
    ask,
    mean_of,
    megabytes,
    seeds_of,
    series_of,
    shown_number,
)
from atoll.sim.lab.paired import Difference, interval_of
from atoll.sim.lab.report import Report, Request, Series, Stages
from atoll.sim.lab.tuned import PAPER_WINDOW, tuned
from tests.unit.sim.lab.made_up import drive, made_up

BASE, OURS = Place("data-parallel"), Place("decoupled", 4)


def test_every_arm_gets_its_own_rows_seed_by_seed() -> None:
    seen: dict[Place, list[int]] = {}

    def stages() -> Stages:
        rows = yield from ask({BASE: BASE.arm("tiny"), OURS: OURS.arm("tiny")}, 3)
        for place, found in rows.items():
            assert {row.cell.method for row in found} == {place.method}
            seen[place] = [row.cell.seed for row in found]
        return Report(tables=(), pictures=())

    asked, _ = drive(stages(), made_up)
    assert seen == {BASE: [1, 2, 3], OURS: [1, 2, 3]}
    assert [cell.seed for cell in asked] == [1, 1, 2, 2, 3, 3]


def test_a_place_without_a_model_is_refused_with_the_sizes_that_have_one() -> None:
    with pytest.raises(ConfigError, match=r"tiny, small"):
        Place("decoupled", 4, "moe").cell("0.2M", 1)


def test_a_place_is_named_by_what_tells_it_apart() -> None:
    assert [place.name for place in (BASE, OURS, Place("streaming", 4, "moe"))] == [
        "data-parallel", "decoupled M=4", "moe, streaming M=4",
    ]  # fmt: skip


def test_figures_are_shown_for_people() -> None:
    rows = [made_up(OURS.cell("tiny", seed), goodput=0.5 * seed) for seed in (1, 2)]
    assert mean_of(rows, lambda row: row.goodput) == 0.75
    assert megabytes(rows) == "2.0"
    assert megabytes([made_up(BASE.cell("tiny", 1), bytes_up=0, bytes_down=0)]) == "-"
    assert (seeds_of(rows), seeds_of(rows[:1])) == ("2 seeds", "1 seed")
    assert (shown_number(3.94), shown_number(None)) == ("+3.9 %", "-")


def test_a_series_has_no_intervals_if_none_is_known_and_nan_for_one_that_is_not() -> None:
    sure, single = Difference(1.0, 0.5, 1.5, 3, (1.0,) * 3), Difference(2.0, -math.inf, math.inf, 1, (2.0,))
    assert series_of("a", [sure, sure], (3, 5)) == Series(
        name="a", x=(3.0, 5.0), y=(1.0, 1.0), error=(0.5, 0.5)
    )
    assert series_of("a", [single, single]).error == ()
    assert series_of("a", [interval_of([1.0, 2.0])]).error == ()  # two seeds: t is 12.7
    mixed = series_of("a", [sure, single])
    assert (mixed.x, mixed.y, mixed.error[0]) == ((0.0, 1.0), (1.0, 2.0), 0.5)
    assert math.isnan(mixed.error[1])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_listed_experiment_says_in_a_line_what_it_compares(name: str) -> None:
    assert EXPERIMENTS[name].name == name
    assert 20 < len(EXPERIMENTS[name].about) < 130
    assert "\n" not in EXPERIMENTS[name].about


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_listed_experiment_ends_in_a_table_and_a_picture(name: str) -> None:
    _, report = drive(EXPERIMENTS[name].stages(Request(seeds=2)), made_up)
    assert report.tables
    assert report.pictures
    for table in report.tables:
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.columns)}
    for picture in report.pictures:
        for one in picture.series:
            assert len(one.x) == len(one.y)
            assert len(one.error) in (0, len(one.y))


def test_a_cell_that_two_arms_share_is_asked_for_once_and_both_have_its_row() -> None:
    place = Place("streaming", 4)
    stages = ask({"a": place.arm("tiny"), "b": Place("decoupled", 4).arm("tiny"), "c": place.arm("tiny")}, 2)
    cells = next(stages)
    assert len(cells) == len(set(cells)) == 4
    with pytest.raises(StopIteration) as end:
        stages.send([made_up(cell) for cell in cells])
    assert end.value.value["a"] == end.value.value["c"]
    assert [row.cell.seed for row in end.value.value["c"]] == [1, 2]


def test_a_place_may_take_the_settings_of_another_method() -> None:
    cell = Place("streaming", 8, settings_of="decoupled").cell("tiny", 1)
    theirs = tuned("text", "tiny", "decoupled", 8)
    assert cell.method == "streaming"
    assert tuple(getattr(cell, one.name) for one in fields(theirs)) == astuple(theirs)


def test_our_defaults_are_a_method_with_settings_of_its_own() -> None:
    place = Place("decoupled", 8, settings_of="defaults")
    assert (place.name, place.settings) == ("decoupled, our defaults M=8", "defaults")
    ours, plain = place.cell("tiny", 1), Place("decoupled", 8).cell("tiny", 1)
    assert (ours.momentum_warmup, ours.momentum_cooldown) == (0.1, 0.2)
    constant = replace(ours, momentum_warmup=0.0, momentum_cooldown=0.0, **PAPER_WINDOW)
    assert replace(constant, learning_rate=plain.learning_rate) == plain


def test_who_waits_for_everybody_keeps_the_papers_window_by_our_defaults() -> None:
    ours, streaming = (
        Place(method, 4, settings_of="defaults").cell("tiny", 1) for method in ("decoupled", "streaming")
    )
    for name, value in PAPER_WINDOW.items():
        assert getattr(streaming, name) == value != getattr(ours, name)


def test_our_defaults_are_those_of_the_config() -> None:
    lab, config = tuned("text", "tiny", "defaults", 4), RunConfig()
    outer = config.outer
    assert (lab.eta, lab.mu) == outer.eta_mu
    assert (lab.momentum_warmup, lab.momentum_cooldown) == (outer.momentum_warmup, outer.momentum_cooldown)
    sync = config.sync
    for name in ("merge_rule", *PAPER_WINDOW):
        assert getattr(lab, name) == getattr(sync, name)
