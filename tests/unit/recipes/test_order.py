from itertools import chain, islice

import pytest
import torch

from atoll.errors import RecipeError
from atoll.recipes import Shard
from atoll.recipes.order import permutation, stream


def first(shard, num_examples, batch_size, num_batches, cursor=0):
    return [batch.tolist() for batch in islice(stream(shard, num_examples, batch_size, cursor), num_batches)]


def test_shards_are_disjoint_and_cover_everything():
    epochs = [first(Shard(index, 3, 7), 20, 6 + (index < 2), 1)[0] for index in range(3)]
    assert sorted(chain(*epochs)) == list(range(20))


def test_an_epoch_shows_every_example_once_before_any_comes_again():
    shown = list(chain(*first(Shard(1, 4, 0), 40, 3, 20)))  # 10 examples, batches across the ends of epochs
    for epoch in range(6):
        assert sorted(shown[10 * epoch : 10 * epoch + 10]) == list(range(1, 40, 4))


def test_every_epoch_every_index_and_every_seed_has_an_order_of_its_own():
    base = first(Shard(0, 1, 0), 50, 50, 2)
    assert base[0] != base[1]
    assert first(Shard(0, 1, 1), 50, 50, 1)[0] != base[0]
    ranks = [[i // 2 for i in first(Shard(index, 2, 0), 100, 50, 1)[0]] for index in range(2)]
    assert ranks[0] != ranks[1]


@pytest.mark.parametrize("cursor", [1, 3, 4, 17])
def test_a_cursor_goes_on_exactly_where_it_was_taken(cursor):
    shard = Shard(2, 3, 5)
    assert first(shard, 31, 4, 5, cursor) == first(shard, 31, 4, cursor + 5)[cursor:]


def test_a_batch_larger_than_the_shard_spans_epochs():
    (batch,) = first(Shard(0, 10, 0), 20, 5, 1)
    assert len(batch) == 5
    assert set(batch) == {0, 10}


def test_the_order_does_not_depend_on_the_global_random_state():
    torch.manual_seed(1)
    before = permutation(100, 1, 2, 3)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert torch.equal(permutation(100, 1, 2, 3), before)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_order_is_pinned_because_a_resumed_run_relies_on_it():
    assert permutation(8, 0, 0, 0).tolist() == [3, 5, 7, 0, 2, 4, 6, 1]


def test_more_shards_than_examples_are_refused_at_once():
    with pytest.raises(RecipeError, match=r"3 examples but the run has 8 shards[\s\S]*data.num_shards to 3"):
        stream(Shard(5, 8, 0), 3, 2, 0)


@pytest.mark.parametrize(("index", "count"), [(-1, 2), (2, 2), (0, 0)])
def test_a_shard_that_does_not_exist_is_refused(index, count):
    with pytest.raises(RecipeError, match="does not exist"):
        Shard(index, count, 0)
