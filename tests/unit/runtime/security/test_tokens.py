"""Three tokens, what each may do, and where one is taken from."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.errors import JoinError, StoreError
from atoll.runtime.security.tokens import Tokens, read_token

TOKENS = Tokens(join="j" * 32, read="r" * 32, admin="a" * 32)
SECRET = "tell-nobody-5f2a"


def test_a_restart_finds_the_same_tokens(tmp_path: Path):
    first = Tokens.load_or_make(tmp_path)
    assert Tokens.load_or_make(tmp_path) == first
    assert len({first.join, first.read, first.admin}) == 3
    assert min(len(token) for token in (first.join, first.read, first.admin)) >= 32


def test_two_runs_have_different_tokens(tmp_path: Path):
    assert Tokens.load_or_make(tmp_path / "a").join != Tokens.load_or_make(tmp_path / "b").join


@pytest.mark.parametrize(
    ("role", "sufficient"),
    [
        ("learner", {"join", "admin"}),
        ("reader", {"read", "join", "admin"}),
        ("admin", {"admin"}),
        ("king", set()),
        ("", set()),
    ],
)
def test_a_role_needs_its_token_or_a_stronger_one(role: str, sufficient: set[str]):
    allowed = {kind for kind in ("join", "read", "admin") if TOKENS.role_allows(role, getattr(TOKENS, kind))}
    assert allowed == sufficient


@pytest.mark.parametrize("role", ["learner", "reader", "admin"])
@pytest.mark.parametrize("token", ["", "j" * 31, "j" * 33, "A" * 32, "ü", "\udcff", "j" * 32 + "\n"])
def test_anything_else_is_no_token(role: str, token: str):
    assert not TOKENS.role_allows(role, token)


@pytest.mark.parametrize("kind", ["join", "read", "admin"])
@pytest.mark.parametrize("content", [None, b"", b" \n", b"two words", b"\xff\xfe", b"x" * 257])
def test_a_damaged_token_file_is_refused_by_name(tmp_path: Path, kind: str, content: bytes | None):
    Tokens.load_or_make(tmp_path)
    path = tmp_path / "tokens" / f"{kind}.token"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        Tokens.load_or_make(tmp_path)
    assert str(path) in caught.value.what


def test_an_operator_may_set_a_token_by_hand(tmp_path: Path):
    Tokens.load_or_make(tmp_path)
    (tmp_path / "tokens" / "read.token").write_text("  easy-to-say \n")
    assert Tokens.load_or_make(tmp_path).read == "easy-to-say"


def test_tokens_that_cannot_be_written_are_said_plainly(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        Tokens.load_or_make(tmp_path / "file")


def test_what_is_nearer_to_the_user_wins(tmp_path: Path):
    join = Tokens.load_or_make(tmp_path).join
    file = tmp_path / "token.txt"
    file.write_text(" from-file\n")
    environment = {"ATOLL_TOKEN": " from-variable ", "ATOLL_TOKEN_FILE": str(file)}
    assert read_token(" explicit\n", environment, tmp_path) == "explicit"
    assert read_token(None, environment, tmp_path) == "from-variable"
    del environment["ATOLL_TOKEN"]
    assert read_token(None, environment, tmp_path) == "from-file"
    del environment["ATOLL_TOKEN_FILE"]
    assert read_token(None, environment, tmp_path) == join
    assert read_token(None, environment, None) is None


def test_a_blank_value_counts_as_none(tmp_path: Path):
    blank = {"ATOLL_TOKEN": " ", "ATOLL_TOKEN_FILE": ""}
    assert read_token("", blank, None) is None
    assert read_token("\n", {"ATOLL_TOKEN": "variable"}, None) == "variable"


def test_a_run_directory_without_tokens_has_none(tmp_path: Path):
    assert read_token(None, {}, tmp_path) is None


def test_a_token_file_is_found_under_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "token").write_text("at-home")
    assert read_token(None, {"ATOLL_TOKEN_FILE": "~/token"}, None) == "at-home"


def test_a_named_file_that_cannot_be_read_is_an_error_and_not_skipped(tmp_path: Path):
    Tokens.load_or_make(tmp_path)
    for path in (tmp_path / "missing", tmp_path):  # a folder cannot be read as a file, not even by root
        with pytest.raises(JoinError, match="cannot be read") as caught:
            read_token(None, {"ATOLL_TOKEN_FILE": str(path)}, tmp_path)
        assert str(path) in caught.value.what


def test_a_run_directory_whose_join_token_is_gone_is_an_error(tmp_path: Path):
    Tokens.load_or_make(tmp_path)
    (tmp_path / "tokens" / "join.token").unlink()
    with pytest.raises(JoinError, match=r"join\.token.*cannot be read"):
        read_token(None, {}, tmp_path)


@pytest.mark.parametrize(
    "content", [f"{SECRET} {SECRET}", f"-----BEGIN KEY-----\n{SECRET}\n", SECRET + "ü", SECRET * 100, ""]
)
def test_what_is_no_token_is_refused_and_not_shown(tmp_path: Path, content: str):
    file = tmp_path / "wrong"
    file.write_text(content, encoding="utf-8")
    sources: list[tuple[str | None, dict[str, str]]] = [(None, {"ATOLL_TOKEN_FILE": str(file)})]
    if content:
        sources += [(content, {}), (None, {"ATOLL_TOKEN": content})]
    for explicit, environment in sources:
        with pytest.raises(JoinError, match="no token") as caught:
            read_token(explicit, environment, None)
        assert SECRET not in str(caught.value)
        assert caught.value.__context__ is None, "a cause could carry the bytes"
