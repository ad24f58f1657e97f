from typing import Any

import pytest
import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from atoll.errors import ModelError
from atoll.numerics.codec import codec_for
from atoll.numerics.partition import float_buffers, load_buffers, partition, plain_name
from atoll.numerics.replica import Replica
from tests.unit.numerics.samples import Tied

F32 = codec_for("f32")


@pytest.fixture
def one_rank():
    """A process group of this process alone."""
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]  # exported in practice
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def compiled(model: nn.Module) -> Any:
    """A wrapper that is a module too, although its type does not say so."""
    return torch.compile(model, backend="eager")


class Normed(nn.Module):
    """A BatchNorm, a buffer that is computed from the configuration, one that is shared, one of integers."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.inner = nn.Module()
        shared = torch.ones(2)
        self.inner.register_buffer("scale", shared)
        self.inner.register_buffer("angles", torch.ones(4), persistent=False)
        self.register_buffer("again", shared)
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))


FLOATS = ["again", "norm.running_mean", "norm.running_var"]


def test_names_of_a_compiled_model_are_those_of_the_plain_one():
    assert partition(compiled(Tied()), 3).to_dict() == partition(Tied(), 3).to_dict()
    partly: Any = Tied()
    partly.mix = compiled(partly.mix)
    assert partition(partly, 3).to_dict() == partition(Tied(), 3).to_dict()


def test_names_of_a_distributed_model_are_those_of_the_plain_one(one_rank):
    plain = partition(Tied(), 3).to_dict()
    assert partition(DistributedDataParallel(Tied()), 3).to_dict() == plain
    assert partition(compiled(DistributedDataParallel(Tied())), 3).to_dict() == plain
    partly: Any = Tied()
    partly.mix = DistributedDataParallel(partly.mix)
    assert partition(partly, 3).to_dict() == plain


def test_a_users_own_attribute_called_module_keeps_its_name():
    model = nn.Module()
    model.module = nn.Linear(2, 2)
    assert plain_name(model, "module.weight") == "module.weight"
    assert plain_name(nn.DataParallel(model), "module.module.weight") == "module.weight"


def test_a_compiled_model_trains_on_after_an_adoption():
    model = compiled(nn.Linear(4, 1, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    replica = Replica(model, partition(model, 1), F32, F32)
    replica.set_base_from_local(0)

    def step():
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    step()
    replica.stage_full(0, torch.full((4,), 5.0))
    replica.adopt(0, merged=False)
    assert step() == 400.0  # the graph reads the adopted values
    after = replica.gather(0)
    assert bool((after < 5.0).all())  # and the optimizer moves them
    assert step() < 400.0


def test_a_sharded_model_is_refused_in_a_sentence(one_rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), init_device_mesh("cpu", (1,))))
    with pytest.raises(ModelError, match=r"weight is sharded over several ranks"):
        partition(model, 1)


def test_a_model_on_two_devices_is_refused_with_both_names():
    model = nn.Linear(4, 4)
    manifest = partition(model, 1)
    model.bias = nn.Parameter(model.bias.detach().to("meta"))
    with pytest.raises(ModelError, match="weight is on cpu and bias on meta"):
        Replica(model, manifest, F32, F32)


def test_a_model_without_values_is_refused():
    model = nn.Linear(4, 4, device="meta")
    with pytest.raises(ModelError, match="weight is on the meta device"):
        Replica(model, partition(model, 1), F32, F32)


def test_a_frozen_parameter_may_be_anywhere():
    model = Tied()
    model.fixed.to("meta")
    Replica(model, partition(model, 1), F32, F32)


def test_float_buffers_are_listed_once_and_only_those_of_the_state_dict():
    model = Normed()
    assert sorted(name for name, _ in float_buffers(model)) == FLOATS
    assert sorted(name for name, _ in float_buffers(compiled(model))) == FLOATS
    assert float_buffers(nn.Linear(2, 2)) == []


def test_buffers_are_loaded_in_place_and_the_others_stay():
    model: Any = Normed()
    held = model.norm.running_mean
    load_buffers(model, {"norm.running_mean": torch.full((3,), 7.0), "again": torch.zeros(2)})
    assert model.norm.running_mean is held
    assert held.tolist() == [7.0] * 3
    assert model.inner.scale.tolist() == [0.0, 0.0]
    assert model.norm.running_var.tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("norm.running_var", (4,), r"has shape \[3\]"),
        ("norm.num_batches_tracked", (), "not one of its float buffers"),
        ("other", (3,), "not one of its float buffers"),
    ],
)
def test_buffers_of_another_model_are_refused_before_anything_changes(name, shape, says):
    model: Any = Normed()
    with pytest.raises(ModelError, match=says):
        load_buffers(model, {"norm.running_mean": torch.ones(3), name: torch.ones(shape)})
    assert model.norm.running_mean.tolist() == [0.0] * 3
