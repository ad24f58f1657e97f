import dataclasses

import pytest
import torch
from torch import nn

from atoll.errors import ConfigError, ModelError, ProtocolError
from atoll.numerics.blockwise import unpack_int8
from atoll.numerics.codec import codec_for
from atoll.numerics.merge import merge
from atoll.numerics.outer import OuterState, digest, outer_step
from atoll.numerics.partition import partition
from atoll.numerics.replica import Replica
from tests.unit.numerics.samples import Tied, decoded, gaussian

F32 = codec_for("f32")


def replica_of(model, fragments=1, offer="f32", publish="f32", **settings):
    manifest = partition(model, fragments)
    replica = Replica(model, manifest, codec_for(offer), codec_for(publish), **settings)
    for fragment in manifest.fragments:
        replica.set_base_from_local(fragment.index)
    return replica


def one_value(adopt="overwrite", **settings):
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 10.0)
    return model.weight, replica_of(model, adopt=adopt, **settings)


def put(parameter, value):
    with torch.no_grad():
        parameter.fill_(value)


def publish(replica, value):
    """Stage a publish that moves the newest base to a value."""
    replica.stage(0, replica.publish_codec.encode(torch.tensor([value]) - replica.newest(0)))


def test_the_offer_is_base_minus_local_at_the_snapshot():
    weight, replica = one_value()
    put(weight, 7.0)
    pending = replica.snapshot(0)
    put(weight, 5.0)  # later progress belongs to the next offer
    assert decoded(replica.encode(0, pending), 1).tolist() == [3.0]


def test_gather_and_load_round_trip_over_tied_split_and_frozen_parameters():
    model = Tied()
    replica = replica_of(model, 3)
    before = [replica.gather(p) for p in range(3)]
    fixed = model.fixed.weight.clone()
    for p in range(3):
        replica.load(p, before[p] + 1.0)
        assert torch.equal(replica.gather(p), before[p] + 1.0)
        assert torch.equal(replica.base(p), before[p] + 1.0)
    assert torch.equal(model.fixed.weight, fixed)
    assert model.out.weight is model.embed.weight


def test_parameters_that_are_not_contiguous_are_read_and_written_in_row_major_order():
    model = nn.Linear(3, 4, bias=False)
    model.weight = nn.Parameter(torch.arange(12.0).view(3, 4).t())
    assert not model.weight.is_contiguous()
    replica = replica_of(model, 3)
    whole = torch.cat([replica.gather(p) for p in range(3)])
    assert sorted(whole.tolist()) == list(range(12))
    for p in range(3):
        replica.load(p, replica.gather(p) * 2)
    assert torch.equal(model.weight, torch.arange(12.0).view(3, 4).t() * 2)


def test_overwrite_takes_the_published_value():
    weight, replica = one_value("overwrite")
    put(weight, 7.0)
    replica.snapshot(0)
    put(weight, 6.0)
    publish(replica, 8.0)
    replica.adopt(0, merged=True)
    assert weight.item() == 8.0
    assert replica.base(0).tolist() == [8.0]
    assert not replica.has_pending(0)


def test_blend_mixes_by_alpha():
    weight, replica = one_value("blend", blend_alpha=0.25)
    put(weight, 6.0)
    publish(replica, 8.0)
    replica.adopt(0, merged=False)
    assert weight.item() == 0.25 * 6.0 + 0.75 * 8.0


def test_rebase_keeps_the_progress_since_the_snapshot_of_a_merged_offer():
    weight, replica = one_value("rebase")
    put(weight, 7.0)
    replica.snapshot(0)
    put(weight, 6.5)
    publish(replica, 8.0)
    replica.adopt(0, merged=True)
    assert weight.item() == 8.0 + (6.5 - 7.0)


def test_rebase_keeps_the_progress_since_the_base_if_the_offer_was_not_merged():
    weight, replica = one_value("rebase")
    put(weight, 7.0)
    replica.snapshot(0)
    put(weight, 6.5)
    replica.resolve(0, merged=False)
    publish(replica, 8.0)
    replica.adopt(0, merged=False)
    assert weight.item() == 8.0 + (6.5 - 10.0)


def test_rebase_moves_an_open_offer_along_so_that_its_later_verdict_is_right():
    weight, replica = one_value("rebase")
    put(weight, 7.0)
    pending = replica.snapshot(0)
    offered = decoded(replica.encode(0, pending), 1)
    put(weight, 6.5)
    publish(replica, 12.0)  # another round's publish, our offer still open
    replica.adopt(0, merged=False)
    assert weight.item() == 12.0 + (6.5 - 10.0)
    assert torch.equal(decoded(replica.encode(0, pending), 1), offered)
    put(weight, weight.item() - 1.0)
    publish(replica, 9.0)
    replica.adopt(0, merged=True)
    assert weight.item() == 9.0 + (6.5 - 7.0) - 1.0  # only what came after the snapshot


def test_several_publishes_may_be_staged_before_one_adoption():
    weight, replica = one_value()
    publish(replica, 8.0)
    publish(replica, 5.0)
    replica.adopt(0, merged=False)
    assert weight.item() == 5.0
    with pytest.raises(ProtocolError, match="no publish is staged"):
        replica.adopt(0, merged=False)


def test_an_adoption_in_the_middle_of_staging_loses_no_version():
    weight, replica = one_value()
    publish(replica, 8.0)
    plain = codec_for("int8")

    def adopts_meanwhile(scales, codes, values):
        unpack_int8(scales, codes, values)
        replica.adopt(0, merged=False)

    replica.publish_codec = dataclasses.replace(plain, unpack=adopts_meanwhile)
    staged = replica.stage(0, plain.encode(torch.tensor([-3.0])))
    assert weight.item() == 8.0
    assert staged.item() == pytest.approx(5.0, abs=0.05)
    replica.adopt(0, merged=False)
    assert weight.item() == staged.item()


def test_a_full_fragment_replaces_another_history():
    weight, replica = one_value("rebase")
    put(weight, 9.0)
    replica.stage_full(0, torch.tensor([100.0]))
    replica.adopt(0, merged=False)
    assert replica.base(0).tolist() == [100.0]
    assert weight.item() == 99.0


@pytest.mark.parametrize("name", ["bf16", "int8", "int4", "fp4"])
def test_two_replicas_follow_the_syncer_bit_for_bit(name):
    models = [Tied(), Tied()]
    replicas = [replica_of(model, 2, offer=name, publish=name) for model in models]
    states = [OuterState.start(replicas[0].gather(p)) for p in range(2)]
    for p, state in enumerate(states):
        for replica in replicas:
            replica.load(p, state.served)
    for step in range(3):
        for p, state in enumerate(states):
            body = outer_step(state, gaussian(state.served.numel(), step), 0.4, 0.9, codec_for(name))
            for replica in replicas:
                assert digest(replica.stage(p, body)) == digest(state.served)
                replica.adopt(p, merged=False)
                assert torch.equal(replica.gather(p), state.served)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_of_a_low_precision_model_is_not_offered_as_progress(dtype):
    model = nn.Linear(8, 8).to(dtype)
    replica = replica_of(model)
    replica.load(0, gaussian(72) + 1.0)  # not representable in the model
    pending = replica.snapshot(0)
    assert not decoded(replica.encode(0, pending), 72).any()
    replica.resolve(0, merged=False)
    with torch.no_grad():
        model.weight.sub_(0.25)
    pending = replica.snapshot(0)
    assert bool((decoded(replica.encode(0, pending), 72)[:64] > 0.2).all())


def test_a_residual_advances_only_on_merged_and_survives_a_checkpoint():
    model = nn.Linear(16, 16, bias=False)
    replica = replica_of(model, offer="int4")
    with torch.no_grad():
        model.weight.sub_(gaussian(256).view(16, 16))
    pending = replica.snapshot(0)
    replica.encode(0, pending)
    replica.resolve(0, merged=False)
    assert replica.state_dict() == {}
    pending = replica.snapshot(0)
    replica.encode(0, pending)
    replica.resolve(0, merged=True)
    kept = replica.state_dict()
    assert list(kept) == ["residual.0"]
    assert bool(kept["residual.0"].any())
    restored = replica_of(model, offer="int4")
    restored.load_state_dict(kept)
    assert torch.equal(restored.state_dict()["residual.0"], kept["residual.0"])


def test_feedback_is_the_codecs_choice_unless_asked_for():
    def keeps(offer, feedback):
        model = nn.Linear(16, 16)
        replica = replica_of(model, offer=offer, feedback=feedback)
        with torch.no_grad():
            model.weight.mul_(1.1)
        pending = replica.snapshot(0)
        replica.encode(0, pending)
        replica.resolve(0, merged=True)
        return bool(replica.state_dict())

    assert [keeps("bf16", None), keeps("bf16", True), keeps("int4", None), keeps("int4", False)] == [
        False,
        True,
        True,
        False,
    ]


def test_an_adoption_does_not_disturb_an_offer_that_is_not_encoded_yet():
    weight, replica = one_value("overwrite")
    put(weight, 7.0)
    pending = replica.snapshot(0)
    publish(replica, 20.0)
    replica.adopt(0, merged=False)
    assert decoded(replica.encode(0, pending), 1).tolist() == [3.0]


def test_gradients_and_autograd_are_left_alone():
    model = Tied()
    replica = replica_of(model)
    replica.load(0, replica.gather(0) + 1.0)
    assert model.mix.weight.requires_grad
    assert model.mix.weight.grad_fn is None
    assert model.mix.weight.is_leaf


def test_calls_out_of_order_are_refused():
    weight, replica = one_value()
    pending = replica.snapshot(0)
    with pytest.raises(ProtocolError, match="already has an open offer"):
        replica.snapshot(0)
    replica.resolve(0, merged=False)
    with pytest.raises(ProtocolError, match="this offer is settled"):
        replica.encode(0, pending)
    publish(replica, 1.0)
    with pytest.raises(ProtocolError, match="no offer is open"):
        replica.adopt(0, merged=True)
    assert weight.item() == 10.0
    model = nn.Linear(1, 1)
    fresh = Replica(model, partition(model, 1), F32, F32)
    with pytest.raises(ProtocolError, match="no base"):
        fresh.snapshot(0)


def test_another_model_is_refused_with_the_first_differing_tensor():
    with pytest.raises(ModelError, match=r"embed\.weight") as caught:
        Replica(Tied(51), partition(Tied(50), 2), F32, F32)
    assert "[51, 8]" in caught.value.what
    assert "[50, 8]" in caught.value.what


def test_wrong_settings_and_sizes_are_refused():
    model = Tied()
    manifest = partition(model, 2)
    with pytest.raises(ConfigError, match="average"):
        Replica(model, manifest, F32, F32, adopt="average")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"blend_alpha is 1\.5"):
        Replica(model, manifest, F32, F32, adopt="blend", blend_alpha=1.5)
    with pytest.raises(ModelError, match="Fragment 0 has"):
        Replica(model, manifest, F32, F32).load(0, torch.zeros(1))


@pytest.mark.parametrize("adopt", ["blend", "rebase"])
def test_a_rejected_learner_is_rid_of_its_nan_at_the_next_adoption(adopt):
    model = nn.Linear(4, 3)
    manifest = partition(model, 1)
    replica = Replica(model, manifest, codec_for("f32"), codec_for("f32"), adopt=adopt)
    base = replica.set_base_from_local(0).clone()
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    replica.stage_full(0, base + 1)
    replica.adopt(0, merged=False, reset=True)
    assert torch.equal(replica.gather(0), base + 1)


@pytest.mark.parametrize("adopt", ["overwrite", "rebase"])
def test_rewinding_gives_up_local_values_and_neither_the_open_offer_nor_the_staged_publish(adopt):
    weight, replica = one_value(adopt)
    put(weight, 5.0)
    replica.snapshot(0)
    put(weight, float("nan"))
    base = replica.base(0).clone()
    publish(replica, 1.0)
    replica.rewind(0)
    assert torch.equal(replica.gather(0), base)
    assert replica.has_pending(0)
    replica.adopt(0, merged=True)
    assert torch.equal(replica.gather(0), replica.base(0)), "no progress was made since"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_default_dtype_of_the_user_changes_nothing(dtype):
    model = nn.Linear(40, 30)
    manifest = partition(model, 2)
    bodies = [torch.randn(manifest.fragments[0].numel) for _ in range(2)]
    expected = merge(
        [codec_for("int4").encode(b) for b in bodies], [1.0, 2.0], codec_for("int4"), manifest.fragments[0]
    )
    torch.set_default_dtype(dtype)
    try:
        replica = Replica(model, manifest, codec_for("int4"), codec_for("int4"))
        assert replica.set_base_from_local(0).dtype == torch.float32
        pending = replica.snapshot(0)
        replica.encode(0, pending)
        again = merge(
            [codec_for("int4").encode(b) for b in bodies],
            [1.0, 2.0],
            codec_for("int4"),
            manifest.fragments[0],
        )
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(expected, again)
