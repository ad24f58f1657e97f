"""`RunConfig`: all sections together, and what they become for the protocol."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from atoll.config import toml
from atoll.config.outer import OuterConfig
from atoll.config.rules import count, show
from atoll.config.sections import (
    SECTIONS,
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
from atoll.config.sync import SyncConfig
from atoll.core.params import SECOND, RunParams, spent
from atoll.errors import ConfigError

__all__ = ["OPEN_SHARDS", "RunConfig"]

OPEN_SHARDS = 64
"""Shards of a run that is open to any number of learners and does not say otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """All settings of one run. `RunConfig()` is the default run; equal configs make equal runs."""

    sync: SyncConfig = field(default_factory=SyncConfig)
    """When fragments travel, who must be there, how long the syncer waits, and how offers are merged."""
    outer: OuterConfig = field(default_factory=OuterConfig)
    """The outer optimizer; what is not set follows from `sync.interval_steps`."""
    codec: CodecConfig = field(default_factory=CodecConfig)
    """How fragments are written as bytes."""
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    """When the run is over."""
    durability: DurabilityConfig = field(default_factory=DurabilityConfig)
    """What a crash of the syncer may cost."""
    guard: GuardConfig = field(default_factory=GuardConfig)
    """What keeps bad numbers out of the model."""
    heal: HealConfig = field(default_factory=HealConfig)
    """How a learner that comes back finds its optimizer again."""
    tape: TapeConfig = field(default_factory=TapeConfig)
    """What is kept of the past."""
    security: SecurityConfig = field(default_factory=SecurityConfig)
    """Who is let in, and who may read along."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """How fragments travel between a learner and the syncer."""
    data: DataConfig = field(default_factory=DataConfig)
    """How the training data is divided among the learners."""

    def __post_init__(self) -> None:
        for name, section in SECTIONS.items():
            value = getattr(self, name)
            if not isinstance(value, section):
                raise ConfigError(
                    f"{name} is {show(value)}, not a section of settings.",
                    "Its settings could not be read, so the run would not be the one described.",
                    f"Write [{name}] and the settings below it in TOML, "
                    f"or pass {name}=atoll.config.{section.__name__}(...) in Python.",
                )
        object.__setattr__(self, "outer", self.outer.at(self.sync.interval_steps))
        _refuse_a_closed_door(self.sync, self.network.max_learners)
        _refuse_shared_shards(self.sync.num_learners, self.data.num_shards)

    @property
    def shards(self) -> int:
        """Into how many shards the data is divided: as set, else one per expected learner, else 64."""
        return self.data.num_shards or self.sync.num_learners or OPEN_SHARDS

    @classmethod
    def from_tables(cls, tables: Mapping[str, object]) -> RunConfig:
        """Build a config from nested tables, `{"sync": {"min_quorum": 2}}`; the rest has its defaults."""
        return cls(**toml.sections_of(tables))

    @classmethod
    def from_toml(cls, source: str | os.PathLike[str]) -> RunConfig:
        """Read a config from a TOML file, or from TOML text; whatever is missing has its default.

        A string is text when it is empty, spans lines or holds an equals sign (and does not end
        in `.toml`); any other string, and any `Path`, names a file. An error in a file names it.
        """
        if isinstance(source, str) and toml.is_text(source):
            return cls.from_tables(toml.parse(source, "The config text"))
        tables = toml.parse(toml.read(source), os.fspath(source))
        try:
            return cls.from_tables(tables)
        except ConfigError as error:
            raise ConfigError(f"{os.fspath(source)}: {error.what}", error.so_what, error.now_what) from None

    def to_toml(self) -> str:
        """Write every setting as TOML that `from_toml` reads back to an equal config.

        A setting that is not set (an open number of learners) is left out: TOML has no null.
        """
        return toml.write({name: getattr(self, name) for name in SECTIONS})

    def progress(self, t: int, merged_tokens: int) -> float:
        """Share of the budget that is spent at a tick, with so many tokens merged into all fragments; 0
        without a budget."""
        budget = self.budget
        return spent(budget.ticks, t, budget.tokens, merged_tokens / self.sync.num_fragments) or 0.0

    def params(
        self,
        fragment_bytes: tuple[int, ...] = (),
        publish_bytes: tuple[int, ...] = (),
        full_bytes: tuple[int, ...] = (),
    ) -> RunParams:
        """The numbers the protocol runs on; sizes per fragment come from the model and the codecs."""
        sync, budget, durability, guard = self.sync, self.budget, self.durability, self.guard
        for sizes in filter(None, (fragment_bytes, publish_bytes, full_bytes)):
            if len(sizes) != sync.num_fragments:
                raise ConfigError(
                    f"The model has {count(len(sizes), 'fragment')} "
                    f"but sync.num_fragments is {sync.num_fragments}.",
                    "Rounds would open on fragments that do not exist, or leave some out.",
                    f"Set sync.num_fragments to {len(sizes)}, or partition the model again.",
                )
        return RunParams(
            algorithm=sync.algorithm,
            num_fragments=sync.num_fragments,
            interval_steps=sync.interval_steps,
            overlap_steps=sync.overlap_steps,
            min_quorum=sync.min_quorum,
            grace_fraction=sync.grace_fraction,
            grace_rule=sync.grace_rule,
            grace_max_steps=sync.grace_max_steps,
            averaging=sync.averaging,
            adopt=sync.adopt,
            durability=durability.mode,
            snapshot_every=durability.snapshot_every,
            budget_ticks=budget.ticks,
            budget_tokens=budget.tokens,
            momentum_warmup=self.outer.momentum_warmup,
            momentum_cooldown=self.outer.momentum_cooldown,
            fragment_bytes=fragment_bytes,
            publish_bytes=publish_bytes,
            full_bytes=full_bytes,
            norm_gate=guard.norm_gate,
            on_large=guard.on_large,
            max_share=guard.max_share,
            max_step_tokens=guard.max_step_tokens,
            strikes=guard.strikes,
            quarantine_steps=guard.quarantine_steps,
            num_shards=self.shards,
            hand_on_ns=_ns(self.data.hand_on_s),
            donates=self.heal.moments == "peer",
            heartbeat_ns=_ns(sync.heartbeat_s),
            alive_ns=_ns(sync.alive_s),
            retry_ns=_ns(sync.retry_s),
            drain_ns=_ns(budget.drain_s),
            live_ns=_ns(sync.live_s),
        )


def _refuse_a_closed_door(sync: SyncConfig, max_learners: int) -> None:
    wanted = {"sync.num_learners": sync.num_learners or 0, "sync.min_quorum": sync.min_quorum}
    for name, needed in wanted.items():
        if needed > max_learners:
            raise ConfigError(
                f"network.max_learners is {max_learners} but {name} is {needed}.",
                "Learners that the run counts on would be refused at the door.",
                f"Set network.max_learners to {needed} or more, or lower {name}.",
            )


def _refuse_shared_shards(num_learners: int | None, num_shards: int) -> None:
    if num_learners is not None and 0 < num_shards < num_learners:
        raise ConfigError(
            f"data.num_shards is {num_shards} but the run has {count(num_learners, 'learner')}.",
            "Some learners would train on the same data, which would then weigh double.",
            f"Set data.num_shards to {num_learners} or more, or to 0 for one per learner.",
        )


def _ns(seconds: float) -> int:
    return round(Fraction(seconds) * SECOND)  # exact, and no float is too large for it
