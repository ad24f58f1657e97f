"""One stream for everybody: what makes two runs a pair."""

from __future__ import annotations

from dataclasses import replace

import torch

from atoll.sim.lab.cell import Cell, Fleet
from atoll.sim.lab.data import Data, Stream, data_of
from atoll.sim.lab.sizes import WINDOW

CELL = Cell(tokens=10_000, batch=8, learning_rate=1e-3)


def rows(tensor: torch.Tensor) -> set[tuple[int, ...]]:
    return {tuple(row) for row in tensor.tolist()}


def test_learners_together_see_what_data_parallel_sees():
    (whole,), _ = data_of(replace(CELL, learners=1))
    for learners in (2, 4, 8):
        streams, _ = data_of(replace(CELL, learners=learners))
        for _ in range(3):
            seen = torch.cat([stream.take(8 // learners).inputs for stream in streams])
            assert torch.equal(seen, whole.take(8).inputs)
        (whole,), _ = data_of(replace(CELL, learners=1))


def test_learners_never_see_the_same_example():
    streams, _ = data_of(CELL)
    seen = [rows(stream.take(40).inputs) for stream in streams]
    assert len(set.union(*seen)) > 4 * 40 - 4  # a few windows of the library are alike


def test_targets_are_the_inputs_one_byte_on():
    (stream, *_), heldout = data_of(CELL)
    taken = stream.take(3)
    assert taken.inputs.shape == (3, WINDOW)
    assert torch.equal(taken.inputs[:, 1:], taken.targets[:, :-1])
    assert len(heldout.inputs) > 1_900


def test_another_seed_gives_another_order_of_the_same_text():
    (first, *_), _ = data_of(CELL)
    (second, *_), _ = data_of(replace(CELL, seed=2))
    assert not torch.equal(first.take(2).inputs, second.take(2).inputs)


def test_a_learner_that_takes_fewer_goes_on_where_it_stopped():
    (first, *_), _ = data_of(CELL)
    (second, *_), _ = data_of(CELL)
    in_parts = torch.cat([first.take(1).inputs, first.take(2).inputs, first.take(1).inputs])
    assert torch.equal(in_parts, second.take(4).inputs)


def test_a_stream_goes_on_with_another_epoch():
    stream = Stream(Data(torch.arange(5 * WINDOW + 1) % 256), seed=1, part=0)
    first, second = stream.take(5).inputs, stream.take(5).inputs
    assert rows(first) == rows(second)
    assert not torch.equal(first, second)


def test_extra_learners_have_streams_of_their_own():
    streams, _ = data_of(replace(CELL, fleet=Fleet(extra=3)))
    assert len(streams) == 7
    seen = [rows(stream.take(10).inputs) for stream in streams]
    assert len(set.union(*seen)) > 66


def test_own_parts_are_other_texts():
    streams, heldout = data_of(replace(CELL, own_parts=True))
    _, same = data_of(CELL)
    assert torch.equal(heldout.inputs, same.inputs)
    assert len({len(stream.data) for stream in streams}) > 1 or streams[0].data is not streams[1].data
    assert not torch.equal(streams[0].data.values[:500], streams[1].data.values[:500])


def test_pictures_come_with_what_they_show():
    streams, heldout = data_of(replace(CELL, task="vision"))
    taken = streams[0].take(4)
    assert taken.inputs.shape == (4, 1, 8, 8)
    assert taken.targets.shape == (4,)
    assert set(heldout.targets.tolist()) == set(range(10))
    assert len(heldout.targets) == 64 * 357
