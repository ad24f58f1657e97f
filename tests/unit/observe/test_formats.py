"""Numbers, sizes and times as a person reads them."""

from __future__ import annotations

import math

import pytest

from atoll.observe import formats
from atoll.observe.formats import (
    count,
    data_size,
    decimal,
    duration,
    finite,
    loss,
    millis,
    percent,
    plain,
    short_count,
    si,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (7, "7"), (999, "999"), (999.4, "999"), (1000, "1.00k"), (9_994, "9.99k"), (9_996, "10.0k"),
        (41_234, "41.2k"), (99_949, "99.9k"), (99_951, "100k"), (999_499, "999k"), (999_501, "1.00M"),
        (1_310_000, "1.31M"), (2.5e18, "2.50E"), (7e21, "7000E"), (0.5, "0.50"), (-41_234, "-41.2k"),
    ],
)  # fmt: skip
def test_si_numbers_have_three_digits_and_a_unit(value: float, text: str):
    assert si(value) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (512, "512 B"), (999_500, "1.00 MB"), (12_412_000, "12.4 MB"), (3.2e12, "3.20 TB")],
)
def test_sizes_are_in_decimal_units(num_bytes: float, text: str):
    assert data_size(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3.0, "0 s"), (0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (72.4, "1 min 12 s"),
        (3599.7, "1 h 00 min"), (11_130, "3 h 05 min"), (86_400 * 2 + 3 * 3600, "2 d 03 h"),
    ],
)  # fmt: skip
def test_durations_show_their_two_largest_units(seconds: float, text: str):
    assert duration(seconds) == text


def test_milliseconds_have_as_many_decimals_as_mean_something():
    assert [millis(value) for value in (0.118, 9.99, 9.996, 99.12, 999.4, 1234.5)] == [
        "0.12", "9.99", "10.0", "99.1", "999.4", "1,234",
    ]  # fmt: skip


def test_a_loss_that_has_run_away_does_not_burst_its_column():
    assert [loss(value) for value in (2.3141, 99.9994, 99.9996, 1234.5)] == [
        "2.314",
        "99.999",
        "100",
        "1.23k",
    ]


def test_a_short_count_stays_within_six_characters():
    shown = [short_count(value) for value in (0, 12_345, 99_999, 100_000, 1_234_567)]
    assert shown == ["0", "12,345", "99,999", "100k", "1.23M"]


def test_ratios_are_shown_as_percentages():
    assert percent(0.9618) == "96.2 %"
    assert percent(0.00113, 2) == "0.11 %"
    assert (count(12_345), decimal(4.25, 2)) == ("12,345", "4.25")


NUMBERS = [count, data_size, decimal, duration, loss, millis, percent, short_count, si]


@pytest.mark.parametrize("shape", NUMBERS, ids=lambda shape: shape.__name__)
def test_what_is_unknown_is_a_dash_and_what_is_no_number_says_so(shape):
    assert shape(None) == formats.UNKNOWN
    assert shape(math.nan) == "nan"
    assert shape(math.inf) == "inf"
    assert shape(-math.inf) == "-inf"


def test_foreign_text_becomes_one_printable_line():
    assert plain("a\x1b[31mb\nc\u202ed") == "a [31mb c d"
    assert plain("x" * 500) == "x" * 237 + "..."
    assert plain(7) == "7"


def test_what_json_does_not_have_becomes_null_wherever_it_stands():
    found = finite({"a": math.inf, "b": [math.nan, 1.5, (-math.inf, 2)], "c": "inf", "d": None})
    assert found == {"a": None, "b": [None, 1.5, [None, 2]], "c": "inf", "d": None}


def test_every_public_name_is_covered_here():
    assert {shape.__name__ for shape in NUMBERS} | {"UNKNOWN", "finite", "plain"} == set(formats.__all__)
