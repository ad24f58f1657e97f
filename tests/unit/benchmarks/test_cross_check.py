"""The lab against real processes: both sides are set up alike, and the verdict follows from the spread."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch

from atoll.recipes import examples, load_recipe
from atoll.sim.lab.experiments.common import Place

ROOT = Path(__file__).parents[3]
ANSWER = {
    "heldout_loss": {"start": 5.5, "end": 1.9},
    "tokens": 1_000,
    "merged_tokens": 800,
    "merges": 10,
    "participation": 0.9,
    "wall_s": 60.0,
    "violations": 0,
    "learner_details": [{"merged_offers": 9}, {"merged_offers": 8}],
}


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))  # scripts import each other by their bare names
    return importlib.import_module("cross_check")


def test_means_that_differ_less_than_seeds_do_agree(check):
    found = check.agreement([2.00, 2.04, 1.98], [2.01, 1.97, 2.02])
    assert found.difference == pytest.approx(100 * (2.006667 / 2.0 - 1), abs=1e-3)
    assert found.low < 0 < found.high
    assert found.verdict.startswith("they agree")


def test_means_that_differ_more_than_seeds_do_differ(check):
    found = check.agreement([2.10, 2.11, 2.12], [2.00, 2.01, 1.99])
    assert found.low > 0
    assert found.spread == pytest.approx(0.5)
    assert found.high - found.difference == pytest.approx(2.776 * 0.5 * math.sqrt(2 / 3), abs=1e-3)
    assert found.verdict.startswith("they differ")
    assert check.told(found) == (
        "processes against the lab: +5.50 % (95 % interval +4.37 to +6.63 %); seeds spread by 0.50 %; "
        "they differ by more than the seeds' spread explains"
    )


def test_a_difference_beyond_the_spread_that_few_seeds_cannot_tell_is_not_resolved(check):
    found = check.agreement([2.04, 2.06, 2.02], [2.00, 2.02, 1.98])
    assert found.low < 0 < found.high
    assert found.difference > found.spread
    assert found.verdict.startswith("not resolved")


def test_one_seed_says_nothing(check):
    found = check.agreement([2.1], [2.0])
    assert found.difference == pytest.approx(5.0)
    assert found.verdict.startswith("not resolved")


def test_four_learners_are_the_labs_cell_by_our_defaults(check):
    assert check.cell_of(4, 7) == Place("decoupled", 4, settings_of="defaults").cell("tiny", 7)


def test_real_processes_get_every_outer_setting_of_the_cell(check):
    from atoll.sim.lab.world import config_of

    cell, outer = check.cell_of(4, 7), config_of(check.cell_of(4, 7)).outer
    assert outer.eta_mu == (cell.eta, cell.mu)
    assert (outer.momentum_warmup, outer.momentum_cooldown) == (0.1, 0.2)


@pytest.mark.parametrize("learners", [1, 2, 4, 8])
def test_both_sides_train_on_the_same_number_of_tokens_at_the_same_batch(check, learners):
    cell, preset = check.cell_of(learners, 1), load_recipe("text").preset
    assert cell.batch == learners * preset.batch_size
    assert check.ticks_of(cell) * cell.batch * preset.window == cell.tokens


def test_the_command_names_the_cell(check):
    cell = check.cell_of(2, 5)
    command = check.command_of(cell, 30, 0.25, Path("run"), Path("run.toml"))
    words = " ".join(command)
    assert "train text" in words
    assert "--size tiny --seed 5 --learners 2 --speeds 0.25,0.25 --steps 30 --config run.toml" in words


def test_a_run_is_told_in_the_same_words_as_a_row(check):
    real = check.outcome_of_run(3, ANSWER)
    assert (real.loss, real.merged_share, real.participants) == (1.9, 0.8, 1.7)
    lab = check.Outcome(
        seed=3, where="lab", loss=1.8, tokens=1_000, merges=11, participation=1.0, participants=2.0,
        merged_share=0.9, wall_s=5.0,
    )  # fmt: skip
    table = check.table_of([real, lab])
    assert "| 3 | processes | 1.9000 | 1,000 | 10 | 0.900 | 1.70 | 0.800 | 60 | 0 |" in table
    assert "+5.56 %" in table
    assert "not resolved" in table
    assert "nan" not in table


def test_both_sides_have_the_same_heldout_windows_weights_and_score(check):
    from atoll.sim.lab.crew import score
    from atoll.sim.lab.data import data_of
    from atoll.sim.lab.train import _initial

    cell, recipe = check.cell_of(4, 3), load_recipe("text", seed=3)
    _, heldout = data_of(cell)
    mine = examples.load(recipe).heldout
    windows = mine.batch(torch.arange(len(mine)), 0).inputs["input_ids"]
    assert sorted(windows.tolist()) == sorted(heldout.inputs.tolist())
    model, other = recipe.build_model(), _initial(cell)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert recipe.evaluate(model) == pytest.approx(score(other, heldout)[0], rel=1e-5)
