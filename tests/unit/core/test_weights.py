"""The weight of an offer: linear in steps, quadratic in the batch."""

from __future__ import annotations

import pytest

from atoll.core.weights import token_weight


def test_twenty_two_steps_of_a_million_tokens_weigh_2_2e13():
    assert token_weight(22_000_000, 22) == 2.2e13


def test_half_the_batch_weighs_a_quarter():
    assert token_weight(11_000_000, 22) == 5.5e12


def test_twice_the_steps_at_the_same_batch_weigh_twice_as_much():
    assert token_weight(44_000_000, 44) == 4.4e13


@pytest.mark.parametrize(("tokens", "steps"), [(0, 5), (5, 0), (0, 0), (-1, 1), (1, -1)])
def test_nothing_weighs_nothing(tokens, steps):
    assert token_weight(tokens, steps) == 0.0


def test_counts_beyond_the_53_bits_of_a_float_are_squared_exactly_before_the_division():
    tokens = 2**53 + 1
    assert token_weight(tokens, tokens) == float(tokens)
    assert token_weight(3 * 10**17, 3) == 3e34
