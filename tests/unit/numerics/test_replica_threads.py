"""The calls of three threads, in every order the runtime may make them; one thread is enough to test it."""

import math

import pytest
import torch
from torch import nn

from atoll.errors import ModelError, ProtocolError
from atoll.numerics.codec import codec_for
from atoll.numerics.partition import partition
from atoll.numerics.replica import NUM_SPARES, Replica
from tests.unit.numerics.samples import Tied, decoded, gaussian

F32 = codec_for("f32")


def one_value(adopt="overwrite"):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 10.0)
    replica = Replica(model, partition(model, 1), F32, F32, adopt=adopt)
    replica.set_base_from_local(0)
    return model.weight, replica


def coarse():
    """A replica whose codec drops much, with some progress to offer; always the same."""
    model = nn.Linear(16, 16, bias=False)
    nn.init.zeros_(model.weight)
    replica = Replica(model, partition(model, 1), codec_for("int4"), F32)
    replica.set_base_from_local(0)
    with torch.no_grad():
        model.weight.sub_(gaussian(256).view_as(model.weight))
    return replica


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8).tolist()


def put(parameter, value):
    with torch.no_grad():
        parameter.fill_(value)


def test_a_new_offer_may_be_taken_while_the_encode_of_the_released_one_still_waits():
    weight, replica = one_value()
    put(weight, 7.0)
    first = replica.snapshot(0)
    replica.release(0)
    put(weight, 4.0)
    second = replica.snapshot(0)
    assert decoded(replica.encode(0, first), 1).tolist() == [3.0]
    replica.settle(0, first, merged=False)
    assert decoded(replica.encode(0, second), 1).tolist() == [6.0]
    assert replica.has_pending(0)


def test_an_encode_under_way_is_not_disturbed_by_an_adoption_in_any_mode():
    for mode in ("overwrite", "blend", "rebase"):
        weight, replica = one_value(mode)
        put(weight, 7.0)
        pending = replica.snapshot(0)
        replica.stage_full(0, torch.tensor([20.0]))
        replica.adopt(0, merged=False)
        assert decoded(replica.encode(0, pending), 1).tolist() == [3.0]


def test_snapshots_are_reused_once_settled_and_never_before():
    _, replica = one_value()
    first = replica.snapshot(0)
    replica.release(0)
    second = replica.snapshot(0)
    assert second.snapshot is not first.snapshot
    replica.settle(0, first, merged=False)
    replica.release(0)
    assert replica.snapshot(0).snapshot is first.snapshot


def test_no_more_than_a_few_spare_snapshots_are_kept():
    _, replica = one_value()
    taken = []
    for _ in range(NUM_SPARES + 3):
        taken.append(replica.snapshot(0))
        replica.release(0)
    for pending in taken:
        replica.settle(0, pending, merged=False)
    assert replica.memory_bytes() == 4 * (1 + NUM_SPARES)


def test_the_verdict_on_an_abandoned_offer_leaves_the_residual_of_the_next_one_alone():
    replica, alone = coarse(), coarse()
    abandoned = replica.snapshot(0)
    replica.encode(0, abandoned)
    replica.release(0)
    replica.settle(0, abandoned, merged=False)
    for one in (replica, alone):
        pending = one.snapshot(0)
        one.encode(0, pending)
        one.release(0)
        one.settle(0, pending, merged=True)
    replica.settle(0, abandoned, merged=True)  # repeated, and too late
    assert torch.equal(replica.state_dict()["residual.0"], alone.state_dict()["residual.0"])


def test_an_adoption_of_a_merged_offer_settles_it_and_a_second_verdict_changes_nothing():
    replica = coarse()
    pending = replica.snapshot(0)
    replica.encode(0, pending)
    replica.stage_full(0, replica.base(0) + 1.0)
    replica.adopt(0, merged=True)
    kept = replica.state_dict()["residual.0"]
    following = replica.snapshot(0)
    replica.encode(0, following)
    replica.settle(0, pending, merged=True)
    assert torch.equal(replica.state_dict()["residual.0"], kept)
    assert not following.settled


def test_an_offer_that_was_never_encoded_is_settled_without_a_residual():
    replica = coarse()
    pending = replica.snapshot(0)
    replica.release(0)
    replica.settle(0, pending, merged=False)
    assert replica.state_dict() == {}


def test_the_next_base_is_computed_aside_and_only_counts_once_it_is_put():
    weight, replica = one_value()
    newest = replica.newest(0)
    staged = replica.next_base(0, newest, F32.encode(torch.tensor([-2.0])))
    assert newest.tolist() == [10.0]
    assert replica.newest(0) is newest
    replica.put_staged(0, staged)
    assert replica.newest(0) is staged
    assert replica.base(0) is newest
    replica.unstage(0)
    assert replica.newest(0) is newest
    replica.put_staged(0, staged)
    replica.adopt(0, merged=False)
    assert weight.item() == 8.0
    assert replica.base(0) is staged


def test_a_full_base_is_a_checked_copy():
    _, replica = one_value()
    values = torch.tensor([3.0])
    base = replica.full_base(0, values)
    values.fill_(9.0)
    assert base.tolist() == [3.0]
    with pytest.raises(ModelError, match="Fragment 0 has 1 f32 values, not 2"):
        replica.full_base(0, torch.zeros(2))


@pytest.mark.parametrize("adopt", ["overwrite", "blend", "rebase"])
def test_a_learner_without_a_base_is_healed_by_a_full_fragment(adopt):
    model = nn.Linear(2, 2)
    replica = Replica(model, partition(model, 2), F32, F32, adopt=adopt)
    assert replica.bases() == [None, None]
    with pytest.raises(ProtocolError, match="no base"):
        replica.newest(1)
    version = torch.arange(float(replica.manifest.fragments[1].numel))
    replica.put_staged(1, replica.full_base(1, version))
    assert torch.equal(replica.newest(1), version)
    replica.adopt(1, merged=False)
    assert torch.equal(replica.gather(1), version)
    bases = replica.bases()
    assert bases[0] is None
    assert bases[1] is replica.base(1)


def test_a_seed_is_a_copy_that_training_does_not_reach():
    weight, replica = one_value()
    seed = replica.set_base_from_local(0)
    put(weight, 1.0)
    assert seed.tolist() == [10.0]


# ---------------------------------------------------------------------- the merged model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_merged_model_is_lent_and_the_local_values_return_bit_for_bit(dtype):
    model = Tied().to(dtype)
    model.mix.weight = nn.Parameter(model.mix.weight.detach().t())  # not contiguous
    replica = Replica(model, partition(model, 3), F32, F32)
    for p in range(3):
        replica.set_base_from_local(p)
    merged = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        model.mix.weight.mul_(-0.0)  # signed zeros
        model.mix.bias[0] = math.nan
        model.embed.weight.add_(1.0)
    local = [parameter.detach().clone() for parameter in model.parameters()]
    with replica.global_weights():
        assert all(torch.equal(value, merged[name]) for name, value in model.state_dict().items())
        assert model.out.weight is model.embed.weight
    for parameter, before in zip(model.parameters(), local, strict=True):
        assert bits(parameter) == bits(before)


def test_an_exception_in_an_evaluation_does_not_cost_the_local_values():
    weight, replica = one_value()
    put(weight, 7.0)
    with pytest.raises(ZeroDivisionError), replica.global_weights():
        weight.fill_(1 / 0)
    assert weight.item() == 7.0
    with replica.global_weights():  # and it can be lent again
        assert weight.item() == 10.0


def test_the_merged_model_is_neither_offered_nor_adopted_over():
    weight, replica = one_value()
    put(weight, 7.0)
    replica.stage_full(0, torch.tensor([20.0]))
    with replica.global_weights():
        with pytest.raises(ProtocolError, match="snapshot was called inside global_weights"):
            replica.snapshot(0)
        with pytest.raises(ProtocolError, match="adopt was called inside global_weights"):
            replica.adopt(0, merged=False)
        with pytest.raises(ProtocolError, match="global_weights was called inside"), replica.global_weights():
            pass
    assert weight.item() == 7.0
    replica.adopt(0, merged=False)
    assert weight.item() == 20.0


def test_a_learner_that_is_not_healed_has_no_merged_model_to_lend():
    model = nn.Linear(2, 2)
    replica = Replica(model, partition(model, 2), F32, F32)
    replica.set_base_from_local(0)
    before = model.weight.detach().clone()
    with pytest.raises(ProtocolError, match="Fragment 1 has no base"), replica.global_weights():
        pass
    assert torch.equal(model.weight, before)


# ---------------------------------------------------------------------- memory


def test_memory_counts_every_tensor_once():
    replica = coarse()
    size = 4 * 256
    assert replica.memory_bytes() == size  # the base
    pending = replica.snapshot(0)
    assert replica.memory_bytes() == 2 * size
    replica.encode(0, pending)
    assert replica.memory_bytes() == 3 * size  # the error, until the verdict
    replica.stage_full(0, replica.base(0) + 1.0)
    assert replica.memory_bytes() == 4 * size
    replica.adopt(0, merged=False)
    assert replica.memory_bytes() == 4 * size  # the offer still holds the old base
    replica.resolve(0, merged=True)
    assert replica.memory_bytes() == 3 * size  # base, spare snapshot, residual
    replica.load_state_dict({})
    assert replica.memory_bytes() == 2 * size
