"""The experiment with bad numbers: offers are really spoiled, and what must not be is noticed."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from torch import nn

from atoll.numerics.codec import codec_for
from atoll.numerics.partition import partition
from atoll.numerics.replica import Replica

ROOT = Path(__file__).parents[3]


@pytest.fixture
def bad_numbers(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))  # scripts import each other by their bare names
    return importlib.import_module("bad_numbers")


def offer(replica, model):
    """The delta in the body of one offer after a step of 0.5 on every parameter."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)
    pending = replica.snapshot(0)
    body = replica.encode(0, pending)
    replica.resolve(0, merged=False)
    numel = pending.base.numel()
    return codec_for("f32").decode(body, 0, numel, torch.empty(numel))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("times 1e6", -0.5e6), ("sign flipped", 0.5), ("zeros", 0.0), ("NaN", float("nan"))],
)
def test_an_offer_is_spoiled_once_it_is_time_and_not_before(bad_numbers, kind, expected):
    model, codec = nn.Linear(3, 2), codec_for("f32")
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    replica = Replica(model, partition(model, 1), codec, codec)
    replica.set_base_from_local(0)
    is_time: list[bool] = []
    spoiler = bad_numbers.Spoiler(bad_numbers.SPOILED[kind], lambda: bool(is_time))
    spoiler.attach(replica)
    assert torch.equal(offer(replica, model), torch.full((8,), -0.5))
    assert not spoiler.digests
    replica.load(0, torch.zeros(8))
    is_time.append(True)
    assert torch.allclose(offer(replica, model), torch.full((8,), expected), equal_nan=True)
    assert len(spoiler.digests) == 1


def result(bad_numbers, guards, offers, merged):
    return bad_numbers.Result(guards, offers, 0, 1.0, 5, merged, 0, 0, 0, 10, 1.0)


def test_only_what_the_guards_promise_to_stop_counts_as_broken(bad_numbers):
    def is_broken(*case):
        return bool(bad_numbers.broken([result(bad_numbers, *case)]))

    assert is_broken("default", "times 1e6", 1)
    assert is_broken("default", "NaN", 1)
    assert is_broken("off", "NaN", 1)
    assert not is_broken("default", "times 1e6", 0)
    assert not is_broken("off", "times 1e6", 1)
    assert not is_broken("default", "sign flipped", 5)


def test_a_loss_that_is_no_number_is_shown_as_such(bad_numbers):
    assert bad_numbers.listed([1.23456, None]) == "1.2346, not a number"
    assert bad_numbers.percent(None, 1.0) is None
    assert bad_numbers.percent(1.5, 1.0) == pytest.approx(50.0)
