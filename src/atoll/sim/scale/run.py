"""One run at scale and what came of it, beside what the fleet model says of the same traces."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from atoll.invariants import Checker
from atoll.sim.scale.figures import TraceFigures, figures_of, uptime_of_steps
from atoll.sim.scale.ledger import Ledger
from atoll.sim.scale.scenario import ScaleScenario
from atoll.sim.scale.world import ScaleWorld, full_batch

__all__ = ["TOLERANCE", "Comparison", "ScaleResult", "run_scale"]

TOLERANCE = 0.01
"""The protocol's goodput and the fleet model's, on the same traces, differ by no more than this."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure, measured from what the core saw, and the fleet model's for the same traces."""

    name: str
    measured: float
    model: float
    why: str
    """What probably makes them differ: reasoned, not measured."""

    @property
    def difference(self) -> float:
        """Measured less model."""
        return self.measured - self.model


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleResult:
    """What a run came to. All ratios are fractions of 1; all but the times it took follow from the seed."""

    scenario: ScaleScenario
    digest: str
    merges: int
    virtual_s: float
    wall_s: float
    cpu_s: float
    """Of one core: less than the wall time if others use the machine too."""
    events: int
    steps: int
    goodput: float
    """Tokens of steps kept / tokens of all chips since each learner's first admission, weighted by chips. A
    step is kept unless its incarnation died before offering it."""
    lost: float
    """The same of steps that were not kept: goodput and this together are what was trained."""
    stepping: float
    """Share of time that learners spend in steps, mean over learners."""
    participation: float
    """Offers merged / (rounds x learners live when they opened)."""
    participants: float
    """Offers in a merge, on average."""
    merges_per_hour: float
    staleness_steps: float
    """Steps that a learner took between its snapshot and the adoption of what became of it, on average."""
    uptime_one: float
    uptime_quorum: float
    held_s: float
    """Time for which learners were held by the protocol: 0 in decoupled."""
    merged_tokens: dict[str, int]
    """By learner; each token counts once for each fragment it is merged in, divided by P."""
    fates: dict[str, float]
    """What became of the tokens that have met a fate: shares of merged, overwritten, late, ..."""
    rounds: int
    cancelled: int
    incarnations: dict[str, int]
    outages: int
    checked_merges: int
    checks: int
    violations: tuple[str, ...]
    model: TraceFigures

    @property
    def agrees(self) -> bool:
        """Whether protocol and fleet model tell the same goodput."""
        return abs(self.goodput - self.model.goodput) <= TOLERANCE

    @property
    def is_complete(self) -> bool:
        """Whether all the merges were done before the time was over."""
        return self.merges >= self.scenario.merges

    def comparisons(self) -> tuple[Comparison, ...]:
        """Each figure beside the fleet model's."""
        model, scenario = self.model, self.scenario
        per_hour = 3600 / scenario.fastest_s * scenario.num_fragments / scenario.interval_steps
        rows = [
            ("goodput", self.goodput, model.goodput, "steps in flight; steps lost with a life"),
            ("stepping", self.stepping, model.stepping, "single steps jitter"),
            ("uptime >= 1", self.uptime_one, model.uptime[1], "a pause within a step is taken for its begin"),
            (f"uptime >= {scenario.quorum}", self.uptime_quorum, model.uptime[scenario.quorum], "the same"),
            (
                "participation",
                self.participation,
                model.participation,
                "a pause misses the rounds at its edges, unless they wait for it",
            ),
            (
                "merges per hour",
                self.merges_per_hour,
                model.merging * per_hour,
                "t stands while the owner of the K-th clock does",
            ),
        ]
        if scenario.quorum == 1:
            del rows[3]
        return tuple(Comparison(*row) for row in rows)


def run_scale(
    scenario: ScaleScenario,
    *,
    check_merges: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> ScaleResult:
    """Run the protocol on the traces; the invariants are checked over the first `check_merges` merges."""
    ledger = Ledger(check_merges=check_merges)
    world = ScaleWorld(scenario, ledger)
    checker = Checker(world.params) if check_merges > 0 else None
    ledger.checker = checker
    began, began_cpu = time.perf_counter(), time.process_time()
    world.run(on_progress)
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    return _result(world, checker, wall_s, cpu_s)


def _result(world: ScaleWorld, checker: Checker | None, wall_s: float, cpu_s: float) -> ScaleResult:
    scenario, ledger, now_ns = world.scenario, world.ledger, world.engine.now_ns
    virtual_s = now_ns / 1e9
    starts, ends = np.array(ledger.starts_ns), np.array(ledger.ends_ns)
    uptime = {k: uptime_of_steps(starts, ends, now_ns, k) for k in (1, scenario.quorum)}
    num_settled = max(1, ledger.fates.total())
    goodput, lost = _goodput(scenario, ledger, now_ns)
    return ScaleResult(
        scenario=scenario,
        digest=ledger.digest(),
        merges=ledger.merges,
        virtual_s=virtual_s,
        wall_s=wall_s,
        cpu_s=cpu_s,
        events=world.engine.num_events,
        steps=ledger.steps,
        goodput=goodput,
        lost=lost,
        stepping=float((ends - starts).sum() / (now_ns * len(scenario.traces))),
        participation=ledger.offers / max(1, ledger.live),
        participants=ledger.offers / max(1, ledger.merges),
        merges_per_hour=ledger.merges / virtual_s * 3600,
        staleness_steps=ledger.stale_steps / max(1, ledger.stale_adoptions),
        uptime_one=uptime[1],
        uptime_quorum=uptime[scenario.quorum],
        held_s=ledger.held_ns / 1e9,
        merged_tokens={
            name: ledger.merged_tokens[name] // scenario.num_fragments for name in scenario.traces
        },
        fates={fate: tokens / num_settled for fate, tokens in ledger.fates.most_common()},
        rounds=ledger.rounds,
        cancelled=ledger.cancelled,
        incarnations={name: ledger.incarnations.get(name, 0) for name in scenario.traces},
        outages=world.num_outages,
        checked_merges=min(ledger.merges, ledger.check_merges) if checker else 0,
        checks=sum(checker.num_checks.values()) if checker else 0,
        violations=tuple(str(violation) for violation in checker.violations) if checker else (),
        model=figures_of(
            scenario.traces,
            scenario.chips,
            until_s=virtual_s,
            quorum=scenario.quorum,
            dark_s=scenario.dark_s,
            outages=scenario.outages,
        ),
    )


def _goodput(scenario: ScaleScenario, ledger: Ledger, now_ns: int) -> tuple[float, float]:
    """Time of steps kept, and of steps lost / time since the first admission, weighted by chips."""
    kept = trained = total = 0.0
    for name in scenario.traces:
        lives = [life for life in ledger.lives.values() if life.name == name]
        chip_s = scenario.step_s[name] * scenario.chips[name] / full_batch(scenario, name)
        kept += chip_s * sum(life.kept for life in lives)
        trained += chip_s * sum(life.tokens for life in lives)
        total += (now_ns - ledger.admitted_ns.get(name, 0)) / 1e9 * scenario.chips[name]
    return kept / total, (trained - kept) / total
