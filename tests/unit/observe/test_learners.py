"""Tables with a row per learner: order, limits, widths."""

from __future__ import annotations

import pytest

from atoll.observe.learners import (
    details_of,
    learner_table,
    live_columns,
    split_columns,
    status_columns,
    summary_columns,
)
from tests.unit.observe.frames import draw
from tests.unit.observe.samples import Status, bad_day, crowd, detail


def table(status: Status, width: int, max_rows: int | None = None) -> list[str]:
    page = learner_table(details_of(status), live_columns(status, width), width, max_rows)
    return draw(page, width).splitlines()


def test_learners_are_in_the_order_of_the_numbers_in_their_names():
    names = ["learner-10", "b", "learner-9", "7", "learner-9a", "a2", "a10"]
    ordered = [d["name"] for d in details_of({"learner_details": [detail(name) for name in names]})]
    assert ordered == ["7", "a2", "a10", "b", "learner-9", "learner-9a", "learner-10"]


def test_too_many_learners_leave_those_in_trouble_and_a_count_of_the_others():
    lines = table(crowd(), 80, max_rows=6)
    assert [line.split()[:2] for line in lines[1:-1]] == [
        ["learner-0", "training"],
        ["learner-7", "healing"],
        ["learner-61", "lost"],
        ["learner-100", "lost"],
        ["learner-150", "joining"],
        ["learner-199", "healing"],
    ]
    assert lines[-1] == "... and 194 more (194 training)"


def test_the_count_names_every_hidden_state_the_most_frequent_first():
    status = crowd()
    for row in status["learner_details"][50:54]:
        row["state"] = "healing"
    assert table(status, 80, max_rows=2)[-1] == "... and 198 more (191 training, 6 healing, 1 joining)"


def test_nothing_is_counted_when_all_rows_fit():
    assert len(table(bad_day(), 80, max_rows=4)) == 5


@pytest.mark.parametrize("width", [80, 90, 100, 110, 120, 160])
def test_no_width_cuts_a_number(width: int):
    lines = table(bad_day(), width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_large_numbers_stay_in_their_columns(width: int):
    huge = detail(
        "learner-with-a-very-long-name-indeed",
        lag_steps=123_456, steps=98_765_432, tokens_per_s=1.5e9, loss=123_456.7, step_ms=123_456.0,
        held_ms=99_999.0, cpu_ms=9_999.0, incarnation=999, merged_offers=12_345, offers=12_346, late=999,
    )  # fmt: skip
    header, row = table({"learner_details": [huge]}, width)
    assert len(row) <= width
    assert row.count("…") == 1, "only the name may be cut"
    assert len(header.split("  ")) > 1


def test_wider_screens_have_more_columns_and_spell_incarnation_out():
    narrow, wide = (table(bad_day(), width)[0] for width in (80, 120))
    assert "inc." in narrow
    assert "incarnation" in wide
    assert {"cpu", "merged/offers", "late"} <= set(wide.split())
    assert "cpu" not in narrow


def test_a_learner_of_whom_nothing_is_known_has_dashes():
    row = table({"learner_details": [{"name": "new", "state": "joining"}]}, 80)[1]
    assert row.split() == ["new", "joining", *["-"] * 7]
    assert table({"learner_details": [{}]}, 80)[1].split() == ["-"] * 9


def test_brackets_and_escape_codes_in_foreign_words_are_only_characters():
    row = detail("a", address="[bold]\x1b[31m", device="[/]")
    page = learner_table([row], status_columns({}), 250)
    assert "[bold] [31m" in draw(page, 250)
    assert "[/]" in draw(page, 250)


@pytest.mark.parametrize("width", [20, 80, 100, 110, 180, 300])
def test_every_status_column_is_in_exactly_one_table(width: int):
    columns = status_columns(bad_day())
    tables = split_columns(columns, width)
    assert [column for part in tables for column in part] == columns
    assert all(tables)


def test_tables_under_each_other_are_about_equally_wide():
    sizes = [sum(column.width + 2 for column in part) for part in split_columns(status_columns({}), 100)]
    assert len(sizes) == 3
    assert max(sizes) - min(sizes) < 20


def test_the_summary_fits_eighty_characters():
    lines = draw(learner_table([detail("learner-199")], summary_columns({}), 80), 80).splitlines()
    assert lines[0].endswith("late")
    assert max(map(len, lines)) <= 80


def test_the_unit_of_the_recipe_is_in_the_titles():
    assert "images/s" in table({**bad_day(), "unit": "images"}, 80)[0]


def test_a_shard_may_be_an_index_or_an_index_and_a_count():
    shards = [detail("a", shard=3), detail("b", shard=(3, 8)), detail("c", shard=None)]
    shard = next(column for column in status_columns({}) if column.title == "shard")
    assert [shard.cell(row) for row in shards] == ["3", "3/8", "-"]
