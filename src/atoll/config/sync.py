"""`[sync]`: when fragments travel, who must be there, and how long the syncer waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from atoll.config.rules import SHORTEST_S, Rule, check, count, number, one_of, whole
from atoll.core import params
from atoll.core.grace import GRACE_RULES, GraceRule
from atoll.core.params import Adopt, Algorithm
from atoll.errors import ConfigError

__all__ = ["MERGE_RULES", "MergeRule", "SyncConfig"]

MergeRule = Literal["rda", "mean"]
MERGE_RULES: tuple[MergeRule, ...] = get_args(MergeRule)


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
    overlap_steps: int = 5
    """tau: rounds that may gather offers at the same time, so that none may wait for longer than tau - 1
    steps; by `slack`, the steps a round may take; in `streaming` with rebase, steps past H before a hold."""
    min_quorum: int = 1
    """K: fewest offers that may merge. 1 favours progress; num_learners is lockstep."""
    grace_rule: GraceRule = "worth"
    """How long a round waits after its K-th header: while the late bring more than waiting costs (`worth`),
    or for a share of the measured slack (`slack`, the paper's: `overlap_steps` 2, `grace_max_steps` 1)."""
    grace_max_steps: float = 4.0
    """Longest wait after the K-th header by either rule, in steps; 0 never waits."""
    grace_fraction: float = 0.8
    """gamma: by `slack`, the share of the slack that is spent waiting; 0 never waits."""
    averaging: float = 0.2
    """Weight of the newest sample in the moving averages xi, above 0 and at most 1."""
    adopt: Adopt = "overwrite"
    """What a published fragment does to a learner's own progress: `overwrite`, `blend`, `rebase`."""
    blend_alpha: float = 0.5
    """alpha: share of its own value that a learner keeps when `adopt` is `blend`; 0 is overwrite."""
    merge_rule: MergeRule = "mean"
    """How offers become one: `mean` averages values, `rda` (the paper's) directions and norms apart."""
    heartbeat_s: float = 1.0
    """Seconds between two beats of the syncer, and the longest silence of an idle learner."""
    alive_s: float = 5.0
    """Seconds of silence after which a learner does not count as connected."""
    retry_s: float = 2.0
    """Seconds before an unanswered request is sent again."""
    live_s: float = 600.0
    """Seconds within which a healed, stepping, connected quorum must see a merge (I10)."""

    def __post_init__(self) -> None:
        _refuse_data_parallel(self.algorithm)
        check("sync", self, _RULES)
        _refuse_unreachable_quorum(self.min_quorum, self.num_learners)
        _refuse_a_wrong_cut(self)
        if self.alive_s <= self.heartbeat_s:
            raise ConfigError(
                f"sync.alive_s is {self.alive_s} but sync.heartbeat_s is {self.heartbeat_s}.",
                "A healthy learner would count as lost between two of its own heartbeats.",
                f"Set sync.alive_s to several heartbeats, for example {5 * self.heartbeat_s:g}.",
            )


def _refuse_data_parallel(algorithm: object) -> None:
    if algorithm == "data-parallel":
        raise ConfigError(
            'sync.algorithm is "data-parallel", which the runtime does not have.',
            "A learner that comes back would need weights and moments that no syncer holds.",
            'For a baseline that waits, set sync.algorithm to "streaming" or "diloco".',
        )


def _refuse_unreachable_quorum(min_quorum: int, num_learners: int | None) -> None:
    if num_learners is not None and min_quorum > num_learners:
        raise ConfigError(
            f"sync.min_quorum is {min_quorum} but the run has {count(num_learners, 'learner')}.",
            "No round could reach quorum, so nothing would ever merge.",
            f"Set sync.min_quorum to {num_learners} or less, or add a learner.",
        )


def _refuse_a_wrong_cut(sync: SyncConfig) -> None:
    num_fragments, interval_steps = sync.num_fragments, sync.interval_steps
    if sync.algorithm == "diloco" and num_fragments != 1:
        raise ConfigError(
            f'sync.algorithm is "diloco" but sync.num_fragments is {num_fragments}.',
            "DiLoCo merges the whole model at once, so the run would not be DiLoCo.",
            'Set sync.num_fragments to 1, or sync.algorithm to "streaming".',
        )
    if num_fragments > interval_steps:
        raise ConfigError(
            f"sync.num_fragments is {num_fragments} but sync.interval_steps is {interval_steps}.",
            "Two fragments would fall due at the same step, and one of them would never have its turn.",
            f"Set sync.num_fragments to {interval_steps} or less, "
            f"or sync.interval_steps to {num_fragments} or more.",
        )


_RULES: Mapping[str, Rule] = {
    "algorithm": one_of(params.ALGORITHMS, "No rounds could be scheduled."),
    "num_learners": whole("Nobody would train.", at_least=1, or_open=True),
    "num_fragments": whole("The model would have no fragment to merge.", at_least=1),
    "interval_steps": whole("No fragment would ever fall due.", at_least=1),
    "overlap_steps": whole("No round could be open, so nothing would ever merge.", at_least=1),
    "min_quorum": whole("A round would merge without a single offer.", at_least=1),
    "grace_rule": one_of(GRACE_RULES, "Nobody could say when a round closes."),
    "grace_fraction": number("The grace window would not fit into the slack.", at_least=0, below=1),
    "grace_max_steps": number("No window is that long.", at_least=0, at_most=params.MAX_GRACE_STEPS),
    "averaging": number("The moving averages would never follow what is measured.", above=0, at_most=1),
    "adopt": one_of(params.ADOPT_MODES, "Learners would not know how to take in a published fragment."),
    "blend_alpha": number("Learners would not come together.", at_least=0, below=1),
    "merge_rule": one_of(MERGE_RULES, "Offers could not be merged."),
    "heartbeat_s": number("The syncer would beat without pause.", at_least=SHORTEST_S),
    "alive_s": number("No learner would ever count as connected.", at_least=SHORTEST_S),
    "retry_s": number("Requests would be sent again without pause.", at_least=SHORTEST_S),
    "live_s": number("Every healthy run would be reported as stuck.", at_least=SHORTEST_S),
}
