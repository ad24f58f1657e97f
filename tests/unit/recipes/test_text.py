from functools import partial

import pytest

from atoll.errors import RecipeError
from atoll.recipes import text
from atoll.recipes.text import Document, folder, split, stdlib


def documents(count, size=10):
    return [Document(f"file{n}", partial(bytes, f"{n:0{size}d}".encode())) for n in range(count)]


def test_the_split_follows_the_name_alone():
    few, many = split(documents(200), 10**6, 10**6), split(documents(400), 10**6, 10**6)
    assert set(few.heldout) <= set(many.heldout)
    assert set(few.train) <= set(many.train)
    assert len({*many.train, *many.heldout}) == len(many.train) + len(many.heldout) == 400
    assert 8 <= len(many.heldout) <= 35  # one in twenty is 20


def test_the_order_of_the_documents_does_not_matter():
    assert split(documents(100), 500, 40) == split(documents(100)[::-1], 500, 40)


def test_only_what_is_needed_is_read():
    read = []

    def fetch(name):
        read.append(name)
        return b"x" * 10

    pile = [Document(f"file{n}", partial(fetch, f"file{n}")) for n in range(400)]
    texts = split(pile, 55, 25)
    assert [len(content) for content in texts.train] == [10] * 5 + [5]
    assert [len(content) for content in texts.heldout] == [10, 10, 5]
    assert len(read) == 9


def test_no_single_file_decides_the_heldout_score():
    texts = split(documents(100, size=50_000), 10**9, 40_000)
    assert [len(content) for content in texts.heldout] == [16_384, 16_384, 40_000 - 2 * 16_384]


@pytest.mark.parametrize("name", ["file13", "file14"])  # the hash puts one on each side
def test_a_single_document_gives_its_end_to_the_heldout_side(name):
    texts = split([Document(name, partial(bytes, bytes(range(200))))], 10**6, 10**6)
    assert texts.train == [bytes(range(190))]
    assert texts.heldout == [bytes(range(190, 200))]


def test_the_standard_library_comes_without_tests_and_generated_tables():
    names = {document.name for document in stdlib()}
    assert {"ast.py", "json/decoder.py", "asyncio/tasks.py"} <= names
    assert not [n for n in names if {"test", "tests", "site-packages", "encodings"} & set(n.split("/"))]
    assert not [n for n in names if "\\" in n or not n.endswith(".py")]


def test_both_sides_of_the_standard_library_are_as_large_as_asked():
    texts = text.read(None, 300_000, 30_000)
    assert sum(map(len, texts.train)) == 300_000
    assert sum(map(len, texts.heldout)) == 30_000


def test_a_folder_gives_its_text_files_and_nothing_else(tmp_path):
    (tmp_path / "a.txt").write_text("alpha")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "image.bin").write_bytes(b"\x89\0\0")
    (tmp_path / ".hidden").write_text("secret")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("secret")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.md").write_text("beta")
    assert {document.name: document.read() for document in folder(str(tmp_path))} == {
        "a.txt": b"alpha",
        "sub/b.md": b"beta",
    }


def test_a_folder_is_read_whole(tmp_path):
    for number in range(60):
        (tmp_path / f"{number}.txt").write_bytes(b"x" * 1000)
    texts = text.read(str(tmp_path), 10, 10**6)
    assert sum(map(len, texts.train + texts.heldout)) == 60_000


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"nowhere does not exist\.\n.*\n.*folder with text files"):
        text.resolve(str(tmp_path / "nowhere"))


def test_a_file_in_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("alpha")
    with pytest.raises(RecipeError, match="is not a folder"):
        text.resolve(str(tmp_path / "a.txt"))


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="holds no text"):
        text.resolve(str(tmp_path))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "broken.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(RecipeError, match=r"broken\.txt cannot be read: No such file"):
        folder(str(tmp_path))


def test_a_relative_folder_is_kept_as_a_path_that_every_process_finds(tmp_path, monkeypatch):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("alpha")
    monkeypatch.chdir(tmp_path)
    assert text.resolve("texts") == str((tmp_path / "texts").resolve())


def test_a_text_is_described_in_a_few_words():
    assert "4 MB of Python 3." in text.describe(None, 4_000_000)
    assert text.describe("/data/books", 1) == "the text in /data/books"
    assert "hf:owner/books" in text.describe("hf:owner/books", 1)
