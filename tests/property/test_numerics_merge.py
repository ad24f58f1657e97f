import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.numerics.codec import CODECS, codec_for
from atoll.numerics.feedback import Encoder
from atoll.numerics.manifest import Fragment, Unit
from atoll.numerics.merge import merge
from atoll.numerics.outer import OuterState, apply_update, outer_step

torch.set_num_threads(1)

codecs = st.sampled_from(list(CODECS))
lengths = st.lists(st.tuples(st.integers(1, 300), st.sampled_from(["mean", "rda"])), min_size=1, max_size=4)
finite = st.floats(-1e6, 1e6, width=32)


def fragment_of(units):
    return Fragment(0, tuple(Unit(f"t{k}", 0, numel, rule) for k, (numel, rule) in enumerate(units)))


def deltas(numel, count, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=generator) for _ in range(count)]


def decoded(codec, body, numel):
    return codec.decode(body, 0, numel, torch.empty(numel))


@given(lengths, codecs, st.integers(1, 6), st.integers(0, 2**31), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=80)
def test_arrival_order_does_not_change_a_bit(units, name, learners, seed, random):
    fragment, codec = fragment_of(units), codec_for(name)
    offers = {
        f"learner-{m}": (codec.encode(delta), float(random.randint(1, 10**13)))
        for m, delta in enumerate(deltas(fragment.numel, learners, seed))
    }

    def merged(arrival):
        held = {who: offers[who] for who in arrival}
        in_order = [held[who] for who in sorted(held)]
        return merge([body for body, _ in in_order], [w for _, w in in_order], codec, fragment)

    arrival = list(offers)
    expected = merged(arrival)
    random.shuffle(arrival)
    assert torch.equal(merged(arrival), expected)


@pytest.mark.parametrize("learners", [1, 2, 3, 8, 16, 33])
def test_rda_keeps_the_norm_of_orthogonal_deltas_while_the_mean_shrinks(learners):
    numel = 40 * learners
    bodies = []
    for m in range(learners):
        delta = torch.zeros(numel)
        delta[40 * m : 40 * (m + 1)] = torch.randn(40, generator=torch.Generator().manual_seed(m))
        bodies.append(codec_for("f32").encode(delta * (3.0 / delta.norm())))
    weights = [1.0] * learners
    norms = {
        rule: float(merge(bodies, weights, codec_for("f32"), fragment_of([(numel, rule)])).norm())
        for rule in ("rda", "mean")
    }
    assert norms["rda"] == pytest.approx(3.0, rel=1e-5)
    assert norms["mean"] == pytest.approx(3.0 / math.sqrt(learners), rel=1e-5)


@given(lengths, st.integers(1, 5), st.integers(0, 2**31), st.integers(-60, 60), st.floats(1e-9, 1e9))
@settings(deadline=None, max_examples=80)
def test_scaling_all_weights_changes_nothing(units, learners, seed, power, factor):
    fragment, codec = fragment_of(units), codec_for("f32")
    bodies = [codec.encode(delta) for delta in deltas(fragment.numel, learners, seed)]
    weights = [1.0 + 0.37 * m for m in range(learners)]
    plain = merge(bodies, weights, codec, fragment)
    by_power = merge(bodies, [w * 2.0**power for w in weights], codec, fragment)
    assert torch.equal(by_power, plain)
    by_factor = merge(bodies, [w * factor for w in weights], codec, fragment)
    assert torch.allclose(by_factor, plain, rtol=1e-5, atol=1e-6)


@given(st.integers(1, 400), st.integers(1, 5), st.integers(0, 2**31), st.floats(1e-3, 1e3))
@settings(deadline=None, max_examples=60)
def test_rda_is_homogeneous_and_never_longer_than_the_longest_delta(numel, learners, seed, factor):
    fragment, codec = fragment_of([(numel, "rda")]), codec_for("f32")
    vectors = deltas(numel, learners, seed)
    weights = [1.0 + m for m in range(learners)]
    plain = merge([codec.encode(v) for v in vectors], weights, codec, fragment)
    scaled = merge([codec.encode(v * factor) for v in vectors], weights, codec, fragment)
    assert float((scaled - plain * factor).norm()) <= 1e-4 * factor * max(float(v.norm()) for v in vectors)
    assert float(plain.norm()) <= max(float(v.norm()) for v in vectors) * (1 + 1e-5)


@given(st.lists(finite, min_size=1, max_size=300), codecs)
@settings(deadline=None, max_examples=150)
def test_one_offer_comes_through_any_codec_within_its_bound(values, name):
    numel, codec, x = len(values), codec_for(name), torch.tensor(values)
    back = decoded(codec, codec.encode(x), numel).double()
    filled = torch.zeros(-(-numel // 128) * 128, dtype=torch.float64)
    filled[:numel] = x
    largest = filled.view(-1, 128).abs().amax(1).repeat_interleave(128)[:numel] * (1 + 2.0**-7)
    bounds = {
        "f32": torch.zeros(numel),
        "bf16": x.abs().double() * 2.0**-8 + 1e-40,
        "int8": largest / 254,
        "int4": largest / 14,
        "fp4": torch.maximum(x.abs().double() / 3, largest * 1.5 * 2.0**-7),
        "int2": largest / 4,
    }
    assert bool(
        ((back - x.double()).abs() <= bounds[name] * (1 + 2.0**-14) + 2.0**-112 * (name != "f32")).all()
    )


@given(st.integers(1, 300), codecs, st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 2**31))
@settings(deadline=None, max_examples=80)
def test_error_feedback_sums_to_the_truth(numel, name, verdicts, seed):
    codec, encoder = codec_for(name), Encoder(codec_for(name), numel)
    said, meant = torch.zeros(numel, dtype=torch.float64), torch.zeros(numel, dtype=torch.float64)
    for merged, delta in zip(verdicts, deltas(numel, len(verdicts), seed), strict=True):
        body = encoder.encode(delta)
        encoder.settle(merged)
        if merged:
            said += decoded(codec, body, numel)
            meant += delta
    left = torch.zeros(numel) if encoder.residual is None else encoder.residual
    assert float((said + left - meant).abs().max()) < 1e-5


@given(
    st.integers(1, 300),
    codecs,
    st.integers(1, 6),
    st.integers(0, 2**31),
    st.floats(0.0, 1.0),
    st.floats(0.0, 0.95),
)
@settings(deadline=None, max_examples=80)
def test_every_learner_follows_the_served_bits_and_nothing_is_lost(numel, name, rounds, seed, eta, mu):
    codec, state = codec_for(name), OuterState.start(torch.ones(numel))
    learner, exact = state.served.clone(), torch.ones(numel, dtype=torch.float64)
    momentum = torch.zeros(numel, dtype=torch.float64)
    for merged in deltas(numel, rounds, seed):
        apply_update(learner, outer_step(state, merged, eta, mu, codec), codec)
        assert torch.equal(learner, state.served)
        momentum = mu * momentum + merged
        exact -= eta * (merged + mu * momentum)
    assert torch.allclose(state.served.double() + state.remainder.double(), exact, rtol=0, atol=1e-4)
