"""What a user hands to `join`, looked at before anything is started; and what becomes of it later."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from atoll.config import RunConfig
from atoll.errors import JoinError

__all__ = ["check_arguments", "what_changed"]


def check_arguments(url: Any, model: Any, optimizer: Any, schedule: Any, config: Any) -> None:
    """Refuse what cannot work, in words; nothing was started yet."""
    if not isinstance(url, str):
        raise _wrong("url", url, "a join URL as a string", "Copy the one that `atoll syncer` printed.")
    if not isinstance(model, nn.Module):
        raise _wrong("model", model, "a torch.nn.Module", "Pass the model itself, not its state dict.")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise _wrong("optimizer", optimizer, "a torch optimizer", "Pass the one that trains the model.")
    if schedule is not None and not callable(schedule):
        raise _wrong("schedule", schedule, "a function", "Pass progress -> factor, e.g. lambda p: 1 - p.")
    if schedule is not None and optimizer is None:
        raise JoinError(
            "A schedule was given without an optimizer.",
            "There is no learning rate that it could set.",
            "Pass optimizer= too, or leave the schedule out.",
        )
    if config is not None and not isinstance(config, RunConfig):
        raise _wrong("config", config, "an atoll.RunConfig", "Build one, or read it with from_toml.")
    if optimizer is not None:
        _check_optimizer(model, optimizer)


def _check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    ours = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    theirs = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if ours and not ours & theirs:
        raise JoinError(
            "The optimizer trains none of the model's parameters.",
            "It belongs to another model, or the model was copied after the optimizer was made.",
            "Make the optimizer from this model's parameters.",
        )


def what_changed(model: nn.Module, known: list[nn.Parameter]) -> str:
    """A sentence if parameters were replaced or added since `known` was taken, else ""."""
    try:
        now = [parameter for parameter in model.parameters() if parameter.requires_grad]
    except RuntimeError:  # the user's thread is changing the model this very moment
        return ""
    before, after = {id(p) for p in known}, {id(p) for p in now}
    gone, added = len(before - after), len(after - before)
    if not gone and not added:
        return ""
    return (
        f"parameters were replaced: {gone} that joined are gone or frozen, {added} new ones not exchanged. "
        "Change values in place (copy_, load_state_dict without assign), or join again."
    )


def _wrong(name: str, value: object, wanted: str, cure: str) -> JoinError:
    return JoinError(f"{name} is {type(value).__name__}, not {wanted}.", "Nothing was started.", cure)
