"""Many seeds against the core: run, check, count, and make a failure small.

Each seed is a run of its own, so they spread over processes freely; the digest of the whole
depends on the seeds alone, not on how they were spread.
"""

from __future__ import annotations

import gc
import hashlib
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context

from atoll.core.commands import Opened
from atoll.core.records import RoundRecord
from atoll.invariants import Checker, check
from atoll.sim.faults import PlannedFault
from atoll.sim.world import Scenario, World, draw_scenario
from atoll.tape.entries import Stored

__all__ = ["SeedResult", "Summary", "run_scenario", "run_seed", "run_seeds", "shrink", "summarize"]

CHUNK = 25
MAX_SHRINK_RUNS = 200


@dataclass(frozen=True, slots=True)
class SeedResult:
    """What one seed came to. Plain values: it travels between processes."""

    seed: int
    digest: str
    num_events: int
    simulated_ns: int
    num_merges: int
    num_offers: int
    """Offers merged, and the learners that were live when the rounds opened."""
    num_live: int
    struck: tuple[tuple[str, str, int], ...]
    """(kind, phase, count) of the faults that changed something."""
    checks: tuple[tuple[str, int], ...]
    violations: tuple[str, ...]

    @property
    def num_faults(self) -> int:
        """Faults that changed what would have happened."""
        return sum(count for _, _, count in self.struck)


def run_seed(seed: int, *, faults: bool = True) -> SeedResult:
    """Run and check one seed."""
    scenario = draw_scenario(seed, faults=faults)
    try:
        world, checker = run_scenario(scenario)
    except Exception:
        # A machine that raises has broken the first rule of all, and the seed must be named.
        last = traceback.format_exc(limit=-3)
        return SeedResult(seed, "", 0, 0, 0, 0, 0, (), (), (f"I0 a machine raised:\n{last}",))
    opened = [entry.item for entry in world.tape if isinstance(entry.item, Opened)]
    rounds = [
        entry.item.record
        for entry in world.tape
        if isinstance(entry.item, Stored) and isinstance(entry.item.record, RoundRecord)
    ]
    return SeedResult(
        seed,
        world.tape.digest(),
        world.engine.num_events,
        world.engine.now_ns,
        len(rounds),
        sum(len(record.contributors) for record in rounds),
        sum(item.num_live for item in opened),
        tuple((kind, phase, count) for (kind, phase), count in sorted(world.struck.items())),
        tuple(sorted(checker.num_checks.items())),
        tuple(str(violation) for violation in checker.violations[:5]),
    )


def run_scenario(scenario: Scenario) -> tuple[World, Checker]:
    """Run a scenario to its end and check its tape."""
    world = World(scenario)
    world.run()
    return world, check(world.tape, scenario.params)


def run_seeds(seeds: range, jobs: int = 1, *, faults: bool = True) -> Iterator[SeedResult]:
    """Results in order of seed, computed by `jobs` processes."""
    if jobs == 1:
        yield from _run_chunk(seeds, faults)
        return
    chunks = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for results in pool.map(_chunk, chunks, [faults] * len(chunks)):
            yield from results


def _chunk(seeds: range, faults: bool) -> list[SeedResult]:
    return list(_run_chunk(seeds, faults))


def _run_chunk(seeds: Iterable[int], faults: bool) -> Iterator[SeedResult]:
    """A run makes few cycles and many objects: collecting between runs is enough."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        for seed in seeds:
            yield run_seed(seed, faults=faults)
            if seed % CHUNK == 0:
                gc.collect()
    finally:
        if enabled:
            gc.enable()


@dataclass(slots=True)
class Summary:
    """The sum over many seeds."""

    seeds: int = 0
    events: int = 0
    simulated_ns: int = 0
    merges: int = 0
    offers: int = 0
    live: int = 0
    min_merges: int = 0
    struck: Counter[tuple[str, str]] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    failures: list[SeedResult] = field(default_factory=list)
    chain: bytes = b""

    def add(self, result: SeedResult) -> None:
        """Take in one seed, in order."""
        self.min_merges = min(self.min_merges, result.num_merges) if self.seeds else result.num_merges
        self.seeds += 1
        self.events += result.num_events
        self.simulated_ns += result.simulated_ns
        self.merges += result.num_merges
        self.offers += result.num_offers
        self.live += result.num_live
        for kind, phase, count in result.struck:
            self.struck[kind, phase] += count
        self.checks.update(dict(result.checks))
        if result.violations:
            self.failures.append(result)
        self.chain = hashlib.blake2b(self.chain + result.digest.encode(), digest_size=16).digest()

    @property
    def digest(self) -> str:
        """One digest for all the tapes."""
        return self.chain.hex()

    @property
    def participation(self) -> float:
        """Offers merged / learners live when the rounds opened."""
        return self.offers / self.live if self.live else 0.0

    @property
    def faults(self) -> dict[str, int]:
        """Faults that changed something, by kind."""
        kinds: Counter[str] = Counter()
        for (kind, _), count in self.struck.items():
            kinds[kind] += count
        return dict(kinds.most_common())


def summarize(results: Iterable[SeedResult]) -> Summary:
    """The sum of results that come in order of seed."""
    summary = Summary()
    for result in results:
        summary.add(result)
    return summary


def shrink(seed: int) -> Scenario | None:
    """The same failure with as few faults as can be found; None if the seed does not fail.

    Leaves out ever smaller groups of faults as long as the same invariant still breaks.
    """
    scenario = draw_scenario(seed)
    wanted = _first_violation(scenario)
    if wanted is None:
        return None
    plan: list[PlannedFault] = list(scenario.plan)
    size, num_runs = max(1, len(plan) // 2), 0
    while plan and num_runs < MAX_SHRINK_RUNS:
        progress = False
        for start in range(0, len(plan), size):
            fewer = plan[:start] + plan[start + size :]
            num_runs += 1
            if _first_violation(replace(scenario, plan=tuple(fewer))) == wanted:
                plan, progress = fewer, True
                break
        if not progress:
            if size == 1:
                break
            size = max(1, size // 2)
    return replace(scenario, plan=tuple(plan))


def _first_violation(scenario: Scenario) -> str | None:
    try:
        _, checker = run_scenario(scenario)
    except Exception as error:
        return type(error).__name__
    return checker.violations[0].invariant if checker.violations else None
