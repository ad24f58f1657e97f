"""Exported files: every name a state dict has, and a word on those that are missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import atoll
from atoll.cli.main import run


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
