"""`[outer]`: the outer optimizer, and which rate and momentum suit which H.

Momentum mu makes a fragment move eta / (1 - mu) times its merged delta in the long run. When fragments
travel rarely a delta is long, well averaged, and worth such an extrapolation; when they travel every few
steps it is mostly the noise of those steps, which momentum adds up. So what is not set follows from
`sync.interval_steps`. In the lab (`atoll lab run outer`; M = 4, 0.1M parameters) plain averages of the
learners' values (eta 1, mu 0) are the best fixed pair at H = 4; at H = 24 and 96 they end 9 and 10 % above
0.7 and 0.9 with the schedule below. No other H was compared so: 8 is a guess in between, at H = 12 a mu of
0.8 did well, and at H = 6 0.7 with the schedule did 1.6 % better than plain averages (`closing-the-gap`, two
seeds).

mu is not there from the first merge to the last: it rises at the start and falls at the end
(`core.momentum`), which took 3 % off the loss at M = 4 and at M = 8 (`atoll lab run closing-the-gap`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from atoll.config.rules import Rule, check, number

__all__ = ["OUTER_BY_INTERVAL", "OuterConfig", "default_outer"]

OUTER_BY_INTERVAL: tuple[tuple[int, float, float], ...] = ((8, 1.0, 0.0),)
"""(largest H, eta, mu), rising; a larger H takes `OUTER_RARE`."""
OUTER_RARE = (0.7, 0.9)


def default_outer(interval_steps: int) -> tuple[float, float]:
    """eta and mu for fragments that travel every H steps, unless a config says otherwise."""
    for largest, eta, mu in OUTER_BY_INTERVAL:
        if interval_steps <= largest:
            return eta, mu
    return OUTER_RARE


@dataclass(frozen=True, kw_only=True, slots=True)
class OuterConfig:
    """The outer optimizer: SGD with Nesterov momentum on merged deltas, in f32."""

    learning_rate: float | None = None
    """eta: factor on the merged delta. Not set: what suits `sync.interval_steps`."""
    momentum: float | None = None
    """mu: Nesterov momentum, at least 0 and below 1. Not set: what suits `sync.interval_steps`."""
    momentum_warmup: float = 0.1
    """Share of the budget over which mu rises from 0. 0: it is there from the start, as without a budget."""
    momentum_cooldown: float = 0.2
    """Share of the budget, at its end, over which mu falls to 0. 0: it stays, as without a budget. A run that
    an operator ends before its budget ends at the momentum of that moment."""

    def __post_init__(self) -> None:
        check("outer", self, _RULES)

    def at(self, interval_steps: int) -> OuterConfig:
        """With what is not set filled in for this H."""
        eta, mu = default_outer(interval_steps)
        return replace(
            self,
            learning_rate=eta if self.learning_rate is None else self.learning_rate,
            momentum=mu if self.momentum is None else self.momentum,
        )

    @property
    def eta_mu(self) -> tuple[float, float]:
        """Both numbers; in a `RunConfig` they are always set."""
        assert self.learning_rate is not None, "only a RunConfig knows H"
        assert self.momentum is not None, "only a RunConfig knows H"
        return self.learning_rate, self.momentum

    def step(self, momentum_factor: float) -> tuple[float, float]:
        """eta and mu of an outer step that has this share of the momentum."""
        eta, mu = self.eta_mu
        return eta, mu * momentum_factor


_RULES: Mapping[str, Rule] = {
    "learning_rate": number(
        "The merged model would stand still, climb, or become NaN.", above=0, or_open=True
    ),
    "momentum": number(
        "Old deltas would never fade and the model would diverge.", at_least=0, below=1, or_open=True
    ),
    "momentum_warmup": number("It is a share of the budget.", at_least=0, at_most=1),
    "momentum_cooldown": number("It is a share of the budget.", at_least=0, at_most=1),
}
