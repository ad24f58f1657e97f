"""Delays: their means and quantiles are those of the distribution that the docstring names."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import exponweib  # type: ignore[import-untyped]  # it has no types

from atoll.errors import ConfigError
from atoll.sim.fleet.delay import Delay

GRID = (np.arange(200_000) + 0.5) / 200_000
SHAPES = [(1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (0.7, 1.5), (0.6, 4.0), (1.0, 0.3), (3.0, 0.5), (0.3, 20.0)]


@pytest.mark.parametrize(("shape", "power"), SHAPES)
@pytest.mark.parametrize("mean_s", [70.0, 86400.0])
def test_the_mean_is_the_one_asked_for(shape, power, mean_s):
    drawn = Delay(mean_s=mean_s, shape=shape, power=power).draw(GRID)
    scale = mean_s / exponweib.mean(power, shape)
    # The grid stops short of the tail, by what the distribution has beyond its last cell.
    missing = mean_s - exponweib.expect(
        lambda x: x, (power, shape), scale=scale, ub=scale * exponweib.ppf(GRID[-1], power, shape)
    )
    assert drawn.mean() == pytest.approx(mean_s, rel=2e-3, abs=abs(missing) + 1e-9)


@pytest.mark.parametrize(("shape", "power"), SHAPES)
def test_quantiles_are_those_of_an_exponentiated_weibull(shape, power):
    uniform = np.array([1e-6, 0.01, 0.25, 0.5, 0.75, 0.99, 1 - 1e-6])
    drawn = Delay(mean_s=70.0, shape=shape, power=power).draw(uniform)
    theirs = exponweib.ppf(uniform, power, shape, scale=70.0 / exponweib.mean(power, shape))
    assert drawn == pytest.approx(theirs, rel=1e-6)


@pytest.mark.parametrize(("shape", "power"), [*SHAPES, (0.05, 0.05), (0.05, 50.0), (20.0, 0.2), (5.0, 1e4)])
def test_a_larger_uniform_number_or_a_larger_mean_never_gives_a_shorter_delay(shape, power):
    uniform = np.linspace(0, 1 - 2**-53, 10_001)
    short, long = (Delay(mean_s=mean, shape=shape, power=power).draw(uniform) for mean in (70.0, 71.0))
    assert (np.diff(short) >= 0).all()
    assert (long >= short).all()
    assert np.isfinite(long).all()
    assert (short >= 0).all()


def test_the_ends_of_the_unit_interval_are_no_surprise():
    for delay in (Delay(mean_s=70.0), Delay(mean_s=70.0, shape=0.7, power=1.5)):
        first, last = delay.draw(np.array([0.0, np.nextafter(1.0, 0.0)]))
        assert 0 <= first < 1e-6
        assert 70 < last < 1e6


def test_no_mean_is_at_once_and_an_infinite_one_is_never():
    assert (Delay(mean_s=0.0).draw(GRID[:9]) == 0).all()
    assert (Delay(mean_s=0.0, shape=0.5, power=2.0).draw(GRID[:9]) == 0).all()
    assert np.isinf(Delay(mean_s=math.inf).draw(GRID[:9])).all()
    assert np.isinf(Delay(mean_s=math.inf, shape=0.5).draw(GRID[:9])).all()


def test_a_delay_knows_whether_it_has_a_memory():
    assert Delay(mean_s=1.0).is_exponential
    assert not Delay(mean_s=1.0, shape=0.9).is_exponential
    assert not Delay(mean_s=1.0, power=1.1).is_exponential


def test_arrays_keep_their_shape():
    uniform = GRID[:12].reshape(3, 4)
    for delay in (Delay(mean_s=1.0), Delay(mean_s=1.0, shape=0.5, power=2.0), Delay(mean_s=math.inf)):
        assert delay.draw(uniform).shape == (3, 4)


@pytest.mark.parametrize("mean_s", [-1.0, -math.inf, math.nan])
def test_a_mean_below_nought_is_refused(mean_s):
    with pytest.raises(ConfigError, match=r"A delay has mean (-|nan)"):
        Delay(mean_s=mean_s)


@pytest.mark.parametrize("value", [0.0, -1.0, 0.049, math.inf, math.nan])
@pytest.mark.parametrize("name", ["shape", "power"])
def test_a_shape_or_power_of_no_distribution_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"The {name} of a delay is"):
        Delay(mean_s=1.0, **{name: value})
