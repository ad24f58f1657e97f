"""Mixture of experts: the comparison of `parity` at M = 4, with experts merged one by one."""

from __future__ import annotations

from atoll.sim.lab.experiments.parity import Comparison

__all__ = ["MOE"]

MOE = Comparison(
    name="moe",
    about="a mixture of experts: Data-Parallel, Streaming and Decoupled at M=4",
    task="moe",
    methods=("streaming",),
    counts=(4,),
)
