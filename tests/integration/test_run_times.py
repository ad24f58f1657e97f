"""Times measured in a real run: a learner is killed and comes back, then the syncer."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

import atoll
from atoll.core.records import RoundRecord
from atoll.observe.run_times import RunTimes, read_run_times
from atoll.runtime.store import read_run
from tests.integration.conditions import wait_until
from tests.integration.processes import Child
from tests.integration.programs import config, crash


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose syncer was ended as by a kill while one learner trained, and came back."""
    run_dir = tmp_path_factory.mktemp("times") / "reef"
    home = str(run_dir / "learners" / "ada")
    syncer = atoll.Syncer(config(), run_dir).start()
    first = Child("learner_with_moments", syncer.url, syncer.token, home)
    wait_until(lambda: merges_of(run_dir, 1) > 2)
    first.kill(signal.SIGKILL)
    second = Child("learner_with_moments", syncer.url, syncer.token, home)
    wait_until(lambda: has_returned(read_run_times(run_dir)))  # read while the run goes on
    crash(syncer)
    with atoll.Syncer(config(), run_dir, port=syncer.port) as again:
        wait_until(lambda: None not in (again.status()["goodput"], again.status()["participation"]))
        merges = merges_of(run_dir, 2)
        wait_until(lambda: merges_of(run_dir, 2) > merges)
        second.kill(signal.SIGKILL)
    return run_dir


def has_returned(times: RunTimes) -> bool:
    return None not in (times.restart_s, times.rejoin_s)


def merges_of(run_dir: Path, incarnation: int) -> int:
    """Merges that have an offer of this incarnation in them."""
    rounds = (record for record in read_run(run_dir).records if isinstance(record, RoundRecord))
    return sum(incarnation in [part.incarnation for part in record.contributors] for record in rounds)


def test_every_kind_of_time_is_found_once_for_each_time_it_happened(run_dir):
    times = read_run_times(run_dir)
    assert (times.run, times.learners) == ("reef", 1)
    found = {"step_s": times.step_s, "restart_s": times.restart_s, "rejoin_s": times.rejoin_s}
    found |= {"syncer_restart_s": times.syncer_restart_s}
    assert {name: measured and measured.count for name, measured in found.items()} == dict.fromkeys(found, 1)
    assert times.merge_s is not None
    assert times.merge_s.count > 3
    assert times.goodput is not None
    assert times.participation is not None


def test_the_parts_fit_into_the_whole(run_dir):
    times = read_run_times(run_dir)
    for part in (times.step_s, times.restart_s, times.rejoin_s, times.merge_s, times.syncer_restart_s):
        assert part is not None
        assert 0 < part.min_s <= part.median_s <= part.max_s < times.wall_s
        assert part.min_s <= part.mean_s <= part.max_s


def test_without_the_learners_tapes_and_status_only_they_are_missed(run_dir, tmp_path):
    bare = tmp_path / "reef"
    shutil.copytree(run_dir, bare)
    shutil.rmtree(bare / "learners")
    (bare / "status.json").write_text("{ torn")
    times, whole = read_run_times(bare), read_run_times(run_dir)
    assert (times.goodput, times.participation) == (None, None)
    assert facts(times) == facts(whole)
    for rough, exact in (
        (times.restart_s, whole.restart_s),
        (times.syncer_restart_s, whole.syncer_restart_s),
    ):
        assert rough is not None
        assert exact is not None
        assert (rough.count, exact.count) == (1, 1)
        assert rough.mean_s >= exact.mean_s, "a later sign of life makes it shorter"


def facts(times: RunTimes) -> tuple[object, ...]:
    """What only the syncer's tape tells."""
    return times.run, times.learners, times.wall_s, times.step_s, times.rejoin_s, times.merge_s


def test_reading_changes_no_file_and_leaves_none_behind(run_dir, tmp_path):
    copy = tmp_path / "reef"
    shutil.copytree(run_dir, copy)
    before = contents(copy)
    read_run_times(copy)
    assert contents(copy) == before


def contents(folder: Path) -> dict[Path, bytes]:
    """Of all files but those in which SQLite notes who reads."""
    files = (
        path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    )
    return {path: path.read_bytes() for path in files}


def test_a_damaged_learners_tape_costs_no_more_than_a_missing_one(run_dir, tmp_path):
    copy = tmp_path / "reef"
    shutil.copytree(run_dir, copy)
    for path in (copy / "learners").glob("*/tape-*.db"):
        path.write_bytes(b"no tape")
    assert facts(read_run_times(copy)) == facts(read_run_times(run_dir))
