"""Exported files: every name a state dict has, and a word on those that are missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from torch import nn

import atoll
from atoll.cli.main import run
from atoll.errors import StoreError
from atoll.runtime.export import export_run
from atoll.runtime.store import RunStore, read_run
from tests.unit.runtime.small_runs import finished_run, flip, lose_end, rounds, settings, versions


class Tied(nn.Module):
    """Two names for one weight, and one weight that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.stem = nn.Linear(4, 4, bias=False).requires_grad_(False)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight


@pytest.fixture
def model() -> Tied:
    return Tied()


@pytest.fixture
def run_dir(tmp_path: Path, model: Tied) -> Path:
    """Of a run that was seeded with the model."""
    config = atoll.RunConfig.from_tables({"sync": {"num_fragments": 1}})
    with (
        atoll.Syncer(config, tmp_path / "reef") as syncer,
        atoll.join(syncer.url, model=model, token=syncer.token),
    ):
        pass
    return tmp_path / "reef"


def test_a_tied_weight_is_written_under_all_its_names(run_dir, model, capsys):
    assert run(["export", str(run_dir), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    file = safetensors.torch.load_file(run_dir / "model" / "model.safetensors")
    assert file.keys() == {"embedding.weight", "head.weight"}
    assert all(torch.equal(values, model.embedding.weight) for values in file.values())
    assert (found["tensors"], found["values"]) == (1, 20)


def test_a_frozen_weight_is_named_as_missing(run_dir, model, capsys):
    assert run(["export", str(run_dir), "--json"]) == 0
    missing = json.loads(capsys.readouterr().out)["missing"]
    file = safetensors.torch.load_file(run_dir / "model" / "model.safetensors")
    assert missing == ["stem.weight"] == model.load_state_dict(file, strict=False).missing_keys
    assert run(["export", str(run_dir)]) == 0
    page = capsys.readouterr().out
    assert "not in the file: stem.weight" in page
    assert "strict=False" in page


# Damaged runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("trained") / "reef", settings())


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "reef")
    return tmp_path / "reef"


def spoil(run_dir: Path, p: int, version: int) -> None:
    """The versions of a fragment from this one on cannot be rebuilt."""
    record = next(one for one in rounds(run_dir) if (one.fragment, one.version) == (p, version))
    flip(run_dir / "deltas" / f"{record.delta_digest}.safetensors")


def test_a_whole_run_is_written_with_all_its_merges(copy, tmp_path):
    found = export_run(copy, tmp_path / "model")
    assert (found["merges"], found["versions"], found["lost"]) == (len(rounds(copy)), versions(copy), [])


def test_a_run_that_has_lost_merges_is_refused_and_nothing_is_written(copy, capsys):
    spoil(copy, 1, 2)
    assert run(["export", str(copy)]) == 2
    said = capsys.readouterr().err
    assert "has lost merges: fragment 1, version 2: its delta " in said
    assert "--accept-loss" in said
    assert not (copy / "model").exists()


def test_an_accepted_loss_is_written_and_says_what_it_is(copy, tmp_path, capsys):
    spoil(copy, 1, 2)
    newest = versions(copy)
    assert run(["export", str(copy), "--accept-loss", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"] == [newest[0], 1]
    assert found["merges"] == newest[0] + 1 < len(rounds(copy))
    assert found["lost"][0].startswith("fragment 1, version 2: ")
    with safetensors.safe_open(copy / "model" / "model.safetensors", "pt") as file:
        assert file.metadata()["merges"] == str(found["merges"])
    assert run(["export", str(copy), "--accept-loss"]) == 0
    page = capsys.readouterr().out
    assert f"after {found['merges']} merges:" in page
    assert f"which are lost: fragment 0 at version {newest[0]}, fragment 1 at version 1\n" in page
    assert "lost: fragment 1, version 2: " in page


def test_a_database_that_has_lost_its_end_is_refused(copy, tmp_path):
    number = lose_end(copy)
    with pytest.raises(StoreError, match=f"its newest records are lost, 1 of them: record {number}"):
        export_run(copy, tmp_path / "model")
    found = export_run(copy, tmp_path / "model", accepts_loss=True)
    assert found["merges"] == len(rounds(copy))
    assert isinstance(found["lost"], list)
    assert len(found["lost"]) == 1


def test_damage_that_costs_no_version_is_no_reason_to_refuse(copy, tmp_path):
    """An older base makes it good; `atoll fsck` names it."""
    view = read_run(copy)
    states = view.found().fragments
    assert states is not None
    store = RunStore.open(copy, view.config)
    assert store.take_snapshot(view.state.merges, tuple(versions(copy)), states) == ""
    store.close()
    flip(copy / "snapshots" / str(view.state.merges) / "0.safetensors")
    assert view.found().state.problems
    assert export_run(copy, tmp_path / "model")["versions"] == versions(copy)
