"""What the benchmarks conclude from their numbers, checked on numbers whose answer is known."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.directories import KINDS, kind_of, limit_of, sizes_by_kind
from benchmarks.figures import Trend, growth, markdown, paired, sized, trend


def test_a_straight_line_has_its_slope_per_thousand_and_no_error():
    found = trend([1000, 2000, 3000], [5.0, 7.0, 9.0])
    assert found.level == 7.0
    assert found.slope == pytest.approx(2.0)
    assert found.error == pytest.approx(0.0, abs=1e-12)
    assert found.verdict(3000) == "grows"


def test_the_error_of_a_slope_is_that_of_the_textbook():
    # residuals +1, -2, +1 around a level line: sum of squares 6, over n - 2 = 1 and sum of (x - mean)^2 = 2
    found = trend([0, 1, 2], [1.0, -2.0, 1.0])
    assert found.slope == pytest.approx(0.0)
    assert found.error == pytest.approx(1000 * math.sqrt(3.0))
    assert found.verdict(2) == "level"


def test_a_change_of_less_than_a_hundredth_of_the_level_counts_as_none():
    assert Trend(1000.0, 0.9, 0.0).verdict(10_000) == "level"
    assert Trend(1000.0, 1.1, 0.0).verdict(10_000) == "grows"
    assert Trend(1000.0, -1.1, 0.0).verdict(10_000) == "falls"


def test_a_slope_that_is_smaller_than_twice_its_error_counts_as_none():
    assert Trend(0.0, 5.0, 2.6).verdict(1000) == "level"
    assert Trend(0.0, 5.0, 2.4).verdict(1000) == "grows"


def test_two_samples_make_no_trend():
    with pytest.raises(ValueError, match="three are the least"):
        trend([1, 2], [1.0, 2.0])


def test_paired_differences_are_percents_of_their_own_baselines():
    found = paired([1.01, 2.02, 4.04], [1.0, 2.0, 4.0])
    assert found.mean == pytest.approx(1.0)
    assert found.high - found.low == pytest.approx(0.0, abs=1e-9)
    assert found.within(1.1) == "within 1.1 %"
    assert found.within(0.9) == "more than 0.9 %"


def test_a_gain_is_not_called_within():
    assert paired([0.95, 0.951, 0.949], [1.0, 1.0, 1.0]).within(1.0) == "not worse by more than 1 %"


def test_three_pairs_have_students_interval():
    found = paired([99.0, 100.0, 101.0], [100.0, 100.0, 100.0])
    assert found.mean == pytest.approx(0.0)
    assert found.high == pytest.approx(4.303 / math.sqrt(3))
    assert found.within(1.0) == "not resolved"


def test_one_pair_resolves_nothing():
    assert paired([1.0], [1.0]).within(50.0) == "not resolved"


def test_bytes_are_shown_in_units_that_fit_and_keep_their_sign():
    assert [sized(n) for n in (0, -12.4, 1536, -3 << 20)] == ["0 B", "-12 B", "1.50 KiB", "-3.00 MiB"]


def test_a_table_is_markdown():
    assert markdown(["a", "b"], [[1, "x"]]) == "| a | b |\n| --- | --- |\n| 1 | x |"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("run.db", "run.db"),
        ("run.db-wal", "run.db"),
        ("deltas/0a.safetensors", "deltas"),
        ("snapshots/00000050.safetensors", "snapshots"),
        ("metrics.jsonl", "metrics"),
        ("learners/ada/tape-00aa.db-wal", "learners' tapes"),
        ("learners/ada/cursor.json", "learners' state"),
        ("status.json", "other files"),
    ],
)
def test_every_file_of_a_run_has_a_kind(path, kind):
    assert kind_of(Path(path)) == kind


def test_sizes_of_a_directory_are_added_up_by_kind(tmp_path):
    (tmp_path / "deltas").mkdir()
    (tmp_path / "deltas" / "a").write_bytes(b"123")
    (tmp_path / "deltas" / "b").write_bytes(b"4567")
    (tmp_path / "url").write_bytes(b"89")
    sizes = sizes_by_kind(tmp_path)
    assert tuple(sizes) == KINDS
    assert {kind: size for kind, size in sizes.items() if size} == {"deltas": 7, "other files": 2}


def test_what_is_cut_from_time_to_time_does_not_grow():
    at = list(range(1000, 13000, 1000))
    found, verdict = growth(at, [1.0, 2.0, 3.0] * 4)
    assert verdict in ("level", "up and down, no higher than before")
    _, verdict = growth(at, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0] * 2)
    assert found.level == pytest.approx(2.0)
    assert verdict == "up and down, no higher than before"


def test_growth_is_judged_by_its_limit_where_there_is_one():
    at, values = [1, 2, 3, 4, 5, 6], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert growth(at, values)[1] == "grows"
    assert growth(at, values, limit=10)[1] == "grows towards its limit of 10 B"
    assert growth(at, values, limit=5)[1] == "grows BEYOND its limit of 5 B"


def test_tapes_may_grow_to_what_is_kept_and_nothing_else_may():
    assert limit_of("run.db", 1, 2) == 8 << 20
    assert limit_of("learners' tapes", 1, 2) == 16 << 20
    assert limit_of("deltas", 1, 2) is None
