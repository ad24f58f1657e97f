"""Where two runs part, said in words."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

import atoll
from atoll.core.records import EpochRecord, Rollback, RoundRecord
from atoll.runtime.rollback import WayBack
from atoll.runtime.run_diff import diff_runs
from atoll.runtime.store import RunStore, read_run
from tests.unit.runtime.small_runs import finished_run, model, rounds, settings


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("finished") / "reef", settings())


def seeded(run_dir: Path, net: nn.Module) -> Path:
    """A run that has its initial weights and nothing else."""
    with (
        atoll.Syncer(settings(), run_dir) as syncer,
        atoll.join(syncer.url, model=net, name="learner-0"),
    ):
        pass
    return run_dir


def told_otherwise(finished: Path, folder: Path, record: RoundRecord) -> Path:
    """The same run up to the version before a record's, and then this record."""
    shutil.copytree(finished, folder)
    chain = [one for one in rounds(finished) if one.fragment == record.fragment]
    kept = chain[: record.version - 1]
    back = Rollback(record.fragment, len(chain), len(kept), kept[-1].digest, "", ())
    store = RunStore.open(folder, read_run(folder).config)
    assert store.commit(EpochRecord(2, (back,), kept[-1].t), sync=False, lines=[]) == ""
    store._expected.deltas[record.delta_digest] += 1  # its content plays no part here
    assert store.commit(record, sync=False, lines=[]) == ""
    store.close()
    return folder


def test_a_run_equals_its_copy(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "copy")
    found = diff_runs(finished, tmp_path / "copy")
    assert found.equal
    assert found.first is None
    assert found.commits == len(rounds(finished))


def test_a_run_that_went_back_lacks_what_came_after(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "copy")
    middle = next(record for record in rounds(finished) if (record.fragment, record.version) == (0, 2))
    with WayBack(tmp_path / "copy", middle.t) as way:
        way.take()
    found = diff_runs(finished, tmp_path / "copy")
    assert not found.equal
    assert found.commits == sum(record.t <= middle.t for record in rounds(finished))
    assert {parting.words for parting in found.partings} == {("only the first run has it",)}
    assert all(parting.ticks[1] is None for parting in found.partings)
    other = diff_runs(tmp_path / "copy", finished)
    assert {parting.words for parting in other.partings} == {("only the second run has it",)}


def test_what_differs_in_a_commit_is_said(finished, tmp_path):
    real = next(record for record in rounds(finished) if record.version == 3)
    a, b = real.contributors
    parts = (a._replace(weight=a.weight + 1, end=a.end + 8, steps=a.steps + 1, base_version=7),)
    record = RoundRecord(2, 1, real.fragment, real.version, "f" * 32, "e" * 32, real.t + 1, parts)
    found = diff_runs(finished, told_otherwise(finished, tmp_path / "other", record))
    parting = next(one for one in found.partings if one.fragment == real.fragment)
    assert (parting.version, parting.ticks) == (real.version, (real.t, real.t + 1))
    assert parting.words == (
        "contributors learner-0, learner-1 against learner-0",
        f"weight of {a.name} {a.weight:g} against {a.weight + 1:g}",
        f"tokens of {a.name} {a.start:,} to {a.end:,} against {a.start:,} to {a.end + 8:,}",
        f"steps of {a.name} {a.steps} against {a.steps + 1}",
        f"base of {a.name} version {a.base_version} against 7",
        f"momentum times {real.momentum_factor:g} against 1",
        f"merged deltas {real.delta_digest[:12]} against eeeeeeeeeeee",
        f"values {real.digest[:12]} against ffffffffffff",
    )
    assert b.name == "learner-1"


def test_when_it_happened_is_no_difference(finished, tmp_path):
    last = rounds(finished)[-1]
    again = replace(last, epoch=2, round=99, t=last.t + 5)
    assert diff_runs(finished, told_otherwise(finished, tmp_path / "other", again)).equal


def test_other_initial_weights_are_said(tmp_path):
    a, b = seeded(tmp_path / "a", model(0)), seeded(tmp_path / "b", model(1))
    found = diff_runs(a, b)
    assert [parting.version for parting in found.partings] == [0, 0]
    assert found.partings[0].words[0].startswith("the initial weights differ: ")
    assert found.commits == 0


def test_other_models_cannot_be_compared(tmp_path):
    a = seeded(tmp_path / "a", model())
    b = seeded(tmp_path / "b", nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3)))
    found = diff_runs(a, b)
    assert not found.equal
    assert found.problems[0].startswith("the models differ: ")
