"""Capacity over time: what a trace says when, and that a file of them is read as it was written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import ConfigError
from atoll.sim.fleet.trace import CapacityTrace, read_traces, write_traces

DAY_AND_NIGHT = CapacityTrace((0.0, 10.0, 30.0), (512.0, 0.0, 256.0))


def test_a_capacity_holds_from_its_time_until_the_next():
    assert [DAY_AND_NIGHT.at(time) for time in (0, 9.999, 10, 29, 30, 1e9)] == [512, 512, 0, 0, 256, 256]


def test_before_the_first_time_holds_what_the_first_row_says():
    late = CapacityTrace((100.0, 200.0), (8.0, 4.0))
    assert late.at(0) == 8
    assert late.mean(200) == 8
    assert late.mean(400) == 6


def test_the_mean_is_the_area_by_the_time():
    assert DAY_AND_NIGHT.mean(10) == 512
    assert DAY_AND_NIGHT.mean(20) == 256
    assert DAY_AND_NIGHT.mean(40) == (512 * 10 + 256 * 10) / 40


def test_times_before_nought_say_what_holds_at_nought():
    early = CapacityTrace((-20.0, -10.0, 5.0), (1.0, 2.0, 4.0))
    assert early.at(0) == 2
    assert early.mean(10) == 3


@given(
    st.lists(st.tuples(st.floats(1e-3, 100), st.floats(0, 1e6)), min_size=1, max_size=20),
    st.floats(0.1, 2000),
)
def test_the_mean_is_the_sum_over_its_steps(steps, until):
    """Written a second time, by walking the rows."""
    time, times, total = 0.0, [], 0.0
    for length, chips in steps:
        times.append(time)
        total += chips * (min(time + length, until) - min(time, until))
        time += length
    total += steps[-1][1] * max(0.0, until - time)
    trace = CapacityTrace(tuple(times), tuple(chips for _, chips in steps))
    assert trace.mean(until) == pytest.approx(total / until, rel=1e-9, abs=1e-9)


names = st.text("abcXYZ-0123456789,.\"'é", min_size=1, max_size=8)
traces = st.lists(
    st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)), min_size=1, max_size=8, unique_by=lambda row: row[0]
).map(lambda rows: CapacityTrace(*(tuple(column) for column in zip(*sorted(rows), strict=True))))


@given(st.dictionaries(names, traces, min_size=1, max_size=4))
def test_what_is_written_is_read_to_the_last_bit(tmp_path_factory, fleet):
    path = tmp_path_factory.mktemp("traces") / "fleet.csv"
    write_traces(path, fleet)
    assert read_traces(path) == fleet


def test_the_file_is_in_order_of_time(tmp_path):
    path = tmp_path / "fleet.csv"
    write_traces(
        path, {"b": CapacityTrace((0.0, 5.0), (2.0, 1.0)), "a": CapacityTrace((0.0, 3.0), (4.0, 0.0))}
    )
    assert path.read_text().split() == [
        "time_s,learner,chips",
        "0.0,a,4.0",
        "0.0,b,2.0",
        "3.0,a,0.0",
        "5.0,b,1.0",
    ]


def test_empty_lines_and_spaces_are_forgiven(tmp_path):
    path = tmp_path / "fleet.csv"
    path.write_text("time_s, learner, chips\n\n0, spot-a, 512\n3600,spot-a,0\n\n")
    assert read_traces(path) == {"spot-a": CapacityTrace((0.0, 3600.0), (512.0, 0.0))}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "does not begin with time_s,learner,chips"),
        ("0,spot-a,512\n", "does not begin with time_s,learner,chips"),
        ("time_s,learner,chips\n", "has no rows"),
        ("time_s,learner,chips\n0,a,5\nnoon,a,5\n", "Line 3 of .* is 'noon,a,5'"),
        ("time_s,learner,chips\n0,a\n", "Line 2 of .* is '0,a'"),
        ("time_s,learner,chips\n0,a,5,6\n", "Line 2 of"),
        ("time_s,learner,chips\n0,a,many\n", "Line 2 of"),
        ("time_s,learner,chips\n5,a,1\n0,a,2\n", "do not rise"),
        ("time_s,learner,chips\n0,a,1\n0,a,2\n", "do not rise"),
        ("time_s,learner,chips\n0,a,-1\n", "negative or not a number"),
        ("time_s,learner,chips\n0,a,nan\n", "negative or not a number"),
        ("time_s,learner,chips\ninf,a,1\n", "do not rise"),
    ],
)
def test_a_file_that_says_nothing_sensible_is_refused(tmp_path, text, says):
    path = tmp_path / "fleet.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_traces(path)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_traces(tmp_path / "nowhere.csv")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_traces(tmp_path)
    binary = tmp_path / "fleet.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_traces(binary)


@pytest.mark.parametrize(
    ("times", "chips", "says"),
    [
        ((), (), "0 times and 0 capacities"),
        ((0.0,), (), "1 times and 0 capacities"),
        ((0.0, 1.0), (5.0,), "2 times and 1 capacities"),
        ((1.0, 0.0), (5.0, 5.0), "do not rise"),
        ((0.0, 0.0), (5.0, 5.0), "do not rise"),
        ((math.nan,), (5.0,), "do not rise"),
        ((0.0,), (-1.0,), "negative"),
        ((0.0,), (math.inf,), "not a number"),
    ],
)
def test_a_trace_that_defines_nothing_is_refused(times, chips, says):
    with pytest.raises(ConfigError, match=says):
        CapacityTrace(times, chips)
