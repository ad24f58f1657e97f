import pytest
import torch
from torch import nn

from atoll.errors import ModelError
from atoll.numerics.manifest import Manifest
from atoll.numerics.partition import partition
from tests.unit.numerics.samples import Tied


def units_of(manifest, name):
    found = [u for f in manifest.fragments for u in f.units if u.storage == name]
    return sorted(found, key=lambda unit: unit.start)


class Bag(nn.Module):
    def __init__(self, **parameters):
        super().__init__()
        for name, parameter in parameters.items():
            self.register_parameter(name, nn.Parameter(parameter))


def test_tied_weights_are_listed_once_and_follow_the_embedding():
    manifest = partition(Tied(), 2)
    names = [storage.name for storage in manifest.storages]
    assert names == ["embed.weight", "mix.weight", "mix.bias"]
    assert manifest.storages[0].aliases == ("out.weight",)
    assert {unit.rule for unit in units_of(manifest, "embed.weight")} == {"mean"}


def test_a_tied_weight_is_a_mean_also_when_the_head_comes_first():
    class HeadFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 6, bias=False)
            self.embed = nn.Embedding(6, 4)
            self.head.weight = self.embed.weight

    manifest = partition(HeadFirst(), 1)
    assert manifest.storages[0].name == "head.weight"
    assert manifest.fragments[0].units[0].rule == "mean"


def test_parameters_that_share_memory_are_one_storage():
    model = Bag(a=torch.zeros(4, 4), b=torch.zeros(4, 4))
    model.b.data = model.a.data
    assert [s.aliases for s in partition(model, 1).storages] == [("b",)]


def test_frozen_parameters_and_buffers_are_named_and_left_out():
    manifest = partition(Tied(), 2)
    assert manifest.frozen == ("fixed.weight",)
    assert manifest.buffers == ("steps",)
    assert not units_of(manifest, "fixed.weight")


def test_rules_matrix_rda_vector_and_scalar_mean():
    model = Bag(matrix=torch.zeros(4, 4), vector=torch.zeros(4), scalar=torch.zeros(()))
    manifest = partition(model, 1)
    assert {u.storage: u.rule for u in manifest.fragments[0].units} == {
        "matrix": "rda",
        "vector": "mean",
        "scalar": "mean",
    }


def test_stacked_experts_are_one_unit_each_but_a_convolution_is_whole():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.Parameter(torch.zeros(4, 3, 5))
            self.conv = nn.Conv1d(4, 6, 3, bias=False)

    manifest = partition(Mixed(), 1)
    assert [(u.start, u.stop) for u in units_of(manifest, "experts")] == [
        (0, 15),
        (15, 30),
        (30, 45),
        (45, 60),
    ]
    assert len(units_of(manifest, "conv.weight")) == 1


def test_an_oversize_table_is_split_between_rows_into_nearly_equal_slices():
    model = Bag(table=torch.zeros(100, 10), small=torch.zeros(10, 10))
    slices = units_of(partition(model, 8), "table")
    sizes = [unit.numel for unit in slices]
    assert all(unit.start % 10 == 0 for unit in slices)
    assert max(sizes) - min(sizes) <= 10
    assert max(sizes) <= 1100 // 8 + 10


def test_a_row_larger_than_a_fragment_is_split_within_the_row():
    sizes = [unit.numel for unit in units_of(partition(Bag(wide=torch.zeros(2, 1000)), 8), "wide")]
    assert max(sizes) <= 250


def test_a_long_vector_is_split_anywhere():
    manifest = partition(Bag(vector=torch.zeros(1003)), 4)
    assert sorted(f.numel for f in manifest.fragments) == [250, 251, 251, 251]


def test_units_cover_every_value_once_and_keep_the_models_order():
    manifest = partition(Tied(), 3)
    manifest._check_cover()
    order = [storage.name for storage in manifest.storages]
    for fragment in manifest.fragments:
        keys = [(order.index(unit.storage), unit.start) for unit in fragment.units]
        assert keys == sorted(keys)


def test_no_fragment_is_empty_while_there_are_values():
    manifest = partition(Bag(a=torch.zeros(3, 2), b=torch.zeros(1)), 7)
    assert [fragment.numel for fragment in manifest.fragments] == [1] * 7


def test_zero_element_parameters_are_listed_and_travel_nowhere():
    manifest = partition(Bag(empty=torch.zeros(0, 5), full=torch.zeros(2, 2)), 1)
    assert [storage.name for storage in manifest.storages] == ["empty", "full"]
    assert [unit.storage for unit in manifest.fragments[0].units] == ["full"]


@pytest.mark.parametrize(
    ("model", "fragments", "says"),
    [
        (Bag(a=torch.zeros(3)), 4, "3 trainable values but 4 fragments"),
        (nn.Linear(2, 2).requires_grad_(False), 1, "no trainable values"),
        (Bag(a=torch.zeros(0)), 1, "no trainable values"),
        (Bag(a=torch.zeros(3)), 0, "0 fragments"),
        (Bag(a=torch.zeros(3, dtype=torch.complex64)), 1, "complex64"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_with_what_to_do(model, fragments, says):
    with pytest.raises(ModelError, match=says) as caught:
        partition(model, fragments)
    assert caught.value.so_what
    assert caught.value.now_what


def test_digest_is_stable_and_sees_shapes_ties_and_the_cut():
    digest = partition(Tied(), 2).digest
    assert digest == partition(Tied(), 2).digest
    untied = Tied()
    untied.out.weight = nn.Parameter(torch.zeros(50, 8))
    others = [
        partition(Tied(), 3),
        partition(Tied(51), 2),
        partition(Tied().bfloat16(), 2),
        partition(untied, 2),
    ]
    assert digest not in {other.digest for other in others}
    assert len({other.digest for other in others}) == 4


def test_first_difference_names_the_tensor_with_both_shapes():
    here, there = partition(Tied(50), 2), partition(Tied(51), 2)
    said = here.first_difference(there)
    assert said is not None
    assert "embed.weight" in said
    assert "[50, 8]" in said
    assert "[51, 8]" in said
    assert here.first_difference(partition(Tied(50), 2)) is None


def test_first_difference_sees_types_missing_extra_and_cuts():
    plain = partition(Tied(), 2)
    half = plain.first_difference(partition(Tied().bfloat16(), 2))
    assert half is not None
    assert "bfloat16" in half
    more = Tied()
    more.extra = nn.Linear(2, 2)
    assert "only on the other side" in str(plain.first_difference(partition(more, 2)))
    assert "missing on the other side" in str(partition(more, 2).first_difference(plain))
    assert "2 fragments here, 3" in str(plain.first_difference(partition(Tied(), 3)))


def test_plain_form_round_trips():
    manifest = partition(Tied(), 3)
    assert Manifest.from_dict(manifest.to_dict()) == manifest


@pytest.mark.parametrize("damage", ["overlap", "gap", "rule", "unknown", "missing"])
def test_a_damaged_plain_form_is_refused(damage):
    plain = partition(Bag(a=torch.zeros(4, 4), b=torch.zeros(4)), 2).to_dict()
    unit = plain["fragments"][0][0]
    if damage == "overlap":
        plain["fragments"][1].append(list(unit))
    elif damage == "gap":
        unit[2] -= 1
    elif damage == "rule":
        unit[3] = "median"
    elif damage == "unknown":
        unit[0] = "c"
    else:
        del plain["storages"]
    with pytest.raises(ModelError, match="not the manifest"):
        Manifest.from_dict(plain)


def test_large_units_are_placed_before_small_ones():
    sizes = {"a": 1, "b": 1, "c": 1, "d": 1, "e": 4}
    manifest = partition(Bag(**{name: torch.zeros(numel) for name, numel in sizes.items()}), 2)
    assert [fragment.numel for fragment in manifest.fragments] == [4, 4]


def test_the_mean_can_be_asked_for_everywhere():
    manifest = partition(nn.Linear(8, 8), 2, merge_rule="mean")
    assert {unit.rule for fragment in manifest.fragments for unit in fragment.units} == {"mean"}


def test_parameters_that_share_memory_without_being_the_same_are_refused():
    model = nn.Module()
    memory = torch.zeros(4, 6)
    model.whole = nn.Parameter(memory)
    model.turned = nn.Parameter(memory.t())
    with pytest.raises(ModelError, match=r"whole and turned share memory|turned and whole share memory"):
        partition(model, 1)


def test_a_lazy_parameter_without_a_shape_is_refused_in_a_sentence():
    with pytest.raises(ModelError, match="has no shape yet"):
        partition(nn.LazyLinear(3), 1)
