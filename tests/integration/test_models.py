"""Any nn.Module, any torch optimizer: two learners train to the end and hold the merged bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import atoll
from atoll.errors import JoinError, ModelError
from atoll.runtime.export import export_run
from tests.integration.conditions import wait_until
from tests.integration.programs import Task, config, global_weights, same, train

Make = Callable[[], nn.Module]


class Tied(nn.Module):
    """The head is the embedding; one layer is frozen; a BatchNorm keeps buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, 6, bias=False)
        self.head.weight = self.inner.weight

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.frozen(self.inner(inputs))))
        return out[:, :2]


class Mixed(nn.Module):
    """Parameters of three types."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.scale = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
        self.last = nn.Linear(8, 2).double()

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.last((self.first(inputs) * self.scale.float()).double())
        return out


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 2))


MODELS: dict[str, Make] = {
    "tied, frozen and normalised": Tied,
    "mixed types": Mixed,
}


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.02)


def in_groups(net: nn.Module) -> torch.optim.Optimizer:
    first, *rest = net.parameters()
    return torch.optim.AdamW(
        [{"params": [first], "lr": 1e-2}, {"params": rest, "weight_decay": 0.0}], lr=1e-3
    )


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adamw in groups": in_groups,
    "momentum": lambda net: torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9),
    "adagrad": lambda net: torch.optim.Adagrad(net.parameters(), lr=0.02),
    "a rate in a tensor": lambda net: torch.optim.Adam(
        net.parameters(), lr=torch.tensor(1e-3), foreach=False
    ),
}


def life(
    url: str,
    name: str,
    make: Make,
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer],
    **options: object,
) -> tuple[atoll.Learner, nn.Module]:
    torch.manual_seed(3)
    net = make()
    optimizer = optimizer_of(net)
    learner = atoll.join(url, model=net, optimizer=optimizer, name=name, **options)  # type: ignore[arg-type]
    return train(learner, net, optimizer), net


def run_pair(
    make: Make, optimizer_of: Callable[[nn.Module], torch.optim.Optimizer], **options: object
) -> None:
    """Two learners, one after the other into one process, until the end; all hold the same."""
    with atoll.Syncer(config(ticks=12, quorum=2)) as syncer:
        tasks = [Task(life, syncer.url, name, make, optimizer_of, **options) for name in "ab"]
        learners = [task.result()[0] for task in tasks]
        first, second = (trainable(learner) for learner in learners)
        for learner in learners:
            learner.leave()
        assert same(first, second)


def trainable(learner: atoll.Learner) -> dict[str, Tensor]:
    frozen = {name for name, p in learner.model.named_parameters() if not p.requires_grad}
    return {name: value for name, value in global_weights(learner).items() if name not in frozen}


@pytest.mark.parametrize("kind", list(MODELS))
def test_models_of_every_kind_train_to_the_end(kind):
    run_pair(MODELS[kind], sgd)


@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_optimizers_of_every_kind_train_to_the_end(kind):
    run_pair(plain, OPTIMIZERS[kind])


def test_a_compiled_model_trains_to_the_end():
    torch.manual_seed(3)
    net: Any = torch.compile(plain(), backend="eager")
    with atoll.Syncer(config(ticks=12)) as syncer:
        optimizer = sgd(net)
        learner = atoll.join(syncer.url, model=net, optimizer=optimizer, name="a")
        train(learner, net, optimizer)
        assert syncer.weights().keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
        learner.leave()


def test_frozen_parameters_stay_local_and_are_not_touched():
    net = Tied()
    before = net.frozen.weight.clone()
    with atoll.Syncer(config(ticks=8)) as syncer:
        optimizer = sgd(net)
        learner = atoll.join(syncer.url, model=net, optimizer=optimizer, name="a")
        train(learner, net, optimizer)
        learner.leave()
        assert "frozen.weight" not in syncer.weights()
    assert torch.equal(net.frozen.weight, before)


def step_until_reported(learner: atoll.Learner, tokens: int, syncer: atoll.Syncer) -> None:
    """Buffers are reported about every interval of 4 steps."""

    def is_reported() -> bool:
        learner.step(tokens=tokens)
        return learner.name in syncer._shell.buffers

    wait_until(is_reported)


def test_buffers_stay_local_and_are_exported_as_their_mean_weighted_by_tokens(tmp_path):
    with atoll.Syncer(config(), tmp_path / "reef") as syncer:
        for name, tokens, value in (("a", 30, 1.0), ("b", 10, 5.0)):
            net = Tied()
            learner = atoll.join(syncer.url, model=net, name=name)
            assert net.norm.running_mean is not None
            net.norm.running_mean.fill_(value)
            step_until_reported(learner, tokens, syncer)
            learner.leave()
        held = syncer._shell.buffers
    export_run(tmp_path / "reef", tmp_path / "out")
    exported = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    mean = (1.0 * held["a"].tokens + 5.0 * held["b"].tokens) / (held["a"].tokens + held["b"].tokens)
    assert torch.allclose(exported["norm.running_mean"], torch.full((6,), mean))
    assert "norm.num_batches_tracked" not in exported


def test_gradients_may_be_accumulated_over_several_batches():
    net = plain()
    optimizer = sgd(net)
    with atoll.Syncer(config()) as syncer:
        learner = atoll.join(syncer.url, model=net, optimizer=optimizer, name="a")
        for number in range(40):
            nn.functional.mse_loss(net(torch.ones(4, 6)), torch.zeros(4, 2)).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
                learner.step(tokens=16)
        assert learner.metrics["tokens"] == 160
        learner.leave()


def test_a_schedule_sets_the_rate_of_every_group_by_the_progress_of_the_run():
    net = plain()
    optimizer = in_groups(net)
    with atoll.Syncer(config(ticks=20)) as syncer:
        learner = atoll.join(
            syncer.url, model=net, optimizer=optimizer, name="a", schedule=lambda progress: 1.0 - progress / 2
        )
        assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 1e-3]
        train(learner, net, optimizer)
        assert learner.progress == 1.0
        learner.step(tokens=8)  # the end may have come between two boundaries
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([5e-3, 5e-4])
        learner.leave()


def test_without_a_schedule_nobody_touches_the_rate():
    net = plain()
    optimizer = in_groups(net)
    with atoll.Syncer(config(ticks=8)) as syncer:
        learner = atoll.join(syncer.url, model=net, optimizer=optimizer, name="a")
        train(learner, net, optimizer)
        learner.leave()
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 1e-3]


def test_a_model_with_fewer_values_than_fragments_is_refused_with_both_numbers():
    with atoll.Syncer(config(fragments=8, interval=8)) as syncer, pytest.raises(ModelError) as refused:
        atoll.join(syncer.url, model=nn.Linear(1, 2), name="a")
    assert "4 trainable values but 8 fragments" in str(refused.value)


def test_another_model_is_refused_with_the_first_tensor_that_differs():
    with atoll.Syncer(config()) as syncer:
        first = atoll.join(syncer.url, model=plain(), name="a")
        other = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))
        with pytest.raises(JoinError) as refused:
            atoll.join(syncer.url, model=other, name="b")
        first.leave()
    assert "2.weight (float32, shape [3, 10]) is 2.weight (float32, shape [2, 10])" in str(refused.value)


@pytest.mark.parametrize("tokens", [-1, 1.5, True, None, "8"])
def test_tokens_that_are_no_count_are_refused(tokens):
    net = plain()
    with atoll.Syncer(config()) as syncer:
        learner = atoll.join(syncer.url, model=net, name="a")
        with pytest.raises(JoinError, match="tokens must be a whole number"):
            learner.step(tokens=tokens)
        learner.leave()


def test_local_runs_alone_with_a_syncer_of_its_own():
    net = plain()
    optimizer = sgd(net)
    learner = atoll.join("local://", model=net, optimizer=optimizer, config=config(ticks=8))
    train(learner, net, optimizer)
    assert learner.shell.num_adopted > 0
    learner.leave()
