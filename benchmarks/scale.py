"""The whole protocol at scale: what a learner's step costs to simulate, for fleets of several sizes.

    python benchmarks/scale.py [--learners 4,16,64] [--merges 10000] [--record] [--json]

Every learner has 150,000 chips that fail once a year each; H = P = 24, tau = 2, K = 1, steps of one second.
The production core runs in virtual time on the traces that the fleet simulator draws, in one process, without
checking invariants. Per fleet: wall time and time on the core, events, the cost of one learner step, and the
goodput of protocol and fleet model. The core looks at every session at each report, so the cost of a step
grows with M; the table says how far. The aim is 16 learners and 10,000 merges in under a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass

from figures import markdown
from hardware import hardware, write_record

from atoll.sim.fleet.model import Pauses, even_fleet
from atoll.sim.scale.run import ScaleResult, run_scale
from atoll.sim.scale.scenario import from_fleet

CHIPS = 150_000
STEP_S = 1.0
AIM_LEARNERS, AIM_MERGES, AIM_S = 16, 10_000, 60.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one fleet cost, and whether it told the truth."""

    learners: int
    result: ScaleResult

    @property
    def step_us(self) -> float:
        """Time on the core for one step of one learner, everything included."""
        return 1e6 * self.result.cpu_s / self.result.steps

    def row(self) -> list[str]:
        """One line of the table."""
        found = self.result
        return [
            str(self.learners),
            f"{found.merges:,}",
            f"{found.steps:,}",
            f"{found.events:,}",
            f"{found.wall_s:.1f}",
            f"{found.cpu_s:.1f}",
            f"{found.events / found.cpu_s:,.0f}",
            f"{self.step_us:.0f}",
            f"{found.goodput:.4f}",
            f"{found.model.goodput:.4f}",
        ]

    def plain(self) -> dict[str, float | int | bool]:
        """The same for programs."""
        found = self.result
        return {
            "learners": self.learners,
            "merges": found.merges,
            "learner_steps": found.steps,
            "events": found.events,
            "wall_s": found.wall_s,
            "cpu_s": found.cpu_s,
            "us_per_learner_step": self.step_us,
            "goodput": found.goodput,
            "goodput_model": found.model.goodput,
            "agrees": found.agrees,
        }


COLUMNS = (
    "learners", "merges", "learner steps", "events", "wall s", "core s", "events/s", "us a step",
    "goodput", "fleet model",
)  # fmt: skip


def measure(learners: int, merges: int, seed: int) -> Cost:
    """Run one fleet to its end."""
    fleet = even_fleet(CHIPS * learners, learners, pauses=Pauses(quantum_s=STEP_S))
    return Cost(learners, run_scale(from_fleet(fleet, merges=merges, step_s=STEP_S, seed=seed)))


def verdict(costs: list[Cost]) -> str:
    """The aim, if it was measured."""
    for cost in costs:
        if cost.learners == AIM_LEARNERS and cost.result.merges == AIM_MERGES:
            took = cost.result.wall_s
            word = "held" if took < AIM_S else "missed"
            return f"{AIM_LEARNERS} learners, {AIM_MERGES:,} merges in {took:.1f} s; aim {AIM_S:g} s: {word}"
    return f"the aim ({AIM_LEARNERS} learners, {AIM_MERGES:,} merges) was not measured"


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--learners", default="4,16,64")
    parser.add_argument("--merges", type=int, default=AIM_MERGES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="keep the table in benchmarks/records")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    costs = []
    for text in options.learners.split(","):
        costs.append(measure(int(text), options.merges, options.seed))
        print(f"M = {text}: {costs[-1].result.wall_s:.1f} s", file=sys.stderr, flush=True)
    table = f"{markdown(COLUMNS, [cost.row() for cost in costs])}\n\n{verdict(costs)}"
    print(f"measured, load {load:.2f};", ", ".join(f"{k} {v}" for k, v in hardware().items()))
    print(f"\n{table}")
    if options.record:
        print(f"kept in {write_record('The whole protocol at scale', table, load)}")
    if options.json:
        print(json.dumps({"hardware": hardware(), "load": load, "fleets": [cost.plain() for cost in costs]}))
    if not all(cost.result.agrees for cost in costs):
        sys.exit(1)


if __name__ == "__main__":
    main()
