import pytest
import torch

from atoll.errors import CodecError
from atoll.numerics.codec import codec_for
from atoll.numerics.feedback import Encoder
from tests.unit.numerics.samples import decoded, gaussian

NUMEL = 131_072 + 500


@pytest.mark.parametrize("name", ["bf16", "int8", "int4", "fp4", "int2"])
def test_merged_bodies_and_residual_add_up_to_the_merged_deltas(name):
    codec, encoder = codec_for(name), Encoder(codec_for(name), NUMEL)
    said, meant = torch.zeros(NUMEL, dtype=torch.float64), torch.zeros(NUMEL, dtype=torch.float64)
    for seed in range(6):
        delta = gaussian(NUMEL, seed)
        body = encoder.encode(delta)
        merged = seed % 3 != 1
        encoder.settle(merged)
        if merged:
            said += decoded(body, NUMEL, codec)
            meant += delta
    assert encoder.residual is not None
    gap = (said + encoder.residual - meant).abs().max() / meant.abs().max()
    assert float(gap) < 1e-6
    assert float((said - meant).abs().max() / meant.abs().max()) > 1e-4  # the residual is what closes it


def test_feedback_makes_a_small_steady_delta_heard():
    codec, delta = codec_for("int4"), torch.full((128,), 0.01)
    delta[0] = 1.0  # a step of 1/7: the others round to zero each time
    heard = {True: torch.zeros(128), False: torch.zeros(128)}
    for feedback, total in heard.items():
        encoder = Encoder(codec, 128, feedback)
        for _ in range(50):
            total += decoded(encoder.encode(delta), 128, codec)
            encoder.settle(True)
    assert float(heard[False][1]) == 0.0
    assert float(heard[True][1]) == pytest.approx(0.5, abs=0.08)


def test_an_offer_that_was_not_merged_leaves_the_residual_and_the_next_body_alone():
    once, twice = Encoder(codec_for("int4"), 300), Encoder(codec_for("int4"), 300)
    for encoder in (once, twice):
        encoder.encode(gaussian(300, 1))
        encoder.settle(True)
    twice.encode(gaussian(300, 2))
    twice.settle(False)
    assert torch.equal(once.encode(gaussian(300, 3)), twice.encode(gaussian(300, 3)))


def test_a_verdict_may_be_repeated():
    encoder = Encoder(codec_for("int4"), 300)
    encoder.encode(gaussian(300))
    encoder.settle(True)
    kept = encoder.residual
    encoder.settle(True)
    encoder.settle(False)
    assert encoder.residual is kept


def test_an_exact_codec_keeps_nothing():
    encoder = Encoder(codec_for("f32"), 10)
    encoder.encode(gaussian(10))
    encoder.settle(True)
    assert encoder.residual is None


def test_a_non_finite_offer_that_is_rejected_does_not_poison_the_residual():
    encoder = Encoder(codec_for("int4"), 10)
    encoder.encode(torch.full((10,), float("nan")))
    encoder.settle(False)
    assert encoder.residual is None


def test_foreign_sizes_are_refused():
    encoder = Encoder(codec_for("int4"), 10)
    with pytest.raises(CodecError, match="delta of 9 values"):
        encoder.encode(torch.zeros(9))
    with pytest.raises(CodecError, match="residual of 9 values"):
        encoder.load(torch.zeros(9))
