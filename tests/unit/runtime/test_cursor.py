"""The data cursor on disk."""

from __future__ import annotations

import pytest

from atoll.recipes import Shard
from atoll.runtime.cursor import FILE, load_cursor, save_cursor

SHARD = Shard(1, 4, 7)


def test_a_cursor_is_found_again_in_its_shard(tmp_path):
    save_cursor(tmp_path, SHARD, '{"epoch": 2}')
    save_cursor(tmp_path, SHARD, '{"epoch": 3}')
    assert load_cursor(tmp_path, SHARD) == '{"epoch": 3}'


@pytest.mark.parametrize("other", [Shard(2, 4, 7), Shard(1, 5, 7), Shard(1, 4, 8)])
def test_another_shard_begins_anew(tmp_path, other):
    save_cursor(tmp_path, SHARD, "12")
    assert load_cursor(tmp_path, other) == "null"


def test_without_a_file_or_a_folder_the_data_begins(tmp_path):
    assert load_cursor(tmp_path, SHARD) == "null"
    assert load_cursor(None, SHARD) == "null"


@pytest.mark.parametrize("text", ["", "12", "[]", '{"cursor": 3}', '{"shard": [1', "\x00"])
def test_a_file_that_is_damaged_or_of_another_kind_is_said_and_ignored(tmp_path, caplog, text):
    (tmp_path / FILE).write_text(text)
    assert load_cursor(tmp_path, SHARD) == "null"
    assert "the data begins anew" in caplog.text


def test_a_cursor_that_cannot_be_written_leaves_the_one_before(tmp_path):
    save_cursor(tmp_path, SHARD, "1")
    (tmp_path / f"{FILE}.part").mkdir()
    with pytest.raises(OSError, match="directory"):
        save_cursor(tmp_path, SHARD, "2")
    assert load_cursor(tmp_path, SHARD) == "1"
