import math

import pytest
import torch

from atoll.numerics.reduce import sum_of_squares
from tests.unit.numerics.samples import gaussian


def truth(values):
    return math.fsum(values.double().square().tolist())


@pytest.mark.parametrize("numel", [0, 1, 63, 4095, 4096, 4097, 131071, 131072, 131073, 300000])
def test_any_length_is_right(numel):
    values = gaussian(numel)
    assert sum_of_squares(values) == pytest.approx(truth(values), rel=3e-7, abs=0.0)


@pytest.mark.parametrize("value", [1.0 / 3.0, 0.1, 1.0000001])
def test_equal_values_do_not_drift(value):
    # equal terms round the same way in every column: the worst case for a sum in f32
    values = torch.full((2_000_000,), value)
    assert sum_of_squares(values) == pytest.approx(2_000_000 * float(values[0]) ** 2, rel=5e-7)


@pytest.mark.parametrize("size", [1e-25, 1e-40, 1e25, 3e38])
def test_squares_beyond_f32_are_taken_in_f64(size):
    values = torch.full((10_000,), size)
    assert sum_of_squares(values) == pytest.approx(10_000 * float(values[0]) ** 2, rel=1e-6, abs=0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 4095, 200_000])
def test_a_single_bad_value_shows(bad, at):
    values = torch.ones(200_001)
    values[at] = bad
    assert not math.isfinite(sum_of_squares(values))


def test_values_are_left_alone():
    values = gaussian(140_000)
    kept = values.clone()
    sum_of_squares(values)
    assert torch.equal(values, kept)
