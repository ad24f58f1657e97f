import pytest
import torch

from atoll.errors import CodecError
from atoll.numerics.codec import CODECS, codec_for
from atoll.numerics.outer import OuterState, apply_update, digest, fold, outer_step
from atoll.numerics.scratch import BLOCK
from tests.unit.numerics.samples import gaussian

NUMEL = BLOCK + 1000
NAMES = list(CODECS)


def test_nesterov_oracle():
    state, one = OuterState.start(torch.zeros(1)), torch.ones(1)
    seen = []
    for _ in range(2):
        outer_step(state, one, 0.7, 0.9, codec_for("f32"))
        seen.append(float(state.served))
    assert seen == pytest.approx([-1.33, -3.227], rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_learner_that_applies_the_bodies_holds_the_served_bits(name):
    codec, state = codec_for(name), OuterState.start(gaussian(NUMEL, 99))
    learner = state.served.clone()
    for seed in range(4):
        body = outer_step(state, gaussian(NUMEL, seed), 0.4, 0.9, codec)
        apply_update(learner, body, codec)
        assert digest(learner) == digest(state.served)


@pytest.mark.parametrize("name", NAMES)
def test_served_plus_remainder_follows_the_exact_optimizer(name):
    codec, state = codec_for(name), OuterState.start(gaussian(NUMEL, 99))
    exact = state.served.double()
    momentum = torch.zeros_like(exact)
    for seed in range(8):
        merged = gaussian(NUMEL, seed)
        outer_step(state, merged, 0.4, 0.9, codec)
        momentum = 0.9 * momentum + merged
        exact -= 0.4 * (merged + 0.9 * momentum)
    held = state.served.double() + state.remainder.double()
    assert float((held - exact).abs().max()) < 1e-6 * float(exact.abs().max())


def test_with_the_f32_codec_served_is_the_exact_value_rounded_even_after_many_steps():
    state, codec = OuterState.start(torch.ones(200)), codec_for("f32")
    exact, tiny = torch.ones(200, dtype=torch.float64), gaussian(200) * 1e-6
    for _ in range(500):
        outer_step(state, tiny, 0.5, 0.0, codec)
        exact -= 0.5 * tiny.double()
    assert float((state.served.double() - exact).abs().max()) < 1.2e-7  # one unit in the last place of 1


@pytest.mark.parametrize("name", NAMES)
def test_fold_gives_the_state_of_the_step_bit_for_bit(name):
    codec = codec_for(name)
    live, replayed = (OuterState.start(gaussian(NUMEL, 99)) for _ in range(2))
    for seed in range(3):
        outer_step(live, gaussian(NUMEL, seed), 0.4, 0.9, codec)
        fold(replayed, gaussian(NUMEL, seed), 0.4, 0.9, codec)
    assert digest(live.served) == digest(replayed.served)
    assert digest(live.remainder) == digest(replayed.remainder)
    assert digest(live.momentum) == digest(replayed.momentum)


def test_apply_update_can_leave_the_old_version_alone():
    codec, served = codec_for("bf16"), gaussian(300)
    kept, body = served.clone(), codec.encode(gaussian(300, 1))
    new = apply_update(served, body, codec, out=torch.empty(300))
    assert torch.equal(served, kept)
    assert torch.equal(apply_update(served, body, codec), new)


def test_digest_sees_a_single_bit():
    values = gaussian(1000)
    before = digest(values)
    values.view(torch.int32)[500] ^= 1
    assert digest(values) != before
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))
    assert len(before) == 32


def test_an_empty_fragment_steps_to_itself():
    state = OuterState.start(torch.zeros(0))
    assert outer_step(state, torch.zeros(0), 0.4, 0.9, codec_for("int4")).numel() == 0


def test_foreign_sizes_are_refused():
    state = OuterState.start(torch.zeros(3))
    with pytest.raises(CodecError, match="outer gradient of 2 values"):
        outer_step(state, torch.zeros(2), 0.4, 0.9, codec_for("f32"))
    with pytest.raises(CodecError, match="body of 3 values"):
        apply_update(state.served, torch.zeros(2, dtype=torch.uint8), codec_for("f32"))
