"""docs/protocol.md against the code: a published contract that is wrong is worse than none.

Tables and numbers are read out of the page. Codecs, digests and the cut of a model are written here a second
time, from the words of the page alone, and compared with what the package computes.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from itertools import pairwise
from math import ceil, prod
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from torch import nn

from atoll.core.messages import Holding
from atoll.numerics.codec import CODECS
from atoll.numerics.manifest import Manifest
from atoll.numerics.outer import apply_update, digest
from atoll.numerics.partition import partition
from atoll.wire.frames import HEADER_BYTES, UNTRUSTED_BYTES, VERSION, pack_header, run_id
from atoll.wire.messages import BULK, KINDS, PIECE, Kind, limit_of
from atoll.wire.schema import MAX_CONFIG, MAX_ITEMS, MAX_TEXT

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (\w+) \| ([\w ]+) \| .+ \|$", re.MULTILINE)


def section(title: str) -> str:
    """What stands under a heading, up to the next one."""
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/protocol.md has no section {title!r}"
    return found.group(1)


def word_for(hint: Any) -> str:
    """How the page writes a type."""
    if get_origin(hint) is tuple:
        return f"list of {word_for(get_args(hint)[0])}"
    if get_origin(hint) is Literal:
        return "str"
    return "float or nil" if hint == float | None else hint.__name__


def rows(message: type) -> list[tuple[str, str]]:
    return [(name, word_for(hint)) for name, hint in get_type_hints(message).items()]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.message.__name__)
def test_the_page_has_every_kind_with_its_fields_in_order(kind: Kind):
    text = section(f"{kind.number} {kind.message.__name__}")
    table = [row for row in ROW.findall(text) if row[0] != "field"]
    assert table == rows(kind.message)
    assert f"From the {kind.sender}, limit {kind.limit:,}." in text
    assert ("Bulk." in text) == (kind.number in BULK)


def test_the_page_has_no_kind_that_the_code_has_not():
    titles = re.findall(r"^### (\d+) (\w+)$", PAGE, re.MULTILINE)
    expected = {(kind.number, kind.message.__name__) for kind in KINDS} | {(PIECE, "PIECE")}
    assert {(int(number), name) for number, name in titles} == expected
    assert len(titles) == len(expected)
    table = [row for row in ROW.findall(section("Holding")) if row[0] != "field"]
    assert table == rows(Holding)


def test_the_words_of_verdicts_and_roles_are_all_there():
    for kind in KINDS:
        for name, hint in get_type_hints(kind.message).items():
            for word in get_args(hint) if get_origin(hint) is Literal else ():
                assert re.search(
                    rf"^\| {name} \|.*`{word}`", section(f"{kind.number} {kind.message.__name__}"), re.M
                )


def test_the_numbers_of_the_page_are_those_of_the_code():
    assert f"version {VERSION}" in PAGE.splitlines()[0]
    assert f"a header of {HEADER_BYTES} bytes" in PAGE
    assert f"bodies of {UNTRUSTED_BYTES:,} bytes at most" in PAGE
    assert f"{MAX_TEXT:,} characters; `config` {MAX_CONFIG:,}" in PAGE
    assert f"| {MAX_ITEMS:,} items |" in PAGE
    assert f"limit {limit_of(PIECE):,}." in section("15 PIECE")
    assert "9, 20, 21, 25, 39 or 42" in section("15 PIECE")
    assert sorted(BULK) == [9, 20, 21, 25, 39, 42]


def test_the_frame_on_the_page_is_a_frame():
    frame = pack_header(36, run_id("my-run"), 1, 2, 3, b"body") + b"body"
    assert frame.hex(" ", -8) in PAGE


def test_the_manifest_on_the_page_is_one_and_its_digest_is_made_as_told():
    plain = json.loads(re.search(r"```json\n(.*?)```", PAGE, re.DOTALL).group(1))  # type: ignore[union-attr]
    manifest = Manifest.from_dict(plain)
    assert manifest.to_dict() == plain
    agreed = {"fragments": plain["fragments"], "storages": plain["storages"]}
    text = json.dumps(agreed, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    assert manifest.digest == hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# Codecs, as section 8 describes them

GROUP, CHUNK = 128, 131_072
CODE_BYTES = {"int8": 128, "int4": 64, "fp4": 64, "int2": 32}


def decoded(name: str, body: bytes, numel: int) -> np.ndarray:
    if name == "f32":
        return np.frombuffer(body, "<f4")
    if name == "bf16":
        return widened(np.frombuffer(body, "<u2"))
    values, at = [], 0
    for start in range(0, numel, CHUNK):
        groups = ceil(min(CHUNK, numel - start) / GROUP)
        scales = widened(np.frombuffer(body, "<u2", groups, at))
        at += 2 * groups
        codes = np.frombuffer(body, np.uint8, groups * CODE_BYTES[name], at).reshape(groups, -1)
        at += codes.size
        values.append((unpacked(name, codes) * scales[:, None]).reshape(-1))
    assert at == len(body) == ceil(numel / GROUP) * (2 + CODE_BYTES[name])
    return np.concatenate(values)[:numel]


def widened(halves: np.ndarray) -> np.ndarray:
    return (halves.astype("<u4") << 16).view("<f4")


def unpacked(name: str, codes: np.ndarray) -> np.ndarray:
    """What the scale is multiplied by, as f32, one row per group."""
    if name == "int8":
        return codes.view(np.int8).astype(np.float32)
    if name == "int2":
        pairs = np.concatenate([codes >> shift & 3 for shift in (0, 2, 4, 6)], axis=1).astype(np.int8)
        return np.where(pairs > 1, pairs - 4, pairs).astype(np.float32) + np.float32(0.5)
    nibbles = np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.int8)
    if name == "int4":
        return np.where(nibbles > 7, nibbles - 16, nibbles).astype(np.float32)
    exponent = (nibbles & 7).astype(np.float32)
    magnitude = np.where(exponent > 0, np.exp2(exponent - 7), 0).astype(np.float32)
    return np.copysign(magnitude, np.where(nibbles & 8, -1, 1)).astype(np.float32)


@pytest.mark.parametrize("name", list(CODECS))
@pytest.mark.parametrize("numel", [1, 127, 128, 1000, CHUNK + 300])
def test_a_body_decodes_bit_for_bit_as_the_page_says(name: str, numel: int):
    values = torch.randn(numel, generator=torch.Generator().manual_seed(numel)) * 1e-3
    values[numel // 2 : numel // 2 + 3] = 0.0
    body = CODECS[name].encode(values)
    ours = CODECS[name].decode(body, 0, numel, torch.empty(numel))
    assert decoded(name, body.numpy().tobytes(), numel).tobytes() == ours.numpy().tobytes()


@pytest.mark.parametrize("name", list(CODECS))
def test_an_update_is_one_addition_and_the_digest_is_as_told(name: str):
    generator = torch.Generator().manual_seed(1)
    base, update = torch.randn(500, generator=generator), torch.randn(500, generator=generator) * 1e-3
    body = CODECS[name].encode(update)
    new = base.numpy() + decoded(name, body.numpy().tobytes(), 500)
    ours = apply_update(base.clone(), body, CODECS[name])
    assert new.dtype == np.float32
    assert hashlib.sha256(new.astype("<f4").tobytes()).hexdigest()[:32] == digest(ours)


# The cut of a model, as section 7 describes it

Piece = tuple[str, int, int, int, str]
"""Storage, start, size, row, rule."""


def split(piece: Piece, row: int, parts: int) -> list[Piece]:
    name, start, size, _, rule = piece
    edges = [size // row * i // parts * row for i in range(parts + 1)]
    return [(name, start + a, b - a, row, rule) for a, b in pairwise(edges)]


def third_step(piece: Piece, shape: tuple[int, ...], total: int, count: int) -> list[Piece]:
    name, start, size, row, rule = piece
    if size * count <= 2 * total or not shape:
        return [piece]
    target = ceil(total / count)
    if row > target and rule == "rda":
        inner = shape[1:]
        small = row // inner[0] if inner else 1
        rows = [(name, start + k * row, row, small, rule) for k in range(shape[0])]
        return [unit for one in rows for unit in third_step(one, inner, total, count)]
    row = row if row <= target else 1
    return split(piece, row, ceil(size // row / (target // row)))


def cut_as_told(tensors: list[tuple[str, tuple[int, ...], str]], count: int) -> list[list[list[object]]]:
    total = sum(prod(shape) for _, shape, _ in tensors)
    units: list[Piece] = []
    for name, shape, rule in tensors:
        stacked = len(shape) == 3 and rule == "rda"
        inner = shape[1:] if stacked else shape
        size = prod(inner)
        for start in range(0, prod(shape), size):
            units += third_step((name, start, size, size // inner[0], rule), inner, total, count)
    while len(units) < count:
        at = max(range(len(units)), key=lambda k: (units[k][2], -k))
        size, row = units[at][2:4]
        units[at : at + 1] = split(units[at], row if size > row else 1, 2)
    bins: list[list[Piece]] = [[] for _ in range(count)]
    for unit in sorted(units, key=lambda u: (-u[2], u[0], u[1])):
        lightest = min(range(count), key=lambda p: (sum(u[2] for u in bins[p]), p))
        bins[lightest].append(unit)
    order = [name for name, _, _ in tensors]
    ordered = [sorted(held, key=lambda u: (order.index(u[0]), u[1])) for held in bins]
    return [[[u[0], u[1], u[1] + u[2], u[4]] for u in held] for held in ordered]


@pytest.mark.parametrize("seed", range(40))
def test_a_model_is_cut_as_the_page_says(seed: int):
    rng = random.Random(seed)
    model, tensors = nn.ParameterDict(), []
    for k in rng.sample(range(20), rng.randint(1, 6)):
        shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(1, 3)))
        model[f"t{k}"] = nn.Parameter(torch.zeros(shape))
    for name, parameter in model.named_parameters():
        tensors.append((name, tuple(parameter.shape), "mean" if parameter.dim() < 2 else "rda"))
    total = sum(prod(shape) for _, shape, _ in tensors)
    for count in sorted({min(n, total) for n in (1, 2, 5, 24)}):
        assert partition(model, count).to_dict()["fragments"] == cut_as_told(tensors, count)
