"""The experiments, by name: each asks one question of the lab and ends in a report.

An experiment is a frozen object with a name, one line about it, and `stages(request)`. It trains nothing and
imports no torch: it asks for cells and reads rows (`common` holds what most of them share).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from atoll.sim.lab.experiments.adopt import ADOPT
from atoll.sim.lab.experiments.batches import BATCHES
from atoll.sim.lab.experiments.bits import BITS
from atoll.sim.lab.experiments.closing import CLOSING
from atoll.sim.lab.experiments.failures import FAILURES
from atoll.sim.lab.experiments.grace import GRACE
from atoll.sim.lab.experiments.learners import LEARNERS
from atoll.sim.lab.experiments.merge_rule import MERGE_RULE
from atoll.sim.lab.experiments.mixed_hardware import MIXED_HARDWARE
from atoll.sim.lab.experiments.moe import MOE
from atoll.sim.lab.experiments.non_iid import NON_IID
from atoll.sim.lab.experiments.outer import OUTER
from atoll.sim.lab.experiments.parity import PARITY
from atoll.sim.lab.experiments.rates import RATES_AROUND
from atoll.sim.lab.experiments.scaling import SCALING
from atoll.sim.lab.experiments.scavenging import SCAVENGING
from atoll.sim.lab.experiments.sweep import SWEEP
from atoll.sim.lab.experiments.vision import VISION
from atoll.sim.lab.report import Experiment

__all__ = ["EXPERIMENTS"]

LISTED: tuple[Experiment, ...] = (
    SWEEP,
    RATES_AROUND,
    BATCHES,
    PARITY,
    SCALING,
    MOE,
    VISION,
    FAILURES,
    MIXED_HARDWARE,
    GRACE,
    SCAVENGING,
    LEARNERS,
    NON_IID,
    MERGE_RULE,
    BITS,
    ADOPT,
    OUTER,
    CLOSING,
)  # fmt: skip
"""In the order in which people are shown them; one line each."""

EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType({one.name: one for one in LISTED})
