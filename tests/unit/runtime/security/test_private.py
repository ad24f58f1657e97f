"""Secrets are written whole, and for their owner alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll.runtime.security.certificates import ServerIdentity
from atoll.runtime.security.identity import LearnerIdentity, StateLock
from atoll.runtime.security.private import write_private, write_private_folder
from atoll.runtime.security.tokens import Tokens


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["open", "usual", "strict"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_only_the_owner_can_read_secrets_whatever_the_umask(tmp_path: Path, umask: int):
    ServerIdentity.load_or_make(tmp_path, "run")
    Tokens.load_or_make(tmp_path)
    LearnerIdentity.load_or_make(tmp_path / "state")
    secrets = [
        *(tmp_path / "tls").iterdir(),
        *(tmp_path / "tokens").iterdir(),
        tmp_path / "state" / "identity.key",
    ]
    assert len(secrets) == 6
    assert {mode(path) for path in secrets} == {0o600}
    assert {mode(tmp_path / folder) for folder in ("tls", "tokens")} == {0o700}


def test_a_lock_file_cannot_be_written_by_others_whatever_the_umask(tmp_path: Path, umask: int):
    with StateLock(tmp_path):
        assert mode(tmp_path / "lock") == 0o600


def test_a_file_can_be_read_by_its_owner_even_under_a_umask_that_forbids_it(tmp_path: Path):
    before = os.umask(0o777)
    try:
        write_private(tmp_path / "a", b"1")
        write_private_folder(tmp_path / "folder", {"b": b"2"})
    finally:
        os.umask(before)
    assert (mode(tmp_path / "a"), mode(tmp_path / "folder" / "b")) == (0o600, 0o600)
    assert mode(tmp_path / "folder") == 0o700


def test_a_file_is_replaced_whole_and_leaves_nothing_else(tmp_path: Path):
    path = tmp_path / "deep" / "a"
    write_private(path, b"old")
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_cannot_be_put_in_place_leaves_nothing(tmp_path: Path):
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError):
        write_private(tmp_path / "a", b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_folder_that_holds_something_is_not_replaced(tmp_path: Path):
    write_private_folder(tmp_path / "f", {"a": b"1", "b": b"2"})
    with pytest.raises(OSError):
        write_private_folder(tmp_path / "f", {"a": b"3"})
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "f").iterdir()} == {"a": b"1", "b": b"2"}


def test_a_folder_appears_with_all_its_files_or_not_at_all(tmp_path: Path):
    with pytest.raises(OSError):
        write_private_folder(tmp_path / "f", {"a": b"1", "no/such/place": b"2"})
    assert list(tmp_path.iterdir()) == []
