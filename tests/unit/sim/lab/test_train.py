"""Whole cells, very short: real gradients through the production machines."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest

from atoll.core.records import Contributor
from atoll.sim.ghost import MergeResult
from atoll.sim.lab.cell import Cell, Fleet, Ideas, Method, Row
from atoll.sim.lab.models import LabSyncer
from atoll.sim.lab.train import run_cell

CELL = Cell(
    size="0.05M",
    tokens=64 * 64 * 4,
    batch=4,
    learners=2,
    learning_rate=4e-3,
    interval_steps=8,
    num_fragments=4,
)
YEAR_S = 31_536_000.0


@lru_cache(maxsize=8)
def row(cell: Cell) -> Row:
    return run_cell(cell)


def test_the_same_cell_gives_the_same_bits():
    first, second = row(CELL), run_cell(CELL)
    assert second == replace(first, wall_s=second.wall_s, cpu_s=second.cpu_s)


def test_one_learner_that_keeps_its_progress_is_data_parallel():
    """With one learner, plain averaging and rebase, the protocol moves nothing: only rounding is left."""
    alone = replace(
        CELL, learners=1, merge_rule="mean", eta=1.0, mu=0.0, adopt="rebase", codec_up="f32", codec_down="f32"
    )
    lock_step = row(replace(CELL, method="data-parallel"))
    found = row(alone)
    assert found.merges > 25
    assert found.heldout_loss == pytest.approx(lock_step.heldout_loss, rel=2e-4)


@pytest.mark.parametrize("method", ["data-parallel", "diloco", "streaming", "decoupled"])
def test_every_method_trains_the_same_tokens_and_learns(method: Method):
    found = row(replace(CELL, method=method))
    assert found.tokens == CELL.tokens
    assert found.heldout_loss < 4.0
    assert found.curve[0][1] > found.curve[-1][1]
    assert 0 < found.merged_share <= 1


def test_methods_that_wait_stall_and_decoupled_does_not():
    assert row(replace(CELL, method="streaming")).stall_fraction > 0
    assert row(CELL).stall_fraction == 0


@pytest.mark.parametrize("learners", [2, 4])
@pytest.mark.parametrize("seed", [1, 5])
def test_diloco_merges_once_in_an_interval_and_trains_nothing_meanwhile(learners: int, seed: int):
    """Learners join a step or two apart, and are together from their first round on."""
    found = row(replace(CELL, method="diloco", learners=learners, seed=seed))
    intervals = found.steps / learners / CELL.interval_steps
    assert found.staleness_steps == 0
    assert intervals - 2 <= found.merges <= intervals + 2
    assert found.participants > 0.95 * learners


def test_bytes_follow_the_codec():
    wide, thin = row(CELL), row(replace(CELL, codec_up="int4", codec_down="int4"))
    assert thin.merges == wide.merges
    assert thin.bytes_up < 0.3 * wide.bytes_up


def test_a_fleet_that_fails_has_the_goodput_of_the_fleet_model_and_never_stops():
    calm = replace(CELL, learners=4, tokens=CELL.tokens * 2)
    found = row(replace(calm, fleet=Fleet(chips=1_200_000, mtbi_s=YEAR_S, step_s=5.0)))
    assert found.tokens == calm.tokens
    assert found.goodput < 0.98
    assert found.goodput == pytest.approx(found.model_goodput, abs=0.05)
    assert found.longest_stop_s < 5.0
    assert found.virtual_s > row(calm).virtual_s * 5


def test_deaths_are_new_lives():
    fleet = Fleet(chips=1_200_000, mtbi_s=YEAR_S, step_s=5.0, has_deaths=True)
    found = row(replace(CELL, learners=4, tokens=CELL.tokens * 2, fleet=fleet))
    assert found.incarnations > 4
    assert found.heldout_loss < 4.5
    fresh = row(replace(found.cell, fleet=replace(fleet, loses_moments=True)))
    assert fresh.incarnations == found.incarnations
    assert fresh.digest != found.digest  # the same lives, without what AdamW knew


def test_borrowed_learners_save_time_and_leave():
    cell = replace(CELL, tokens=2 * CELL.tokens)
    alone, helped = row(cell), row(replace(cell, fleet=Fleet(extra=2)))
    assert helped.tokens == alone.tokens
    assert helped.incarnations == 4
    assert 0.7 < helped.virtual_s / alone.virtual_s < 0.85


def test_a_run_in_two_phases_counts_both():
    found = row(replace(CELL, ideas=Ideas(early_interval=4, early_share=0.5)))
    assert found.tokens == CELL.tokens
    assert found.merges > row(CELL).merges - 8
    assert found.heldout_loss < 4.5
    assert found.virtual_s == pytest.approx(row(CELL).virtual_s, rel=0.1)


def test_elastic_data_parallel_takes_longer_for_the_same_tokens():
    found = row(replace(CELL, method="elastic", fleet=Fleet(chips=1_200_000, mtbi_s=YEAR_S, step_s=5.0)))
    assert found.goodput == pytest.approx(found.model_goodput, abs=0.05)
    assert found.goodput < 0.8
    assert found.longest_stop_s > 5.0


def test_data_parallel_takes_the_ideas_that_suit_it_and_no_others():
    plain = replace(CELL, method="data-parallel")
    for ideas in (Ideas(average_last=0.5), Ideas(beta2=0.99)):
        found = row(replace(plain, ideas=ideas))
        assert found.digest != row(plain).digest
        assert found.heldout_loss < 4.5
    assert replace(plain, ideas=Ideas(plain_last=0.5)).key == plain.key


def test_a_small_largest_share_makes_all_offers_weigh_the_same(monkeypatch: pytest.MonkeyPatch):
    """One learner is twice as fast: its offers hold more tokens."""
    merged: list[tuple[float, ...]] = []
    plain_merge = LabSyncer.merge

    def merge(self: LabSyncer, p: int, parts: tuple[Contributor, ...], *rest: Any) -> MergeResult:
        merged.append(tuple(part.weight for part in parts))
        return plain_merge(self, p, parts, *rest)

    monkeypatch.setattr(LabSyncer, "merge", merge)
    mixed = replace(CELL, fleet=Fleet(speeds=(1.0, 0.5)), quorum=2)
    run_cell(mixed)
    assert any(max(weights) > 1.5 * min(weights) for weights in merged if len(weights) == 2)
    merged.clear()
    run_cell(replace(mixed, max_share=0.5))
    assert {weights for weights in merged if len(weights) == 2} == {(1.0, 1.0)}
