"""The commands as a person or a program meets them, as far as no training is needed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from atoll import RunConfig, Syncer
from atoll.cli.main import run

CONFIG = RunConfig.from_tables({"sync": {"num_fragments": 2, "interval_steps": 4}})
NOBODY = "atoll://127.0.0.1:1/reef?key=sha256-" + "0" * 64


def test_listing_the_commands_needs_no_torch():
    code = "import sys, atoll.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_package_is_a_command_too():
    answer = subprocess.run([sys.executable, "-m", "atoll", "--version"], capture_output=True, check=True)
    assert answer.stdout.startswith(b"atoll ")


@pytest.mark.parametrize("command", ["train", "syncer", "join", "status", "export"])
def test_every_command_explains_itself(command, capsys):
    assert run([command, "--help"]) == 0
    page = capsys.readouterr().out
    assert "Usage: atoll" in page
    assert "atoll " in page.replace("Usage: atoll", "")  # an example


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "gema"], "Did you mean gemma?"),
        (["train", "--size", "huge"], "no size 'huge'"),
        (["train", "--kill", "learner-9@40%"], "no learner-9"),
        (["train", "--speeds", "1,2"], "--speeds"),
        (["train", "--algorithm", "data-parallel"], "data-parallel"),
        (["train", "--set", "sync.quorum=2"], "sync.quorum is not a setting"),
        (["train", "vit-digits", "--data", "."], "made for images"),
        (["join", "nonsense"], "no scheme"),
        (["join", NOBODY, "gema"], "Did you mean gemma?"),
        (["join", NOBODY, "--speed", "3"], "--speed '3'"),
        (["join", NOBODY, "--token-file", "/nowhere/token"], "cannot be read"),
        (["status", NOBODY], "Connection refused"),
        (["status", "/nowhere"], "no run in"),
        (["export", "/nowhere"], "no run in"),
        (["syncer", "--listen", "everywhere"], "--listen"),
        (["syncer", "--issue", "learner-1"], "for which run"),
        (["syncer", "--insecure", "--mtls"], "security.mtls is true"),
        (["train", "--run-dir", "/dev/null/foo"], "/dev/null/foo cannot be used"),
        (["syncer", "--run-dir", "/dev/null/foo"], "/dev/null/foo cannot be used"),
        (
            ["syncer", "--run-dir", "/dev/null/foo", "--issue", "learner-1"],
            "cannot be written to /dev/null/foo",
        ),
    ],
)
def test_a_mistake_gets_a_sentence_and_exit_code_2(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ATOLL_TOKEN", raising=False)
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) >= 3  # what, so what, now what
    assert not list(tmp_path.iterdir())


def test_a_run_directory_that_exists_is_not_trained_in(tmp_path, capsys):
    (tmp_path / "run.db").touch()
    assert run(["train", "--run-dir", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run.db"]


def test_status_shows_a_page_or_one_json_object(tmp_path, capsys):
    with Syncer(CONFIG, tmp_path / "reef") as syncer:
        assert run(["status", str(syncer.run_dir)]) == 0
        assert "no learner has joined yet" in capsys.readouterr().out
        assert run(["status", str(syncer.run_dir), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
    assert {"t", "merges", "alive", "participating", "merged", "goodput", "learner_details"} <= answer.keys()
    assert (answer["live"], answer["t"], answer["merges"]) == (True, 0, 0)


def test_status_of_a_url_takes_its_token_from_a_file(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("ATOLL_TOKEN", raising=False)
    with Syncer(CONFIG, tmp_path / "reef") as syncer:
        token = tmp_path / "reef" / "tokens" / "read.token"
        assert run(["status", syncer.url, "--token-file", str(token), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["run"] == "reef"
        assert run(["status", syncer.url]) == 2
        assert "token is wrong" in capsys.readouterr().err


def test_status_says_that_what_it_shows_is_old(tmp_path, capsys):
    with Syncer(CONFIG, tmp_path / "reef"):
        pass
    assert run(["status", str(tmp_path / "reef")]) == 0
    assert "does not answer" in capsys.readouterr().out
    assert run(["status", str(tmp_path / "reef"), "--watch", "--json"]) == 0  # nobody to wait for
    assert json.loads(capsys.readouterr().out)["live"] is False


def test_export_of_a_run_without_weights_says_so(tmp_path, capsys):
    with Syncer(CONFIG, tmp_path / "reef"):
        pass
    assert run(["export", str(tmp_path / "reef")]) == 2
    assert "no weights yet" in capsys.readouterr().err


def test_a_certificate_is_issued_for_one_learner_and_is_private(tmp_path, capsys):
    assert run(["syncer", "--run-dir", str(tmp_path / "reef"), "--issue", "learner-1"]) == 0
    path = tmp_path / "reef" / "certificates" / "learner-1.pem"
    assert str(path) in capsys.readouterr().out
    assert path.stat().st_mode & 0o077 == 0
    assert b"PRIVATE KEY" in path.read_bytes()
    assert run(["syncer", "--run-dir", str(tmp_path / "reef"), "--issue", "Not A Name"]) == 2
