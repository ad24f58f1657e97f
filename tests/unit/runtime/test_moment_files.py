"""Optimizer state on a learner's own disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from atoll.numerics.moments import Moments
from atoll.numerics.partition import partition
from atoll.runtime.moment_files import MomentFiles, Stamp

STAMP = Stamp("reef", 100, 40, 2)
NUM_FRAGMENTS = 2


def moments() -> Moments:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))
    optimizer = torch.optim.AdamW(net.parameters())
    for parameter in net.parameters():
        parameter.grad = torch.randn(parameter.shape)
    optimizer.step()
    return Moments(optimizer, net, partition(net, NUM_FRAGMENTS, "rda"))


def saved(folder: Path, stamp: Stamp = STAMP) -> tuple[MomentFiles, Moments]:
    files, held = MomentFiles(folder), moments()
    for fragment in range(NUM_FRAGMENTS):
        files.write(held, held.copy(fragment), replace(stamp, t=stamp.t + fragment))
    return files, held


def test_what_was_written_is_found_with_the_oldest_stamp(tmp_path):
    files, held = saved(tmp_path)
    found = files.find(held, "reef", 150, 1000, 8)
    assert (sorted(found.copies), found.problems, found.oldest_t) == ([0, 1], {}, 100)
    before = {id(p): {k: v.clone() for k, v in s.items()} for p, s in held.optimizer.state.items()}
    held.reset()
    assert held.install(found.copies.values()).fresh == ()
    for parameter, state in held.optimizer.state.items():
        assert all(torch.equal(value, before[id(parameter)][key]) for key, value in state.items())
    assert [path.suffix for path in files.folder.iterdir()] == [".safetensors"] * 2


def test_nothing_is_found_where_nothing_was_saved(tmp_path):
    found = MomentFiles(tmp_path).find(moments(), "reef", 150, 1000, 8)
    assert (found.copies, set(found.problems.values())) == ({}, {"nothing was saved"})


def test_state_of_another_run_is_not_used(tmp_path):
    files, held = saved(tmp_path)
    assert set(files.find(held, "atoll", 150, 1000, 8).problems.values()) == {
        "what was saved is of another run"
    }


def test_state_too_old_is_not_used(tmp_path):
    files, held = saved(tmp_path)
    found = files.find(held, "reef", 151, 50, 8)
    assert found.problems[0] == "what was saved is 51 ticks old, and 50 are allowed"
    assert 0 in files.find(held, "reef", 151, 51, 8).copies


def test_state_made_after_a_tick_that_the_run_went_back_to_is_not_used(tmp_path):
    files, held = saved(tmp_path)
    found = files.find(held, "reef", 91, 50, 8)
    assert found.problems[0] == "what was saved is of tick 100, and the run has gone back to 91"
    assert 0 in files.find(held, "reef", 92, 50, 8).copies, "a restart may take t back by a few ticks"


def test_each_fragment_is_as_old_as_it_is(tmp_path):
    files, held = saved(tmp_path)
    found = files.find(held, "reef", 151, 50, 8)
    assert (list(found.copies), list(found.problems), found.oldest_t) == ([1], [0], 101)


def test_a_torn_file_is_found_and_the_others_are_used(tmp_path):
    files, held = saved(tmp_path)
    whole = files.path(0).read_bytes()
    files.path(0).write_bytes(whole[:-16] + bytes(16))
    found = files.find(held, "reef", 100, 50, 8)
    assert list(found.copies) == [1]
    assert "its digest does not agree" in found.problems[0]
    files.path(0).write_bytes(whole[: len(whole) // 2])
    assert 0 in files.find(held, "reef", 100, 50, 8).problems


def test_a_file_without_a_stamp_is_not_believed(tmp_path):
    files, held = saved(tmp_path)
    files.path(0).write_bytes(b"".join(held.to_bytes(held.copy(0))))
    assert files.find(held, "reef", 100, 50, 8).problems == {0: "what was saved has no stamp"}


def test_a_write_that_fails_leaves_the_file_before(tmp_path):
    files, held = saved(tmp_path)
    before = files.path(0).read_bytes()
    files.path(0).with_suffix(".part").mkdir()
    with pytest.raises(OSError, match="directory"):
        files.write(held, held.copy(0), STAMP)
    assert files.path(0).read_bytes() == before


def test_what_is_forgotten_is_gone(tmp_path):
    files, held = saved(tmp_path)
    files.forget()
    files.forget()
    assert files.find(held, "reef", 100, 50, 8).copies == {}
