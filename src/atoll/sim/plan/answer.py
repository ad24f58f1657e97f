"""A plan as one JSON object. Ratios are fractions of 1, times seconds, rates as their names say."""

from __future__ import annotations

from typing import Any

from atoll.sim.plan.evaluate import Outcome
from atoll.sim.plan.explain import (
    config_snippet,
    loses,
    name_layout,
    reasons,
    verdict,
    why_worse,
    worth_in_words,
)
from atoll.sim.plan.links import merge_cores
from atoll.sim.plan.plan import SETTINGS, Change, Plan, Worth, setting
from atoll.sim.plan.quality import token_exponent

__all__ = ["as_json"]

PAPER_CLAIM = "more than 20 times, 12B over four U.S. regions on 2 to 5 Gbit/s (a blog of the authors)"


def as_json(plan: Plan) -> dict[str, Any]:
    """All that the tables show, and the config."""
    best = plan.best
    return {
        "objective": "money" if plan.world.money else "time",
        "recommendation": _settings(best)
        | {
            "islands": name_layout(plan.world.spec, best.candidate.layout),
            "needs_syncer": not best.candidate.is_alone,
            "verdict": verdict(plan),
        },
        "reasons": reasons(plan),
        "expected": _expected(plan),
        "lock_step": _lock_step(plan),
        "times_faster": plan.times_faster,
        "paper_claim": PAPER_CLAIM,
        "arithmetic": [
            {"what": line.what, "working": line.working, "value": line.value} for line in plan.lines
        ],
        "candidates": [_candidate(plan, outcome) for outcome in plan.five],
        "sensitivity": [_change(plan, change) for change in plan.changes],
        "islands": [_island(plan, worth) for worth in plan.worths],
        "simulated": {
            "distinct_fleets": plan.world.paces.num_distinct,
            "days": plan.world.paces.horizon_s / 86400,
            "what": ["goodput of each learner", "uptime of each learner", "participation", "goodput_whole"],
        },
        "estimated": [
            "shocks",
            "uptime, uptime_quorum and merging of all learners together",
            "links",
            "staleness",
            "lock-step's wait for links",
            "gap",
            "tokens",
        ],
        "config": None if best.candidate.is_alone else config_snippet(plan),
    }


def _settings(outcome: Outcome) -> dict[str, Any]:
    """Every setting; null for what one learner alone does not have."""
    return {name: setting(outcome.candidate, name) for name in SETTINGS}


def _expected(plan: Plan) -> dict[str, Any]:
    best, crew = plan.best, plan.best.crew
    whole = plan.whole[best.candidate.layout]
    return {
        "goodput": crew.goodput,
        "goodput_whole": whole.goodput,
        "uptime": crew.uptimes[1],
        "uptime_quorum": crew.uptimes[crew.quorum],
        "merging": None if best.candidate.is_alone else crew.merging,
        "participation": whole.participation,
        "tokens_per_s": crew.tokens_per_s,
        "step_s": crew.step_s,
        "staleness_steps": best.staleness,
        "way_steps": best.way_steps,
        "gap": best.gap,
        "gap_uncertainty": crew.gap.uncertainty,
        "gap_is_extrapolated": crew.gap.is_extrapolated,
        "token_exponent": token_exponent(),
        "tokens": best.tokens,
        "time_s": best.time_s,
        "time_range_s": list(plan.time_range_s),
        "cost": best.cost,
        "cost_per_h": crew.price_per_h,
        "syncer_gbps": best.syncer_bits_per_s / 1e9,
        "syncer_cores": 0.0
        if best.candidate.is_alone
        else merge_cores(plan.world.spec.model.params, crew.learners, crew.step_s * best.candidate.interval),
        "links": [
            {
                "island": link.island,
                "needed_gbps": link.needed_bits_per_s / 1e9,
                "available_gbps": link.available_bits_per_s / 1e9,
            }
            for link in best.links
        ],
    }


def _lock_step(plan: Plan) -> dict[str, Any]:
    locked = plan.lock_step
    return {
        "islands": name_layout(plan.world.spec, locked.layout),
        "tokens_per_s": locked.tokens_per_s,
        "step_s": locked.step_s,
        "compute_s": locked.compute_s,
        "utilisation": locked.utilisation,
        "goodput": locked.goodput,
        "time_s": locked.time_s,
        "cost": locked.cost,
        "best_island_alone": {
            "island": locked.alone_name,
            "tokens_per_s": locked.alone_tokens_per_s,
            "time_s": locked.alone_time_s,
            "cost": locked.alone_cost,
        },
    }


def _candidate(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    return _settings(outcome) | {
        "islands": name_layout(plan.world.spec, outcome.candidate.layout),
        "time_s": outcome.time_s,
        "cost": outcome.cost,
        "tokens_per_s": outcome.crew.tokens_per_s,
        "goodput": outcome.crew.goodput,
        "uptime": outcome.crew.uptimes[1],
        "loses": loses(plan.best, outcome),
        "why": "the best" if outcome is plan.best else why_worse(plan.world, plan.best, outcome),
    }


def _change(plan: Plan, change: Change) -> dict[str, Any]:
    best = change.best
    return {
        "change": change.what,
        "flips": list(change.flips),
        "time_s": best.time_s if best else None,
        "cost": best.cost if best else None,
        "recommendation": _settings(best) if best else None,
    }


def _island(plan: Plan, worth: Worth) -> dict[str, Any]:
    site = plan.world.spec.sites[worth.site]
    with_it, without = worth.with_it, worth.without
    return {
        "island": site.name,
        "count": site.count,
        "used": worth.used,
        "worth_its_link": worth.is_worth,
        "why": worth_in_words(plan, worth),
        "time_with_s": with_it.time_s if isinstance(with_it, Outcome) else None,
        "time_without_s": without.time_s if isinstance(without, Outcome) else None,
        "cost_with": with_it.cost if isinstance(with_it, Outcome) else None,
        "cost_without": without.cost if isinstance(without, Outcome) else None,
    }
