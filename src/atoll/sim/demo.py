"""The demo: a small fleet on a bad day, short enough to read.

Four learners, one at half speed. One dies in mid-run and returns, the syncer is killed, one
learner is cut off for a while, one leaves for good manners' sake. Everything is simulated: the
machines are the production ones, the model is a ghost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from atoll.core.params import MS, RunParams
from atoll.invariants import Checker
from atoll.sim.faults import PlannedFault
from atoll.sim.protocol import run_scenario
from atoll.sim.story import account
from atoll.sim.world import STEP_NS, Scenario, World

__all__ = ["INTRODUCTION", "DemoResult", "conclusion", "run"]

INTRODUCTION = (
    "[bold]A simulated run of Atoll[/bold]: {learners} learners, the last one at half speed, train one "
    "model in {fragments} fragments. Each fragment is merged about every {interval} steps, once {quorum} "
    "learners offer it. Time is virtual, the protocol is the production code, the model is simulated."
)


@dataclass(slots=True)
class DemoResult:
    """The run, its checker, and the figures to print."""

    world: World
    checker: Checker
    facts: dict[str, Any]


def run(seed: int) -> DemoResult:
    """Run the demo."""
    world, checker = run_scenario(scenario(seed))
    books = account(world.tape, world.scenario.params.num_fragments)
    params = world.scenario.params
    state = world.disk.load()
    facts = {
        "seed": seed,
        "learners": world.scenario.num_learners,
        "fragments": params.num_fragments,
        "interval": params.interval_steps,
        "quorum": params.min_quorum,
        "steps": state.t,
        "merges": state.merges,
        "tokens": sum(book.trained for book in books) // params.num_fragments,
        "merged_tokens": state.merged_tokens // params.num_fragments,
        "epochs": state.epoch,
        "checks": checker.num_checks.total(),
        "violations": len(checker.violations),
        "adds_up": all(
            book.trained == book.merged + book.overwritten + book.dropped + book.lost + book.open
            for book in books
        ),
        "digest": world.tape.digest(),
    }
    return DemoResult(world, checker, facts)


def scenario(seed: int) -> Scenario:
    """Four learners, six fragments, four bad things."""
    num_learners, num_fragments, interval = 4, 6, 12
    step_ns = (STEP_NS, STEP_NS, int(1.1 * STEP_NS), 2 * STEP_NS)
    params = RunParams(
        num_fragments=num_fragments,
        interval_steps=interval,
        min_quorum=2,
        fragment_bytes=(1_000_000,) * num_fragments,
        publish_bytes=(1_000_000,) * num_fragments,
        full_bytes=(2_000_000,) * num_fragments,
        heartbeat_ns=STEP_NS,
        alive_ns=4 * STEP_NS,
        retry_ns=2 * STEP_NS,
        drain_ns=60 * STEP_NS,
        live_ns=100 * STEP_NS,
    )
    plan = (
        _fault(0, "learner-crash", 24, target=1, steps=14),
        _fault(1, "syncer-crash", 44, target=0, steps=3),
        _fault(2, "partition", 56, target=2, steps=9),
        _fault(3, "learner-leave", 72, target=0, steps=6),
    )
    return Scenario(
        seed,
        params,
        num_learners,
        step_ns,
        (20 * MS, 40 * MS, 60 * MS, 80 * MS),
        (8e6, 8e6, 4e6, 4e6),
        (100, 100, 100, 100),
        90 * STEP_NS,
        False,
        plan,
        False,
    )


def _fault(number: int, kind: str, at_step: int, *, target: int, steps: int) -> PlannedFault:
    return PlannedFault(number, kind, at_step * STEP_NS, "", target, steps * STEP_NS, 0.5, -1)


def conclusion(result: DemoResult) -> str:
    """The end of the story, in figures."""
    facts = result.facts
    books = "every token is accounted for" if facts["adds_up"] else "THE TOKENS DO NOT ADD UP"
    return (
        f"\n[bold]{facts['merges']} merges[/bold] in {facts['steps']} steps and {facts['epochs']} lives of "
        f"the syncer; {facts['checks']:,} checks of 14 invariants, "
        f"{facts['violations']} violations; {books}.\n"
        "Nobody waited for anybody. Try more: atoll simulate protocol --seeds 200\n"
    )
