"""What the protocol is told about a run: plain numbers, filled in by `atoll.config`.

The machines read nothing else. Time is in integer nanoseconds. Symbols of the paper
(arXiv:2604.21428v1) stand beside the names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from atoll.core.grace import GraceRule

__all__ = [
    "ADOPT_MODES",
    "ALGORITHMS",
    "DURABILITY_MODES",
    "ON_LARGE",
    "Adopt",
    "Algorithm",
    "Durability",
    "OnLarge",
    "RunParams",
    "spent",
]

Algorithm = Literal["decoupled", "streaming", "diloco"]
Adopt = Literal["overwrite", "blend", "rebase"]
Durability = Literal["merge", "cycle", "snapshot"]
OnLarge = Literal["reject", "clip"]

ALGORITHMS: tuple[Algorithm, ...] = ("decoupled", "streaming", "diloco")
ADOPT_MODES: tuple[Adopt, ...] = ("overwrite", "blend", "rebase")
DURABILITY_MODES: tuple[Durability, ...] = ("merge", "cycle", "snapshot")
ON_LARGE: tuple[OnLarge, ...] = ("reject", "clip")

MS = 1_000_000
SECOND = 1_000_000_000
MAX_GRACE_STEPS = 8.0
"""Whoever needs longer than that is not a little late."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunParams:
    """The numbers of one run, the same for the syncer and for all learners."""

    algorithm: Algorithm = "decoupled"
    """`decoupled` never holds a learner; `streaming` and `diloco` wait for every live one."""
    num_fragments: int = 24
    """P: disjoint slices of the parameters; at most `interval_steps`."""
    interval_steps: int = 24
    """H: learner steps between two rounds on one fragment."""
    overlap_steps: int = 5
    """tau: rounds that may gather offers at the same time; by `slack`, also the steps a round may take."""
    min_quorum: int = 1
    """K: fewest offers that may merge."""
    grace_rule: GraceRule = "worth"
    """What decides how long a round waits after its K-th header."""
    grace_max_steps: float = 4.0
    """The longest grace window by either rule, in steps of the median learner."""
    grace_fraction: float = 0.8
    """gamma, by `slack`: share of the measured slack that is spent waiting; below 1."""
    averaging: float = 0.2
    """Weight of the newest sample in the moving averages xi."""
    adopt: Adopt = "overwrite"
    """What a learner does with its own progress when it takes in a published fragment."""
    durability: Durability = "merge"
    """When a commit is forced to disk: every merge, every cycle of P merges, every snapshot."""
    snapshot_every: int = 50
    """Merges between two snapshots of the whole state."""
    budget_ticks: int = 0
    """The run ends at this tick; 0 means no limit in ticks."""
    budget_tokens: int = 0
    """The run ends when this many tokens (per fragment, on average) were merged; 0 means no limit."""
    momentum_warmup: float = 0.1
    """Share of the budget over which the outer momentum rises from 0."""
    momentum_cooldown: float = 0.2
    """Share of the budget, at its end, over which the outer momentum falls to 0."""
    fragment_bytes: tuple[int, ...] = ()
    """Size of one encoded offer body of each fragment; for body deadlines."""
    publish_bytes: tuple[int, ...] = ()
    """Size of one encoded update of each fragment."""
    full_bytes: tuple[int, ...] = ()
    """Size of each fragment sent whole."""
    norm_gate: float = 10.0
    """An offer whose norm exceeds this multiple of the running median is too large; 0 turns it off."""
    on_large: OnLarge = "reject"
    """What becomes of such an offer: it is rejected, or scaled down to the largest norm allowed."""
    max_share: float = 1.0
    """Largest share of a merge's weight that one learner may have, if others are there."""
    max_step_tokens: int = 0
    """An offer with more tokens per step than this is implausible; 0 turns the check off."""
    strikes: int = 5
    """Rejected offers, not yet made up for by merged ones, before a learner is quarantined; 0: never."""
    quarantine_steps: int = 100
    """How long a quarantine lasts, in steps of the median learner."""
    num_shards: int = 64
    """Shards of the data, each one learner's."""
    hand_on_ns: int = 600 * SECOND
    """Absence after which a learner's shard may be given to a newcomer."""
    donates: bool = False
    """Whether healthy learners hand their optimizer state to those that have none."""
    heartbeat_ns: int = 1 * SECOND
    """The syncer's beat, and the longest silence of a learner that is not stepping."""
    alive_ns: int = 5 * SECOND
    """Silence, in either direction, after which a learner is not counted as connected."""
    retry_ns: int = 2 * SECOND
    """Wait before an unanswered request is sent again."""
    drain_ns: int = 60 * SECOND
    """Longest wait for the last round of every fragment once the budget is spent."""
    live_ns: int = 600 * SECOND
    """I10: with a healed, stepping, connected quorum a merge commits at least this often."""

    @property
    def waits(self) -> bool:
        """Whether a round waits for every live learner, and learners for the round."""
        return self.algorithm != "decoupled"

    @property
    def hold_steps(self) -> int:
        """Steps on a fragment after which a learner that waits stops. Where Streaming rebases, steps count
        from the snapshot, and those of the overlap are its own."""
        keeps_overlap = self.algorithm == "streaming" and self.adopt == "rebase"
        return self.interval_steps + (self.overlap_steps if keeps_overlap else 0)

    def progress(self, t: int, merged_tokens: int) -> float | None:
        """Share of the budget that is spent, 0 to 1, by whichever limit is nearer; None without a budget."""
        return spent(self.budget_ticks, t, self.budget_tokens, merged_tokens / self.num_fragments)

    def offset(self, fragment: int) -> int:
        """Tick within the cycle at which a fragment is due: floor(p H / P), distinct as P <= H."""
        return fragment * self.interval_steps // self.num_fragments


def spent(budget_ticks: int, t: int, budget_tokens: int, merged_tokens: float) -> float | None:
    """Share of a budget that is spent, 0 to 1, by whichever limit is nearer; None without a limit."""
    shares = [t / budget_ticks] if budget_ticks else []
    if budget_tokens:
        shares.append(merged_tokens / budget_tokens)
    return min(1.0, max(shares)) if shares else None
