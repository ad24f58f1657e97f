"""The sizes of the lab."""

from __future__ import annotations

import pytest
import torch

from atoll.errors import ConfigError
from atoll.recipes.networks import build
from atoll.sim.lab.sizes import TOKENS, shape_of, tokens_of

NAMED = {"0.05M": 0.05e6, "tiny": 0.1e6, "0.2M": 0.2e6, "0.4M": 0.4e6, "small": 0.8e6}


def test_sizes_are_what_they_are_called_and_trained_in_proportion():
    torch.manual_seed(0)
    for task, size in TOKENS:
        parameters = sum(p.numel() for p in build(task, shape_of(task, size)).parameters())
        assert 0.75 * NAMED[size] < parameters < 1.15 * NAMED[size], (task, size, parameters)
        if task == "text":
            assert 16 < tokens_of(task, size) / parameters < 18


def test_a_size_that_a_task_does_not_have_is_refused():
    with pytest.raises(ConfigError, match=r"no vision model of size 0\.2M"):
        tokens_of("vision", "0.2M")
