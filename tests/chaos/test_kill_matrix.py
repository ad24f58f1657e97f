"""Kill -9 at every named point of the protocol: nothing is lost, nothing counts twice, nobody waits.

One run of real processes per point (`kill_run`), several at a time; many times each by command:
python -m tests.chaos.kill_matrix --times 5
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.records import RoundRecord
from atoll.runtime.failpoints import POINTS
from atoll.runtime.store import read_run
from atoll.runtime.tape_file import TapeFile
from atoll.tape.entries import Entry
from tests.chaos.kill_checks import doubled, problems_of
from tests.chaos.kill_matrix import lines_of, runs_at
from tests.chaos.kill_run import Row

SAMPLE = "S9"
"""The run that is damaged on purpose, to see that damage is found."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("matrix")


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, folder: Path) -> Iterator[dict[str, Future[Row]]]:
    """All runs that this session asks for, begun together."""
    chosen = {SAMPLE}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            chosen.add(str(item.callspec.params.get("point")))
    with runs_at([point for point in POINTS if point in chosen], folder) as begun:
        yield dict(begun)


@pytest.mark.parametrize("point", POINTS)
def test_whoever_is_killed_at_a_point_comes_back_and_the_run_has_lost_nothing(point, runs):
    row = runs[point].result()
    print(*lines_of(row), sep="\n")
    assert row.problems == []
    assert row.how_killed == "kill -9"
    assert row.num_merges >= 3
    assert row.num_checks > 500


@pytest.fixture
def copy(runs: dict[str, Future[Row]], folder: Path, tmp_path: Path) -> Path:
    """A whole run's directory, to be damaged."""
    assert runs[SAMPLE].result().ok
    return Path(shutil.copytree(folder / "0" / SAMPLE.lower(), tmp_path / "copy"))


def test_a_version_that_was_sent_and_is_not_in_the_ledger_is_found(copy):
    publish = msg.Publish(1, 1, 0, 1, 999, "a" * 32, 998, "b" * 32, "merged", "", 0, 4)
    tape = TapeFile(copy / "learners" / "ada" / "tape-ffffffffffff.db")
    tape.append([Entry(1, "ada#ffffffffffff", ev.Received(1, publish))])
    tape.close()
    assert "ada was sent version 999 of fragment 0, now lost" in problems_of(copy, None)[1]


def test_a_step_that_was_held_is_found(copy):
    tape = TapeFile(copy / "learners" / "bob" / "tape-ffffffffffff.db")
    tape.append([Entry(1, "bob#ffffffffffff", ev.Stepped(1, 8, 1000, 5000))])
    tape.close()
    assert "bob was held for 5000 ns at a step" in problems_of(copy, None)[1]


def test_tokens_that_were_merged_twice_are_found(copy):
    merges = [record for record in read_run(copy).records if isinstance(record, RoundRecord)]
    assert doubled(merges) == []
    part = merges[0].contributors[0]
    assert (
        f"{part.name}, life {part.incarnation}, fragment {merges[0].fragment}: "
        f"tokens {part.start} to {part.end} were merged twice"
    ) in doubled([*merges, merges[0]])


def test_a_ledger_whose_tables_say_something_else_than_its_records_is_found(copy):
    with sqlite3.connect(copy / "run.db") as db:
        db.execute("DELETE FROM contributions WHERE record_id = (SELECT max(record_id) FROM contributions)")
    assert any("contributions, the records have" in problem for problem in problems_of(copy, None)[1])


def test_a_lost_delta_is_found(copy):
    for path in (copy / "deltas").iterdir():
        path.unlink()
    for path in (copy / "snapshots").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    assert any("cannot be rebuilt" in problem for problem in problems_of(copy, None)[1])


def test_a_victim_that_left_one_tape_and_a_run_that_did_not_end_are_found(copy):
    with sqlite3.connect(copy / "run.db") as db:
        db.execute("DELETE FROM records WHERE kind = 'finish'")
    problems = problems_of(copy, "cid")[1]
    assert "cid has left one tape, although it lived twice" in problems
    assert "the run was not finished" in problems
