"""The world of a lab run: `sim.scale`'s, with real models in place of ghosts.

Processes, links, disk and machines are those of the scale simulator, so a learner's steps follow the traces
of its schedule. What differs: steps are trained, the settings are those of a `RunConfig`, all algorithms are
there, and the run ends as a real one does: when the tokens are trained the syncer is asked to finish, drains,
and stores the end.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll.config import RunConfig
from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.params import RunParams
from atoll.numerics.codec import codec_for
from atoll.numerics.local import LocalModel
from atoll.numerics.manifest import Manifest
from atoll.sim.ghost import SyncerModel
from atoll.sim.lab.cell import Cell
from atoll.sim.lab.crew import Crew
from atoll.sim.lab.data import Stream
from atoll.sim.lab.fleets import Schedule, tokens_per_example
from atoll.sim.lab.models import LabLearner, LabSyncer, Work
from atoll.sim.scale.ledger import Ledger
from atoll.sim.scale.scenario import ScaleScenario
from atoll.sim.scale.world import Pipe, ScaleWorld, TracedLearner

__all__ = ["LabWorld", "config_of", "scenario_of"]

Figures = dict[str, Any]

LINK_BITS = 16
"""Links are sized for offers of so many bits, whatever the codec: fewer arrive sooner."""
LINK_FRAGMENTS = 12
"""And for a model cut into so many fragments, whatever the cut: a larger fragment takes longer."""
MEANS = (
    "goodput", "model_goodput", "participation", "participants", "merged_share", "stall_fraction",
    "staleness_steps",
)  # fmt: skip
"""Figures that are means over time."""
PATIENCE_STEPS = 2_000
"""Steps that the drain may take at most; virtual time costs nothing."""


class LabProcess(TracedLearner):
    """A learner whose step is prepared when it begins and trained when it ends.

    It begins to train when every fragment has a base, as `atoll.join` returns only then."""

    model: LabLearner
    has_bases: bool = False
    on_begin: Callable[[str], None]
    """Told the name when the learner begins to train."""

    def handle(self, event: ev.Event) -> None:
        """While it joins, publishes are taken in as they come, between no steps."""
        TracedLearner.handle(self, event)
        if self.has_bases or not self.is_alive:
            return
        slots = self.machine.slots
        if any(slot.staged is not None for slot in slots):
            TracedLearner.handle(self, ev.Stepped(self.engine.now_ns, 0, 0, 0, steps=0))
        if slots and all(slot.version >= 0 for slot in slots):
            self.has_bases = True
            self.on_begin(self.name)
            self._schedule_step()

    def _schedule_step(self) -> None:
        if not self.has_bases:
            return
        super()._schedule_step()
        if self.batch:
            self.model.prepare(self.batch)


def config_of(cell: Cell) -> RunConfig:
    """The settings of a real run that a cell stands for."""
    waits = {"diloco": "diloco", "streaming": "streaming"}
    return RunConfig.from_tables(
        {
            "sync": {
                "algorithm": waits.get(cell.method, "decoupled"),
                "num_learners": cell.learners + cell.fleet.extra,
                "num_fragments": cell.num_fragments,
                "interval_steps": cell.interval_steps,
                "overlap_steps": cell.overlap_steps,
                "min_quorum": cell.quorum,
                "grace_fraction": cell.grace_fraction,
                "grace_rule": cell.grace_rule,
                "grace_max_steps": cell.grace_max_steps,
                "adopt": cell.adopt,
                "blend_alpha": cell.blend_alpha,
                "merge_rule": "mean" if cell.merge_rule == "mean" else "rda",
            },
            "outer": {
                "learning_rate": cell.eta,
                "momentum": cell.mu,
                "momentum_warmup": cell.momentum_warmup,
                "momentum_cooldown": cell.momentum_cooldown,
            },
            "guard": {"max_share": cell.max_share},
            "codec": {
                "up": cell.codec_up,
                "down": cell.codec_down,
                "error_feedback": cell.error_feedback,
            },
        }
    )


def scenario_of(cell: Cell, schedule: Schedule) -> ScaleScenario:
    """What the scale simulator runs on; the number of merges decides nothing here."""
    return ScaleScenario(
        traces=schedule.traces,
        chips=schedule.chips,
        step_s=schedule.step_s,
        merges=1 << 62,
        until_s=schedule.until_s,
        quorum=cell.quorum,
        interval_steps=cell.interval_steps,
        num_fragments=cell.num_fragments,
        overlap_steps=cell.overlap_steps,
        seed=cell.seed,
        dark_s=schedule.dark_s,
    )


@dataclass(slots=True, kw_only=True)
class LabWorld(ScaleWorld):
    """A cell being run."""

    cell: Cell
    crew: Crew
    streams: list[Stream]
    manifest: Manifest
    work: Work
    schedule: Schedule
    before: LabWorld | None = None
    """An earlier phase of the same run, which this one goes on from."""
    model: LabSyncer = field(init=False)
    bytes_up: int = 0
    bytes_down: int = 0
    began_ns: dict[str, int] = field(default_factory=dict)
    """By name: when a learner first began to train."""
    done: Figures | None = None
    """As of the moment at which the tokens were trained."""

    def make_params(self) -> RunParams:
        """Those of the run's config; times are in steps, as in the scale simulator."""
        numels = [fragment.numel for fragment in self.manifest.fragments]
        up, down = codec_for(self.cell.codec_up), codec_for(self.cell.codec_down)
        moments = 4 if self.cell.ideas.mean_moments else 0  # two of them, in bf16
        fastest_ns = int(1e9 * self.scenario.fastest_s)
        slowest_ns = int(1e9 * max(self.scenario.step_s.values()))
        config = config_of(self.cell)
        tables: dict[str, Any] = {
            "fragment_bytes": tuple(up.encoded_bytes(n) + moments * n for n in numels),
            "publish_bytes": tuple(down.encoded_bytes(n) + moments * n for n in numels),
            "full_bytes": tuple(4 * n for n in numels),
        }
        params = config.params(**tables)
        return replace(
            params,
            heartbeat_ns=5 * fastest_ns // 2,
            alive_ns=6 * slowest_ns,
            retry_ns=2 * slowest_ns,
            drain_ns=PATIENCE_STEPS * slowest_ns,
            live_ns=(3 * params.interval_steps + 15) * slowest_ns,
            snapshot_every=1 << 40,
        )

    def fragment_bytes(self) -> float:
        """What links are sized for: the same bytes a second for every method, codec and cut."""
        numels = [fragment.numel for fragment in self.manifest.fragments]
        return LINK_BITS / 8 * sum(numels) / LINK_FRAGMENTS

    def make_learner(self, name: str, rng: random.Random) -> TracedLearner:
        """A new life: values begin anew and are healed. Optimizer state comes back as it was at death, as
        from a disk that had it all, or is lost if the fleet says so."""
        slot = sorted(self.scenario.traces).index(name)
        if self.ledger.began[name]:
            self.crew.begin_again(slot)
        model = LabLearner(self.cell, self.crew, slot, self.streams[slot], self.manifest, self.work)
        earlier = self.learners.get(name) or (self.before and self.before.learners.get(name))
        is_reborn = name in self.learners
        if earlier and not (is_reborn and self.cell.fleet.loses_moments):
            assert isinstance(earlier.model, LabLearner)
            model.optimizer = earlier.model.optimizer
        process = LabProcess(
            self.engine, self.ledger, self.network, self.params, name, f"key-{name}", rng, model
        )
        process.on_begin = self._note_begin
        process.jitter, process.quantum = self.cell.fleet.jitter, tokens_per_example(self.cell)
        process.full_batch = self.cell.batch // self.cell.learners * process.quantum
        return process

    def _note_begin(self, name: str) -> None:
        self.began_ns.setdefault(name, self.engine.now_ns)

    def make_syncer_model(self) -> SyncerModel:
        """The global model."""
        self.model = LabSyncer(self.cell, self.manifest, self.work, self._momentum())
        return self.model

    def _momentum(self) -> list[Tensor] | None:
        """That of the phase before, in this phase's cut; its merged model goes to all learners on the way."""
        if self.before is None:
            return None
        old, found = self.before, []
        carrier = self.crew.make()
        was, now = LocalModel(carrier, old.manifest), LocalModel(carrier, self.manifest)
        for p, state in enumerate(old.model.model.states):
            was.scatter(p, state.momentum)
        for p, fragment in enumerate(self.manifest.fragments):
            found.append(now.gather(p, torch.empty(fragment.numel)))
        for model in self.crew.models:
            mine = LocalModel(model, old.manifest)
            for p in range(len(old.manifest.fragments)):
                mine.scatter(p, old.model.values(p))
        return found

    def is_done(self) -> bool:
        """Whether the syncer has stored the end of the run."""
        return self.syncer is not None and self.syncer.machine.desk.state.finished

    def finish(self) -> None:
        """The tokens are trained: ask the syncer to drain, right after the step that was the last."""
        self.done = self._figures()
        self.engine.after(0, self._ask_to_finish)

    def _ask_to_finish(self) -> None:
        assert self.syncer is not None
        self.syncer.handle(ev.FinishRequested(self.engine.now_ns, "the tokens are trained"))

    # What came of it

    def figures(self) -> Figures:
        """The protocol's figures up to the end of training; with an earlier phase, of both together."""
        assert self.done is not None
        found: Figures = dict(self.done)
        if self.before is not None:
            old = self.before.figures()
            total_s = old["virtual_s"] + found["virtual_s"]
            for name in ("merges", "bytes_up", "bytes_down", "virtual_s"):
                found[name] += old[name]
            for name in MEANS:
                found[name] += (old[name] - found[name]) * old["virtual_s"] / total_s
            found["longest_stop_s"] = max(old["longest_stop_s"], found["longest_stop_s"])
        return found

    def _figures(self) -> Figures:
        ledger, now_ns, num_learners = self.ledger, self.engine.now_ns, len(self.scenario.traces)
        trained = sum(life.tokens for life in ledger.lives.values())
        merged = ledger.merged_tokens.total() / self.cell.num_fragments
        return {
            "merges": ledger.merges,
            "goodput": self._goodput(),
            "model_goodput": self.schedule.model_goodput(now_ns / 1e9),
            "participation": ledger.offers / max(1, ledger.live),
            "participants": ledger.offers / max(1, ledger.merges),
            "merged_share": merged / max(1, trained),
            "stall_fraction": ledger.held_ns / (now_ns * num_learners),
            "longest_stop_s": self._longest_stop_s(),
            "staleness_steps": ledger.stale_steps / max(1, ledger.stale_adoptions),
            "virtual_s": now_ns / 1e9,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "incarnations": sum(ledger.incarnations.values()),
        }

    def _goodput(self) -> float:
        """Tokens of steps kept / tokens of all chips, from a learner's admission until it left or the end."""
        ledger, now_s, kept, possible = self.ledger, self.engine.now_ns / 1e9, 0.0, 0.0
        for name, step_s in self.scenario.step_s.items():
            until_s = min(now_s, self.schedule.leaves_s.get(name, now_s))
            kept += sum(life.kept for life in ledger.lives.values() if life.name == name)
            there_s = max(0.0, until_s - ledger.admitted_ns.get(name, 0) / 1e9)
            possible += there_s / step_s * self.learners[name].full_batch
        return kept / possible

    def _longest_stop_s(self) -> float:
        """From when all have begun: while learners still join, one of them alone may stand still."""
        if len(self.began_ns) < len(self.scenario.traces):
            return math.nan
        return longest_stop_s(self.ledger, max(self.began_ns.values()))

    def _to_syncer(self, pipe: Pipe, message: Any, payload: Any) -> None:
        if type(message) is msg.Body:
            self.bytes_up += message.num_bytes
        ScaleWorld._to_syncer(self, pipe, message, payload)

    def _route(self, command: do.Send, payload: Any) -> None:
        if type(command.message) is msg.Publish:
            self.bytes_down += command.message.num_bytes
        ScaleWorld._route(self, command, payload)


def longest_stop_s(ledger: Ledger, from_ns: int) -> float:
    """Longest time in which no learner was in the middle of a step, from a moment to the last step's end."""
    order = np.argsort(np.array(ledger.starts_ns), kind="stable")
    starts, ends = np.array(ledger.starts_ns)[order], np.array(ledger.ends_ns)[order]
    covered = np.maximum(np.maximum.accumulate(ends), from_ns)
    gaps = starts[1:] - covered[:-1]
    return max(0.0, float(gaps.max(initial=0)) / 1e9)
