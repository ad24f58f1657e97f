"""Amounts as people write them: what is read, what is refused, and that what is said can be read back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import ConfigError
from atoll.sim.units import (
    DAY,
    HOUR,
    MINUTE,
    YEAR,
    read_count,
    read_counts,
    read_duration,
    read_number,
    read_rate,
    say_count,
    say_duration,
    say_rate,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("800", 800),
        ("150k", 150_000),
        ("150K", 150_000),
        ("1.2M", 1_200_000),
        ("2.4 M", 2_400_000),
        ("12B", 12 * 10**9),
        ("12G", 12 * 10**9),
        ("1T", 10**12),
        ("1_000", 1000),
        (" 7 ", 7),
        ("+3", 3),
        ("1e3", 1000),
        ("1.5e2k", 150_000),
        (".5k", 500),
        ("5.", 5),
        (256, 256),
        (256.0, 256),
    ],
)
def test_a_count_is_read_as_people_write_it(text, value):
    assert read_count(text, "chips") == value
    assert isinstance(read_count(text, "chips"), int)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "k",
        "many",
        "1.2X",
        "1,2",
        "1 2",
        "0x10",
        "1e",
        "--1",
        "12b",
        "5s",
        "nan",
        "None",
        True,
        None,
        [1],
        {},
    ],
)
def test_a_count_that_cannot_be_read_is_refused_with_ways_to_write_it(text):
    with pytest.raises(ConfigError, match=r"(?s)chips is .*cannot be read.*1\.2M") as refused:
        read_count(text, "chips")
    assert str(refused.value).count("\n") <= 2


@pytest.mark.parametrize("text", ["0", "-1", "-150k", 0, -5, -0.5, math.nan])
def test_a_count_below_its_bound_is_refused_with_the_bound(text):
    with pytest.raises(ConfigError, match=r"(?s)chips is .*at least 1"):
        read_count(text, "chips")


@pytest.mark.parametrize("text", ["1.5", "1.2345678M", 2.25])
def test_a_count_of_no_whole_number_is_refused(text):
    with pytest.raises(ConfigError, match="counts whole things"):
        read_count(text, "chips")


@pytest.mark.parametrize("text", ["1001T", "1e300", "inf", math.inf, "1e999", 10**16, 10**400])
def test_a_count_of_more_than_anybody_has_is_refused_with_the_bound(text):
    with pytest.raises(ConfigError, match=r"(?s)chips is .*at most 1e\+15") as refused:
        read_count(text, "chips")
    assert len(str(refused.value)) < 100


def test_a_count_may_have_a_bound_of_its_own():
    assert read_count("1000T", "params") == 10**15
    assert read_count("1e18", "flops", most=10**21) == 10**18
    with pytest.raises(ConfigError, match="at most 4096"):
        read_count("4097", "sites", most=4096)


def test_a_count_may_begin_at_nought_where_it_is_allowed():
    assert read_count("0", "spares", least=0) == 0


@given(
    st.integers(1, 10**6), st.sampled_from([("", 1), ("k", 10**3), ("M", 10**6), ("B", 10**9), ("T", 10**12)])
)
def test_any_count_with_up_to_three_decimals_of_its_unit_is_whole(thousandths, unit):
    name, size = unit
    if size == 1:
        assert read_count(f"{thousandths}", "chips") == thousandths
    else:
        assert read_count(f"{thousandths / 1000}{name}", "chips") == thousandths * size // 1000


def test_several_counts_are_read_in_order_each_once():
    assert read_counts("1.2M, 150k,1200k,,800", "chips") == (1_200_000, 150_000, 800)


@pytest.mark.parametrize("text", ["", ",", " , "])
def test_no_counts_are_refused(text):
    with pytest.raises(ConfigError, match="chips is empty"):
        read_counts(text, "chips")


def test_one_bad_count_of_several_is_named():
    with pytest.raises(ConfigError, match="'2x'"):
        read_counts("1,2x,4", "learners")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        ("150ms", 0.15),
        ("20us", 20e-6),
        ("5ns", 5e-9),
        ("12 min", 12 * MINUTE),
        ("12m", 12 * MINUTE),
        ("6h", 6 * HOUR),
        ("30d", 30 * DAY),
        ("2w", 14 * DAY),
        ("1y", YEAR),
        ("12mo", YEAR),
        ("17.5", 17.5),
        ("inf", math.inf),
        (3, 3.0),
    ],
)
def test_a_duration_is_read_in_seconds(text, seconds):
    assert read_duration(text, "mtbi") == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("text", ["0", "-1y", 0, -1.0, math.nan, "-inf"])
def test_a_duration_of_nothing_or_less_is_refused(text):
    with pytest.raises(ConfigError, match=r"(?s)mtbi is .*above 0"):
        read_duration(text, "mtbi")


@pytest.mark.parametrize("text", ["1Y", "1 year", "1h30m", "1M", "h", "", False])
def test_a_duration_that_cannot_be_read_is_refused(text):
    with pytest.raises(ConfigError, match=r"(?s)mtbi is .*cannot be read"):
        read_duration(text, "mtbi")


@pytest.mark.parametrize("text", ["1e300s", "1e999", "40000y", 1.1e12, 10**400])
def test_a_duration_beyond_all_measure_is_refused_unless_it_is_for_ever(text):
    with pytest.raises(ConfigError, match=r"(?s)mtbi is .*write inf"):
        read_duration(text, "mtbi")
    assert read_duration(1e12, "mtbi") == 1e12
    assert read_duration(math.inf, "mtbi") == math.inf


def test_a_duration_may_be_nought_where_it_is_allowed():
    assert read_duration("0", "down", zero=True) == 0.0
    with pytest.raises(ConfigError, match="at least 0"):
        read_duration("-1", "down", zero=True)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("2.5Gbit/s", 2.5e9), ("100 Mbps", 1e8), ("50kbit/s", 5e4), ("1Tbps", 1e12), ("8", 8.0), (1e9, 1e9)],
)
def test_a_rate_is_read_in_bits_per_second(text, rate):
    assert read_rate(text, "link") == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize("text", ["2.5GB/s", "1 gbps", "10MBps", "0", "-1Gbit/s", "fast"])
def test_a_rate_in_bytes_or_of_nothing_is_refused(text):
    with pytest.raises(ConfigError, match="link is"):
        read_rate(text, "link")


def test_a_plain_number_is_read_and_held_to_its_bound():
    assert read_number("0.18", "spread") == 0.18
    assert read_number(0, "spread") == 0.0
    with pytest.raises(ConfigError, match="above 0"):
        read_number("0", "price", above=True)
    with pytest.raises(ConfigError, match="at most 1000"):
        read_number("inf", "price", most=1000)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_number("5k", "price")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (1000, "1k"),
        (150_000, "150k"),
        (1.2e6, "1.2M"),
        (12e9, "12B"),
        (1e12, "1T"),
    ],
)
def test_a_count_is_said_shortly(value, text):
    assert say_count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.15, "150 ms"),
        (20e-6, "20 us"),
        (17.5, "17.5 s"),
        (59.98, "1 min"),
        (90, "1.5 min"),
        (3.2 * HOUR, "3.2 h"),
        (41 * DAY, "41 d"),
        (YEAR, "1 y"),
        (0.0, "0 s"),
        (math.inf, "for ever"),
    ],
)
def test_a_duration_is_said_in_the_unit_a_person_would_choose(seconds, text):
    assert say_duration(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (829e6, "829 Mbit/s"),
        (1.71e9, "1.71 Gbit/s"),
        (999.9e6, "1 Gbit/s"),
        (12.0, "12 bit/s"),
        (0.0, "0 bit/s"),
    ],
)
def test_a_rate_is_said_to_three_digits(rate, text):
    assert say_rate(rate) == text


@given(st.floats(1e-6, 9e11))
def test_what_is_said_of_a_duration_can_be_read_back_to_three_digits(seconds):
    assert read_duration(say_duration(seconds), "x") == pytest.approx(seconds, rel=6e-3)


@given(st.floats(1e-3, 1e15))
def test_what_is_said_of_a_rate_can_be_read_back_to_three_digits(rate):
    assert read_rate(say_rate(rate), "x") == pytest.approx(rate, rel=6e-3)
