"""One simulated run: a fleet, a network, a disk and a plan of faults, all from one seed.

First the safety phase: the run goes on under faults, and nothing wrong may happen. Then
everything is healed, and something right must happen: within 3 H steps every fragment has merged
again. Then the run is finished, or, in some seeds, it is finished while the faults go on.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.grace import GRACE_RULES, GraceRule
from atoll.core.params import ALGORITHMS, MS, ON_LARGE, RunParams
from atoll.core.records import RoundRecord
from atoll.sim.disk import Disk
from atoll.sim.engine import Chance, Engine
from atoll.sim.faults import PlannedFault, draw_extra, draw_plan, phases_of
from atoll.sim.ghost import GhostLearner, GhostSyncer, LearnerModel, SyncerModel
from atoll.sim.injector import Injector
from atoll.sim.network import DOWN, Direction, Link, Network
from atoll.sim.process import LearnerProcess, Process, SyncerProcess
from atoll.tape.entries import Milestone
from atoll.tape.tape import Tape

__all__ = ["MIN_MERGES", "Scenario", "World", "draw_scenario"]

STEP_NS = 1000 * MS
FRAGMENT_BYTES = 1_000_000
MIN_MERGES = 30
MAX_STEPS = 1200
"""A run that is not over after this many steps is hung."""
FAR_TOKENS, WARMUP = 4_000_000, 0.005
"""A budget that no run spends, and a share of it that most spend: momentum is whole before the end."""
LONGEST_GRACE: Mapping[GraceRule, float] = {"worth": 4.0, "slack": 1.0}
"""In steps: our default, and the paper's."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything a seed decides before the run begins."""

    seed: int
    params: RunParams
    num_learners: int
    step_ns: tuple[int, ...]
    latency_ns: tuple[int, ...]
    bytes_per_s: tuple[float, ...]
    batches: tuple[int, ...]
    faults_until_ns: int
    finish_under_faults: bool
    plan: tuple[PlannedFault, ...]
    tensors: bool


def draw_scenario(seed: int, *, faults: bool = True, tensors: bool | None = None) -> Scenario:
    """A fleet and a plan of faults from a seed."""
    rng = Chance(seed).branch("scenario")
    num_learners = rng.randint(2, 8)
    num_fragments = rng.randint(2, 8)
    interval = rng.randint(max(6, num_fragments), max(8, 2 * num_fragments))
    algorithm = rng.choices(ALGORITHMS, (8, 1, 1))[0]
    if algorithm == "diloco":
        num_fragments, interval = 2, rng.randint(6, 8)
    slow_link = rng.random() < 0.3
    paces = [rng.choice((1, 1, 1, 1.2, 2)) * (0.9 + 0.2 * rng.random()) for _ in range(num_learners)]
    step_ns = tuple(int(STEP_NS * pace) for pace in paces)
    rates = _draw_rates(rng, num_learners, interval / num_fragments if slow_link else 0.0)
    cycle = interval * max(step_ns)
    grace_rule = Chance(seed).branch("grace").choice(GRACE_RULES)
    params = RunParams(
        algorithm=algorithm,
        num_fragments=num_fragments,
        interval_steps=interval,
        overlap_steps=rng.randint(1, 3),
        min_quorum=min(num_learners, rng.choice((1, 1, 2, 2, 3, num_learners))),
        grace_rule=grace_rule,
        grace_max_steps=LONGEST_GRACE[grace_rule],
        adopt=rng.choice(("overwrite", "overwrite", "blend", "rebase")),
        durability=rng.choice(("merge", "merge", "merge", "cycle", "snapshot")),
        snapshot_every=rng.choice((4, 9, 16)),
        fragment_bytes=(FRAGMENT_BYTES,) * num_fragments,
        publish_bytes=(FRAGMENT_BYTES,) * num_fragments,
        full_bytes=(2 * FRAGMENT_BYTES,) * num_fragments,
        heartbeat_ns=5 * STEP_NS // 2,
        alive_ns=6 * STEP_NS,
        retry_ns=2 * STEP_NS,
        drain_ns=3 * cycle,
        live_ns=3 * cycle + 15 * STEP_NS,
        momentum_warmup=Chance(seed).branch("momentum").choice((0.0, WARMUP)),
        budget_tokens=FAR_TOKENS,
    )
    faults_until_ns = int(STEP_NS * (26 * interval / num_fragments)) + 10 * STEP_NS
    guards = Chance(seed).branch("guards")
    is_strict = guards.random() < 0.5
    if is_strict:
        params = _guarded(params, guards)
    finish_under_faults = rng.random() < 0.25
    num_faults = rng.randint(25, 55) if faults else 0
    span = (2 * STEP_NS, faults_until_ns)
    plan = draw_plan(rng, num_faults, span, STEP_NS, with_drain=finish_under_faults)
    if faults:
        plan += draw_extra(guards, num_faults, span, STEP_NS, poisoned=is_strict)
    return Scenario(
        seed,
        params,
        num_learners,
        step_ns,
        tuple(int(rng.uniform(5, 150) * MS) for _ in range(num_learners)),
        rates,
        tuple(rng.choice((50, 100, 200)) for _ in range(num_learners)),
        faults_until_ns,
        finish_under_faults and faults,
        tuple(plan),
        seed % 100 == 0 if tensors is None else tensors,
    )


def _draw_rates(rng: random.Random, num_learners: int, slow_steps: float) -> tuple[float, ...]:
    """Bytes per second of every link; the last one is slow if a fragment's share of a cycle is given."""
    rates = []
    for m in range(num_learners):
        transit_steps = rng.uniform(0.02, 0.2)
        if slow_steps and m == num_learners - 1:
            transit_steps = rng.uniform(0.25, 0.4) * slow_steps
        rates.append(FRAGMENT_BYTES / (transit_steps * STEP_NS / 1e9))
    return tuple(rates)


def _guarded(params: RunParams, rng: random.Random) -> RunParams:
    """A run that judges more strictly than the default, hands optimizer state on, and shards on."""
    return replace(
        params,
        strikes=rng.choice((2, 2, 2, 3, 4, 6)),
        quarantine_steps=rng.randint(4, 24),
        on_large=rng.choice(ON_LARGE),
        max_share=rng.choice((1.0, 1.0, 0.6, 0.3)),
        donates=rng.random() < 0.7,
        num_shards=rng.choice((2, 3, 4, 8)),
        hand_on_ns=rng.randint(1, 12) * STEP_NS,
    )


@dataclass(slots=True)
class World:
    """A scenario being run. `tape` holds everything that happened."""

    scenario: Scenario
    engine: Engine = field(default_factory=Engine)
    tape: Tape = field(default_factory=Tape)
    disk: Disk = field(default_factory=Disk)
    learners: dict[str, list[LearnerProcess]] = field(default_factory=dict)
    syncer: SyncerProcess | None = None
    struck: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(kind, phase) -> faults that changed something."""
    num_lives: int = 0
    _counted: tuple[int, int] = (0, 0)
    network: Network = field(init=False)
    injector: Injector = field(init=False)
    chance: Chance = field(init=False)

    def __post_init__(self) -> None:
        self.chance = Chance(self.scenario.seed)
        self.network = Network(self.engine, self.chance.branch("network"), self._trouble_struck)
        self.injector = Injector(self, self.chance.branch("injector"))
        scenario = self.scenario
        for m in range(scenario.num_learners):
            latency, rate = scenario.latency_ns[m], scenario.bytes_per_s[m]
            self.network.links[f"learner-{m}"] = Link(Direction(latency, rate), Direction(latency, rate))

    # The run

    def run(self) -> None:
        """Faults, healing, liveness, finish."""
        scenario, engine = self.scenario, self.engine
        self._mark("faults")
        self.boot_syncer()
        for m in range(scenario.num_learners):
            engine.at(m * STEP_NS // 5, self.start_learner, m)
        until_ns = scenario.faults_until_ns
        self.injector.arm([fault for fault in scenario.plan if fault.at_ns <= until_ns])
        engine.run(until_ns)
        if scenario.finish_under_faults:
            self._run_until(self.has_enough_merges, MAX_STEPS * STEP_NS // 2)
            self._request_finish()
            late = [fault for fault in scenario.plan if fault.at_ns > until_ns]
            self.injector.arm([replace(f, at_ns=engine.now_ns + f.at_ns - until_ns) for f in late])
            engine.run(engine.now_ns + scenario.params.drain_ns // 2)
        self.injector.heal()
        self._mark("healed")
        self._run_until(self._all_merged_since(self.num_records()), engine.now_ns + self.live_span_ns)
        self._mark("live")
        self._run_until(self.has_enough_merges, self.engine.now_ns + MAX_STEPS * STEP_NS)
        self._mark("finish")
        self._request_finish()
        self._run_until(self.is_finished, engine.now_ns + scenario.params.drain_ns + 30 * STEP_NS)
        engine.run(engine.now_ns + 4 * STEP_NS)
        self._mark("end")

    @property
    def live_span_ns(self) -> int:
        """3 H steps at the pace of t, which is that of the K-th fastest learner."""
        params, paces = self.scenario.params, sorted(self.scenario.step_ns)
        return 3 * params.interval_steps * paces[-1 if params.waits else params.min_quorum - 1]

    def num_records(self) -> int:
        """How much the store holds."""
        return len(self.disk.records)

    def _all_merged_since(self, start: int) -> Callable[[], bool]:
        """Whether every fragment has a commit among the records after the first `start`."""
        missing = set(range(self.scenario.params.num_fragments))
        seen = start

        def done() -> bool:
            nonlocal seen
            records = self.disk.records
            while seen < len(records):
                record = records[seen]
                seen += 1
                if type(record) is RoundRecord:
                    missing.discard(record.fragment)
            return not missing or self.is_finished()

        return done

    def _run_until(self, done: Callable[[], bool], limit_ns: int) -> None:
        if not done():
            self.engine.run(limit_ns, stop=done)

    def has_enough_merges(self) -> bool:
        """Whether the run is long enough to be worth checking."""
        return self.num_merges() >= MIN_MERGES or self.is_finished()

    def num_merges(self) -> int:
        """Rounds in the store; counted anew only when the store has changed."""
        size = len(self.disk.records)
        if size != self._counted[0]:
            self._counted = (size, sum(1 for r in self.disk.records if type(r) is RoundRecord))
        return self._counted[1]

    def is_finished(self) -> bool:
        """Whether the syncer has stored the end of the run."""
        return self.syncer is not None and self.syncer.machine.desk.state.finished

    def _request_finish(self) -> None:
        if self.syncer is not None and not self.is_finished():
            event = ev.FinishRequested(self.engine.now_ns, "asked to finish")
            self.syncer._arrive(self.syncer.handle, (event,))

    def _mark(self, name: str) -> None:
        self.tape.add(self.engine.now_ns, "world", Milestone(name))

    # Processes

    def boot_syncer(self) -> None:
        """Start a syncer on the disk as it is."""
        self.num_lives += 1
        rng = self.chance.branch(f"syncer/{self.num_lives}")
        params = self.scenario.params
        syncer = SyncerProcess(
            self.engine, self.tape, self.network, params, self.disk, rng, self._syncer_model()
        )
        syncer.route = self._route
        self.syncer = syncer
        self.injector.dress_syncer(syncer)
        syncer.start()

    def start_learner(self, m: int, key: str = "key") -> LearnerProcess:
        """A new life of learner m."""
        self.num_lives += 1
        scenario = self.scenario
        name = f"learner-{m}"
        rng = self.chance.branch(f"learner/{self.num_lives}")
        model = self._learner_model(rng)
        process = LearnerProcess(self.engine, self.tape, self.network, scenario.params, name, key, rng, model)
        process.step_ns, process.batch = scenario.step_ns[m], scenario.batches[m]
        process.to_syncer = self._to_syncer
        process.syncer_listens = self._syncer_listens
        process.on_verdict = self.injector.supervise
        lives = self.learners.setdefault(name, [])
        lives.append(process)
        process.start(is_back=len(lives) > 1)
        return process

    def _learner_model(self, rng: random.Random) -> LearnerModel:
        if self.scenario.tensors:
            from atoll.sim.tensors import TensorLearner

            return TensorLearner(self.scenario.params, rng)
        return GhostLearner(self.scenario.params, rng)

    def _syncer_model(self) -> SyncerModel:
        if self.scenario.tensors:
            from atoll.sim.tensors import TensorSyncer

            return TensorSyncer(self.scenario.params)
        return GhostSyncer(self.scenario.params)

    def living(self) -> list[LearnerProcess]:
        """Learner processes that are up, in order of start within a name."""
        return [p for group in self.learners.values() for p in group if p.is_alive]

    # Messages

    def _syncer_listens(self) -> bool:
        return self.syncer is not None and self.syncer.is_alive and self.syncer.machine.is_active

    def _to_syncer(self, message: Any, intact: bool, payload: Any) -> None:
        if self.syncer is not None and self.syncer.is_alive:
            self.syncer.read_bulk(message, intact, payload)

    def _route(self, command: do.Send, payload: Any) -> None:
        message = command.message
        target = self._addressee(command)
        num_bytes = message.num_bytes if isinstance(message, msg.Publish | msg.Moments) else 0

        def deliver(message: Any, intact: bool) -> None:
            if target is not None and target.is_alive:
                target.read_bulk(message, payload if intact else None)

        def is_heard() -> bool:
            return target is not None and target.is_alive

        self.network.send(command.name, DOWN, message, num_bytes, deliver, is_heard)

    def _addressee(self, command: do.Send) -> LearnerProcess | None:
        life = getattr(command.message, "life", None)
        for process in reversed(self.learners.get(command.name, ())):
            if process.is_alive:
                if life is not None:
                    if process.life == life:
                        return process
                elif process.machine.incarnation == command.incarnation:
                    return process
        return None

    # Faults that struck

    def _trouble_struck(self, trouble: Any) -> None:
        self.struck[trouble.cell] += 1

    def phases(self) -> list[str]:
        """The phases that the run is in now."""
        alive = self.syncer is not None and self.syncer.is_alive
        return phases_of(self.syncer.machine if alive and self.syncer else None, self.engine.now_ns)

    def everybody(self) -> list[Process]:
        """All living processes."""
        alive: list[Process] = [*self.living()]
        return [*alive, self.syncer] if self.syncer and self.syncer.is_alive else alive
