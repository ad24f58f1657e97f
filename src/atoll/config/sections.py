"""Every other section of a run's config, and the table of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from atoll.config.outer import OuterConfig
from atoll.config.rules import SHORTEST_S, Rule, check, flag, number, one_of, whole
from atoll.config.sync import SyncConfig
from atoll.core import params
from atoll.core.params import Durability, OnLarge
from atoll.errors import ConfigError

__all__ = [
    "CODECS",
    "KEEP_MODES",
    "MOMENTS",
    "SECTIONS",
    "BudgetConfig",
    "Codec",
    "CodecConfig",
    "DataConfig",
    "DurabilityConfig",
    "GuardConfig",
    "HealConfig",
    "Keep",
    "Moments",
    "NetworkConfig",
    "SecurityConfig",
    "TapeConfig",
]

Codec = Literal["f32", "bf16", "int8", "int4", "fp4", "int2"]
Keep = Literal["recent", "all"]
Moments = Literal["own", "peer", "fresh"]

CODECS: tuple[Codec, ...] = get_args(Codec)
KEEP_MODES: tuple[Keep, ...] = get_args(Keep)
MOMENTS: tuple[Moments, ...] = get_args(Moments)

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecConfig:
    """How fragments are written as bytes, in each direction."""

    up: Codec = "bf16"
    """Offers, from a learner to the syncer: f32, bf16, int8, int4, fp4 or int2."""
    down: Codec = "bf16"
    """Publishes, from the syncer to every learner: the same choice."""
    error_feedback: bool = True
    """Whether an encoder adds what rounding lost to its next merged offer (codecs of 8 bits and fewer)."""

    def __post_init__(self) -> None:
        check("codec", self, _CODEC_RULES)


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetConfig:
    """When the run is over: at the first of its limits, or never."""

    ticks: int = 0
    """The run ends at this tick of the syncer's clock; 0 means no limit."""
    tokens: int = 0
    """The run ends when this many tokens (per fragment, on average) were merged; 0 means no limit."""
    drain_s: float = 60.0
    """Longest wait, in seconds, for the last round of every fragment once a limit is reached."""

    def __post_init__(self) -> None:
        check("budget", self, _BUDGET_RULES)


@dataclass(frozen=True, kw_only=True, slots=True)
class DurabilityConfig:
    """What a crash of the syncer may cost, and what stays on disk."""

    mode: Durability = "merge"
    """When a commit is forced to disk: every `merge`, every `cycle` of P merges, every `snapshot`."""
    snapshot_every: int = 50
    """Merges between two snapshots of the whole state."""
    keep: Keep = "recent"
    """`recent` deletes deltas older than the second-newest verified snapshot; `all` deletes none."""

    def __post_init__(self) -> None:
        check("durability", self, _DURABILITY_RULES)


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardConfig:
    """What keeps bad numbers out of the model. Values that are not finite are always rejected."""

    norm_gate: float = 10.0
    """An offer whose norm exceeds this multiple of the running median is too large; 0 turns it off."""
    on_large: OnLarge = "reject"
    """What becomes of an offer that is too large: `reject`, or `clip` it to the largest norm allowed."""
    max_share: float = 1.0
    """Largest share of a merge's weight that one learner may have, if others are there; 1 means any."""
    max_step_tokens: int = 0
    """An offer with more tokens per step than this is implausible; 0 turns the check off."""
    strikes: int = 5
    """Rejected offers, not yet made up for by merged ones, before a learner is quarantined; 0: never."""
    quarantine_steps: int = 100
    """How long the offers of a quarantined learner are not asked for, in steps of the fleet."""

    def __post_init__(self) -> None:
        check("guard", self, _GUARD_RULES)


@dataclass(frozen=True, kw_only=True, slots=True)
class HealConfig:
    """How a learner that comes back finds its optimizer again."""

    moments: Moments = "own"
    """Where optimizer state comes from: the `own` disk, a healthy `peer` if there is none, or `fresh`."""
    max_age_steps: int = 10_000
    """Saved optimizer state that lies more ticks back than this is not used."""
    warmup_steps: int = 50
    """Steps over which the learning rate rises again after a start with fresh optimizer state."""
    save_every_steps: int = 100
    """Steps in which all of the optimizer state is saved once, a fragment at a time; 0 saves none."""

    def __post_init__(self) -> None:
        check("heal", self, _HEAL_RULES)


@dataclass(frozen=True, kw_only=True, slots=True)
class TapeConfig:
    """What is kept of the past, so that it can be replayed."""

    keep_offers: bool = False
    """Whether offers stay on the syncer's disk, so that a replay can recompute the merges themselves."""
    keep_mb: int = 64
    """Tape older than the second-newest snapshot is deleted beyond this size, in MiB, unless all is kept."""

    def __post_init__(self) -> None:
        check("tape", self, _TAPE_RULES)


@dataclass(frozen=True, kw_only=True, slots=True)
class SecurityConfig:
    """Who is let in, and who may read along."""

    tls: bool = True
    """Whether connections are encrypted and the syncer proves its key; false only on a trusted network."""
    mtls: bool = False
    """Whether a learner must also show a certificate that the syncer issued to its name; needs `tls`."""

    def __post_init__(self) -> None:
        check("security", self, _SECURITY_RULES)
        if self.mtls and not self.tls:
            raise ConfigError(
                "security.mtls is true but security.tls is false.",
                "Certificates travel in TLS, so no learner could show one and none would be let in.",
                "Set security.tls to true, or security.mtls to false.",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConfig:
    """How fragments travel between a learner and the syncer."""

    data_connections: int = 4
    """Connections for bodies, per learner, from 1 to 16; a long path needs several to be filled."""
    piece_bytes: int = MIB
    """Largest piece of a body sent at once, from 4 KiB to 16 MiB; pieces spread over the connections."""
    spool_mb: int = 512
    """Encoded offers held in the syncer's memory before they go to disk, in MiB; 0 means always disk."""
    max_learners: int = 1024
    """Learners that may be connected at once; one more is refused at the door."""

    def __post_init__(self) -> None:
        check("network", self, _NETWORK_RULES)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """How the training data is divided among the learners."""

    num_shards: int = 0
    """Disjoint parts of the data, one per learner; 0 means `sync.num_learners`, or 64 if that is open."""
    seed: int = 0
    """Decides the order of the data within every shard; the same seed gives the same order."""
    hand_on_s: float = 600.0
    """Seconds that a learner may be gone before a newcomer may be given its shard."""

    def __post_init__(self) -> None:
        check("data", self, _DATA_RULES)


_CODEC_RULES: Mapping[str, Rule] = {
    "up": one_of(CODECS, "No learner could encode an offer."),
    "down": one_of(CODECS, "No learner could decode a publish."),
    "error_feedback": flag,
}
_BUDGET_RULES: Mapping[str, Rule] = {
    "ticks": whole("The run would be over before it began.", at_least=0),
    "tokens": whole("The run would be over before it began.", at_least=0),
    "drain_s": number("The last round of every fragment would be lost.", at_least=SHORTEST_S),
}
_DURABILITY_RULES: Mapping[str, Rule] = {
    "mode": one_of(params.DURABILITY_MODES, "Nobody could say what a crash would cost."),
    "snapshot_every": whole("A restart would find no snapshot to start from.", at_least=1),
    "keep": one_of(KEEP_MODES, "Deltas would be kept or deleted by guess."),
}
_GUARD_RULES: Mapping[str, Rule] = {
    "norm_gate": number("Offers of ordinary size would be rejected.", above=1, or_zero=True),
    "on_large": one_of(params.ON_LARGE, "Nobody could say what becomes of an offer that is too large."),
    "max_share": number("No learner could take part in a merge.", above=0, at_most=1),
    "max_step_tokens": whole("Every offer would be rejected as implausible.", at_least=0),
    "strikes": whole("Every learner would be quarantined.", at_least=0),
    "quarantine_steps": whole("A quarantine would be over before it began.", at_least=1),
}
_HEAL_RULES: Mapping[str, Rule] = {
    "moments": one_of(MOMENTS, "A learner that comes back would not know how to go on."),
    "max_age_steps": whole("No saved state would ever be young enough.", at_least=0),
    "warmup_steps": whole("The learning rate could not rise.", at_least=0),
    "save_every_steps": whole("Optimizer state could not be saved.", at_least=0),
}
_TAPE_RULES: Mapping[str, Rule] = {
    "keep_offers": flag,
    "keep_mb": whole("There would be nothing to replay.", at_least=1),
}
_SECURITY_RULES: Mapping[str, Rule] = {"tls": flag, "mtls": flag}
_NETWORK_RULES: Mapping[str, Rule] = {
    "data_connections": whole(
        "No body could travel, or every learner would crowd the syncer.", at_least=1, at_most=16
    ),
    "piece_bytes": whole(
        "Bodies would be mostly headers, or one piece would hold up all the others.",
        at_least=4 * KIB,
        at_most=16 * MIB,
    ),
    "spool_mb": whole("Offers could be held nowhere.", at_least=0),
    "max_learners": whole("Nobody could join.", at_least=1),
}
_DATA_RULES: Mapping[str, Rule] = {
    "num_shards": whole("There would be no data to train on.", at_least=0),
    "seed": whole("It would not fit where seeds are kept.", at_least=0, at_most=2**63 - 1),
    "hand_on_s": number("Two learners would train on the same shard.", at_least=SHORTEST_S),
}
SECTIONS: Mapping[str, type[Any]] = {
    "sync": SyncConfig,
    "outer": OuterConfig,
    "codec": CodecConfig,
    "budget": BudgetConfig,
    "durability": DurabilityConfig,
    "guard": GuardConfig,
    "heal": HealConfig,
    "tape": TapeConfig,
    "security": SecurityConfig,
    "network": NetworkConfig,
    "data": DataConfig,
}
"""Every section by its name, in the order in which it is written."""
