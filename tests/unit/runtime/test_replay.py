"""A run is computed again: all of it, up to a tick, or from where it was cut; damage is found and named."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

import atoll
from atoll.core.records import SeedRecord
from atoll.errors import StoreError
from atoll.numerics.outer import digest
from atoll.runtime.offers import KeptOffers, offers_path, read_offers
from atoll.runtime.past import open_past
from atoll.runtime.replay import Merges, Replayed, replay_run
from atoll.runtime.store import RunStore, read_run
from atoll.runtime.store.files import Files
from atoll.runtime.store.ledger import Ledger
from tests.unit.runtime.small_runs import Fleet, finished_run, flip, lose_end, pruned_run, rounds, settings


@pytest.fixture(scope="module", params=["f32", "int4"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two learners with all its offers."""
    codec = {"up": request.param, "down": request.param}
    return finished_run(tmp_path_factory.mktemp("kept") / "reef", settings(codec=codec))


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has deleted its oldest deltas."""
    return pruned_run(tmp_path_factory.mktemp("pruned") / "reef")


@pytest.fixture
def copy(kept: Path, tmp_path: Path) -> Path:
    shutil.copytree(kept, tmp_path / "reef")
    return tmp_path / "reef"


def only_problem(found: Replayed) -> str:
    assert not found.ok
    (problem,) = found.problems
    return problem


# Whole runs


def test_every_merge_of_a_run_is_computed_again(kept):
    found = replay_run(kept)
    assert found.problems == []
    assert found.commits == found.merges == len(rounds(kept)) > 4
    assert found.verified == "merge"
    assert found.start == "starts at version 0, the initial weights"
    assert found.decisions is not None
    assert found.decisions.num_checks > 100
    state = read_run(kept).state
    assert [(end.version, end.digest) for end in found.ends] == [one[:2] for one in state.fragments]


def test_without_offers_the_fold_is_what_is_verified(copy):
    shutil.rmtree(copy / "offers")
    found = replay_run(copy)
    assert (found.ok, found.verified, found.merges) == (True, "fold", 0)
    assert found.commits == len(rounds(copy))


def test_one_round_without_offers_makes_it_a_fold(copy):
    offers_path(copy / "offers", rounds(copy)[2]).unlink()
    found = replay_run(copy)
    assert (found.ok, found.verified, found.commits - found.merges) == (True, "fold", 1)


def test_progress_counts_every_commit(kept):
    seen: list[tuple[int, int]] = []
    replay_run(kept, progress=lambda done, total: seen.append((done, total)))
    num = len(rounds(kept))
    assert seen == [(done, num) for done in range(1, num + 1)]


def test_a_run_that_has_no_weights_has_nothing_to_disagree_with(tmp_path):
    RunStore.open(tmp_path / "reef", settings()).close()
    found = replay_run(tmp_path / "reef")
    assert (found.ok, found.commits, found.verified) == (True, 0, "fold")


def test_where_there_is_no_run_there_is_nothing_to_replay(tmp_path):
    with pytest.raises(StoreError, match="There is no run in"):
        replay_run(tmp_path)


def test_a_run_that_is_going_on_is_replayed_as_far_as_it_has_come(tmp_path):
    run_dir, found = tmp_path / "reef", []
    with atoll.Syncer(settings(durability={"snapshot_every": 3}), run_dir) as syncer:
        fleet = Fleet(syncer, has_tapes=False)
        for num in (1, 3, 7):
            fleet.train_until(lambda num=num: read_run(run_dir).state.merges >= num)
            found.append(replay_run(run_dir))
        fleet.leave()
    assert [one.problems for one in found] == [[], [], []]


# Up to a tick


def test_until_a_tick_says_the_model_of_that_tick(kept):
    records = rounds(kept)
    middle = records[len(records) // 2].t
    seed = next(record for record in read_run(kept).records if isinstance(record, SeedRecord))
    wanted = list(seed.digests)
    for record in records:
        if record.t <= middle:
            wanted[record.fragment] = record.digest
    found = replay_run(kept, until=middle, keep_values=True)
    assert [end.digest for end in found.ends] == wanted
    assert [digest(values) for values in found.values] == wanted
    assert found.decisions is None
    assert found.commits == sum(record.t <= middle for record in records)


def test_until_the_beginning_is_the_seed(kept):
    found = replay_run(kept, until=0)
    assert [(end.version, end.t) for end in found.ends] == [(0, 0), (0, 0)]
    assert found.ok


# Runs that have lost their beginning on purpose


def test_a_pruned_run_starts_at_its_oldest_snapshot_and_says_so(pruned):
    found = replay_run(pruned)
    assert found.problems == []
    assert found.since > 0
    assert found.since + found.commits == read_run(pruned).state.merges
    assert found.start == (
        f"starts at the snapshot of merge {found.since:,}: "
        "older deltas were deleted (durability.keep = recent)"
    )
    assert found.merges == found.commits


def test_the_offers_of_deleted_deltas_are_deleted_too(pruned):
    deltas = {path.stem for path in (pruned / "deltas").iterdir()}
    assert {path.name.split("-")[0] for path in (pruned / "offers").iterdir()} <= deltas


def test_before_its_oldest_snapshot_nothing_can_be_had(pruned):
    oldest = open_past(pruned).oldest_t()
    assert oldest > 0
    assert replay_run(pruned, until=oldest).ok
    with pytest.raises(StoreError, match=f"The oldest tick that can be had is {oldest:,}"):
        replay_run(pruned, until=oldest - 1)


def test_a_run_whose_records_were_cut_replays_from_there(pruned, tmp_path):
    shutil.copytree(pruned, tmp_path / "reef")
    ledger = Ledger(tmp_path / "reef" / "run.db", Files())
    cut = ledger.cut(ledger.snapshots()[1])
    ledger.close()
    assert cut is not None
    assert read_run(tmp_path / "reef").base is not None
    whole, found = replay_run(pruned), replay_run(tmp_path / "reef")
    assert found.problems == []
    assert (found.start, found.commits, found.ends) == (whole.start, whole.commits, whole.ends)
    assert found.decisions is not None
    assert found.decisions.since
    with pytest.raises(StoreError, match="The oldest tick that can be had is"):
        replay_run(tmp_path / "reef", until=0)


def test_a_delta_that_is_missing_where_none_is_deleted_is_damage(copy):
    lost = rounds(copy)[1]
    (copy / "deltas" / f"{lost.delta_digest}.safetensors").unlink()
    problem = only_problem(replay_run(copy))
    assert problem.startswith(f"fragment {lost.fragment}, version {lost.version} (tick {lost.t:,}): deltas/")
    assert "No such file" in problem


# Damage


def test_one_bit_of_a_delta_is_found_and_named(copy):
    spoiled = rounds(copy)[3]
    flip(copy / "deltas" / f"{spoiled.delta_digest}.safetensors")
    problem = only_problem(replay_run(copy))
    assert problem == (
        f"fragment {spoiled.fragment}, version {spoiled.version} (tick {spoiled.t:,}): "
        f"deltas/{spoiled.delta_digest} cannot be used: its content does not have the digest in its name"
    )


def test_one_bit_of_an_offer_is_found_and_named(copy):
    path = offers_path(copy / "offers", rounds(copy)[3])
    flip(path)
    found = replay_run(copy)
    assert f"{path.name} cannot be used: the body of learner-" in only_problem(found)
    assert (found.commits, found.merges) == (len(rounds(copy)), len(rounds(copy)) - 1)


def test_an_offer_with_a_fitting_digest_is_held_against_the_tape(copy):
    record = rounds(copy)[0]
    bodies = read_offers(Files(), offers_path(copy / "offers", record))
    bodies["learner-0"][0] ^= 1
    KeptOffers(copy / "offers", Files()).keep(record, bodies, sync=False)
    assert "the body of learner-0 is not the one on the tape" in only_problem(replay_run(copy))


def test_an_offer_that_is_not_there_is_missed(copy):
    record = rounds(copy)[0]
    bodies = read_offers(Files(), offers_path(copy / "offers", record))
    KeptOffers(copy / "offers", Files()).keep(record, {"learner-1": bodies["learner-1"]}, sync=False)
    assert "it lacks the body of learner-0" in only_problem(replay_run(copy))


def test_other_weights_give_another_delta(kept):
    record = rounds(kept)[0]
    merges = Merges(open_past(kept))
    again = merges.again(record)
    assert again is not None
    assert digest(again) == record.delta_digest
    heavier = tuple(part._replace(weight=part.weight + at) for at, part in enumerate(record.contributors))
    other = merges.again(replace(record, contributors=heavier))
    assert other is not None
    assert digest(other) != record.delta_digest


def test_a_clipped_offer_is_clipped_again(kept):
    record = rounds(kept)[0]
    merges = Merges(open_past(kept))
    halved = tuple(part._replace(scale=0.5) for part in record.contributors)
    whole, clipped = merges.again(record), merges.again(replace(record, contributors=halved))
    assert whole is not None
    assert clipped is not None
    torch.testing.assert_close(clipped, whole / 2)


def test_one_changed_byte_of_a_record_is_found_and_named(copy):
    with closing(sqlite3.connect(copy / "run.db")) as db, db:
        body = bytearray(db.execute("SELECT body FROM records WHERE id = 6").fetchone()[0])
        body[-1] ^= 1
        db.execute("UPDATE records SET body = ? WHERE id = 6", (bytes(body),))
    assert "record 6 does not fit the digest chain" in only_problem(replay_run(copy))


def test_one_changed_byte_of_the_tape_is_found_and_named(copy):
    with closing(sqlite3.connect(copy / "run.db")) as db, db:
        body = bytearray(db.execute("SELECT content FROM blocks WHERE id = 2").fetchone()[0])
        body[-1] ^= 1
        db.execute("UPDATE blocks SET content = ? WHERE id = 2", (bytes(body),))
    problem = only_problem(replay_run(copy))
    assert problem == "decisions: Block 2 of the tape does not fit the digest chain."


@pytest.mark.parametrize("until", [None, 1])
def test_a_database_that_has_lost_its_end_does_not_replay_though_all_that_is_left_agrees(copy, until):
    number = lose_end(copy)
    problem = only_problem(replay_run(copy, until=until))
    assert problem == f"run.db: its newest records are lost, 1 of them: record {number}"


def test_spoiled_initial_weights_are_named(copy):
    flip(copy / "snapshots" / "seed.safetensors")
    assert "fragment 1: snapshots/seed.safetensors cannot be used: it is not version 0" in only_problem(
        replay_run(copy)
    )


def test_a_fragment_that_is_damaged_does_not_hide_another(copy):
    for p in (0, 1):
        spoiled = next(one for one in rounds(copy) if one.fragment == p)
        flip(copy / "deltas" / f"{spoiled.delta_digest}.safetensors")
    found = replay_run(copy)
    assert [problem.split(",")[0] for problem in found.problems] == ["fragment 0", "fragment 1"]


def test_another_outer_rate_does_not_lead_to_the_digests(copy):
    path = copy / "config.toml"
    text = path.read_text()
    path.write_text(text.replace("learning_rate = 0.4", "learning_rate = 0.3"))
    assert path.read_text() != text
    with closing(sqlite3.connect(copy / "run.db")) as db, db:
        db.execute("DELETE FROM meta WHERE key = 'settings'")  # which would say so at once
    assert "its delta does not lead to the digest in its record" in replay_run(copy).problems[0]


def test_a_model_of_a_tick_can_be_loaded(kept, tmp_path, capsys):
    from atoll.cli.main import run

    middle = rounds(kept)[4].t
    arguments = ["replay", str(kept), "--until", str(middle), "--out", str(tmp_path / "model"), "--json"]
    assert run(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    file = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    assert file.keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert said["until"] == middle
    assert said["written"]["tensors"] == 4
