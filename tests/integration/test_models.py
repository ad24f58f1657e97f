"""Any nn.Module and any optimizer: what users bring is trained, merged and exported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

import atoll
from atoll.runtime.export import export_run
from tests.integration.conditions import wait_until
from tests.integration.programs import Task, batch, config, global_weights, model, same, sgd, train


class Tied(nn.Module):
    """An embedding that is also the output layer, and a frozen layer in between."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, 6, bias=False)
        self.head.weight = self.embedding.weight
        self.out = nn.Linear(6, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.frozen(self.embedding(inputs.argmax(1)))
        return self.out(self.head(hidden))


class Mixed(nn.Module):
    """Parameters of four types. No bf16 arithmetic: not every machine that offers it can do it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 6, dtype=torch.bfloat16)
        self.small = nn.Parameter(torch.zeros(6, dtype=torch.float16))
        self.wide = nn.Parameter(torch.ones(6, dtype=torch.float64))
        self.out = nn.Linear(6, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.table(inputs.argmax(1)).float() + self.small.float() + inputs
        return self.out(hidden * self.wide.float())


class Normed(nn.Module):
    """With running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.out(self.norm(self.first(inputs)))


class Strided(nn.Module):
    """A parameter that is not contiguous, and one of no dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 6).t())
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight * self.scale


@pytest.mark.parametrize("make", [Tied, Mixed, Normed, Strided])
def test_it_is_trained_and_merged(make: Callable[[], nn.Module]):
    """Two learners with different weights of their own end with the same."""
    with atoll.Syncer(config(ticks=12, quorum=2)) as syncer:

        def learn(seed: int) -> tuple[atoll.Learner, nn.Module]:
            torch.manual_seed(seed)
            net = make()
            optimizer = sgd(net)
            learner = atoll.join(syncer.url, model=net, optimizer=optimizer, name=f"learner-{seed}")
            return train(learner, net, optimizer), net

        tasks = [Task(learn, seed) for seed in (1, 2)]
        pairs = [task.result() for task in tasks]
        held = [global_weights(learner) for learner, _ in pairs]
        trained = {name for name, value in pairs[0][1].named_parameters() if value.requires_grad}
        for learner, _ in pairs:
            learner.leave()
        merged = syncer.weights()
    for weights in held:
        assert same({name: weights[name] for name in trained}, merged)


def test_frozen_parameters_stay_as_their_learner_had_them():
    with atoll.Syncer(config(ticks=8)) as syncer:
        net = Tied()
        before = net.frozen.weight.clone()
        optimizer = sgd(net)
        with atoll.join(syncer.url, model=net, optimizer=optimizer, name="ada") as learner:
            train(learner, net, optimizer)
        assert torch.equal(net.frozen.weight, before)
        assert net.head.weight is net.embedding.weight
        assert "frozen.weight" not in syncer.weights()


def test_a_compiled_model_and_a_plain_one_take_part_in_one_run():
    with atoll.Syncer(config(ticks=8, quorum=2)) as syncer:

        def learn(name: str, wrap: Callable[[nn.Module], nn.Module]) -> atoll.Learner:
            net = wrap(model())
            optimizer = sgd(net)
            learner = atoll.join(syncer.url, model=net, optimizer=optimizer, name=name)
            return train(learner, net, optimizer)

        compiled = Task(learn, "compiled", lambda net: torch.compile(net, backend="eager"))
        plain = Task(learn, "plain", lambda net: net)
        learners = [compiled.result(), plain.result()]
        assert same(global_weights(learners[1]), syncer.weights())
        for learner in learners:
            learner.leave()


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda net: torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9),
    "AdamW": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01),
    "Adagrad": lambda net: torch.optim.Adagrad(net.parameters(), lr=0.01),
    "LBFGS": lambda net: torch.optim.LBFGS(net.parameters(), lr=0.01, max_iter=2),
    "no lr": lambda net: Nudge(net.parameters(), {}),
}


class Nudge(torch.optim.Optimizer):
    """An optimizer of somebody's own, that has never heard of a learning rate."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad.sign(), alpha=1e-3)
        return loss


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_any_optimizer_will_do(name):
    net = model()
    optimizer = OPTIMIZERS[name](net)
    inputs, wanted = batch(0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(inputs), wanted)
        loss.backward()
        return loss

    with atoll.join("local://", model=net, optimizer=optimizer, config=config(ticks=8)) as learner:
        while not learner.finished:
            optimizer.step(closure)  # type: ignore[arg-type]
            learner.step(tokens=8)


def test_without_an_optimizer_a_learner_trains_as_it_likes():
    net = model()
    with atoll.join("local://", model=net, config=config(ticks=8)) as learner:
        while not learner.finished:
            with torch.no_grad():
                for value in net.parameters():
                    value.mul_(0.999)
            learner.step(tokens=1)


def test_accumulated_gradients_are_one_step():
    net = model()
    optimizer = sgd(net)
    with atoll.join("local://", model=net, optimizer=optimizer, config=config(ticks=8)) as learner:
        while not learner.finished:
            for number in range(3):
                inputs, wanted = batch(number)
                (nn.functional.mse_loss(net(inputs), wanted) / 3).backward()
            optimizer.step()
            optimizer.zero_grad()
            learner.step(tokens=24)
        assert learner.metrics["tokens"] == 24 * learner.metrics["steps"]


def test_a_schedule_sets_every_groups_rate_by_global_progress():
    net = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 2))
    groups = [
        {"params": net[0].parameters(), "lr": 0.1},
        {"params": net[2].parameters(), "lr": torch.tensor(0.02)},
    ]
    optimizer = torch.optim.AdamW(groups)
    asked: list[float] = []

    def schedule(progress: float) -> float:
        asked.append(progress)
        return 1.0 - progress

    settings = config(ticks=8)
    with atoll.join(
        "local://", model=net, optimizer=optimizer, schedule=schedule, config=settings
    ) as learner:
        assert asked, "the rate is set before the first step"
        while not learner.finished:
            learner.step(tokens=1)
            factor = 1.0 - asked[-1]
            assert optimizer.param_groups[0]["lr"] == 0.1 * factor
            assert float(optimizer.param_groups[1]["lr"]) == pytest.approx(0.02 * factor)
        extra = nn.Parameter(torch.zeros(2))
        optimizer.add_param_group({"params": [extra], "lr": 0.5})
        learner.step(tokens=1)
        assert optimizer.param_groups[2]["lr"] == 0.5 * (1.0 - asked[-1])
    assert asked[-1] == 1.0


def test_without_a_schedule_nobody_touches_the_rate():
    net = model()
    optimizer = sgd(net)
    with atoll.join("local://", model=net, optimizer=optimizer, config=config(ticks=8)) as learner:
        optimizer.param_groups[0]["lr"] = 0.0123
        train(learner, net, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.0123


def test_a_schedule_that_raises_is_the_users_own_error():
    def schedule(progress: float) -> float:
        raise KeyError("on purpose")

    net = model()
    with pytest.raises(KeyError, match="on purpose"):
        atoll.join("local://", model=net, optimizer=sgd(net), schedule=schedule, config=config())


# Buffers


def test_buffers_are_exported_as_their_mean_weighted_by_tokens(tmp_path):
    run_dir = tmp_path / "reef"
    with atoll.Syncer(config(), run_dir) as syncer:
        for name, value, tokens in (("ada", 1.0, 10), ("bob", 4.0, 30)):
            net = Normed()
            net.norm.running_mean.fill_(value)  # type: ignore[union-attr]
            with atoll.join(syncer.url, model=net, name=name) as learner:
                while name not in syncer._shell.buffers:
                    learner.step(tokens=tokens)
    weights = {path.stem: tokens_in(path) for path in (run_dir / "buffers").iterdir()}
    assert weights.keys() == {"ada", "bob"}
    assert all(weight > 0 for weight in weights.values())
    export_run(run_dir, tmp_path / "model")
    exported = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    mean = (weights["ada"] * 1.0 + weights["bob"] * 4.0) / sum(weights.values())
    assert exported["norm.running_mean"] == pytest.approx(torch.full((4,), mean))
    fresh = Normed()
    fresh.load_state_dict(exported)
    assert same({name: value.data for name, value in fresh.named_parameters()}, syncer.weights())


def tokens_in(path: Path) -> float:
    with safetensors.safe_open(path, framework="pt") as file:
        return float(file.metadata()["tokens"])


def test_a_learner_whose_buffers_went_astray_spoils_nobodys_model(tmp_path):
    run_dir = tmp_path / "reef"
    with atoll.Syncer(config(), run_dir) as syncer:
        for name, value in (("ada", float("nan")), ("bob", 2.0)):
            net = Normed()
            net.norm.running_mean.fill_(value)  # type: ignore[union-attr]
            with atoll.join(syncer.url, model=net, name=name) as learner:
                while name not in syncer._shell.buffers:
                    learner.step(tokens=1)
    export_run(run_dir, tmp_path / "model")
    exported = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    assert torch.equal(exported["norm.running_mean"], torch.full((4,), 2.0))


class Buffered(nn.Module):
    """More buffers than one message names."""

    def __init__(self, num_buffers: int, numel: int = 1) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)
        for number in range(num_buffers):
            self.register_buffer(f"buffer_with_a_name_of_some_length_{number}", torch.full((numel,), 1.0))


def test_a_thousand_buffers_all_arrive():
    with atoll.Syncer(config(network={"data_connections": 1})) as syncer:
        net = Buffered(1000)
        with atoll.join(syncer.url, model=net, name="ada") as learner:
            for _ in range(4):
                learner.step(tokens=1)
            wait_until(lambda: learner.step(tokens=1) or num_buffers(syncer, "ada") == 1000)


def num_buffers(syncer: atoll.Syncer, name: str) -> int:
    held = syncer._shell.buffers.get(name)
    return len(held.values) if held is not None else 0


def test_buffers_of_no_values_or_of_too_many_stay_at_home(monkeypatch):
    monkeypatch.setattr("atoll.runtime.learner.BUFFER_LIMIT", 1000)
    with atoll.Syncer(config(ticks=8)) as syncer:
        for number, net in enumerate((Buffered(1, 0), Buffered(2, 500))):
            optimizer = sgd(net)
            with atoll.join(syncer.url, model=net, optimizer=optimizer, name=f"learner-{number}") as learner:
                while not learner.finished:
                    learner.step(tokens=1)
        assert syncer._shell.buffers == {}
        assert syncer.error is None


# What users get wrong


def test_what_is_wrong_with_a_step_is_said_at_once():
    net = model()
    with atoll.join("local://", model=net, config=config()) as learner:
        for tokens in (-1, 1.5, True, "8", None, torch.tensor(8), 1 << 41):
            with pytest.raises(atoll.JoinError, match="tokens must be a whole number"):
                learner.step(tokens=tokens)  # type: ignore[arg-type]
        with pytest.raises(atoll.JoinError, match=r"the loss has shape \[3\]"):
            learner.step(tokens=1, loss=torch.zeros(3))
        with learner.global_weights(), pytest.raises(atoll.JoinError, match="inside global_weights"):
            learner.step(tokens=1)
        for value in (torch.zeros(1), {1: {2}}, object()):
            with pytest.raises(atoll.JoinError, match="cannot be the data cursor"):
                learner.cursor = value
        for loss in (float("nan"), float("inf"), torch.tensor(float("nan")), torch.tensor([2.0]), None):
            learner.step(tokens=0, loss=loss)
        learner.loop.call(learner._housekeep)
        assert learner.worker.is_alive
        assert not learner.ended


def test_the_cursor_is_what_was_put_there_and_not_what_became_of_it():
    with atoll.join("local://", model=model(), config=config()) as learner:
        assert learner.cursor is None
        place = {"file": "a", "line": 1}
        learner.cursor = place
        place["line"] = 2
        assert learner.cursor == {"file": "a", "line": 1}
        kept = learner.state_dict()
        learner.cursor = 0
        learner.load_state_dict(kept)
        assert learner.cursor == {"file": "a", "line": 1}


def test_a_config_belongs_to_a_run_of_ones_own():
    with atoll.Syncer(config()) as syncer, pytest.raises(atoll.JoinError, match="config was given"):
        atoll.join(syncer.url, model=model(), config=config())
