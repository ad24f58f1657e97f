"""What learners train and what the syncer serves in the lab: real networks behind the simulator's protocols.

`LabLearner` and `LabSyncer` are to `sim.process` what ghosts are: the processes call them where a real shell
would call replica and global model, and they call exactly those. All learners share one `Work`: the tokens
that are to be trained. When they are done, learners go on with empty steps, which move nothing, until the
protocol has drained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from atoll.core.events import Inspection
from atoll.core.momentum import momentum_factor
from atoll.core.records import Contributor
from atoll.numerics import global_state
from atoll.numerics.codec import codec_for
from atoll.numerics.global_state import GlobalModel
from atoll.numerics.manifest import Fragment, Manifest, Rule
from atoll.numerics.outer import digest
from atoll.numerics.partition import partition
from atoll.numerics.replica import Pending, Replica
from atoll.recipes.learning import BETA2, adamw, schedule
from atoll.recipes.networks import Network
from atoll.sim.ghost import MergeResult
from atoll.sim.lab.cell import Cell
from atoll.sim.lab.crew import Crew
from atoll.sim.lab.data import Stream
from atoll.sim.lab.fleets import tokens_per_example

__all__ = ["LabLearner", "LabSyncer", "Work", "manifest_of", "optimizer_of", "outer_at"]

WEIGHT_DECAY = 0.1
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(slots=True)
class Work:
    """The tokens of a run: those that are to be trained, and those that are."""

    tokens: int
    on_share: Callable[[float], None]
    """Told the share that is done, after each step."""
    limit: int = 0
    """Training stops here for now: the end of a phase, or all the tokens."""
    on_limit: Callable[[], None] = field(default=lambda: None)
    """Called once when the limit is reached."""
    done: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        self.limit = self.limit or self.tokens

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        return self.done / self.tokens

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to train for now."""
        return self.done >= self.limit

    def add(self, tokens: int) -> None:
        """One more step was trained."""
        self.done += tokens
        self.steps += 1
        self.on_share(self.progress)
        if self.is_done:
            self.on_limit()


def optimizer_of(cell: Cell, model: Network) -> torch.optim.AdamW:
    """The inner optimizer, of a learner or of Data-Parallel."""
    return adamw(model, cell.learning_rate, WEIGHT_DECAY, cell.ideas.beta2 or BETA2)


def manifest_of(cell: Cell, model: Network, num_fragments: int) -> Manifest:
    """The cut of the model, with the merge rule of the cell."""
    found = partition(model, num_fragments, "mean" if cell.merge_rule == "mean" else "rda")
    if cell.merge_rule != "rda-everywhere":
        return found
    return with_rule(found, "rda", {storage.name for storage in found.storages if len(storage.shape) >= 2})


def with_rule(manifest: Manifest, rule: Rule, storages: set[str] | None = None) -> Manifest:
    """The same cut with another merge rule for these storages, or for all."""

    def changed(fragment: Fragment) -> Fragment:
        units = (
            replace(unit, rule=rule) if storages is None or unit.storage in storages else unit
            for unit in fragment.units
        )
        return replace(fragment, units=tuple(units))

    return replace(manifest, fragments=tuple(map(changed, manifest.fragments)))


class LabLearner:
    """One life of a learner: its row of the crew, an AdamW of its own, its stream of examples."""

    def __init__(
        self, cell: Cell, crew: Crew, slot: int, stream: Stream, manifest: Manifest, work: Work
    ) -> None:
        self.cell, self.crew, self.slot, self.stream, self.work = cell, crew, slot, stream, work
        self.manifest = manifest
        self.model = crew.models[slot]
        self.optimizer = optimizer_of(cell, self.model)
        adopt: Any = cell.adopt
        self.replica = Replica(
            self.model,
            manifest,
            codec_for(cell.codec_up),
            codec_for(cell.codec_down),
            adopt=adopt,
            blend_alpha=cell.blend_alpha,
            feedback=None if cell.error_feedback else False,
        )
        self.pending: dict[int, Pending] = {}
        self.moments: dict[int, Tensor] = {}
        """By fragment: those at the snapshot, then those that are staged."""
        self.staged: dict[int, Tensor] = {}

    def prepare(self, tokens: int) -> None:
        """A step of so many tokens begins."""
        if not self.work.is_done:
            self.crew.prepare(self.slot, self.stream.take(tokens // tokens_per_example(self.cell)))

    def step(self, tokens: int) -> None:
        """The step ends: one update by AdamW, unless all the work was done meanwhile."""
        if self.work.is_done:
            self.crew.forget(self.slot)
            return
        self.crew.gradients(self.slot)
        rate = self.cell.learning_rate * schedule(self.work.progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.work.add(tokens)

    def seed(self) -> list[tuple[str, Any]]:
        """Make the local values the base."""
        values = [self.replica.set_base_from_local(p) for p in range(len(self.manifest.fragments))]
        return [(digest(one), one) for one in values]

    def seed_payload(self, p: int) -> Any:
        """The base, to be sent again."""
        return self.replica.base(p).clone()

    def snapshot(self, p: int) -> None:
        """Copy the fragment."""
        self.pending[p] = self.replica.snapshot(p)
        if self.cell.ideas.mean_moments:
            self.moments[p] = torch.stack([self._gather(p, key) for key in MOMENTS]).bfloat16().float()

    def encode(self, p: int, name: str, incarnation: int, poison: str) -> tuple[str, Any]:
        """The body of the offer, with the moments if they travel too."""
        body = self.replica.encode(p, self.pending[p])
        return digest(body), (body, self.moments.get(p))

    def stage(self, p: int, payload: Any, *, full: bool) -> str:
        """Compute the next base aside."""
        body, moments = payload
        if moments is not None:
            self.staged[p] = moments
        if full:
            self.replica.stage_full(p, body)
            return digest(body)
        return digest(self.replica.stage(p, body))

    def unstage(self, p: int) -> None:
        """Forget what was staged."""
        self.staged.pop(p, None)
        self.replica.unstage(p)

    def adopt(self, p: int, *, merged: bool, unresolved: bool, reset: bool) -> None:
        """Take the staged version in."""
        self._between_steps()
        self.replica.adopt(p, merged, reset=reset)
        moments = self.staged.pop(p, None)
        if moments is not None:
            for key, values in zip(MOMENTS, moments, strict=True):
                self._scatter(p, key, values)

    def drop(self, p: int, *, merged: bool) -> None:
        """Settle the offer and its residual."""
        self.replica.resolve(p, merged)

    def rewind(self, p: int) -> None:
        """Take the fragment back to its base."""
        self._between_steps()
        self.replica.rewind(p)

    def _between_steps(self) -> None:
        """Values change at boundaries only; else a gradient computed early would be of other values."""
        assert not self.crew.is_in_flight(self.slot), "a fragment was adopted in the middle of a step"

    def _gather(self, p: int, key: str) -> Tensor:
        """One of AdamW's moments of a fragment; zeros before the first step."""
        parts = []
        named = dict(self.model.named_parameters())
        for unit in self.manifest.fragments[p].units:
            state = self.optimizer.state.get(named[unit.storage], {})
            whole = state[key] if key in state else torch.zeros_like(named[unit.storage])
            parts.append(whole.reshape(-1)[unit.start : unit.stop])
        return torch.cat([part.detach() for part in parts])

    def _scatter(self, p: int, key: str, values: Tensor) -> None:
        named, at = dict(self.model.named_parameters()), 0
        for unit in self.manifest.fragments[p].units:
            state = self.optimizer.state.get(named[unit.storage], {})
            if key in state:
                state[key].view(-1)[unit.start : unit.stop] = values[at : at + unit.numel]
            at += unit.numel


@dataclass(slots=True)
class LabSyncer:
    """The global model, with what the ideas of a cell add to it."""

    cell: Cell
    manifest: Manifest
    work: Work
    momentum: list[Tensor] | None = None
    """By fragment: what an earlier phase of the same run ended with."""
    model: GlobalModel = field(init=False)
    aside: dict[int, global_state.MergeResult] = field(default_factory=dict)
    mean_moments: dict[int, Tensor] = field(default_factory=dict)
    sums: dict[int, tuple[int, Tensor]] = field(default_factory=dict)
    """By fragment: how many versions of the last part of the run there were, and their sum in float64."""

    def __post_init__(self) -> None:
        cell = self.cell
        up, down = codec_for(cell.codec_up), codec_for(cell.codec_down)
        self.model = GlobalModel(self.manifest, up, down, cell.eta, cell.mu)

    def seed(self, payloads: list[Any]) -> None:
        """Version 0."""
        self.model.start(payloads)
        for p, momentum in enumerate(self.momentum or ()):
            self.model.states[p].momentum.copy_(momentum)

    def inspect(self, p: int, bodies: list[tuple[str, Any]]) -> list[Inspection]:
        """Decode each body once and measure it."""
        return self.model.inspect(p, [(name, body) for name, (body, _) in bodies])

    def merge(
        self, p: int, parts: tuple[Contributor, ...], bodies: list[Any], momentum_factor: float
    ) -> MergeResult:
        """Merge and take the outer step on a copy, at the outer settings of this moment."""
        assert momentum_factor == 1.0, "the lab's core has no budget: momentum goes by the tokens trained"
        self.model.eta, self.model.mu = outer_at(self.cell, self.work.progress)
        if self.model.manifest is self.manifest and is_plain_at(self.cell, self.work.progress):
            self.model.manifest = with_rule(self.manifest, "mean")
        result = self.aside[p] = self.model.merge(p, parts, [body for body, _ in bodies], momentum_factor)
        if self.cell.ideas.mean_moments:
            total = sum(part.weight for part in parts)
            mean = sum(
                moments * (part.weight / total) for part, (_, moments) in zip(parts, bodies, strict=True)
            )
            self.mean_moments[p] = torch.as_tensor(mean)
        # The simulated disk keeps every delta for a syncer that comes back. This one never dies, and at 0.8M
        # parameters a run's deltas would take 1.8 GB.
        return MergeResult(result.delta_digest, result.digest, result.finite, None, ())

    def install(self, p: int) -> None:
        """Serve what was merged."""
        self.model.install(p, self.aside.pop(p))
        share = self.cell.ideas.average_last
        if share and self.work.progress >= 1 - share:
            count, total = self.sums.get(p, (0, torch.zeros((), dtype=torch.float64)))
            self.sums[p] = (count + 1, total + self.model.states[p].served.double())

    def update(self, p: int) -> Any:
        """The encoded update to the current version."""
        return self.model.update(p), self.mean_moments.get(p)

    def full(self, p: int) -> Any:
        """The served values."""
        return self.model.states[p].served, None

    def snapshot(self) -> Any:
        """Nothing is restored in the lab: its syncer does not die."""
        return None

    def restore(self, snapshot: Any, deltas: list[tuple[int, Any, float]]) -> list[str]:
        """Not in the lab."""
        raise AssertionError("the syncer of the lab does not die")

    def values(self, p: int) -> Tensor:
        """The fragment as the run ends with it: served, or the mean of the last versions."""
        count, total = self.sums.get(p, (0, None))
        if total is None:
            return self.model.states[p].served
        return (total / count).float()


def is_plain_at(cell: Cell, progress: float) -> bool:
    """Whether merges are plain averages at this moment of the run."""
    return cell.ideas.plain_last > 0 and progress >= 1 - cell.ideas.plain_last


def outer_at(cell: Cell, progress: float) -> tuple[float, float]:
    """eta and mu at a moment of the run: momentum as the production core schedules it, by tokens trained."""
    ideas, mu = cell.ideas, cell.mu
    if is_plain_at(cell, progress):
        return 1.0, 0.0
    mu *= momentum_factor(progress, cell.momentum_warmup, cell.momentum_cooldown)
    eta = cell.eta if not ideas.eta_end else cell.eta + (ideas.eta_end - cell.eta) * min(1.0, progress)
    return eta, mu
