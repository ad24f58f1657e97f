"""Whoever asks a syncer gets its status, or a sentence that says why not; a directory remembers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atoll import RunConfig, Syncer
from atoll.errors import JoinError, StoreError
from atoll.runtime.reader import StatusClient, is_url, read_status

CONFIG = RunConfig.from_tables({"sync": {"num_fragments": 2, "interval_steps": 4}})


@pytest.fixture
def syncer(tmp_path: Path) -> Iterator[Syncer]:
    with Syncer(CONFIG, tmp_path / "reef") as syncer:
        yield syncer


@pytest.fixture
def silent() -> Iterator[int]:
    """A port where somebody answers the phone and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_client_asks_as_often_as_it_likes(syncer):
    with StatusClient(syncer.url, syncer.tokens.read) as client:
        answers = [client.status() for _ in range(3)]
    assert [answer["run"] for answer in answers] == ["reef"] * 3
    assert answers[0]["state"] == "waiting"


def test_a_client_that_hung_up_connects_again(syncer):
    client = StatusClient(syncer.url, syncer.tokens.read)
    client.status()
    client.close()
    assert client.status()["run"] == "reef"
    client.close()


def test_a_wrong_token_is_refused_with_a_sentence(syncer):
    with StatusClient(syncer.url, "guess") as client, pytest.raises(JoinError, match="token is wrong"):
        client.status()


def test_only_an_admin_ends_a_run(syncer):
    with StatusClient(syncer.url, syncer.tokens.read) as client:
        assert client.status()["run"] == "reef"
        with pytest.raises(JoinError, match="role admin"):
            client.finish("enough")
        assert client.status()["run"] == "reef"
    with StatusClient(syncer.url, syncer.tokens.admin) as client:
        assert "nothing to finish" in client.finish("enough")  # nobody has joined yet
        assert client.status()["run"] == "reef"


def test_a_token_is_not_shown_to_a_syncer_with_another_key(tmp_path, syncer):
    with Syncer(CONFIG, tmp_path / "other" / "reef") as other:
        key = syncer.url.partition("?")[2]
        forged = f"{other.url.partition('?')[0]}?{key}"
        with (
            StatusClient(forged, syncer.tokens.read) as client,
            pytest.raises(JoinError, match="no token was"),
        ):
            client.status()


def test_the_wrong_run_is_named(syncer):
    with (
        StatusClient(syncer.url.replace("/reef", "/lagoon"), syncer.tokens.read) as client,
        pytest.raises(JoinError, match="serves run 'reef', not 'lagoon'"),
    ):
        client.status()


def test_nobody_at_the_address_is_said(silent):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with (
        StatusClient(f"atoll+plain://127.0.0.1:{port}/reef", None) as client,
        pytest.raises(JoinError, match="Connection refused"),
    ):
        client.status()


@pytest.mark.parametrize("scheme", ["atoll+plain://127.0.0.1:{}/reef", "atoll://127.0.0.1:{}/reef?key={}"])
def test_somebody_who_never_answers_is_not_waited_for_longer_than_asked(silent, scheme):
    url = scheme.format(silent, "sha256-" + "0" * 64)
    with (
        StatusClient(url, None, timeout_s=0.05) as client,
        pytest.raises(JoinError, match="nothing came in time"),
    ):
        client.status()


def test_a_run_inside_another_process_cannot_be_asked():
    with pytest.raises(JoinError, match="local://"):
        StatusClient("local://", None)


def test_an_insecure_run_tells_everybody(tmp_path):
    config = RunConfig.from_tables({"security": {"tls": False}})
    with Syncer(config, tmp_path / "reef") as syncer:
        assert read_status(syncer.url)["live"] is True


def test_a_url_takes_its_token_from_the_environment(syncer, monkeypatch):
    monkeypatch.setenv("ATOLL_TOKEN", syncer.tokens.read)
    assert read_status(syncer.url)["live"] is True


def test_a_directory_needs_no_token(syncer):
    found = read_status(syncer.run_dir)
    assert (found["run"], found["live"]) == ("reef", True)


def test_a_directory_with_mtls_needs_no_certificate(tmp_path):
    config = RunConfig.from_tables({"security": {"mtls": True}})
    with Syncer(config, tmp_path / "reef") as syncer:
        assert read_status(syncer.run_dir)["live"] is True
        with (
            StatusClient(syncer.url, syncer.tokens.read) as client,
            pytest.raises(JoinError, match="certificate"),
        ):
            client.status()


def test_when_the_syncer_is_gone_its_last_status_is_shown_with_its_age(syncer):
    run_dir = syncer.run_dir
    syncer.stop()
    past = (run_dir / "status.json").stat().st_mtime - 100
    os.utime(run_dir / "status.json", (past, past))
    found = read_status(run_dir)
    assert (found["run"], found["live"]) == ("reef", False)
    assert found["age_s"] >= 100


def test_a_syncer_that_left_nothing_behind_is_an_error(syncer):
    run_dir = syncer.run_dir
    syncer.stop()
    (run_dir / "status.json").unlink()
    with pytest.raises(StoreError, match="left no status"):
        read_status(run_dir)


def test_a_folder_without_a_run_is_said_to_be_one(tmp_path):
    with pytest.raises(StoreError, match="no run in"):
        read_status(tmp_path)


def test_urls_and_folders_are_told_apart():
    assert is_url("atoll://host:7700/run")
    assert not is_url("runs/gemma-1")


def test_reading_a_status_needs_no_torch():
    code = "import sys, atoll.runtime.reader; print(json.dumps('torch' in sys.modules))"
    answer = subprocess.run([sys.executable, "-c", f"import json; {code}"], capture_output=True, check=True)
    assert json.loads(answer.stdout) is False
