"""Offers that stay: what is written comes back, what is spoiled is named, what refuses holds up nothing."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atoll.core.records import RoundRecord
from atoll.runtime.offers import KeptOffers, offers_path, prune, read_offers
from atoll.runtime.store.files import Files
from tests.unit.runtime.small_runs import finished_run, flip, rounds, settings

BODIES = {"north": torch.arange(40, dtype=torch.uint8), "south": torch.full((7,), 9, dtype=torch.uint8)}


def record(number: int = 3, delta: str = "d1") -> RoundRecord:
    return RoundRecord(1, number, 0, 2, "v2", delta, 8, ())


class FullDisk(Files):
    """Refuses to write as long as it is full."""

    is_full = True

    def step(self, operation: str, path: Path) -> None:
        if self.is_full and operation == "write":
            raise OSError(errno.ENOSPC, "No space left on device")


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("sync", [False, True])
def test_bodies_come_back_by_name(tmp_path, sync):
    assert KeptOffers(tmp_path / "offers", Files()).keep(record(), BODIES, sync)
    path = offers_path(tmp_path / "offers", record())
    assert same(read_offers(Files(), path), BODIES)
    assert [one.name for one in path.parent.iterdir()] == ["d1-1-0-3.safetensors"]


def test_an_empty_body_comes_back(tmp_path):
    KeptOffers(tmp_path, Files()).keep(record(), {"north": torch.empty(0, dtype=torch.uint8)}, False)
    assert read_offers(Files(), offers_path(tmp_path, record()))["north"].numel() == 0


def test_rounds_that_were_merged_into_equal_deltas_have_files_of_their_own(tmp_path):
    kept = KeptOffers(tmp_path, Files())
    kept.keep(record(1), BODIES, False)
    kept.keep(record(2), {"north": BODIES["south"]}, False)
    assert same(read_offers(Files(), offers_path(tmp_path, record(1))), BODIES)
    assert read_offers(Files(), offers_path(tmp_path, record(2))).keys() == {"north"}


def test_every_flipped_bit_of_a_file_is_found_or_changes_no_body(tmp_path):
    KeptOffers(tmp_path, Files()).keep(record(), BODIES, False)
    path = offers_path(tmp_path, record())
    content = path.read_bytes()
    for at in range(len(content)):
        flip(path, at)
        try:
            found = read_offers(Files(), path)
        except ValueError:
            pass
        else:
            assert found.keys() != BODIES.keys() or same(found, BODIES), at
        path.write_bytes(content)


def test_a_spoiled_body_is_named(tmp_path):
    KeptOffers(tmp_path, Files()).keep(record(), BODIES, False)
    flip(offers_path(tmp_path, record()))
    with pytest.raises(ValueError, match="the body of south does not have its digest"):
        read_offers(Files(), offers_path(tmp_path, record()))


def test_a_torn_file_is_no_file_of_offers(tmp_path):
    path = tmp_path / "torn"
    path.write_bytes(b"\x05")
    with pytest.raises(ValueError, match="torn or is no file of offers"):
        read_offers(Files(), path)


def test_only_the_offers_of_needed_deltas_are_left(tmp_path):
    kept = KeptOffers(tmp_path, Files())
    for delta in ("d1", "d2", "d3"):
        kept.keep(record(delta=delta), BODIES, False)
    prune(Files(), tmp_path, {"d2", "d9"})
    assert [path.name for path in tmp_path.iterdir()] == ["d2-1-0-3.safetensors"]
    prune(Files(), tmp_path / "nowhere", set())


def test_a_disk_that_refuses_is_said_once_and_so_is_its_return(tmp_path, caplog):
    caplog.set_level(logging.WARNING, logger="atoll")
    disk = FullDisk()
    kept = KeptOffers(tmp_path, disk)
    assert not kept.keep(record(1), BODIES, True)
    assert not kept.keep(record(2), BODIES, True)
    assert list(tmp_path.iterdir()) == []
    assert [line.message for line in caplog.records] == [
        "offers are not kept for now: No space left on device; their rounds are committed, "
        "but cannot be merged again"
    ]
    disk.is_full = False
    assert kept.keep(record(3), BODIES, True)
    assert kept.keep(record(4), BODIES, True)
    assert [line.message for line in caplog.records][1:] == ["offers are kept again"]


@pytest.mark.parametrize("codec", ["f32", "int4"])
def test_a_syncer_keeps_what_every_round_was_merged_from(tmp_path, codec):
    run_dir = finished_run(tmp_path / "reef", settings(codec={"up": codec, "down": codec}))
    for one in rounds(run_dir):
        bodies = read_offers(Files(), offers_path(run_dir / "offers", one))
        assert sorted(bodies) == [part.name for part in one.contributors]
    assert len(list((run_dir / "offers").iterdir())) == len(rounds(run_dir)) > 0


def test_by_default_nothing_is_kept(tmp_path):
    run_dir = finished_run(tmp_path / "reef", settings(tape={}))
    assert rounds(run_dir)
    assert not (run_dir / "offers").exists()


def test_rounds_are_committed_although_their_offers_cannot_be_kept(tmp_path):
    run_dir = tmp_path / "reef"
    run_dir.mkdir()
    (run_dir / "offers").write_text("a file where a folder should be")
    finished_run(run_dir, settings())
    assert rounds(run_dir)
