import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from atoll.numerics.codec import codec_for
from atoll.numerics.manifest import Manifest
from atoll.numerics.partition import partition
from atoll.numerics.replica import Replica

torch.set_num_threads(1)

shapes = st.lists(st.lists(st.integers(0, 9), max_size=4).map(tuple), min_size=1, max_size=8)


class Bag(nn.Module):
    def __init__(self, shapes, scale=1):
        super().__init__()
        for k, shape in enumerate(shapes):
            grown = (shape[0] * scale, *shape[1:]) if shape else shape
            self.register_parameter(f"p{k}", nn.Parameter(torch.randn(grown)))


@given(shapes, st.integers(1, 12), st.integers(1, 6))
@settings(deadline=None, max_examples=150)
def test_a_cut_is_balanced_complete_and_the_same_for_everyone(shapes, num_fragments, scale):
    model = Bag(shapes, scale)
    numel = sum(p.numel() for p in model.parameters())
    if numel < num_fragments:
        return
    manifest = partition(model, num_fragments)
    sizes = [fragment.numel for fragment in manifest.fragments]
    largest = max(unit.numel for fragment in manifest.fragments for unit in fragment.units)
    assert len(sizes) == num_fragments
    assert min(sizes) > 0
    assert sum(sizes) == numel
    assert max(sizes) <= numel / num_fragments + largest
    assert largest * num_fragments <= 2 * numel + num_fragments
    assert Manifest.from_dict(manifest.to_dict()) == manifest  # which checks that every value is covered once
    assert partition(Bag(shapes, scale), num_fragments).digest == manifest.digest


@given(shapes, st.integers(1, 5), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
@settings(deadline=None, max_examples=60)
def test_every_fragment_reads_back_what_was_written(shapes, num_fragments, dtype):
    model = Bag(shapes).to(dtype)
    if sum(p.numel() for p in model.parameters()) < num_fragments:
        return
    manifest = partition(model, num_fragments)
    replica = Replica(model, manifest, codec_for("f32"), codec_for("f32"))
    written = {}
    for fragment in manifest.fragments:
        written[fragment.index] = torch.randn(fragment.numel).to(dtype).float()
        replica.load(fragment.index, written[fragment.index])
    for index, values in written.items():
        assert torch.equal(replica.gather(index), values)
