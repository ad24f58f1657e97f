"""A world whose only faults are those of its traces: learners that pause or go dark, a syncer that dies.

Processes and disk are those of the protocol simulator, and so the machines are the production core. Models
are ghosts; the tape is a ledger; links have latency and bandwidth, and nothing happens on them. A learner
without chips stands still while its process lives and its heartbeats go on; one that is dark for long dies,
and comes back as a new life, which has to heal. The syncer dies at the beginning of each outage and is
started again on its disk at the end.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.params import MS, RunParams
from atoll.sim.disk import Disk
from atoll.sim.engine import Chance, Engine
from atoll.sim.ghost import GhostLearner, GhostSyncer, SyncerModel
from atoll.sim.network import Network
from atoll.sim.process import LearnerProcess, SyncerProcess
from atoll.sim.scale.ledger import Ledger
from atoll.sim.scale.pace import NEVER_NS, Pace
from atoll.sim.scale.scenario import FRAGMENT_BYTES, ScaleScenario

__all__ = ["FULL_BATCH", "ScaleWorld", "TracedLearner"]

FULL_BATCH = 1_000_000
"""Tokens of one step of the largest learner with all its chips; the others' in proportion."""
LATENCY_MS = (5, 75)
"""One way, drawn for each learner."""
JITTER = 0.02
"""Steps of one island last alike, up to this share more or less."""
BOOT_NS = 500 * MS
"""The syncer's start over the learners': none says hello in vain. Then each begins somewhere in a step."""
TRANSIT_STEPS = 0.1
"""A fragment's time on its link."""
SLICE_STEPS = 60
"""Progress is told this often."""


@dataclass(slots=True)
class Pipe:
    """One way of a link without troubles: messages with content queue in it, the others are just late."""

    latency_ns: int
    bytes_per_s: float
    free_ns: int = 0
    """When all that was put in has left."""

    def delay_ns(self, now_ns: int, num_bytes: int, chance: float) -> float:
        """How long a message takes that is put in now; `chance` from 0 to 1 makes it jitter."""
        delay_ns = self.latency_ns * (0.75 + 0.5 * chance)
        if num_bytes:
            self.free_ns = max(now_ns, self.free_ns) + int(1e9 * num_bytes / self.bytes_per_s)
            delay_ns += self.free_ns - now_ns
        return delay_ns


class TracedLearner(LearnerProcess):
    """A learner whose steps follow a trace."""

    pace: Pace
    full_batch: int
    quantum: int = 1
    """Tokens of one example: a step has a whole number of them."""
    pipe: Pipe
    """To the syncer."""
    on_dark: Callable[[TracedLearner, int], None]
    post: Callable[[Pipe, Any, Any], None]

    def _schedule_step(self) -> None:
        now_ns = self.engine.now_ns
        work_ns = int(self.step_ns * (1 + self.jitter * (2 * self.rng.random() - 1)))
        stint = self.pace.work(now_ns, work_ns)
        if stint.back_ns:
            self.batch = 0
            self.call(stint.end_ns - now_ns, self.on_dark, self, stint.back_ns)
            return
        self.batch = self.quantum * max(1, round(self.full_batch * stint.share / self.quantum))
        self.call(stint.end_ns - now_ns, self._step, stint.end_ns - now_ns)

    def _tell(self, message: Any) -> None:
        payload = None
        if type(message) is msg.Body:
            payload = self.bodies[message.fragment]
        elif type(message) is msg.SeedBody:
            payload = self.model.seed_payload(message.fragment)
        self.post(self.pipe, message, payload)

    def _resend(self, message: Any) -> None:
        """Only if what was sent before has left: a thin link is not helped by a second copy."""
        if self.pipe.free_ns <= self.engine.now_ns:
            self._tell(message)

    def hear(self, message: Any, payload: Any) -> None:
        """A message of the syncer arrives."""
        if self.is_alive:
            self.payload = payload
            self.handle(ev.Received(self.engine.now_ns, message))


@dataclass(slots=True)
class ScaleWorld:
    """A scenario being run. `ledger` holds what came of it."""

    scenario: ScaleScenario
    ledger: Ledger = field(default_factory=Ledger)
    engine: Engine = field(default_factory=Engine)
    disk: Disk = field(default_factory=Disk)
    syncer: SyncerProcess | None = None
    learners: dict[str, TracedLearner] = field(default_factory=dict)
    """The newest life of each."""
    num_outages: int = 0
    params: RunParams = field(init=False)
    pipes: dict[str, tuple[Pipe, Pipe]] = field(default_factory=dict)
    """To the syncer and from it, by learner."""
    network: Network = field(init=False)
    """Processes are made with one; nothing goes over it."""
    latencies: random.Random = field(init=False)
    chance: Chance = field(init=False)
    paces: dict[str, Pace] = field(init=False)

    def __post_init__(self) -> None:
        scenario = self.scenario
        self.params, self.chance = self.make_params(), Chance(scenario.seed)
        self.network = Network(self.engine, self.chance.branch("network"), _no_trouble)
        self.latencies, links = self.chance.branch("latencies"), self.chance.branch("links")
        rate = self.fragment_bytes() / (TRANSIT_STEPS * scenario.fastest_s)
        for name in scenario.traces:
            latency_ns = int(links.uniform(*LATENCY_MS) * MS)
            self.pipes[name] = (Pipe(latency_ns, rate), Pipe(latency_ns, rate))
        self.paces = {
            name: Pace.of(trace, scenario.chips[name], scenario.dark_s)
            for name, trace in scenario.traces.items()
        }

    # What another world of traces may do otherwise

    def make_params(self) -> RunParams:
        """The settings of the core."""
        return self.scenario.params()

    def fragment_bytes(self) -> float:
        """What a link carries in `TRANSIT_STEPS` steps."""
        return FRAGMENT_BYTES

    def make_learner(self, name: str, rng: random.Random) -> TracedLearner:
        """A process for a new life, with its model and its batch."""
        model = GhostLearner(self.params, rng)
        process = TracedLearner(
            self.engine, self.ledger, self.network, self.params, name, f"key-{name}", rng, model
        )
        process.jitter = JITTER
        process.full_batch = full_batch(self.scenario, name)
        return process

    def make_syncer_model(self) -> SyncerModel:
        """What the syncer serves."""
        return GhostSyncer(self.params)

    # The run

    def run(self, on_progress: Callable[[int], None] | None = None) -> None:
        """Go on until the merges are done or the time is over. `on_progress` is told the merges so far."""
        scenario, engine = self.scenario, self.engine
        self._boot_syncer()
        for start_s, end_s in scenario.outages:
            engine.at(int(1e9 * start_s), self._syncer_out)
            engine.at(int(1e9 * end_s), self._boot_syncer)
        phases = self.chance.branch("phases")
        for name, pace in self.paces.items():
            phase_ns = int(1e9 * scenario.step_s[name] * phases.random())
            self._start_at(name, pace.begin_ns(BOOT_NS + phase_ns))
        until_ns, slice_ns = int(1e9 * scenario.until_s), int(1e9 * SLICE_STEPS * scenario.fastest_s)
        was_enabled = gc.isenabled()
        gc.disable()  # many objects and hardly a cycle: collecting would cost more than it frees
        try:
            while engine.now_ns < until_ns and not self.is_done():
                self._run_slice(min(until_ns, engine.now_ns + slice_ns))
                if on_progress is not None:
                    on_progress(self.ledger.merges)
        finally:
            if was_enabled:
                gc.enable()

    def _run_slice(self, until_ns: int) -> None:
        """Only a slice that can hold the last merge is watched event by event."""
        if self.ledger.merges + 2 * SLICE_STEPS >= self.scenario.merges:
            self.engine.run(until_ns, stop=self.is_done)
        if not self.is_done():
            self.engine.run(until_ns)

    def is_done(self) -> bool:
        """Whether the run is over."""
        return self.ledger.merges >= self.scenario.merges

    # Learners

    def _start_at(self, name: str, at_ns: int) -> None:
        if at_ns < NEVER_NS:
            self.engine.at(at_ns, self._start_learner, name)

    def _start_learner(self, name: str) -> None:
        scenario, is_back = self.scenario, name in self.learners
        rng = self.chance.branch(f"learner/{name}/{self.ledger.began[name]}")
        process = self.make_learner(name, rng)
        process.pace, process.on_dark = self.paces[name], self._gone_dark
        process.step_ns = int(1e9 * scenario.step_s[name])
        process.post, process.pipe = self._to_syncer, self.pipes[name][0]
        self.learners[name] = process
        self.ledger.begin_life(process.actor, name, process.step_ns)
        process.start(is_back=is_back)

    def _gone_dark(self, process: TracedLearner, back_ns: int) -> None:
        process.die()
        self.ledger.end_life(process.actor)
        self._start_at(process.name, back_ns)

    # The syncer

    def _boot_syncer(self) -> None:
        rng = self.chance.branch(f"syncer/{self.num_outages}")
        model = self.make_syncer_model()
        self.syncer = SyncerProcess(
            self.engine, self.ledger, self.network, self.params, self.disk, rng, model
        )
        self.syncer.route = self._route
        self.syncer.start()

    def _syncer_out(self) -> None:
        assert self.syncer is not None
        self.num_outages += 1
        self.syncer.power_loss(lose=False, tear=False)

    # Messages

    def _to_syncer(self, pipe: Pipe, message: Any, payload: Any) -> None:
        num_bytes = message.num_bytes if payload is not None else 0
        delay_ns = pipe.delay_ns(self.engine.now_ns, num_bytes, self.latencies.random())
        self.engine.after(delay_ns, self._hear, message, payload)

    def _hear(self, message: Any, payload: Any) -> None:
        syncer = self.syncer
        if syncer is None or not syncer.is_alive:
            return
        if payload is None:
            syncer.handle(ev.Received(self.engine.now_ns, message))
        else:
            syncer.read_bulk(message, True, payload)

    def _route(self, command: do.Send, payload: Any) -> None:
        message, process = command.message, self.learners[command.name]
        if process.machine.incarnation not in (0, command.incarnation):
            return  # to a life that is over
        num_bytes = message.num_bytes if type(message) is msg.Publish else 0
        pipe = self.pipes[command.name][1]
        delay_ns = pipe.delay_ns(self.engine.now_ns, num_bytes, self.latencies.random())
        self.engine.after(delay_ns, process.hear, message, payload)


def full_batch(scenario: ScaleScenario, name: str) -> int:
    """Tokens of a learner's step with all its chips: in proportion to its chips."""
    return max(1, round(FULL_BATCH * scenario.chips[name] / max(scenario.chips.values())))


def _no_trouble(trouble: Any) -> None:
    raise AssertionError("there are no troubles in this world")
