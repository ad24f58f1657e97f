from __future__ import annotations

import pytest
import safetensors.torch
import torch

from atoll.errors import WireError
from atoll.runtime import buffers as buffers_module
from atoll.runtime.buffers import GROUP, LearnerBuffers, in_groups
from atoll.wire.messages import BufferValues

KNOWN = ("mean", "var")


def report(*shapes: tuple[int, ...], names: tuple[str, ...] = KNOWN, tokens: int = 5) -> BufferValues:
    return BufferValues("ada", 1, tokens, names, shapes, 0, "")


def floats(*values: float) -> memoryview:
    return memoryview(bytearray(torch.tensor(values, dtype=torch.float32).numpy().tobytes()))


def test_a_report_is_kept_by_name_and_shape():
    held = LearnerBuffers()
    held.take(report((2, 1), ()), floats(1, 2, 3), KNOWN)
    assert torch.equal(held.values["mean"], torch.tensor([[1.0], [2.0]]))
    assert torch.equal(held.values["var"], torch.tensor(3.0))
    assert held.tokens == 5


def test_a_later_report_replaces_what_it_names_and_nothing_else():
    held = LearnerBuffers()
    held.take(report((1,), (1,)), floats(1, 2), KNOWN)
    held.take(report((1,), names=("mean",), tokens=9), floats(7), KNOWN)
    assert [float(held.values[name]) for name in KNOWN] == [7.0, 2.0]
    assert held.tokens == 9


def test_a_name_that_the_model_does_not_have_is_passed_over():
    held = LearnerBuffers()
    held.take(report((1,), (1,), names=("mean", "__metadata__")), floats(1, 2), KNOWN)
    assert list(held.values) == ["mean"]


@pytest.mark.parametrize(
    ("message", "content"),
    [
        (report((1,), (1,)), floats(1)),
        (report((1,)), floats(1)),
        (report((-1,), (-2,)), floats(1, 2, 3)),
        (report((-1, -1), (1,)), floats(1, 2)),
        (report((0,), (0,)), floats()),
        (report((1,), (1,), tokens=-1), floats(1, 2)),
        (report((1,), (1,)), memoryview(bytearray(7))),
    ],
)
def test_a_report_that_cannot_be_is_a_peers_mistake(message, content):
    held = LearnerBuffers()
    with pytest.raises(WireError, match="do not fit their content"):
        held.take(message, content, KNOWN)
    assert held.values == {}


def test_one_learner_cannot_fill_the_memory(monkeypatch):
    monkeypatch.setattr(buffers_module, "BUFFER_LIMIT", 8)
    held = LearnerBuffers()
    held.take(report((1,), (1,)), floats(1, 2), KNOWN)
    with pytest.raises(WireError, match="more than 8 bytes"):
        held.take(report((2,), names=("mean",)), floats(1, 2), KNOWN)
    assert held.values == {}


def test_what_is_kept_can_be_written_and_read():
    held = LearnerBuffers()
    held.take(report((2,), ()), floats(1, 2, 3), KNOWN)
    loaded = safetensors.torch.load(held.to_bytes())
    assert torch.equal(loaded["mean"], torch.tensor([1.0, 2.0]))
    assert torch.equal(loaded["var"], torch.tensor(3.0))


def test_groups_hold_every_buffer_once_in_order():
    many = [(str(number), torch.zeros(1)) for number in range(2 * GROUP + 3)]
    groups = list(in_groups(many))
    assert [len(group) for group in groups] == [GROUP, GROUP, 3]
    assert [name for group in groups for name, _ in group] == [name for name, _ in many]
