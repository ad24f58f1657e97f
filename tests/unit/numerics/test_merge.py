import math

import pytest
import torch

from atoll.errors import CodecError
from atoll.numerics.codec import codec_for
from atoll.numerics.merge import Merger, inspect, merge
from atoll.numerics.scratch import BLOCK
from tests.unit.numerics.samples import F32, body, fragment, gaussian


def rda_in_f64(vectors, weights):
    share = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    stacked = torch.stack([v.double() for v in vectors])
    norms = stacked.norm(dim=1)
    directions = torch.nan_to_num(stacked / norms[:, None])  # unit(0) = 0
    direction = (share[:, None] * directions).sum(0)
    return (share * norms).sum() * direction / direction.norm()


@pytest.mark.parametrize(
    ("rule", "weights", "expected"),
    [
        ("rda", [1.0, 1.0], [2.4749, 2.4749]),
        ("rda", [1.0, 3.0], [1.1859, 3.5576]),
        ("mean", [1.0, 1.0], [1.5, 2.0]),
        ("mean", [1.0, 3.0], [0.75, 3.0]),
    ],
)
def test_oracles_of_the_paper(rule, weights, expected):
    merged = merge([body([3.0, 0.0]), body([0.0, 4.0])], weights, F32, fragment((2, rule)))
    assert merged.tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", ["f32", "bf16", "int4"])
def test_a_long_fragment_agrees_with_f64_unit_by_unit(name):
    codec = codec_for(name)
    cut = fragment((70_000, "rda"), (10, "mean"), (3, "mean"), (2 * BLOCK, "rda"), (1, "rda"))
    numel = cut.numel
    bodies = [codec.encode(gaussian(numel, seed)) for seed in range(3)]
    values = [codec.decode(b, 0, numel, torch.empty(numel)) for b in bodies]
    weights = [1.0, 2.5, 0.25]
    merged = merge(bodies, weights, codec, cut)
    at = 0
    for unit in cut.units:
        parts = [v[at : at + unit.numel] for v in values]
        if unit.rule == "rda":
            expected = rda_in_f64(parts, weights)
        else:
            expected = sum(w * p.double() for w, p in zip(weights, parts, strict=True)) / sum(weights)
        error = (merged[at : at + unit.numel].double() - expected).abs().max()
        assert float(error) < 2e-6 * float(expected.abs().max())
        at += unit.numel


def test_rda_of_one_offer_is_that_offer():
    values = gaussian(1000)
    merged = merge([body(values)], [7.0], F32, fragment((1000, "rda")))
    assert torch.allclose(merged, values, rtol=1e-6)


def test_one_offer_at_a_time_gives_the_bits_of_all_at_once():
    cut = fragment((BLOCK + 77, "rda"), (BLOCK, "mean"))
    bodies = [body(gaussian(cut.numel, seed)) for seed in range(4)]
    weights = [0.125, 0.5, 0.25, 0.125]
    merger = Merger(F32, cut)
    for one, weight in zip(bodies, weights, strict=True):
        merger.add(one, weight, inspect(one, F32, cut))
    assert torch.equal(merger.finish(), merge(bodies, weights, F32, cut))


def test_the_accumulator_is_the_callers_and_may_be_dirty():
    cut, dirty = fragment((10, "rda")), torch.full((10,), math.nan)
    merged = merge([body(gaussian(10))], [1.0], F32, cut, out=dirty)
    assert merged.data_ptr() == dirty.data_ptr()
    assert bool(torch.isfinite(merged).all())


def test_opposite_directions_fall_back_to_the_weighted_mean():
    bodies = [body([3.0, 4.0, 1.0]), body([-6.0, -8.0, 1.0])]
    merged = merge(bodies, [1.0, 1.0], F32, fragment((2, "rda"), (1, "rda")))
    assert merged.tolist() == pytest.approx([-1.5, -2.0, 1.0])


def test_nearly_opposite_directions_fall_back_too():
    tiny = 1e-7
    bodies = [body([1.0, tiny]), body([-1.0, tiny])]
    merged = merge(bodies, [1.0, 1.0], F32, fragment((2, "rda")))
    assert merged.tolist() == pytest.approx([0.0, tiny])


def test_a_zero_offer_counts_in_the_length_but_has_no_direction():
    merged = merge([body([0.0, 0.0]), body([3.0, 4.0])], [1.0, 1.0], F32, fragment((2, "rda")))
    assert merged.tolist() == pytest.approx([1.5, 2.0])


@pytest.mark.parametrize("rule", ["rda", "mean"])
def test_nothing_moved_gives_exact_zeros(rule):
    merged = merge([body([0.0] * 5)] * 2, [1.0, 2.0], F32, fragment((5, rule)))
    assert merged.tolist() == [0.0] * 5


@pytest.mark.parametrize("size", [1e-44, 1e-25, 1e25])
def test_extreme_lengths_stay_finite(size):
    bodies = [body([size, 0.0]), body([0.0, size])]
    merged = merge(bodies, [1.0, 1.0], F32, fragment((2, "rda")))
    expected = 0.0 if size < 2.0**-100 else size / math.sqrt(2)
    assert merged.tolist() == pytest.approx([expected] * 2, rel=1e-5, abs=0.0)


def test_inspect_gives_the_norm_of_each_unit():
    values = gaussian(BLOCK + 500)
    cut = fragment((300, "mean"), (BLOCK, "rda"), (200, "rda"))
    norms = inspect(body(values), F32, cut)
    expected = [float(part.double().norm()) for part in values.split([300, BLOCK, 200])]
    assert norms == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["f32", "bf16", "int4"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_inspect_shows_a_bad_value_in_its_unit_and_nowhere_else(name, bad):
    codec, values = codec_for(name), gaussian(384)
    values[200] = bad
    norms = inspect(codec.encode(values), codec, fragment((128, "rda"), (128, "rda"), (128, "mean")))
    assert [math.isfinite(norm) for norm in norms] == [True, False, True]


def test_inspect_is_right_where_f32_squares_fade_or_overflow():
    sizes, numel = [1e-30, 1e30, 0.0, 1.0], 10_000  # long enough for squares in f32
    values = torch.cat([torch.full((numel,), size) for size in sizes])
    cut = fragment((numel, "rda"), (numel, "rda"), (numel, "mean"), (numel, "rda"))
    assert inspect(body(values), F32, cut) == pytest.approx(
        [100.0 * size for size in sizes], rel=1e-6, abs=0.0
    )


@pytest.mark.parametrize("scale", [1e-60, 1e60])
def test_weights_beyond_f32_are_as_good_as_others(scale):
    merged = merge([body([3.0, 0.0]), body([0.0, 4.0])], [scale, 3 * scale], F32, fragment((2, "rda")))
    assert merged.tolist() == pytest.approx([1.1859, 3.5576], abs=1e-4)


def test_a_non_finite_offer_is_refused_with_its_fragment():
    cut = fragment((2, "rda"))
    with pytest.raises(CodecError, match="offer on fragment 0"):
        merge([body([1.0, math.nan])], [1.0], F32, cut)


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -1.0], [math.inf, 1.0], [math.nan, 1.0]])
def test_weights_that_mean_nothing_are_refused(weights):
    with pytest.raises(CodecError, match="Cannot merge 2 offers"):
        merge([body([1.0]), body([2.0])], weights, F32, fragment((1, "mean")))


def test_no_offers_and_foreign_bodies_are_refused():
    with pytest.raises(CodecError, match="Cannot merge 0 offers"):
        merge([], [], F32, fragment((1, "mean")))
    with pytest.raises(CodecError, match="body of 2 values"):
        merge([body([1.0])], [1.0], F32, fragment((2, "mean")))


def test_an_offer_of_weight_zero_changes_nothing():
    cut = fragment((50, "rda"))
    one, other = body(gaussian(50, 1)), body(gaussian(50, 2))
    assert torch.equal(merge([one, other], [1.0, 0.0], F32, cut), merge([one], [1.0], F32, cut))


def test_an_empty_fragment_merges_to_nothing():
    assert merge([body([])], [1.0], F32, fragment()).numel() == 0
