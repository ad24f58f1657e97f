import math
import weakref

import pytest
import torch

from atoll.core.records import Contributor
from atoll.errors import ModelError, ProtocolError
from atoll.numerics import global_state
from atoll.numerics.codec import codec_for
from atoll.numerics.global_state import GlobalModel
from atoll.numerics.merge import inspect, merge
from atoll.numerics.outer import OuterState, digest, outer_step
from atoll.numerics.partition import partition
from atoll.numerics.replica import Replica
from tests.unit.numerics.samples import Tied, gaussian

UP, DOWN = codec_for("int8"), codec_for("int4")
ETA, MU = 0.4, 0.9


def model_of(num_fragments=2):
    """A global model at version 0, and the values it started from."""
    manifest = partition(Tied(), num_fragments)
    model = GlobalModel(manifest, UP, DOWN, ETA, MU)
    values = [gaussian(fragment.numel, fragment.index) for fragment in manifest.fragments]
    model.start(values)
    return model, values


def part(name, weight):
    return Contributor(name, 1, 0, 100, 10, 0, weight)


PARTS = (part("a", 1.0), part("b", 3.0))


# Fragment 0 holds the embedding, merged by the mean; fragment 1 a matrix, merged by RDA, which needs norms.


def bodies_for(model, p, seed=10):
    numel = model.manifest.fragments[p].numel
    return [UP.encode(gaussian(numel, seed + k)) for k in range(2)]


def by_hand(values, bodies, fragment):
    state = OuterState.start(values)
    delta = merge(bodies, [1.0, 3.0], UP, fragment)
    body = outer_step(state, delta, ETA, MU, DOWN)
    return delta, state, body


def test_a_merge_is_the_streaming_merge_and_the_outer_step():
    model, values = model_of()
    bodies = bodies_for(model, 1)
    result = model.merge(1, PARTS, bodies, 1.0)
    delta, state, body = by_hand(values[1], bodies, model.manifest.fragments[1])
    assert torch.equal(result.delta, delta)
    assert result.delta_digest == digest(delta)
    assert result.digest == digest(state.served) == digest(result.state.served)
    assert torch.equal(result.state.momentum, state.momentum)
    assert torch.equal(result.state.remainder, state.remainder)
    assert torch.equal(result.body, body)
    assert result.finite


def test_a_merge_changes_nothing_that_is_served_until_it_is_installed():
    model, values = model_of()
    served = model.states[0]
    before = [tensor.clone() for tensor in (served.served, served.remainder, served.momentum)]
    view = model.full_bytes(0)
    result = model.merge(0, PARTS, bodies_for(model, 0), 1.0)
    assert model.states[0] is served
    model.install(0, result)
    assert model.states[0] is result.state
    for tensor, copy in zip((served.served, served.remainder, served.momentum), before, strict=True):
        assert torch.equal(tensor, copy)
    assert torch.equal(torch.frombuffer(bytearray(view), dtype=torch.float32), values[0])
    assert torch.equal(model.states[1].served, values[1])


def test_a_learner_follows_the_bytes_that_are_handed_out():
    model, _ = model_of()
    replica = Replica(Tied(), model.manifest, UP, DOWN)
    replica.load(0, torch.frombuffer(bytearray(model.full_bytes(0)), dtype=torch.float32))
    for seed in (10, 20, 30):
        model.install(0, model.merge(0, PARTS, bodies_for(model, 0, seed), 1.0))
        update = torch.frombuffer(bytearray(model.update_bytes(0)), dtype=torch.uint8)
        assert digest(replica.stage(0, update)) == digest(model.states[0].served)
        replica.adopt(0, merged=False)
    assert bytes(model.full_bytes(0)) == replica.base(0).numpy().tobytes()


def test_bytes_are_handed_out_without_a_copy_and_cannot_be_written():
    model, _ = model_of()
    model.install(0, model.merge(0, PARTS, bodies_for(model, 0), 1.0))
    for view, tensor in (
        (model.full_bytes(0), model.states[0].served),
        (model.update_bytes(0), model.update(0)),
    ):
        assert view.readonly
        assert view.format == "B"
        assert view.nbytes == tensor.nbytes
        expected = view[0]
        tensor.view(torch.uint8)[0] ^= 255
        assert view[0] == expected ^ 255


def test_bytes_outlive_the_version_they_belong_to():
    model, _ = model_of()
    model.install(0, model.merge(0, PARTS, bodies_for(model, 0, 10), 1.0))
    update, full = model.update_bytes(0), model.full_bytes(0)
    copies = bytes(update), bytes(full)
    for seed in range(20, 25):
        model.install(0, model.merge(0, PARTS, bodies_for(model, 0, seed), 1.0))
    assert (bytes(update), bytes(full)) == copies


def test_inspections_say_norm_and_finiteness_by_name():
    model, _ = model_of()
    numel = model.manifest.fragments[0].numel
    spoiled = gaussian(numel)
    spoiled[3] = math.nan
    good, bad = UP.encode(gaussian(numel)), UP.encode(spoiled)
    first, second = model.inspect(0, [("a", good), ("b", bad)])
    norms = inspect(good, UP, model.manifest.fragments[0])
    assert (first.name, first.finite) == ("a", True)
    assert first.norm == math.sqrt(sum(norm * norm for norm in norms))
    assert (second.name, second.finite) == ("b", False)


def test_a_merge_takes_no_norm_again_of_a_body_that_was_inspected(monkeypatch):
    model, _ = model_of()
    bodies = bodies_for(model, 1)
    expected = model.merge(1, PARTS, bodies, 1.0).delta
    refused = UP.encode(gaussian(model.manifest.fragments[1].numel, 99))
    model.inspect(1, [("a", bodies[0]), ("aa", refused), ("b", bodies[1])])
    counted = []

    def counting(*args):
        counted.append(args)
        return inspect(*args)

    monkeypatch.setattr(global_state, "inspect", counting)
    assert torch.equal(model.merge(1, PARTS, bodies, 1.0).delta, expected)
    assert counted == []
    others = bodies_for(model, 1, seed=50)  # never inspected: the kept norms are not theirs
    assert torch.equal(
        model.merge(1, PARTS, others, 1.0).delta, model_of()[0].merge(1, PARTS, others, 1.0).delta
    )
    assert len(counted) == 4


def test_norms_are_forgotten_with_their_round_because_receive_buffers_are_used_again():
    model, _ = model_of()
    bodies = bodies_for(model, 1)
    model.inspect(1, list(zip("ab", bodies, strict=True)))
    model.install(1, model.merge(1, PARTS, bodies, 1.0))
    for body, fresh in zip(bodies, bodies_for(model, 1, seed=50), strict=True):
        body.copy_(fresh)
    delta = merge(bodies, [1.0, 3.0], UP, model.manifest.fragments[1])
    assert torch.equal(model.merge(1, PARTS, bodies, 1.0).delta, delta)


def test_norms_kept_do_not_keep_the_bodies():
    model, _ = model_of()
    bodies = bodies_for(model, 0)
    model.inspect(0, list(zip("ab", bodies, strict=True)))
    gone = weakref.ref(bodies[0])
    del bodies
    assert gone() is None


def test_an_outer_step_that_overflows_is_reported_as_not_finite():
    model, values = model_of(1)
    model.restore([OuterState.start(torch.full_like(values[0], 3e38))])
    model.states[0].momentum.fill_(-3e38)
    result = model.merge(0, PARTS, bodies_for(model, 0), 1.0)
    assert not result.finite
    assert torch.isfinite(model.states[0].served).all()


def test_a_restart_folds_stored_deltas_to_the_same_bits():
    model, values = model_of()
    deltas = []
    for seed in (10, 20, 30):
        result = model.merge(0, PARTS, bodies_for(model, 0, seed), 1.0)
        deltas.append((result.delta, result.digest))
        model.install(0, result)
    again = GlobalModel(model.manifest, UP, DOWN, ETA, MU)
    again.start(values)
    assert [again.fold(0, delta, 1.0) for delta, _ in deltas] == [name for _, name in deltas]
    assert torch.equal(again.states[0].momentum, model.states[0].momentum)
    assert torch.equal(again.states[0].remainder, model.states[0].remainder)
    bodies = bodies_for(model, 0, 40)
    assert again.merge(0, PARTS, bodies, 1.0).digest == model.merge(0, PARTS, bodies, 1.0).digest


def test_there_is_no_update_before_the_first_merge_nor_after_a_restart():
    model, _ = model_of()
    with pytest.raises(ProtocolError, match="Fragment 0 was not merged"):
        model.update_bytes(0)
    model.install(0, model.merge(0, PARTS, bodies_for(model, 0), 1.0))
    model.restore(model.states)
    with pytest.raises(ProtocolError, match="Send the full fragment"):
        model.update(0)


def test_weights_of_another_model_are_refused():
    model, values = model_of()
    with pytest.raises(ModelError, match="another model"):
        model.start(values[:1])
    with pytest.raises(ModelError, match="another model"):
        model.start([values[0], values[1][:-1]])
    assert model.states[1].served.numel() == values[1].numel()


def test_a_start_copies_what_it_is_given():
    model, values = model_of()
    kept = values[0].clone()
    values[0].fill_(0.0)
    assert torch.equal(model.states[0].served, kept)
