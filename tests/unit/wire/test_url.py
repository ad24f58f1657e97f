from __future__ import annotations

import pytest

from atoll.errors import JoinError
from atoll.wire.url import LocalURL, RunURL, parse

HEX = "0123456789abcdef" * 4
KEY = f"?key=sha256-{HEX}"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        (f"atoll://syncer.example:7701/my-run{KEY}", RunURL("syncer.example", 7701, "my-run", HEX)),
        (f"atoll://10.0.0.7/my-run{KEY}", RunURL("10.0.0.7", 7700, "my-run", HEX)),
        (f"atoll://[::1]:7700/my-run{KEY}", RunURL("::1", 7700, "my-run", HEX)),
        (f"atoll://[fe80::1%eth0]/r{KEY}", RunURL("fe80::1%eth0", 7700, "r", HEX)),
        ("atoll+plain://localhost:1/a.b_c-9", RunURL("localhost", 1, "a.b_c-9", "", plain=True)),
        ("atoll+plain://localhost/r", RunURL("localhost", 7700, "r", "", plain=True)),
        (
            f"  atoll://host:65535/r{KEY.upper().replace('KEY=SHA', 'key=sha')}\n",
            RunURL("host", 65535, "r", HEX),
        ),
        ("local://", LocalURL()),
    ],
)
def test_a_url_says_where_the_run_is_and_prints_back(text: str, url: RunURL | LocalURL):
    assert parse(text) == url
    assert parse(str(url)) == url


def test_a_printed_url_is_the_one_that_users_copy():
    assert str(RunURL("::1", 7700, "my-run", HEX)) == f"atoll://[::1]:7700/my-run{KEY}"
    assert str(RunURL("host", 9, "r", "", plain=True)) == "atoll+plain://host:9/r"
    assert str(LocalURL()) == "local://"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "has no scheme"),
        ("syncer.example:7700/my-run", "has no scheme"),
        ("https://syncer.example/my-run", "does not speak 'https'"),
        ("local://my-run", "does not speak 'local'"),
        (f"atoll:///my-run{KEY}", "no host"),
        (f"atoll://::1/my-run{KEY}", "no host"),
        (f"atoll://[::1/my-run{KEY}", "no host"),
        (f"atoll://[::1]7700/my-run{KEY}", "no host"),
        (f"atoll://ho st/my-run{KEY}", "no host"),
        (f"atoll://user@host/my-run{KEY}", "no host"),
        (f"atoll://host:/my-run{KEY}", "the port ''"),
        (f"atoll://host:http/my-run{KEY}", "the port 'http'"),
        (f"atoll://host:0/my-run{KEY}", "the port '0'"),
        (f"atoll://host:65536/my-run{KEY}", "the port '65536'"),
        (f"atoll://host:-1/my-run{KEY}", "the port '-1'"),
        (f"atoll://host:٧/my-run{KEY}", "the port '٧'"),
        (f"atoll://host:7700{KEY}", "names no run"),
        (f"atoll://host:7700/{KEY}", "names no run"),
        (f"atoll://host/My-Run{KEY}", "'My-Run' cannot be the name of a run"),
        (f"atoll://host/a/b{KEY}", "'a/b' cannot be the name"),
        (f"atoll://host/-a{KEY}", "'-a' cannot be the name"),
        (f"atoll://host/{'a' * 65}{KEY}", "cannot be the name"),
        ("atoll://host/my-run", "has no key"),
        ("atoll://host/my-run?", "has no key"),
        ("atoll://host/my-run?key=", "64 hex digits"),
        (f"atoll://host/my-run?key={HEX}", "64 hex digits"),
        (f"atoll://host/my-run?key=sha256-{HEX[1:]}", "64 hex digits"),
        (f"atoll://host/my-run?key=sha256-{HEX[1:]}g", "64 hex digits"),
        (f"atoll://host/my-run?key=md5-{HEX}", "64 hex digits"),
        (f"atoll://host/my-run{KEY}&more=1", "64 hex digits"),
        (f"atoll://host/my-run?fingerprint=sha256-{HEX}", "64 hex digits"),
        (f"atoll+plain://host/my-run{KEY}", "asks for no TLS and has a key"),
    ],
)
def test_a_url_that_cannot_work_is_refused_with_its_sentence(text: str, what: str):
    with pytest.raises(JoinError) as caught:
        parse(text)
    assert what in caught.value.what
    assert caught.value.so_what
    assert caught.value.now_what


def test_without_a_key_the_reason_is_where_the_token_would_go():
    with pytest.raises(JoinError, match="The token would go to whoever answers"):
        parse("atoll://host/my-run")


@pytest.mark.parametrize(
    "text",
    [
        f"atoll://me:hush@host/my-run{KEY}",
        "atoll://hush@host:7700/my-run",
        "atoll://host/my-run?token=hush",
        "atoll://host/my-run?hush",
        "atoll://host:x/my-run?token=hush",
        "atoll+plain://host/my-run?token=hush",
        "https://me:hush@host",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(text: str):
    with pytest.raises(JoinError) as caught:
        parse(text)
    assert "hush" not in str(caught.value)
