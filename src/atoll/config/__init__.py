"""Every setting of a run, its default, and the reasons a value is refused.

This is the only home of the defaults that a user sees. A `RunConfig` is built from sections, in
Python or from TOML, where each section is a table:

    config = RunConfig(sync=SyncConfig(min_quorum=2, num_learners=4))
    config = RunConfig.from_toml("run.toml")
    config = RunConfig.from_tables({"sync": {"min_quorum": 2}})

Values are checked once, at construction, so a config that exists can work. A refusal says what is
wrong with its values, what would follow, and what to do now. The machines do not see this package:
`RunConfig.params` hands them the plain numbers of `atoll.core.params`. Symbols of the paper
(arXiv:2604.21428v1) stand first in the field's description.

`rules` holds one value against its limits, `sync`, `outer` and `sections` are the settings themselves,
`toml` reads and writes them, `run` puts them together.
"""

from __future__ import annotations

from atoll.config.outer import OuterConfig, default_outer
from atoll.config.run import RunConfig
from atoll.config.sections import (
    CODECS,
    KEEP_MODES,
    MOMENTS,
    BudgetConfig,
    CodecConfig,
    DataConfig,
    DurabilityConfig,
    GuardConfig,
    HealConfig,
    NetworkConfig,
    SecurityConfig,
    TapeConfig,
)
from atoll.config.sync import MERGE_RULES, SyncConfig

__all__ = [
    "CODECS",
    "KEEP_MODES",
    "MERGE_RULES",
    "MOMENTS",
    "BudgetConfig",
    "CodecConfig",
    "DataConfig",
    "DurabilityConfig",
    "GuardConfig",
    "HealConfig",
    "NetworkConfig",
    "OuterConfig",
    "RunConfig",
    "SecurityConfig",
    "SyncConfig",
    "TapeConfig",
    "default_outer",
]
