"""Every setting of a run, its default, and the reasons a value is refused.

This is the only home of the defaults that a user sees. A `RunConfig` is built from sections, in
Python or from TOML, where each section is a table:

    config = RunConfig(sync=SyncConfig(min_quorum=2, num_learners=4))
    config = RunConfig.from_toml("run.toml")

Values are checked once, at construction, so a config that exists can work. A refusal says what is
wrong with its values, what would follow, and what to do now. The machines do not see this module:
`RunConfig.params` hands them the plain numbers of `atoll.core.params`. Symbols of the paper
(arXiv:2604.21428v1) stand first in the field's description.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, get_args

from atoll.core import params
from atoll.core.params import SECOND, Adopt, Algorithm, Durability, RunParams
from atoll.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "CODECS",
    "KEEP_MODES",
    "MERGE_RULES",
    "BudgetConfig",
    "CodecConfig",
    "DurabilityConfig",
    "OuterConfig",
    "RunConfig",
    "SyncConfig",
]

Codec = Literal["f32", "bf16", "int8", "int4", "fp4", "int2"]
MergeRule = Literal["rda", "mean"]
Keep = Literal["recent", "all"]

CODECS: tuple[Codec, ...] = get_args(Codec)
MERGE_RULES: tuple[MergeRule, ...] = get_args(MergeRule)
KEEP_MODES: tuple[Keep, ...] = get_args(Keep)


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncConfig:
    """When fragments travel, who must be there, and how long the syncer waits."""

    algorithm: Algorithm = "decoupled"
    """`decoupled` never holds a learner; `streaming` and `diloco` wait for every live one."""
    num_learners: int | None = None
    """M: learners expected in the run. Not set: the run is open to any number."""
    num_fragments: int = 24
    """P: disjoint slices of the parameters, each merged on its own; at most `interval_steps`."""
    interval_steps: int = 24
    """H: learner steps between two rounds on one fragment."""
    overlap_steps: int = 2
    """tau: rounds that may gather offers at the same time, and the steps a round may take."""
    min_quorum: int = 1
    """K: fewest offers that may merge. 1 favours progress; num_learners is lockstep."""
    grace_fraction: float = 0.8
    """gamma: share of the measured slack spent waiting after the K-th header; 0 never waits."""
    averaging: float = 0.2
    """Weight of the newest sample in the moving averages xi, above 0 and at most 1."""
    adopt: Adopt = "overwrite"
    """What a published fragment does to a learner's own progress: `overwrite`, `blend`, `rebase`."""
    blend_alpha: float = 0.5
    """alpha: share of its own value that a learner keeps when `adopt` is `blend`; 0 is overwrite."""
    merge_rule: MergeRule = "rda"
    """How offers become one: `rda` averages directions and keeps the norm, `mean` averages values."""
    norm_gate: float = 10.0
    """An offer whose norm exceeds this multiple of the running median is rejected; 0 turns it off."""
    max_step_tokens: int = 0
    """An offer with more tokens per step than this is implausible; 0 turns the check off."""
    heartbeat_s: float = 1.0
    """Seconds between two beats of the syncer, and the longest silence of an idle learner."""
    alive_s: float = 5.0
    """Seconds of silence after which a learner does not count as connected."""
    retry_s: float = 2.0
    """Seconds before an unanswered request is sent again."""
    live_s: float = 600.0
    """Seconds within which a healed, stepping, connected quorum must see a merge (I10)."""

    def __post_init__(self) -> None:
        _check("sync", self, _SYNC_RULES)
        if self.num_learners is not None and self.min_quorum > self.num_learners:
            learners = _count(self.num_learners, "learner")
            raise ConfigError(
                f"sync.min_quorum is {self.min_quorum} but the run has {learners}.",
                "No round could reach quorum, so nothing would ever merge.",
                f"Set sync.min_quorum to {self.num_learners} or less, or add a learner.",
            )
        if self.algorithm == "diloco" and self.num_fragments != 1:
            raise ConfigError(
                f'sync.algorithm is "diloco" but sync.num_fragments is {self.num_fragments}.',
                "DiLoCo merges the whole model at once, so the run would not be DiLoCo.",
                'Set sync.num_fragments to 1, or sync.algorithm to "streaming".',
            )
        num_fragments, interval_steps = self.num_fragments, self.interval_steps
        if num_fragments > interval_steps:
            raise ConfigError(
                f"sync.num_fragments is {num_fragments} but sync.interval_steps is {interval_steps}.",
                "Two fragments would fall due at the same step, and one of them would never have its turn.",
                f"Set sync.num_fragments to {interval_steps} or less, "
                f"or sync.interval_steps to {num_fragments} or more.",
            )
        if self.alive_s <= self.heartbeat_s:
            raise ConfigError(
                f"sync.alive_s is {self.alive_s} but sync.heartbeat_s is {self.heartbeat_s}.",
                "A healthy learner would count as lost between two of its own heartbeats.",
                f"Set sync.alive_s to several heartbeats, for example {5 * self.heartbeat_s:g}.",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class OuterConfig:
    """The outer optimizer: SGD with Nesterov momentum on merged deltas, in f32."""

    learning_rate: float = 0.4
    """eta: factor on the merged delta. Provisional until the lab has compared settings."""
    momentum: float = 0.9
    """mu: Nesterov momentum, at least 0 and below 1. Provisional like eta."""

    def __post_init__(self) -> None:
        _check("outer", self, _OUTER_RULES)


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
        _check("codec", self, _CODEC_RULES)


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
        _check("budget", self, _BUDGET_RULES)


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
        _check("durability", self, _DURABILITY_RULES)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """All settings of one run. `RunConfig()` is the default run; equal configs make equal runs."""

    sync: SyncConfig = field(default_factory=SyncConfig)
    """When fragments travel, who must be there, and how long the syncer waits."""
    outer: OuterConfig = field(default_factory=OuterConfig)
    """The outer optimizer."""
    codec: CodecConfig = field(default_factory=CodecConfig)
    """How fragments are written as bytes."""
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    """When the run is over."""
    durability: DurabilityConfig = field(default_factory=DurabilityConfig)
    """What a crash of the syncer may cost."""

    def __post_init__(self) -> None:
        for name, section in _SECTIONS.items():
            value = getattr(self, name)
            if not isinstance(value, section):
                raise ConfigError(
                    f"{name} is {_show(value)}, not a section of settings.",
                    "Its settings could not be read, so the run would not be the one described.",
                    f"Write [{name}] and the settings below it in TOML, "
                    f"or pass {name}=atoll.config.{section.__name__}(...) in Python.",
                )

    @classmethod
    def from_toml(cls, source: str | os.PathLike[str]) -> RunConfig:
        """Read a config from a TOML file, or from TOML text; whatever is missing has its default.

        A string is text when it is empty, spans lines or holds an equals sign (and does not end
        in `.toml`); any other string, and any `Path`, names a file. An error in a file names it.
        """
        if isinstance(source, str):
            holds_setting = "=" in source and not source.endswith(".toml")
            if holds_setting or "\n" in source or not source.strip():
                return _from_tables(_parse(source, "The config text"))
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigError(
                f"The config file {os.fspath(source)} cannot be read: {reason}.",
                "The run has no settings to start from.",
                "Give the path of a readable TOML file, or leave it out for the defaults.",
            ) from error
        tables = _parse(text, os.fspath(source))
        try:
            return _from_tables(tables)
        except ConfigError as error:
            raise ConfigError(f"{os.fspath(source)}: {error.what}", error.so_what, error.now_what) from None

    def to_toml(self) -> str:
        """Write every setting as TOML that `from_toml` reads back to an equal config.

        A setting that is not set (an open number of learners) is left out: TOML has no null.
        """
        tables = []
        for name in _SECTIONS:
            section = getattr(self, name)
            values = {f.name: getattr(section, f.name) for f in fields(section)}
            lines = [f"{key} = {_toml_value(value)}" for key, value in values.items() if value is not None]
            tables.append("\n".join([f"[{name}]", *lines]) + "\n")
        return "\n".join(tables)

    def params(
        self,
        fragment_bytes: tuple[int, ...] = (),
        publish_bytes: tuple[int, ...] = (),
        full_bytes: tuple[int, ...] = (),
    ) -> RunParams:
        """The numbers the protocol runs on; sizes per fragment come from the model and the codecs."""
        sync, budget, durability = self.sync, self.budget, self.durability
        for sizes in filter(None, (fragment_bytes, publish_bytes, full_bytes)):
            if len(sizes) != sync.num_fragments:
                raise ConfigError(
                    f"The model has {_count(len(sizes), 'fragment')} "
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
            averaging=sync.averaging,
            adopt=sync.adopt,
            durability=durability.mode,
            snapshot_every=durability.snapshot_every,
            budget_ticks=budget.ticks,
            budget_tokens=budget.tokens,
            fragment_bytes=fragment_bytes,
            publish_bytes=publish_bytes,
            full_bytes=full_bytes,
            norm_gate=sync.norm_gate,
            max_step_tokens=sync.max_step_tokens,
            heartbeat_ns=_ns(sync.heartbeat_s),
            alive_ns=_ns(sync.alive_s),
            retry_ns=_ns(sync.retry_s),
            drain_ns=_ns(budget.drain_s),
            live_ns=_ns(sync.live_s),
        )


# A rule looks at one value, given the setting's full name and its default (the best example of a
# good value). It returns the value in its own type, or raises.
_Rule = Callable[[str, object, object], object]


def _whole(so_what: str, *, at_least: int, or_open: bool = False) -> _Rule:
    def rule(name: str, value: object, default: object) -> int | None:
        if or_open and value is None:
            return None
        example = at_least if default is None else default
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong_type(name, value, "a whole number", example)
        if value < at_least:
            raise _out_of_range(name, value, f"at least {at_least}", so_what, example)
        return value

    return rule


def _number(
    so_what: str,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    at_most: float = math.inf,
    or_zero: bool = False,
) -> _Rule:
    limits = {"at least": at_least, "above": above, "below": below, "at most": at_most}
    wanted = " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit))
    wanted = f"0 or {wanted}" if or_zero else wanted

    def rule(name: str, value: object, default: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _wrong_type(name, value, "a number", default)
        if not abs(value) <= sys.float_info.max:  # NaN, an infinity, or an int that no float holds
            raise _out_of_range(name, value, "finite", "Nothing could be computed from it.", default)
        fits = at_least <= value <= at_most and above < value < below
        if not fits and not (or_zero and value == 0):
            raise _out_of_range(name, value, wanted, so_what, default)
        return float(value)

    return rule


def _flag(name: str, value: object, default: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong_type(name, value, "true or false", default)
    return value


def _one_of(choices: Sequence[str], so_what: str) -> _Rule:
    def rule(name: str, value: object, default: object) -> str:
        if not isinstance(value, str):
            raise _wrong_type(name, value, "a string", default)
        if value not in choices:
            listed = ", ".join(_show(choice) for choice in choices)
            raise ConfigError(
                f"{name} is {_show(value)}, which is none of {listed}.",
                so_what,
                _did_you_mean(value, choices, quote=True) + f"Set {name} to one of {listed}.",
            )
        return value

    return rule


# A wait shorter than this is a typing error, and would round to nothing in nanoseconds.
_SHORTEST_S = 0.001

_SYNC_RULES: Mapping[str, _Rule] = {
    "algorithm": _one_of(params.ALGORITHMS, "No rounds could be scheduled."),
    "num_learners": _whole("Nobody would train.", at_least=1, or_open=True),
    "num_fragments": _whole("The model would have no fragment to merge.", at_least=1),
    "interval_steps": _whole("No fragment would ever fall due.", at_least=1),
    "overlap_steps": _whole("No round could be open, so nothing would ever merge.", at_least=1),
    "min_quorum": _whole("A round would merge without a single offer.", at_least=1),
    "grace_fraction": _number("The grace window would not fit into the slack.", at_least=0, below=1),
    "averaging": _number("The moving averages would never follow what is measured.", above=0, at_most=1),
    "adopt": _one_of(params.ADOPT_MODES, "Learners would not know how to take in a published fragment."),
    "blend_alpha": _number("Learners would not come together.", at_least=0, below=1),
    "merge_rule": _one_of(MERGE_RULES, "Offers could not be merged."),
    "norm_gate": _number("Offers of ordinary size would be rejected.", above=1, or_zero=True),
    "max_step_tokens": _whole("Every offer would be rejected as implausible.", at_least=0),
    "heartbeat_s": _number("The syncer would beat without pause.", at_least=_SHORTEST_S),
    "alive_s": _number("No learner would ever count as connected.", at_least=_SHORTEST_S),
    "retry_s": _number("Requests would be sent again without pause.", at_least=_SHORTEST_S),
    "live_s": _number("Every healthy run would be reported as stuck.", at_least=_SHORTEST_S),
}
_OUTER_RULES: Mapping[str, _Rule] = {
    "learning_rate": _number("The merged model would stand still, climb, or become NaN.", above=0),
    "momentum": _number("Old deltas would never fade and the model would diverge.", at_least=0, below=1),
}
_CODEC_RULES: Mapping[str, _Rule] = {
    "up": _one_of(CODECS, "No learner could encode an offer."),
    "down": _one_of(CODECS, "No learner could decode a publish."),
    "error_feedback": _flag,
}
_BUDGET_RULES: Mapping[str, _Rule] = {
    "ticks": _whole("The run would be over before it began.", at_least=0),
    "tokens": _whole("The run would be over before it began.", at_least=0),
    "drain_s": _number("The last round of every fragment would be lost.", at_least=_SHORTEST_S),
}
_DURABILITY_RULES: Mapping[str, _Rule] = {
    "mode": _one_of(params.DURABILITY_MODES, "Nobody could say what a crash would cost."),
    "snapshot_every": _whole("A restart would find no snapshot to start from.", at_least=1),
    "keep": _one_of(KEEP_MODES, "Deltas would be kept or deleted by guess."),
}
_SECTIONS: Mapping[str, type[Any]] = {
    "sync": SyncConfig,
    "outer": OuterConfig,
    "codec": CodecConfig,
    "budget": BudgetConfig,
    "durability": DurabilityConfig,
}


def _check(section: str, config: Any, rules: Mapping[str, _Rule]) -> None:
    """Hold every field of a section against its rule; an int given for a float becomes one."""
    for f in fields(config):
        value = rules[f.name](f"{section}.{f.name}", getattr(config, f.name), f.default)
        object.__setattr__(config, f.name, value)


def _wrong_type(name: str, value: object, wanted: str, default: object) -> ConfigError:
    return ConfigError(
        f"{name} is {_show(value)}, not {wanted}.",
        "Atoll does not guess what was meant, because a wrong guess would run for days.",
        f"Write {wanted}, for example {name} = {_show(default)}.",
    )


def _out_of_range(name: str, value: object, wanted: str, so_what: str, default: object) -> ConfigError:
    return ConfigError(
        f"{name} is {_show(value)}; it must be {wanted}.",
        so_what,
        f"Set {name} to a value that is {wanted}, for example {_show(default)}.",
    )


def _parse(text: str, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{origin} is not valid TOML: {error}.",
            "None of its settings could be read, so the run has nothing to start from.",
            "Mend that line. A section is [sync], a setting is min_quorum = 2, a word stands in quotes.",
        ) from error


def _from_tables(tables: Mapping[str, object]) -> RunConfig:
    sections: dict[str, Any] = {}
    for name, table in tables.items():
        if name not in _SECTIONS:
            raise _unknown_section(name)
        sections[name] = _section(name, table) if isinstance(table, dict) else table
    return RunConfig(**sections)


def _section(name: str, table: Mapping[str, object]) -> Any:
    known = _settings(name)
    for key in table:
        if key not in known:
            now_what = f"{_did_you_mean(key, known)}The settings of [{name}] are {', '.join(known)}."
            raise ConfigError(f"{name}.{key} is not a setting.", _NO_EFFECT, now_what)
    return _SECTIONS[name](**table)


def _unknown_section(name: str) -> ConfigError:
    home = next((section for section in _SECTIONS if name in _settings(section)), None)
    if home:
        return ConfigError(f"{name} stands outside its section.", _NO_EFFECT, f"Move it below [{home}].")
    now_what = f"{_did_you_mean(name, tuple(_SECTIONS))}The sections are {', '.join(_SECTIONS)}."
    return ConfigError(f"{name} is not a section of a run's config.", _NO_EFFECT, now_what)


_NO_EFFECT = "It would have no effect, and the run would not be the one described."


def _settings(section: str) -> list[str]:
    return [f.name for f in fields(_SECTIONS[section])]


def _did_you_mean(word: str, known: Sequence[str], *, quote: bool = False) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"Did you mean {_show(close[0]) if quote else close[0]}? " if close else ""


def _show(value: object) -> str:
    """A value as the user would write it in TOML, so that it is recognised."""
    if isinstance(value, (bool, str)):
        return _toml_value(value)
    return "not set" if value is None else repr(value)


def _toml_value(value: object) -> str:
    # A JSON string is a TOML string, true and false are the same, and repr(float) reads back exactly.
    return json.dumps(value) if isinstance(value, (bool, str)) else repr(value)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _ns(seconds: float) -> int:
    return round(Fraction(seconds) * SECOND)  # exact, and no float is too large for it
