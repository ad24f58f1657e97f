"""The fork server: what happens if it cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from atoll.runtime.forking import end_of, how_ended

PROGRAM = """
from atoll.errors import StoreError
from atoll.runtime.forking import prepare, warm_up

if __name__ == "__main__":
    prepare(["dies_when_imported"])
    try:
        warm_up()
    except StoreError as error:
        print(error.what)
"""


def test_a_fork_server_that_dies_while_importing_is_told_in_a_sentence(tmp_path: Path):
    (tmp_path / "dies_when_imported.py").write_text("import os\nos._exit(3)\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "The process that imports torch ended before it was ready.\n"
    assert "Traceback" not in done.stderr


def test_an_end_is_told_in_words():
    assert how_ended(-9) == "ended by SIGKILL"
    assert how_ended(2) == "exit code 2"


def test_the_end_of_a_log_is_its_last_lines(tmp_path: Path):
    assert end_of(tmp_path / "none.log") == ""
    (tmp_path / "ada.log").write_text("\n".join(f"line {number}" for number in range(900)) + "\n\n")
    assert end_of(tmp_path / "ada.log") == "line 897\nline 898\nline 899"
