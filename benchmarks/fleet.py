"""The fleet simulator: how long a month of millions of chips takes, and how its cost grows.

    python benchmarks/fleet.py [--quick] [--record] [--json]

The headline is 2.4M chips, 16 learners, 30 days, 64 repetitions. Then one thing at a time grows from a
smaller base (1.2M chips, 16 learners, a day, 64 repetitions, returns after 70 s): days, repetitions, chips,
learners, the delay of returns (more slices away at once), and shocks. The aim is that cost grows no faster
than the number of events: the exponent of processor seconds over events, by least squares in logarithms,
is at most about 1 where events grow, and the cost of one event hardly moves where they do not.

Lanes (repetitions x learners) take one event each per array operation, so few lanes cost more per event:
the last block shows it. Seconds are of the processor: other work on the machine lengthens only the wall's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from dataclasses import asdict, dataclass

from hardware import hardware, write_record

from atoll.sim.fleet.delay import Delay
from atoll.sim.fleet.model import Fleet, Pauses, Shock, even_fleet
from atoll.sim.fleet.simulate import simulate
from atoll.sim.units import DAY, HOUR, say_count, say_duration

AIM_S = 30.0
MINUTE_AWAY = 70.0


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation."""

    chips: int = 1_200_000
    learners: int = 16
    days: float = 1.0
    repetitions: int = 64
    return_s: float = MINUTE_AWAY
    shock_every_s: float = math.inf

    def fleet(self) -> Fleet:
        """Chips of one year each in slices of 256; a shock takes a quarter of a learner for an hour."""
        shock = Shock(name="rack", every_s=self.shock_every_s, share=0.25, returns=Delay(mean_s=HOUR))
        pauses = Pauses(returns=Delay(mean_s=self.return_s))
        shocks = (shock,) if math.isfinite(self.shock_every_s) else ()
        return even_fleet(self.chips, self.learners, pauses=pauses, shocks=shocks)


@dataclass(frozen=True, slots=True)
class Cost:
    """What it took."""

    label: str
    events: int
    cpu_s: float
    wall_s: float
    goodput: float

    @property
    def us_per_event(self) -> float:
        """Processor microseconds."""
        return 1e6 * self.cpu_s / max(self.events, 1)


BASE = Case()
HEADLINE = Case(chips=2_400_000, days=30.0)
GROWTH: dict[str, list[tuple[str, Case]]] = {
    "days": [(f"{days:g} d", Case(days=days)) for days in (0.5, 1, 2, 4)],
    "repetitions": [(f"{count}", Case(repetitions=count)) for count in (16, 32, 64, 128)],
    "chips": [
        (say_count(chips), Case(chips=chips)) for chips in (150_000, 300_000, 600_000, 1_200_000, 2_400_000)
    ],
    "learners": [(f"{count}", Case(learners=count)) for count in (4, 16, 64, 256)],
    "returns": [
        (say_duration(delay), Case(return_s=delay)) for delay in (MINUTE_AWAY, 600.0, HOUR, 6 * HOUR, DAY)
    ],
    "shocks every": [(say_duration(every), Case(shock_every_s=every)) for every in (DAY, 6 * HOUR, HOUR)],
}
FEW_LANES = [(f"{count} x 1", Case(chips=75_000, learners=1, repetitions=count)) for count in (1, 8, 64, 512)]


def cost(label: str, case: Case, shorter: float = 1.0) -> Cost:
    """One run."""
    fleet = case.fleet()
    wall, cpu = time.perf_counter(), time.process_time()
    (result,) = simulate([fleet], horizon_s=case.days * DAY / shorter, repetitions=case.repetitions, seed=1)
    return Cost(
        label, result.num_events, time.process_time() - cpu, time.perf_counter() - wall, result.goodput
    )


def exponent(costs: list[Cost]) -> float:
    """Of seconds over events: 1 is in proportion. Not a number where events hardly change."""
    x = [math.log(each.events) for each in costs]
    y = [math.log(each.cpu_s) for each in costs]
    if max(x) - min(x) < math.log(1.5):
        return math.nan
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum(
        (a - mean_x) ** 2 for a in x
    )


def table_of(headline: Cost, growth: dict[str, list[Cost]], few: list[Cost]) -> str:
    """As text."""
    lines = [
        f"{headline.label}: {headline.events:,} events, {headline.wall_s:.1f} s of the wall, "
        f"{headline.cpu_s:.1f} s of the processor (aim {AIM_S:g}), {headline.us_per_event:.2f} us an event, "
        f"goodput {headline.goodput:.4f}"
    ]
    for name, costs in {**growth, "repetitions x learners": few}.items():
        lines += ["", f"{name:>22s} {'events':>12s} {'cpu s':>8s} {'us/event':>9s}"]
        lines += [
            f"{each.label:>22s} {each.events:12,d} {each.cpu_s:8.2f} {each.us_per_event:9.2f}"
            for each in costs
        ]
        slope = exponent(costs)
        if not math.isnan(slope):
            lines.append(f"{'seconds over events':>22s} exponent {slope:.2f}")
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="50 times shorter: does it run, not how fast")
    parser.add_argument("--record", action="store_true", help="keep the table in benchmarks/records")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    load, shorter = os.getloadavg()[0], 50.0 if options.quick else 1.0
    cost("warm-up", BASE, 50.0)
    headline = cost("2.4M chips, 16 learners, 30 days, 64 repetitions", HEADLINE, shorter)
    growth = {name: [cost(label, case, shorter) for label, case in cases] for name, cases in GROWTH.items()}
    few = [cost(label, case, shorter) for label, case in FEW_LANES]
    table = table_of(headline, growth, few)
    print(f"measured, load {load:.2f};", ", ".join(f"{k} {v}" for k, v in hardware().items()))
    print(table)
    if options.record:
        print(f"kept in {write_record('A month of a fleet', table, load)}")
    if options.json:
        blocks = {**growth, "few": few}
        costs = {name: [asdict(each) for each in block] for name, block in blocks.items()}
        exponents = {name: exponent(block) for name, block in growth.items()}
        found = {"hardware": hardware(), "headline": asdict(headline), "costs": costs, "exponents": exponents}
        print(json.dumps(found))


if __name__ == "__main__":
    main()
