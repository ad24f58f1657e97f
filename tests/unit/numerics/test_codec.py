import math

import pytest
import torch

from atoll.errors import CodecError, ConfigError
from atoll.numerics.codec import CODECS, codec_for
from atoll.numerics.scratch import BLOCK
from tests.unit.numerics.samples import decoded, gaussian

NAMES = ["f32", "bf16", "int8", "int4", "fp4", "int2"]
BLOCKWISE = ["int8", "int4", "fp4", "int2"]
LENGTHS = [0, 1, 127, 128, 129, 1000, BLOCK, BLOCK + 1, 2 * BLOCK + 300]
CODES = {"int8": 127.0, "int4": 7.0, "int2": 2.0, "fp4": 1.0}


def step_of(values, name):
    """Largest possible step (fp4: scale) of the group of each value."""
    groups = torch.zeros(-(-values.numel() // 128) * 128)
    groups[: values.numel()] = values
    largest = groups.view(-1, 128).abs().amax(1) / CODES[name] * (1 + 2.0**-7)
    return largest.repeat_interleave(128)[: values.numel()]


def bound(values, name):
    """Largest error that the table in codec.py allows, per value."""
    if name == "f32":
        return torch.zeros_like(values)
    if name == "bf16":
        return values.abs() * 2.0**-8
    if name == "fp4":
        return torch.maximum(values.abs() / 3, step_of(values, name) * 1.5 * 2.0**-7) * (1 + 2.0**-14)
    return step_of(values, name) / 2 * (1 + 2.0**-14)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("numel", LENGTHS)
def test_error_stays_within_the_documented_bound(name, numel):
    codec, values = codec_for(name), gaussian(numel)
    body = codec.encode(values)
    assert body.numel() == codec.encoded_bytes(numel)
    error = (decoded(body, numel, codec) - values).abs()
    assert bool((error <= bound(values, name)).all())


@pytest.mark.parametrize(
    ("name", "relative"), [("bf16", 0.002), ("int8", 0.01), ("int4", 0.15), ("fp4", 0.21)]
)
def test_relative_error_on_gaussian_values(name, relative):
    values = gaussian(1 << 16)
    error = decoded(codec_for(name).encode(values), values.numel(), codec_for(name)) - values
    assert relative / 3 < float(error.norm() / values.norm()) < relative


@pytest.mark.parametrize(
    ("name", "bits"),
    [("f32", 32), ("bf16", 16), ("int8", 8.125), ("int4", 4.125), ("fp4", 4.125), ("int2", 2.125)],
)
def test_bits_per_value(name, bits):
    assert codec_for(name).bits_per_value(1 << 20) == bits
    assert codec_for(name).bits_per_value(0) == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_a_piece_decodes_to_the_bits_of_the_whole(name):
    codec, numel = codec_for(name), 2 * BLOCK + 333
    body = codec.encode(gaussian(numel))
    whole = decoded(body, numel, codec)
    for start in range(0, numel, BLOCK):
        stop = min(start + BLOCK, numel)
        assert torch.equal(codec.decode(body, start, stop, torch.empty(stop - start)), whole[start:stop])
    arrived = body[: codec.encoded_bytes(BLOCK)]  # the rest is still on its way
    assert torch.equal(codec.decode(arrived, 0, BLOCK, torch.empty(BLOCK)), whole[:BLOCK])


@pytest.mark.parametrize("name", NAMES)
def test_pieces_encode_to_the_bytes_of_the_whole(name):
    codec, values = codec_for(name), gaussian(BLOCK + 200)
    whole = codec.encode(values)
    parts = [codec.encode(values[:BLOCK]), codec.encode(values[BLOCK:])]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 127, 128, 300])
def test_a_non_finite_value_never_hides_and_spoils_only_its_group(name, bad, at):
    codec, values = codec_for(name), gaussian(301)
    values[at] = bad
    back = decoded(codec.encode(values), 301, codec)
    assert not torch.isfinite(back[at])
    group = torch.arange(301) // 128 == at // 128
    assert torch.isfinite(back[~group]).all()


@pytest.mark.parametrize("name", NAMES)
def test_zero_groups_stay_exactly_zero(name):
    values = gaussian(384)
    values[128:256] = 0.0
    back = decoded(codec_for(name).encode(values), 384, codec_for(name))
    assert bool((back[128:256] == 0.0).all())
    assert bool((back[:128] != 0.0).any())


@pytest.mark.parametrize("name", BLOCKWISE)
@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-33, 1e30, 1.7e38])
def test_extreme_sizes_stay_finite_and_within_the_bound(name, size):
    values = torch.linspace(-1.0, 1.0, 256) * size
    back = decoded(codec_for(name).encode(values), 256, codec_for(name))
    assert bool(torch.isfinite(back).all())
    allowed = bound(values.double(), name) + (2.0**-112 if size < 1e-30 else 0.0)
    assert bool(((back.double() - values.double()).abs() <= allowed).all())


@pytest.mark.parametrize("name", ["bf16", *BLOCKWISE])
def test_a_value_at_the_end_of_f32_shows_as_non_finite_instead_of_changing_its_sign(name):
    back = decoded(codec_for(name).encode(torch.full((128,), 3.4e38)), 128, codec_for(name))
    assert not bool(torch.isfinite(back).any())


@pytest.mark.parametrize("name", BLOCKWISE)
@pytest.mark.parametrize(
    "largest", [1.2345, 1.0, -1.0, 127.0]
)  # the last three are exact multiples of a step
def test_the_largest_value_does_not_clip(name, largest):
    values = torch.zeros(128)
    values[5] = largest
    back = float(decoded(codec_for(name).encode(values), 128, codec_for(name))[5])
    assert back == pytest.approx(largest, rel=0.26 if name == "int2" else 2.0**-7)


def test_rounding_is_half_to_even():
    values = torch.zeros(128)
    values[:5] = torch.tensor([7.0, 0.5, 1.5, 2.5, -0.5])  # a step of exactly one
    back = decoded(codec_for("int4").encode(values), 128, codec_for("int4"))
    assert back[:5].tolist() == [7.0, 0.0, 2.0, 2.0, 0.0]


def test_bytes_of_int4_are_as_documented():
    values = torch.zeros(128)
    values[0], values[64], values[1], values[65] = 7.0, -1.0, -2.0, 3.0
    body = codec_for("int4").encode(values)
    assert body[:2].view(torch.bfloat16).item() == 1.0
    assert body[2:4].tolist() == [0xF7, 0x3E]


@pytest.mark.parametrize("name", ["int4", "fp4", "int8"])
def test_a_sign_is_kept(name):
    values = gaussian(1280)
    back = decoded(codec_for(name).encode(values), 1280, codec_for(name))
    assert bool((back * values >= 0.0).all())


def test_fp4_holds_powers_of_two_exactly():
    powers = torch.tensor([2.0**-k for k in range(7)] + [0.0])
    values = torch.cat([powers, -powers]).repeat(8)
    assert torch.equal(decoded(codec_for("fp4").encode(values), 128, codec_for("fp4")), values)


@pytest.mark.parametrize("name", NAMES)
def test_a_body_of_the_wrong_size_is_refused(name):
    codec = codec_for(name)
    body = codec.encode(gaussian(300))
    for wrong in (body[:-1], torch.cat([body, body[:1]]), body.view(1, -1), body.to(torch.int16)):
        with pytest.raises(CodecError, match=f"A {name} body of 300 values"):
            codec.decode(wrong, 0, 300, torch.empty(300))


def test_a_piece_off_the_grid_is_refused():
    codec = codec_for("int4")
    body = codec.encode(gaussian(300))
    with pytest.raises(CodecError, match=r"values 128\.\.300"):
        codec.decode(body, 128, 300, torch.empty(172))
    with pytest.raises(CodecError, match="A int4 body of 128 values"):
        codec.decode(body, 0, 128, torch.empty(128))


@pytest.mark.parametrize(
    "values", [torch.zeros(4, dtype=torch.float64), torch.zeros(2, 2), torch.zeros(8)[::2]]
)
def test_only_flat_contiguous_f32_is_encoded(values):
    with pytest.raises(CodecError, match="flat contiguous f32"):
        codec_for("bf16").encode(values)


def test_an_unknown_codec_is_refused_with_the_list():
    with pytest.raises(ConfigError, match="no codec 'int3'") as caught:
        codec_for("int3")
    assert all(name in caught.value.now_what for name in NAMES)
    assert list(CODECS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_body_at_an_odd_offset_is_read_all_the_same(name):
    codec, values = codec_for(name), gaussian(300)
    body = codec.encode(values)
    shifted = torch.cat([torch.zeros(1, dtype=torch.uint8), body])[1:]
    assert torch.equal(decoded(shifted, 300, codec), decoded(body, 300, codec))


@pytest.mark.parametrize("name", BLOCKWISE)
@pytest.mark.parametrize("size", [0.0, 1e-44])
def test_a_group_that_becomes_zero_is_written_as_zero_bytes(name, size):
    assert not codec_for(name).encode(torch.full((256,), size)).any()
