"""Bodies wait in memory up to a budget, then on disk, and come back byte for byte."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from atoll.runtime.spool import Spool

Key = tuple[int, str]


def body(length: int, start: int = 0) -> bytearray:
    return bytearray((start + i) % 251 for i in range(length))


def num_files(folder: Path) -> int:
    return len(list(folder.glob("*"))) if folder.exists() else 0


def content(spool: Spool[Key], key: Key) -> bytes:
    return bytes(spool.get(key).tolist())


def test_a_body_in_memory_is_not_copied(tmp_path):
    spool: Spool[Key] = Spool(tmp_path / "spool", 100)
    held = body(60)
    spool.hold((0, "a"), held)
    held[0] = 77
    assert spool.get((0, "a"))[0] == 77
    assert (spool.num_bytes, spool.memory_bytes, num_files(tmp_path / "spool")) == (60, 60, 0)


def test_a_body_above_the_budget_goes_to_disk_and_comes_back(tmp_path):
    spool: Spool[Key] = Spool(tmp_path / "spool", 100)
    for number, name in enumerate("abc"):
        spool.hold((0, name), body(60, number))
    assert (spool.num_bytes, spool.memory_bytes, num_files(tmp_path / "spool")) == (180, 60, 2)
    for number, name in enumerate("abc"):
        assert content(spool, (0, name)) == bytes(body(60, number))
        assert spool.get((0, name)).dtype == torch.uint8


def test_a_budget_of_zero_keeps_nothing_in_memory(tmp_path):
    spool: Spool[Key] = Spool(tmp_path, 0)
    spool.hold((0, "a"), memoryview(body(5)))
    assert (spool.memory_bytes, content(spool, (0, "a"))) == (0, bytes(body(5)))


def test_without_a_folder_everything_stays_in_memory():
    spool: Spool[Key] = Spool(None, 10)
    spool.hold((0, "a"), body(60))
    assert (spool.memory_bytes, content(spool, (0, "a"))) == (60, bytes(body(60)))


def test_a_body_that_cannot_be_written_stays_in_memory(tmp_path):
    blocked = tmp_path / "spool"
    blocked.write_text("a file where the folder should be")
    spool: Spool[Key] = Spool(blocked, 10)
    spool.hold((0, "a"), body(60))
    assert (spool.memory_bytes, content(spool, (0, "a"))) == (60, bytes(body(60)))


@pytest.mark.parametrize("budget_bytes", [0, 100])
def test_an_empty_body_and_a_read_only_one_are_bodies_too(tmp_path, budget_bytes):
    spool: Spool[Key] = Spool(tmp_path, budget_bytes)
    spool.hold((0, "a"), bytearray())
    spool.hold((0, "b"), memoryview(b"xyz"))
    assert spool.get((0, "a")).numel() == 0
    assert content(spool, (0, "b")) == b"xyz"


@pytest.mark.parametrize("budget_bytes", [0, 100])
def test_of_two_bodies_with_one_key_the_first_stays(tmp_path, budget_bytes):
    spool: Spool[Key] = Spool(tmp_path, budget_bytes)
    spool.hold((0, "a"), bytearray(b"first"))
    spool.hold((0, "a"), bytearray(b"second"))
    assert content(spool, (0, "a")) == b"first"
    assert spool.num_bytes == 5


@pytest.mark.parametrize("budget_bytes", [0, 100])
def test_what_is_dropped_is_gone_and_gives_its_room_back(tmp_path, budget_bytes):
    spool: Spool[Key] = Spool(tmp_path, budget_bytes)
    for p in (0, 1):
        for name in "ab":
            spool.hold((p, name), body(10))
    spool.drop((0, "a"))
    spool.drop((0, "never held"))
    assert [(p, name) in spool for p in (0, 1) for name in "ab"] == [False, True, True, True]
    spool.drop(lambda key: key[0] == 1)
    assert (spool.num_bytes, num_files(tmp_path)) == (10, 1 if budget_bytes == 0 else 0)
    with pytest.raises(KeyError):
        spool.get((1, "a"))


@pytest.mark.parametrize("budget_bytes", [0, 100])
def test_a_tensor_outlives_its_body(tmp_path, budget_bytes):
    spool: Spool[Key] = Spool(tmp_path, budget_bytes)
    spool.hold((0, "a"), body(50))
    tensor = spool.get((0, "a"))
    spool.drop((0, "a"))
    assert bytes(tensor.tolist()) == bytes(body(50))


def test_the_folder_is_emptied_at_the_start_of_what_an_earlier_spool_left(tmp_path):
    old: Spool[Key] = Spool(tmp_path, 0)
    old.hold((0, "a"), body(10))
    (tmp_path / "notes.txt").write_text("not ours")
    Spool[Key](tmp_path, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_another_thread_may_read_while_bodies_come_and_go(tmp_path):
    spool: Spool[Key] = Spool(tmp_path, 200)
    spool.hold((0, "kept"), body(100))
    spool.hold((0, "kept on disk"), body(150))
    wrong: list[str] = []

    def read() -> None:
        for _ in range(200):
            for name, length in (("kept", 100), ("kept on disk", 150)):
                if content(spool, (0, name)) != bytes(body(length)):
                    wrong.append(name)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200):
        spool.hold((number, "other"), body(120))
        spool.drop((number, "other"))
    reader.join()
    assert wrong == []
    assert spool.num_bytes == 250
