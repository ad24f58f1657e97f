"""One learner less: the same as merging by hand, and honest about what it cannot tell."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atoll.errors import StoreError
from atoll.numerics.outer import digest
from atoll.runtime.offers import offers_path, read_offers
from atoll.runtime.past import open_past
from atoll.runtime.store import read_run
from atoll.runtime.store.files import Files
from atoll.runtime.without import run_without
from atoll.runtime.workshop import global_model
from tests.unit.runtime.small_runs import finished_run, flip, rounds, settings


@pytest.fixture(scope="module", params=["f32", "int4"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    codec = {"up": request.param, "down": request.param}
    return finished_run(tmp_path_factory.mktemp("kept") / "reef", settings(codec=codec))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which one learner did everything."""
    return finished_run(tmp_path_factory.mktemp("alone") / "reef", settings(quorum=1), ["north"])


@pytest.fixture
def copy(kept: Path, tmp_path: Path) -> Path:
    shutil.copytree(kept, tmp_path / "reef")
    return tmp_path / "reef"


def by_hand(run_dir: Path, learner: str, since: int) -> list[Tensor]:
    """The global model, driven round by round as the syncer does, with another set of contributors."""
    past = open_past(run_dir)
    model = global_model(past.manifest, past.config)
    model.start([past.base(p).served for p in past.chains])
    for record in rounds(run_dir):
        bodies = read_offers(Files(), offers_path(run_dir / "offers", record))
        parts = [part for part in record.contributors if record.t < since or part.name != learner]
        offers = [bodies[part.name] for part in parts]
        result = model.merge(record.fragment, parts, offers, record.momentum_factor)
        model.install(record.fragment, result)
    return [state.served for state in model.states]


@pytest.mark.parametrize("learner", ["learner-0", "learner-1"])
def test_it_is_what_merging_by_hand_without_the_learner_gives(kept, learner):
    found = run_without(kept, learner)
    assert all(map(torch.equal, found.other, by_hand(kept, learner, 0)))
    assert found.num_changed == found.num_rounds == len(rounds(kept))
    assert found.num_skipped == 0


def test_only_what_was_merged_since_a_tick_changes(kept):
    records = rounds(kept)
    since = records[len(records) // 2].t
    found = run_without(kept, "learner-0", since)
    assert all(map(torch.equal, found.other, by_hand(kept, "learner-0", since)))
    assert found.num_rounds == sum(record.t >= since for record in records) < len(records)


def test_the_real_end_is_the_end_of_the_run(kept):
    found = run_without(kept, "learner-1")
    state = read_run(kept).state
    assert [digest(values) for values in found.real] == [fragment.digest for fragment in state.fragments]
    assert found.merges == state.merges


def test_distances_are_relative_to_the_real_end(kept):
    found = run_without(kept, "learner-1")
    wanted = [float((b - a).norm() / a.norm()) for a, b in zip(found.real, found.other, strict=True)]
    assert found.distances == pytest.approx(wanted, rel=1e-5)
    assert all(distance > 0 for distance in found.distances)


def test_where_it_was_alone_nothing_moves(alone):
    found = run_without(alone, "north")
    past = open_past(alone)
    assert all(torch.equal(values, past.base(p).served) for p, values in enumerate(found.other))
    assert found.num_skipped == found.num_rounds == len(rounds(alone))
    assert found.num_changed == 0


def test_rounds_that_are_skipped_need_no_offers(alone, tmp_path):
    shutil.copytree(alone, tmp_path / "reef")
    shutil.rmtree(tmp_path / "reef" / "offers")
    assert run_without(tmp_path / "reef", "north").num_skipped == len(rounds(alone))


def test_somebody_without_a_part_is_told_who_has_one(kept):
    with pytest.raises(StoreError, match="nobody-1 has no part in what is kept") as told:
        run_without(kept, "nobody-1")
    assert told.value.now_what == "Name one of: learner-0, learner-1."
    with pytest.raises(StoreError, match="learner-0 has no part in the merges since tick 999"):
        run_without(kept, "learner-0", 999)


def test_offers_that_were_not_kept_are_named(copy):
    record = rounds(copy)[2]
    offers_path(copy / "offers", record).unlink()
    named = f"The offers of fragment {record.fragment}, version {record.version}"
    with pytest.raises(StoreError, match=named) as told:
        run_without(copy, "learner-0")
    assert "tape.keep_offers = true" in told.value.now_what


def test_damage_is_an_error_and_no_answer(copy):
    flip(copy / "deltas" / f"{rounds(copy)[2].delta_digest}.safetensors")
    with pytest.raises(StoreError, match="cannot be computed again: fragment"):
        run_without(copy, "learner-0")


def test_progress_counts_every_commit(kept):
    seen: list[tuple[int, int]] = []
    run_without(kept, "learner-0", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(rounds(kept)), len(rounds(kept)))
