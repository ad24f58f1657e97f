"""Our files are safetensors files, and a file that is not whole is never read as if it were."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch

from atoll.runtime.store.files import Files
from atoll.runtime.store.tensors import bytes_of, read_tensors, tensor_parts

FILES = Files()


def sample() -> dict[str, torch.Tensor]:
    return {"served": torch.arange(7.0), "remainder": torch.randn(7), "none": torch.empty(0)}


def test_the_library_reads_what_we_write(folder):
    tensors = sample()
    FILES.write_durably(folder / "a", tensor_parts(tensors), sync=True)
    found = safetensors.torch.load_file(folder / "a")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_we_read_what_the_library_writes(folder):
    tensors = {"a": torch.randn(5), "b": torch.randn(3)}
    safetensors.torch.save_file(tensors, folder / "a")
    found = read_tensors(FILES, folder / "a")
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_every_bit_comes_back_not_a_number_included(folder):
    tensor = torch.tensor([0.0, -0.0, float("inf"), float("nan"), 1e-45])
    FILES.write_durably(folder / "a", tensor_parts({"x": tensor}), sync=False)
    assert bytes(bytes_of(read_tensors(FILES, folder / "a")["x"])) == bytes(bytes_of(tensor))


def test_one_tensor_can_be_read_alone(folder):
    tensors = sample()
    FILES.write_durably(folder / "a", tensor_parts(tensors), sync=True)
    found = read_tensors(FILES, folder / "a", only="remainder")
    assert list(found) == ["remainder"]
    assert torch.equal(found["remainder"], tensors["remainder"])


def test_writing_copies_no_values():
    tensor = torch.zeros(4)
    parts = tensor_parts({"x": tensor})
    tensor[0] = 1.0
    assert bytes(parts[1])[:4] == bytes(bytes_of(torch.ones(1)))


def test_a_file_of_any_other_length_is_refused(folder):
    whole = b"".join(bytes(part) for part in tensor_parts(sample()))
    for length in range(len(whole)):
        (folder / "a").write_bytes(whole[:length])
        with pytest.raises(ValueError):
            read_tensors(FILES, folder / "a")
    (folder / "a").write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match="length"):
        read_tensors(FILES, folder / "a")


@pytest.mark.parametrize(
    "header",
    [
        {"x": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 2**62]}},
        {"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}},
        {"x": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 6]}},
        {"x": {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
        {"x": {"dtype": "F32", "shape": [1, 1], "data_offsets": [0, 4]}},
        {"x": {"shape": [1], "data_offsets": [0, 4]}},
        {"x": []},
        [],
        "text",
        7,
    ],
)
def test_a_header_that_says_something_else_is_refused(folder, header):
    text = json.dumps(header).encode()
    for length in range(9):
        (folder / "a").write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * length)
        with pytest.raises(ValueError):
            read_tensors(FILES, folder / "a")


def test_a_header_without_end_is_refused_before_it_is_read(folder):
    (folder / "a").write_bytes(b"\xff" * 64)
    with pytest.raises(ValueError, match="begin"):
        read_tensors(FILES, folder / "a")
