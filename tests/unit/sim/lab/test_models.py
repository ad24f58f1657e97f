"""What learners train and what the syncer serves: work, outer settings, cuts, moments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from atoll.core.records import Contributor
from atoll.recipes.networks import Network, build
from atoll.sim.lab.cell import Cell, Ideas
from atoll.sim.lab.crew import Crew
from atoll.sim.lab.data import Data, Stream
from atoll.sim.lab.models import LabLearner, LabSyncer, Work, manifest_of, outer_at
from atoll.sim.lab.sizes import WINDOW

CELL = Cell(
    tokens=100 * WINDOW, batch=4, learners=2, learning_rate=1e-2, num_fragments=3, codec_up="f32",
    codec_down="f32", eta=1.0, mu=0.0,
)  # fmt: skip
BATCH = 2 * WINDOW


def initial() -> Network:
    torch.manual_seed(0)
    return build("text", {"width": 16, "layers": 1, "heads": 2})


def learners(cell: Cell = CELL) -> tuple[list[LabLearner], LabSyncer, Work]:
    crew, work = Crew(initial, 2), Work(cell.tokens, lambda share: None)
    manifest = manifest_of(cell, initial(), cell.num_fragments)
    text = Data(torch.randint(0, 256, (200 * WINDOW + 1,), generator=torch.Generator().manual_seed(0)))
    crewed = [LabLearner(cell, crew, m, Stream(text, 1, 0, 2 * m, 2, 4), manifest, work) for m in range(2)]
    syncer = LabSyncer(cell, manifest, work)
    seeds = [values for _, values in crewed[0].seed()]
    crewed[1].seed()
    syncer.seed(seeds)
    return crewed, syncer, work


def train(learner: LabLearner, steps: int = 1) -> None:
    for _ in range(steps):
        learner.prepare(BATCH)
        learner.step(BATCH)


def contributor(name: str, weight: float = 1.0) -> Contributor:
    return Contributor(name, 1, 0, 1, 1, 0, weight)


def merged(p: int, crewed: list[LabLearner], syncer: LabSyncer) -> None:
    bodies = []
    for learner in crewed:
        learner.snapshot(p)
        bodies.append(learner.encode(p, "x", 1, "")[1])
    names = [f"learner-{m}" for m in range(len(crewed))]
    syncer.inspect(p, list(zip(names, bodies, strict=True)))
    result = syncer.merge(p, tuple(contributor(name) for name in names), bodies, 1.0)
    assert result.delta is None  # the simulated disk would keep it for the whole run
    syncer.install(p)
    for learner in crewed:
        learner.stage(p, syncer.update(p), full=False)
        learner.adopt(p, merged=True, unresolved=False, reset=False)


def test_a_step_moves_the_model_and_counts_its_tokens():
    (first, second), _, work = learners()
    before = first.model.norm.weight.detach().clone()
    train(first)
    assert not torch.equal(first.model.norm.weight, before)
    assert torch.equal(second.model.norm.weight, before)
    assert (work.done, work.steps) == (BATCH, 1)


def test_the_limit_is_told_once_and_then_steps_are_empty():
    (first, second), _, work = learners()
    told: list[int] = []
    work.limit, work.on_limit = 2 * BATCH, lambda: told.append(work.done)
    second.prepare(BATCH)
    train(first, 2)
    after = first.model.norm.weight.detach().clone()
    train(first, 3)
    second.step(BATCH)  # was in flight when the work was done
    assert told == [2 * BATCH]
    assert work.done == 2 * BATCH
    assert torch.equal(first.model.norm.weight, after)
    assert not first.crew.is_in_flight(1)


def test_the_learning_rate_follows_the_work_of_all():
    (first, second), _, work = learners()
    train(first, 2)
    early = first.optimizer.param_groups[0]["lr"]
    work.done = int(0.99 * work.tokens)
    train(second)
    assert second.optimizer.param_groups[0]["lr"] < early


def test_the_plain_mean_of_the_learners_is_adopted_by_all():
    crewed, syncer, _ = learners(replace(CELL, merge_rule="mean"))
    for learner in crewed:
        train(learner, 2)
    expected = torch.stack([learner.replica.gather(0) for learner in crewed]).mean(dim=0)
    merged(0, crewed, syncer)
    for learner in crewed:
        torch.testing.assert_close(learner.replica.gather(0), expected)
    torch.testing.assert_close(syncer.values(0), expected)


def test_a_fragment_is_never_adopted_in_the_middle_of_a_step():
    crewed, syncer, _ = learners()
    train(crewed[0])
    crewed[0].prepare(BATCH)
    with pytest.raises(AssertionError, match="in the middle of a step"):
        merged(0, crewed, syncer)


def test_averaged_moments_reach_every_learner():
    crewed, syncer, _ = learners(replace(CELL, ideas=Ideas(mean_moments=True)))
    for learner in crewed:
        train(learner, 2)
    expected = torch.stack([learner._gather(1, "exp_avg_sq") for learner in crewed]).mean(dim=0)
    other = crewed[0]._gather(0, "exp_avg_sq")
    merged(1, crewed, syncer)
    for learner in crewed:
        torch.testing.assert_close(learner._gather(1, "exp_avg_sq"), expected, rtol=1e-2, atol=1e-12)
    assert torch.equal(crewed[0]._gather(0, "exp_avg_sq"), other)


def test_the_mean_of_the_last_versions_is_what_the_run_ends_with():
    crewed, syncer, work = learners(replace(CELL, ideas=Ideas(average_last=0.5)))
    versions = []
    for share in (0.2, 0.6, 0.8):
        work.done = int(share * work.tokens)
        train(crewed[0])
        merged(0, crewed, syncer)
        versions.append(syncer.model.states[0].served.clone())
    torch.testing.assert_close(syncer.values(0), (versions[1] + versions[2]) / 2)
    assert torch.equal(syncer.values(1), syncer.model.states[1].served)


def test_at_its_end_a_run_may_merge_by_plain_averages():
    crewed, syncer, work = learners(replace(CELL, eta=0.4, mu=0.9, ideas=Ideas(plain_last=0.5)))
    for learner in crewed:
        train(learner, 2)
    expected = torch.stack([learner.replica.gather(0) for learner in crewed]).mean(dim=0)
    work.done = int(0.6 * work.tokens)
    merged(0, crewed, syncer)
    torch.testing.assert_close(syncer.values(0), expected)


def test_momentum_goes_on_from_an_earlier_phase():
    _, syncer, work = learners()
    momentum = [torch.full_like(state.momentum, float(p)) for p, state in enumerate(syncer.model.states)]
    later = LabSyncer(CELL, syncer.manifest, work, momentum)
    later.seed([state.served for state in syncer.model.states])
    assert all(torch.equal(state.momentum, momentum[p]) for p, state in enumerate(later.model.states))


@pytest.mark.parametrize(
    ("changes", "at", "expected"),
    [
        ({}, 0.0, (0.4, 0.9)),
        ({"momentum_warmup": 0.2}, 0.0, (0.4, 0.0)),
        ({"momentum_warmup": 0.2}, 0.1, (0.4, 0.45)),
        ({"momentum_warmup": 0.2}, 0.5, (0.4, 0.9)),
        ({"momentum_cooldown": 0.2}, 0.9, (0.4, 0.45)),
        ({"momentum_cooldown": 0.2}, 1.01, (0.4, 0.0)),
        ({"ideas": Ideas(eta_end=1.0)}, 0.5, (0.7, 0.9)),
        ({"ideas": Ideas(plain_last=0.1)}, 0.89, (0.4, 0.9)),
        ({"ideas": Ideas(plain_last=0.1)}, 0.9, (1.0, 0.0)),
    ],
)
def test_schedules_and_ideas_move_the_outer_settings(
    changes: dict[str, Any], at: float, expected: tuple[float, float]
):
    cell = replace(CELL, eta=0.4, mu=0.9, **changes)
    assert outer_at(cell, at) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rule", "embedding", "matrix", "vector"),
    [
        ("rda", "mean", "rda", "mean"),
        ("mean", "mean", "mean", "mean"),
        ("rda-everywhere", "rda", "rda", "mean"),
    ],
)
def test_the_merge_rule_of_a_cell_is_in_its_cut(rule: str, embedding: str, matrix: str, vector: str):
    manifest = manifest_of(replace(CELL, merge_rule=rule), initial(), 3)
    rules = {unit.storage: unit.rule for fragment in manifest.fragments for unit in fragment.units}
    assert rules["embedding.weight"] == embedding
    assert rules["blocks.0.up.weight"] == matrix
    assert rules["norm.weight"] == vector
