"""A cell is named by what its bits follow from, and by nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atoll.errors import ConfigError
from atoll.sim.lab.cell import Cell, Fleet, Ideas, Row
from tests.unit.sim.lab.made_up import made_up

CELL = Cell(tokens=1_000, batch=8, learning_rate=4e-3)


def test_a_cell_comes_back_from_its_settings():
    cell = replace(CELL, fleet=Fleet(speeds=(1.0, 0.5), extra=2), ideas=Ideas(eta_end=1.0))
    assert Cell.of(cell.settings()) == cell


def test_settings_that_are_missing_have_their_defaults():
    settings = CELL.settings()
    del settings["adopt"], settings["ideas"]["average_last"]
    assert Cell.of(settings) == CELL


@pytest.mark.parametrize("change", [{"colour": 1}, {"fleet": {"colour": 1}}])
def test_settings_of_another_lab_are_refused(change: dict[str, object]):
    with pytest.raises(ConfigError, match="no settings of a cell"):
        Cell.of({**CELL.settings(), **change})


def test_every_setting_that_matters_is_in_the_key():
    changed = [
        replace(CELL, seed=2), replace(CELL, learning_rate=5e-3), replace(CELL, eta=0.5),
        replace(CELL, adopt="rebase"), replace(CELL, fleet=Fleet(jitter=0.1)),
        replace(CELL, ideas=Ideas(mean_moments=True)), replace(CELL, size="small"),
    ]  # fmt: skip
    assert len({CELL.key, *(cell.key for cell in changed)}) == 1 + len(changed)


def test_one_and_one_point_nought_are_the_same_setting():
    assert replace(CELL, eta=1).key == replace(CELL, eta=1.0).key
    assert replace(CELL, fleet=Fleet(step_s=5)).key == replace(CELL, fleet=Fleet(step_s=5.0)).key


def test_what_a_method_does_not_use_is_not_in_its_key():
    lock_step = replace(CELL, method="data-parallel")
    assert (
        lock_step.key == replace(lock_step, eta=0.1, learners=8, codec_up="int4", fleet=Fleet(jitter=0.3)).key
    )
    assert lock_step.key != replace(lock_step, batch=16).key
    elastic = replace(CELL, method="elastic", fleet=Fleet(chips=10, mtbi_s=1e6))
    assert elastic.key != replace(elastic, fleet=Fleet(chips=20, mtbi_s=1e6)).key
    assert replace(CELL, method="diloco").key == replace(CELL, method="diloco", num_fragments=8, quorum=4).key


@pytest.mark.parametrize("change", [{"batch": 6}, {"batch": 2}, {"learners": 0}, {"tokens": 0}])
def test_a_batch_that_cannot_be_dealt_out_is_refused(change: dict[str, Any]):
    with pytest.raises(ConfigError, match="multiple of the learners"):
        replace(CELL, **change)


def test_a_row_comes_back_from_json():
    row = made_up(CELL, 1.5)
    assert Row.of(row.to_json()) == row
    assert row.to_json()["key"] == CELL.key
