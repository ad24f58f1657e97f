"""How long something takes: exponential, or an exponentiated Weibull for long tails and long waits.

Delays are drawn by inverting the distribution function, so that a uniform number gives one delay, and
the same uniform number gives a longer one wherever the mean is longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from atoll.errors import ConfigError

__all__ = ["Delay", "scale_of"]

Floats = NDArray[np.float64]

QUADRATURE = 200_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Delay:
    """A positive random time with a given mean: F(x) = (1 - exp(-(x/s)^shape))^power.

    shape and power 1 make it exponential. shape below 1: many short, few very long. power above 1:
    hardly any at once. The scale s follows from the mean.
    """

    mean_s: float
    shape: float = 1.0
    power: float = 1.0

    def __post_init__(self) -> None:
        if not self.mean_s >= 0:
            raise ConfigError(
                f"A delay has mean {self.mean_s} s.",
                "Nothing returns before it left.",
                "Give a mean of 0 or more; inf: never.",
            )
        for name, value in (("shape", self.shape), ("power", self.power)):
            if not (math.isfinite(value) and value >= 0.05):
                raise ConfigError(
                    f"The {name} of a delay is {value}.",
                    "Below 0.05 the mean is all tail, and at 0 or less there is no such distribution.",
                    f"Give a {name} of at least 0.05; 1 and 1 make it exponential.",
                )

    @property
    def is_exponential(self) -> bool:
        """Whether the time already waited says nothing about the rest."""
        return self.shape == 1.0 and self.power == 1.0

    def draw(self, uniform: Floats) -> Floats:
        """Delays in seconds for uniform numbers in [0, 1)."""
        if math.isinf(self.mean_s):
            return np.full(uniform.shape, np.inf)
        scale = scale_of(self)
        if self.is_exponential:
            return -scale * np.log1p(-uniform)
        inner = np.exp(np.log(np.maximum(uniform, 1e-300)) / self.power)
        return np.asarray(scale * (-np.log1p(-np.minimum(inner, 1 - 1e-16))) ** (1.0 / self.shape))


def scale_of(delay: Delay) -> float:
    """s, from the mean."""
    return delay.mean_s / _unit_mean(delay.shape, delay.power)


@lru_cache(maxsize=64)
def _unit_mean(shape: float, power: float) -> float:
    """The mean at scale 1: the integral over x of 1 - F(x), by the midpoint rule in y = x^shape."""
    if power == 1.0:
        return math.gamma(1.0 + 1.0 / shape)
    # E[y^(1/shape)] with y = -log(1 - v^(1/power)), substituted in log y, where the integrand is smooth.
    logs = np.linspace(-60.0, math.log(750.0), QUADRATURE + 1)
    log_y = (logs[1:] + logs[:-1]) / 2
    y = np.exp(log_y)
    density = power * np.exp((power - 1.0) * np.log(-np.expm1(-y)) - y) * y
    return float(np.sum(density * np.exp(log_y / shape)) * (logs[1] - logs[0]))
