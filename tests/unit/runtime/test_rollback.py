"""Back to an earlier tick: what is given up is what came after, and the run goes on from there."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

import atoll
from atoll.core.records import EpochRecord, SeedRecord, StoredFragment, fold
from atoll.errors import StoreError
from atoll.runtime.past import open_past
from atoll.runtime.replay import replay_run
from atoll.runtime.rollback import WayBack, plan_way_back
from atoll.runtime.run_diff import diff_runs
from atoll.runtime.store import read_run
from atoll.runtime.store.files import Files
from tests.unit.runtime.small_runs import NAMES, Fleet, finished_run, flip, pruned_run, rounds, settings


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("finished") / "reef", settings())


@pytest.fixture(scope="module")
def middle(finished: Path) -> int:
    """Of the second version of fragment 0: two more follow, at later ticks, for they take new steps."""
    return tick_of(finished, 2)


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "reef")
    return tmp_path / "reef"


def tick_of(run_dir: Path, version: int) -> int:
    return next(one.t for one in rounds(run_dir) if (one.fragment, one.version) == (0, version))


def go_back(run_dir: Path, t: int) -> None:
    with WayBack(run_dir, t) as way:
        way.take()


# Planning


def test_each_fragment_goes_to_its_newest_version_of_that_tick(finished, middle):
    plan = plan_way_back(finished, middle)
    records = rounds(finished)
    for back in plan.rollbacks:
        of_it = [record for record in records if record.fragment == back.fragment]
        kept = [record for record in of_it if record.t <= middle]
        assert (back.from_version, back.to_version) == (len(of_it), len(kept))
        assert back.digest == (kept[-1].digest if kept else open_past(finished).digest(back.fragment, 0))
        assert back.voided == tuple(part for record in of_it[len(kept) :] for part in record.contributors)
    assert plan.num_commits == sum(record.t > middle for record in records) > 0
    assert plan.was_finished


def test_the_tokens_that_are_given_up_are_counted_by_learner(finished, middle):
    lost = [part for record in rounds(finished) if record.t > middle for part in record.contributors]
    wanted = {name: sum(part.end - part.start for part in lost if part.name == name) for name in NAMES}
    assert plan_way_back(finished, middle).tokens == wanted


def test_a_plan_changes_nothing(copy, middle):
    before = read_run(copy).records
    plan_way_back(copy, middle)
    assert read_run(copy).records == before


@pytest.mark.parametrize("t", [-1, 10_000])
def test_only_what_lies_before_now_is_a_way_back(finished, t):
    with pytest.raises(StoreError, match="does not lie before that"):
        plan_way_back(finished, t)


def test_where_there_is_no_run_none_is_made(tmp_path):
    with pytest.raises(StoreError, match="There is no run in"):
        WayBack(tmp_path / "nowhere", 3)
    assert not (tmp_path / "nowhere").exists()


def test_a_pruned_run_says_how_far_back_it_can_go(tmp_path):
    run_dir = pruned_run(tmp_path / "reef")
    oldest = open_past(run_dir).oldest_t()
    with pytest.raises(StoreError, match=f"The oldest tick that can be had is {oldest:,}"):
        plan_way_back(run_dir, oldest - 1)
    if oldest < read_run(run_dir).state.t:
        go_back(run_dir, oldest)
        assert read_run(run_dir).state.t == oldest
    assert replay_run(run_dir).problems == []


def test_damage_on_the_way_is_found_before_anything_is_changed(copy, middle):
    flip(copy / "deltas" / f"{rounds(copy)[0].delta_digest}.safetensors")
    before = read_run(copy).records
    with pytest.raises(StoreError, match="The way back is cut off: fragment"):
        WayBack(copy, middle)
    assert read_run(copy).records == before


def test_damage_after_the_tick_does_not_matter(copy, middle):
    last = rounds(copy)[-1]
    flip(copy / "deltas" / f"{last.delta_digest}.safetensors")
    assert not replay_run(copy).ok
    go_back(copy, middle)
    assert replay_run(copy).problems == []


# Going


def test_the_state_is_the_one_of_that_tick_under_a_new_epoch(copy, middle):
    records = read_run(copy).records
    go_back(copy, middle)
    view = read_run(copy)
    assert view.records[:-1] == records
    assert view.records[-1] == EpochRecord(2, view.records[-1].rollbacks, middle)  # type: ignore[union-attr]
    before = fold(record for record in records if getattr(record, "t", 0) <= middle)
    assert view.state.fragments == before.fragments
    assert (view.state.merges, view.state.merged_tokens) == (before.merges, before.merged_tokens)
    assert (view.state.t, view.state.finished, view.state.epoch) == (middle, False, 2)


def test_what_was_given_up_is_not_replayed(copy, middle):
    lost = plan_way_back(copy, middle).num_commits
    go_back(copy, middle)
    found = replay_run(copy)
    assert found.problems == []
    assert (found.rolled_back, found.commits) == (lost, len(rounds(copy)) - lost)


def test_to_the_very_beginning(copy):
    seed = next(record for record in read_run(copy).records if isinstance(record, SeedRecord))
    go_back(copy, 0)
    assert read_run(copy).state.fragments == [StoredFragment(0, digest, "") for digest in seed.digests]
    assert replay_run(copy).problems == []


def test_twice_in_a_row(copy, middle):
    go_back(copy, middle)
    go_back(copy, tick_of(copy, 1))
    assert read_run(copy).state.epoch == 3
    assert replay_run(copy).problems == []


def test_the_run_goes_on_from_there_and_replays(copy, middle, finished):
    go_back(copy, middle)
    kept = [fragment.version for fragment in read_run(copy).state.fragments]
    finished_run(copy, settings())
    found = replay_run(copy)
    assert found.problems == []
    assert found.verified == "merge"
    assert read_run(copy).state.finished
    parted = diff_runs(finished, copy)
    assert parted.partings[0].fragment == 0
    for parting in parted.partings:
        assert parting.version == kept[parting.fragment] + 1
        assert None in parting.ticks or any(word.startswith("values ") for word in parting.words)


def test_a_running_syncer_keeps_its_run(copy, middle):
    before = read_run(copy).records
    with atoll.Syncer(settings(), copy), pytest.raises(StoreError, match="is in use by process"):
        WayBack(copy, middle)
    assert read_run(copy).records[: len(before)] == before


def test_a_disk_that_refuses_leaves_the_run_where_it_stood(copy, middle, monkeypatch):
    before = read_run(copy).records

    def refuse(self: Files, operation: str, path: Path) -> None:
        if operation == "commit":
            raise OSError(errno.ENOSPC, "No space left on device")

    with WayBack(copy, middle) as way:
        monkeypatch.setattr(Files, "step", refuse)
        with pytest.raises(StoreError, match="could not be committed: no space left on the disk"):
            way.take()
        monkeypatch.undo()
        assert read_run(copy).records == before
        way.take()
    assert read_run(copy).state.t == middle


def test_learners_that_trained_on_are_served_the_older_versions(tmp_path):
    run_dir = tmp_path / "reef"
    with atoll.Syncer(settings(), run_dir) as syncer:
        fleet = Fleet(syncer)
        fleet.train_until(lambda: read_run(run_dir).state.merges >= 6)
    port, epoch = syncer.port, read_run(run_dir).state.epoch
    go_back(run_dir, rounds(run_dir)[0].t)
    kept = [fragment.version for fragment in read_run(run_dir).state.fragments]
    for _ in range(30):
        fleet.step()
    with atoll.Syncer(settings(), run_dir, port=port) as syncer:
        fleet.train_until(lambda: read_run(run_dir).state.merges >= 6)
        fleet.finish(syncer)
    later = [record for record in rounds(run_dir) if record.epoch > epoch]
    for p, version in enumerate(kept):
        assert [one.version for one in later if one.fragment == p][:1] == [version + 1]
    assert all(learner.finished for learner in fleet.learners)
    assert replay_run(run_dir).problems == []
