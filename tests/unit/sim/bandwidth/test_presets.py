"""The published figures, recomputed."""

from __future__ import annotations

from collections import Counter

import pytest

from atoll.errors import ConfigError
from atoll.sim.bandwidth.presets import (
    CUS,
    MIN_AGREEING,
    PRESETS,
    check_preset,
    headline,
    headline_columns,
    scavenging_rows,
    streaming_table4,
    table4_columns,
)


@pytest.fixture(scope="module")
def cells():
    return streaming_table4()


def test_at_least_70_of_75_cells_of_table_4_are_within_one_link_of_the_papers_grid(cells):
    assert len(cells) == 75
    assert MIN_AGREEING == 70
    assert sum(cell.agrees for cell in cells) >= MIN_AGREEING


def test_the_misses_are_these_four(cells):
    missed = {(cell.model, cell.column, cell.cu): cell.links_apart for cell in cells if not cell.agrees}
    assert missed == {
        ("1B", "Data-Parallel", 0.99): -4,
        ("10B", "Data-Parallel", 0.99): -2,
        ("100B", "Streaming", 0.99): -2,
        ("100B", "Streaming, overlap", 0.5): 2,
    }


def test_every_column_of_every_model_has_five_cells_in_order(cells):
    counts = Counter((cell.model, cell.column) for cell in cells)
    assert len(counts) == 15
    assert set(counts.values()) == {5}
    assert tuple(cell.cu for cell in cells[:5]) == CUS


def test_the_cells_hold_what_the_paper_prints(cells):
    printed = {(cell.model, cell.column, cell.cu): cell.paper_gbps for cell in cells}
    assert printed["1B", "Data-Parallel", 0.5] == 86.8
    assert printed["10B", "DiLoCo", 0.95] == 33.9
    assert printed["100B", "Streaming, overlap, FP4", 0.99] == 1.4


def test_the_settings_are_those_that_the_module_names():
    for model, fragments in (("1B", 8), ("10B", 16), ("100B", 36)):
        columns = table4_columns(model)
        assert [traffic.bits for _, _, traffic in columns] == [16, 16, 16, 16, 4]
        assert [traffic.overlap_steps for _, _, traffic in columns] == [0, 0, 0, 1, 1]
        assert {(t.sites, t.interval_steps, t.fragments) for _, _, t in columns} == {(2, 100, fragments)}


def test_the_headline_is_60_and_242_times_and_four_rates():
    rows = headline()
    assert [row.paper for row in rows if row.unit == "times"] == [242.0, 60.0], "what the paper prints"
    rates = {row.paper: row for row in rows if row.unit == "Gbit/s"}
    ratios = {row.target: row for row in rows if row.unit == "times"}
    assert sorted(rates) == [0.84, 1.7, 104.0, 198.0]
    assert sorted(ratios) == [60.5, 242.1]
    for paper, row in rates.items():
        assert row.agrees
        assert row.ours == pytest.approx(paper, rel=0.025)
    for target, row in ratios.items():
        assert row.agrees
        assert row.ours == pytest.approx(target, rel=0.005)


def test_the_headline_is_drawn_for_eight_sites():
    assert {traffic.sites for _, _, traffic in headline_columns()} == {8}


def test_scavenging_is_that_of_the_paper():
    assert [paper for _, paper, _ in scavenging_rows()] == [0.90, 0.83, 0.75, 0.62]
    for _, paper, ours in scavenging_rows():
        assert abs(ours - paper) <= 0.0051


def test_an_unknown_preset_is_refused_with_the_known_ones():
    for name in PRESETS:
        assert check_preset(name) == name
    with pytest.raises(ConfigError, match="streaming-table4, headline"):
        check_preset("table-5")
