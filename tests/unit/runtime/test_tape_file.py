"""A tape on disk comes back as it was written, goes on after a restart, and names what is damaged."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zstandard

from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.errors import TapeError
from atoll.runtime import tape_file
from atoll.runtime.tape_file import TapeFile
from atoll.tape.entries import Entry, Fault, Image, Milestone

BLOCKS = [
    [Entry(1, "a#1", Milestone("faults")), Entry(2, "a#1", Fault("kill", "b", "at 40 %"))],
    [Entry(3, "a#1", ev.Stepped(3, tokens=512, step_ns=30, held_ns=1))],
    [Entry(4, "a#1", ev.Received(4, msg.Refused(epoch=1, life=2, reason="not this run")))],
]
ENTRIES = [entry for block in BLOCKS for entry in block]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed tape of three blocks."""
    path = tmp_path / "tape.db"
    write(path, BLOCKS)
    return path


def write(path: Path, blocks: list[list[Entry]]) -> None:
    tape = TapeFile(path)
    for block in blocks:
        tape.append(block)
    tape.close()


def entries(path: Path) -> list[Entry]:
    tape = TapeFile(path)
    try:
        return list(tape.read())
    finally:
        tape.close()


def change(path: Path, statement: str, *values: object) -> None:
    """What somebody does to the file behind our back."""
    db = sqlite3.connect(path)
    with db:
        db.execute(statement, values)
    db.close()


def refusal(path: Path) -> TapeError:
    with pytest.raises(TapeError) as caught:
        entries(path)
    return caught.value


# Written and read


def test_entries_come_back_in_order(path: Path):
    assert entries(path) == ENTRIES


def test_a_new_tape_is_empty(tmp_path: Path):
    assert entries(tmp_path / "tape.db") == []


def test_a_reopened_tape_continues_its_chain(tmp_path: Path):
    path = tmp_path / "tape.db"
    for block in BLOCKS:
        write(path, [block])
    assert entries(path) == ENTRIES


def test_what_is_appended_is_read_at_once_and_reading_begins_anew(tmp_path: Path):
    tape = TapeFile(tmp_path / "tape.db")
    tape.append(BLOCKS[0])
    assert list(tape.read()) == BLOCKS[0]
    tape.append(BLOCKS[1])
    assert list(tape.read()) == BLOCKS[0] + BLOCKS[1]
    tape.close()


def test_no_entries_make_no_block(path: Path):
    write(path, [[], []])
    assert sqlite3.connect(path).execute("SELECT count(*) FROM blocks").fetchone() == (len(BLOCKS),)


def test_a_reader_and_the_writer_do_not_hold_each_other_up(path: Path):
    tape = TapeFile(path)
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    reading = tape_file.read(reader)
    assert next(reading) == ENTRIES[0]
    tape.append(BLOCKS[0])
    assert list(reading) == ENTRIES[1:]
    assert list(tape_file.read(reader)) == ENTRIES + BLOCKS[0]
    reader.close()
    tape.close()


def test_closing_twice_does_no_harm(tmp_path: Path):
    tape = TapeFile(tmp_path / "tape.db")
    tape.close()
    tape.close()


def test_a_link_covers_the_link_before_and_the_bytes_on_disk(path: Path):
    previous = b""
    for content, chain in sqlite3.connect(path).execute("SELECT content, chain FROM blocks ORDER BY id"):
        previous = hashlib.blake2b(previous + content, digest_size=16).digest()
        assert chain == previous


def test_lines_that_repeat_themselves_take_little_room(tmp_path: Path):
    path = tmp_path / "tape.db"
    block = [Entry(n, "a#1", ev.Stepped(n, tokens=512, step_ns=30, held_ns=1)) for n in range(1000)]
    write(path, [block])
    (size,) = sqlite3.connect(path).execute("SELECT length(content) FROM blocks").fetchone()
    assert size < 10 * len(block)
    assert entries(path) == block


# Within somebody else's transaction


def test_a_block_shares_the_fate_of_its_transaction():
    db = sqlite3.connect(":memory:")
    tape_file.create(db)
    with db:
        tape_file.append(db, BLOCKS[0])
    tape_file.append(db, BLOCKS[2])
    db.rollback()
    with db:
        tape_file.append(db, BLOCKS[1])
    assert list(tape_file.read(db)) == BLOCKS[0] + BLOCKS[1]


def test_creating_the_table_again_keeps_what_is_there():
    db = sqlite3.connect(":memory:")
    tape_file.create(db)
    tape_file.append(db, BLOCKS[0])
    tape_file.create(db)
    assert list(tape_file.read(db)) == BLOCKS[0]


def test_a_block_that_the_disk_refuses_leaves_the_tape_whole(path: Path):
    tape = TapeFile(path)
    change(path, "CREATE TRIGGER full BEFORE INSERT ON blocks BEGIN SELECT RAISE(FAIL, 'disk full'); END")
    with pytest.raises(sqlite3.Error, match="disk full"):
        tape.append(BLOCKS[0])
    change(path, "DROP TRIGGER full")
    tape.append(BLOCKS[0])
    assert list(tape.read()) == ENTRIES + BLOCKS[0]
    tape.close()


# Beginning in the middle


def image(merges: int) -> Entry:
    return Entry(9, "syncer", Image(merges, b"the state after so many merges"))


@pytest.fixture
def db() -> sqlite3.Connection:
    """A tape with an image after each of its three blocks; two are of the same merges."""
    db = sqlite3.connect(":memory:")
    tape_file.create(db)
    for block, merges in zip(BLOCKS, (50, 100, 100), strict=True):
        tape_file.append(db, [*block, image(merges)])
    return db


def test_an_image_begins_a_block(db: sqlite3.Connection):
    tape_file.append(db, [image(150), *BLOCKS[0], *BLOCKS[1], image(200), *BLOCKS[2]])
    images = [image for (image,) in db.execute("SELECT image FROM blocks ORDER BY id")]
    assert images == [None, 50, None, 100, None, 100, 150, 200]


def test_a_tape_is_cut_at_the_newest_image_of_so_many_merges_and_goes_on(db: sqlite3.Connection):
    assert tape_file.starts_at(db) is None
    assert tape_file.cut(db, 50)
    assert tape_file.starts_at(db) == 50
    assert list(tape_file.read(db)) == [image(50), *BLOCKS[1], image(100), *BLOCKS[2], image(100)]
    assert tape_file.cut(db, 100)
    tape_file.append(db, BLOCKS[0])
    assert tape_file.starts_at(db) == 100
    assert list(tape_file.read(db)) == [image(100), *BLOCKS[0]]


def test_what_begins_there_already_is_not_cut_again(db: sqlite3.Connection):
    assert tape_file.cut(db, 50)
    before = list(tape_file.read(db))
    assert tape_file.cut(db, 50)
    assert list(tape_file.read(db)) == before


def test_without_such_an_image_nothing_is_cut(db: sqlite3.Connection):
    before = list(tape_file.read(db))
    assert not tape_file.cut(db, 51)
    assert list(tape_file.read(db)) == before


def test_a_cut_shares_the_fate_of_its_transaction(db: sqlite3.Connection):
    db.commit()
    before = list(tape_file.read(db))
    tape_file.cut(db, 100)
    db.rollback()
    assert list(tape_file.read(db)) == before


def test_the_size_is_that_of_the_blocks_left(db: sqlite3.Connection):
    whole = tape_file.size(db)
    tape_file.cut(db, 100)
    (left,) = db.execute("SELECT sum(length(content)) FROM blocks").fetchone()
    assert 0 < tape_file.size(db) == left < whole


def test_an_empty_tape_has_no_size_and_no_start(tmp_path: Path):
    tape = TapeFile(tmp_path / "tape.db")
    assert tape.size() == 0
    tape.close()
    assert tape_file.starts_at(sqlite3.connect(tmp_path / "tape.db")) is None


@pytest.mark.parametrize(
    ("statement", "block"),
    [
        ("DELETE FROM tape_cut", 4),
        ("UPDATE tape_cut SET chain = zeroblob(16)", 4),
        ("DELETE FROM blocks WHERE id = 4", 5),
    ],
)
def test_a_cut_tape_verifies_from_its_beginning(db: sqlite3.Connection, statement: str, block: int):
    db.execute("DELETE FROM blocks WHERE id > 5")
    assert tape_file.cut(db, 100)
    assert list(tape_file.read(db)) == [image(100), *BLOCKS[2]]
    db.execute(statement)
    with pytest.raises(TapeError, match=f"Block {block} of the tape does not fit the digest chain"):
        list(tape_file.read(db))


@pytest.mark.parametrize("statement", ["image = 101 WHERE id = 4", "image = 5 WHERE id = 3", "image = NULL"])
def test_a_block_that_is_said_to_begin_with_another_image_is_damaged(db: sqlite3.Connection, statement: str):
    db.execute(f"UPDATE blocks SET {statement}")
    with pytest.raises(TapeError, match="does not begin with the image"):
        list(tape_file.read(db))


def test_a_tape_of_a_file_begins_anew(path: Path):
    tape = TapeFile(path)
    tape.append([*BLOCKS[0], image(0), *BLOCKS[1]])
    tape.begin_anew([*BLOCKS[2], image(0)])
    tape.append(BLOCKS[0])
    assert list(tape.read()) == [image(0), *BLOCKS[0]]
    tape.close()


# Lives


def test_a_new_life_keeps_the_tapes_of_the_lives_before_it_up_to_a_limit(tmp_path: Path):
    for life in range(1, 13):
        tape_file.open_life(tmp_path, life).close()
        os.utime(tmp_path / f"tape-{life:012x}.db", ns=(life, life))
    (tmp_path / f"tape-{6:012x}.db-wal").write_bytes(b"")
    kept = [f"tape-{life:012x}.db" for life in range(6, 14)]
    assert len(kept) == tape_file.MAX_LIVES
    tape_file.open_life(tmp_path, 13).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [kept[0], kept[0] + "-wal", *kept[1:]]
    tape_file.open_life(tmp_path, 14).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [*kept[1:], f"tape-{14:012x}.db"]


# Damage


@pytest.mark.parametrize(
    ("statement", "block"),
    [
        ("UPDATE blocks SET content = content || x'00' WHERE id = 1", 1),
        ("UPDATE blocks SET content = (SELECT content FROM blocks WHERE id = 1) WHERE id = 2", 2),
        ("UPDATE blocks SET content = 'text' WHERE id = 2", 2),
        ("UPDATE blocks SET chain = zeroblob(16) WHERE id = 3", 3),
        ("DELETE FROM blocks WHERE id = 1", 2),
        ("DELETE FROM blocks WHERE id = 2", 3),
        ("UPDATE blocks SET id = 0 WHERE id = 3", 0),
    ],
)
def test_a_block_that_was_changed_lost_or_moved_is_named(path: Path, statement: str, block: int):
    change(path, statement)
    assert str(refusal(path)) == (
        f"Block {block} of the tape does not fit the digest chain.\n"
        "This block, or one before it, was changed, lost or moved after it was written.\n"
        f"Trust the blocks before {block} only, or restore the tape from a copy."
    )


def test_the_blocks_before_the_damage_are_read(path: Path):
    change(path, "UPDATE blocks SET chain = zeroblob(16) WHERE id = 2")
    tape = TapeFile(path)
    reading = tape.read()
    assert [next(reading) for _ in BLOCKS[0]] == BLOCKS[0]
    with pytest.raises(TapeError, match="Block 2 "):
        next(reading)
    tape.close()


def test_a_tape_cut_off_at_its_end_is_whole_and_goes_on(path: Path):
    change(path, "DELETE FROM blocks WHERE id = 3")
    write(path, [BLOCKS[0]])
    assert entries(path) == BLOCKS[0] + BLOCKS[1] + BLOCKS[0]


def not_compressed(line: bytes) -> bytes:
    return line


def not_lines(line: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(line)


def not_an_entry(line: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(msgspec.msgpack.encode([line]))


@pytest.mark.parametrize("wrong", [not_compressed, not_lines, not_an_entry])
def test_a_block_in_the_chain_that_cannot_be_read_is_named(path: Path, wrong: Callable[[bytes], bytes]):
    last = sqlite3.connect(path).execute("SELECT chain FROM blocks WHERE id = 3").fetchone()[0]
    content = wrong(b"nonsense")
    chain = hashlib.blake2b(last + content, digest_size=16).digest()
    change(path, "INSERT INTO blocks (content, chain) VALUES (?, ?)", content, chain)
    error = refusal(path)
    assert error.what.startswith("Block 4 of the tape cannot be read: ")
    assert error.so_what == "The run cannot be replayed past this block."
    assert error.now_what == "Trust the blocks before 4 only, or restore the tape from a copy."


def test_a_database_without_blocks_is_no_tape():
    with pytest.raises(TapeError, match="Block 1 of the tape cannot be read: no such table: blocks"):
        list(tape_file.read(sqlite3.connect(":memory:")))


def test_pages_overwritten_on_disk_are_noticed(path: Path):
    long_names = [Entry(n, hashlib.sha256(bytes([n])).hexdigest(), Milestone("end")) for n in range(200)]
    write(path, [long_names] * 8)
    content = bytearray(path.read_bytes())
    half = len(content) // 2
    content[half : half + 8192] = b"\xff" * 8192
    path.write_bytes(content)
    assert refusal(path).what.startswith("Block ")


def test_a_file_that_is_no_tape_is_refused_and_left_alone(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be looked at\n" * 50)
    before = path.read_bytes()
    error = refusal(path)
    assert error.what == f"The tape {path} cannot be opened: file is not a database."
    assert error.so_what == "What happens from here on could not be written down."
    assert error.now_what == "Name a tape, or a new file in a folder that can be written."
    assert path.read_bytes() == before


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path):
    path = tmp_path / "missing" / "tape.db"
    assert refusal(path).what == f"The tape {path} cannot be opened: unable to open database file."
