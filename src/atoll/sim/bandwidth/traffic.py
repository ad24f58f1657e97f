"""What travels between sites, and how often: the inputs of every bandwidth question.

A model of N parameters is trained at M sites; a step takes T seconds where nobody waits. The methods differ
in what they send and in when it must have arrived:

    data-parallel   all gradients, every step; needed at the end of the step
    diloco          all parameters, every H-th step; needed at the end of that step
    streaming       one of P fragments, every H/P steps; needed tau steps later
    decoupled       one of P fragments, every H/P steps, up to the syncer and down again; nobody waits for it

The first three average over a ring: every site sends 2(1 - 1/M) times the payload, and the last bucket
passes 2(M - 1) hops, each half a round trip. Decoupled sends each fragment once in each direction.

Ring factor, buckets and deadlines are those of the DiLoCo author's public timeline model
(arthurdouillard.com/diloco). The latency of the ring is ours; his model has none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from atoll.errors import ConfigError

__all__ = ["METHODS", "Method", "Traffic", "check_method"]

Method = Literal["data-parallel", "diloco", "streaming", "decoupled"]
METHODS: tuple[Method, ...] = get_args(Method)

MAX_BITS = 64
MAX_PARAMS = 1e15
MAX_SITES = 4096
MAX_STEPS = 10_000
"""Of an interval. The event model plays several of them, step by step."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """A model, its pace and its schedule. Refuses what cannot be meant."""

    params: float
    """N: parameters that travel."""
    step_s: float
    """T: one inner step without any waiting."""
    bits: float = 16
    """Per parameter, on the wire."""
    sites: int = 2
    """M: sites that train one model together."""
    interval_steps: int = 24
    """H: steps between two synchronisations of one fragment (of the model, for diloco)."""
    fragments: int = 24
    """P: disjoint slices of the parameters."""
    overlap_steps: int = 2
    """tau: steps that a fragment may take on its way."""
    rtt_s: float = 0.0
    """Round trip between two sites."""

    def __post_init__(self) -> None:
        _above_zero("params", self.params, "There is nothing to send.", "12e9 for a model of 12B")
        _above_zero("step_s", self.step_s, "No step is that short.", "1.5 for a step of 1.5 seconds")
        _above_zero("bits", self.bits, "A parameter needs some bits on the wire.", "16, or 4 for four bits")
        if self.params > MAX_PARAMS:
            raise ConfigError(
                f"params is {self.params:g}.",
                "No model is that large.",
                f"Give at most {MAX_PARAMS:g}; 12e9 is a model of 12B.",
            )
        if self.bits > MAX_BITS:
            raise ConfigError(
                f"bits is {self.bits:g}.",
                "It counts bits per parameter, and no codec needs so many.",
                "Give 32, 16, 8 or 4.",
            )
        if not (math.isfinite(self.rtt_s) and self.rtt_s >= 0):
            raise ConfigError(
                f"rtt_s is {self.rtt_s}.",
                "A round trip cannot be negative, endless or undefined.",
                "Give seconds, 0 or more.",
            )
        self._check_sites()
        self._check_schedule()

    def _check_sites(self) -> None:
        if self.sites < 2:
            raise ConfigError(
                f"sites is {self.sites}.",
                "One site alone has nobody to send to: a ring of one carries nothing.",
                "Give at least 2 sites.",
            )
        if self.sites > MAX_SITES:
            raise ConfigError(
                f"sites is {self.sites:,}.",
                "Each is a data centre that trains the same model.",
                f"Give at most {MAX_SITES}.",
            )

    def _check_schedule(self) -> None:
        for name in ("interval_steps", "fragments"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}.", "Nothing would ever be sent.", "Give at least 1."
                )
            if getattr(self, name) > MAX_STEPS:
                raise ConfigError(
                    f"{name} is {getattr(self, name):,}.",
                    "The event model plays an interval step by step and would take too long.",
                    f"Give at most {MAX_STEPS:,}.",
                )
        if self.fragments > self.interval_steps:
            raise ConfigError(
                f"fragments is {self.fragments}, more than interval_steps {self.interval_steps}.",
                "At most one fragment is due in a step, so some would never be sent.",
                f"Set fragments to {self.interval_steps} or less, or lengthen the interval.",
            )
        if not 0 <= self.overlap_steps <= self.interval_steps:
            raise ConfigError(
                f"overlap_steps is {self.overlap_steps}, and interval_steps is {self.interval_steps}.",
                "A fragment cannot arrive before it leaves, nor after it is due again.",
                f"Give 0 to {self.interval_steps}.",
            )

    @property
    def steps_between(self) -> float:
        """h = H/P: steps from one fragment to the next."""
        return self.interval_steps / self.fragments

    @property
    def model_bits(self) -> float:
        """The whole model on the wire, once."""
        return self.params * self.bits

    @property
    def ring_bits(self) -> float:
        """S: what one site sends when the whole model is averaged over the ring."""
        return self.model_bits * 2 * (1 - 1 / self.sites)

    @property
    def ring_latency_s(self) -> float:
        """The last bucket's way around: 2(M - 1) hops of half a round trip."""
        return (self.sites - 1) * self.rtt_s


def check_method(method: str) -> Method:
    """The method of that name, or an error that names them all."""
    for known in METHODS:
        if method == known:
            return known
    raise ConfigError(
        f"There is no method {method!r}.", "Nothing can be computed.", f"Choose one of: {', '.join(METHODS)}."
    )


def _above_zero(name: str, value: float, so_what: str, example: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} is {value}.", so_what, f"Give a number above 0, for example {example}.")
