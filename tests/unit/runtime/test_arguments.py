"""What a user may get wrong when joining, and what becomes of a model later."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.errors import JoinError
from atoll.runtime.arguments import check_arguments, what_changed
from atoll.runtime.learner import _count

MODEL = nn.Linear(2, 2)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)
GOOD = {"url": "local://", "model": MODEL, "optimizer": OPTIMIZER, "schedule": None, "config": None}


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"url": None}, "url is NoneType, not a join URL"),
        ({"model": None}, "model is NoneType, not a torch.nn.Module"),
        ({"model": {"weight": 1}}, "not its state dict"),
        ({"optimizer": "adam"}, "optimizer is str, not a torch optimizer"),
        ({"schedule": 3}, "schedule is int, not a function"),
        ({"schedule": abs, "optimizer": None}, "A schedule was given without an optimizer"),
        ({"config": {}}, "config is dict, not an atoll.RunConfig"),
        ({"model": nn.Linear(2, 2)}, "The optimizer trains none of the model's parameters"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_started(wrong, words):
    with pytest.raises(JoinError) as refused:
        check_arguments(**(GOOD | wrong))
    assert words in str(refused.value)
    assert len(str(refused.value).splitlines()) == 3, "what, so what, now what"


def test_good_arguments_pass():
    check_arguments(**GOOD)
    check_arguments(**(GOOD | {"schedule": lambda progress: 1.0, "config": atoll.RunConfig()}))
    check_arguments(**(GOOD | {"optimizer": None}))


def test_a_model_whose_values_change_in_place_is_the_same_model():
    model = nn.Linear(2, 2)
    known = trainable(model)
    with torch.no_grad():
        model.weight.mul_(2)
    model.load_state_dict(nn.Linear(2, 2).state_dict())
    assert what_changed(model, known) == ""


def test_replaced_frozen_and_new_parameters_are_noticed():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    known = trainable(model)
    model[0].weight = nn.Parameter(torch.ones(2, 2))
    assert "1 that joined are gone or frozen, 1 new" in what_changed(model, known)
    model[1].bias.requires_grad_(False)
    model.append(nn.Linear(2, 2))
    assert "2 that joined are gone or frozen, 3 new" in what_changed(model, known)


@pytest.mark.parametrize("tokens", [7, np.int64(7)])
def test_any_whole_number_counts_as_tokens(tokens):
    assert (_count(tokens), type(_count(tokens))) == (7, int)


@pytest.mark.parametrize("tokens", [-1, 1.0, True, None, "7", 2**60, torch.tensor(7)])
def test_what_is_no_count_is_refused(tokens):
    with pytest.raises(JoinError, match="tokens must be a whole number"):
        _count(tokens)
