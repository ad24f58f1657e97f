"""A client written from docs/protocol.md, without our code, takes part in a run like any other learner."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from atoll import RunConfig, Syncer, join
from atoll.core.records import RoundRecord, SeedRecord
from atoll.runtime.store.view import read_run

STRANGER = Path(__file__).with_name("stranger.py")
LONGEST_S = 60
"""Nothing takes that long; a run that hangs fails the test instead of stopping the suite."""
PAUSE_S = 0.005
ENOUGH = 4
"""Merged offers of the stranger, so that it has offered on top of what was published to it."""


def config_for(quorum: int) -> RunConfig:
    sync = {
        "num_fragments": 2,
        "interval_steps": 8,
        "min_quorum": quorum,
        "merge_rule": "rda",  # as the stranger cuts the model
        "heartbeat_s": 0.2,
    }
    outer = {"learning_rate": 1.0, "momentum": 0.0}  # the merged model is then what its learners found
    return RunConfig.from_tables({"sync": sync, "outer": outer, "codec": {"up": "f32", "down": "f32"}})


@contextmanager
def stranger_in(syncer: Syncer) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(STRANGER), syncer.url, "stranger"]
    environment = {**os.environ, "ATOLL_TOKEN": syncer.token}
    with subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def num_merged(syncer: Syncer) -> int:
    """Offers of the stranger that were merged."""
    details = {detail["name"]: detail for detail in syncer.status()["learner_details"]}
    return details["stranger"]["merged_offers"] if "stranger" in details else 0


def turns(syncer: Syncer, process: subprocess.Popen[str]) -> Iterator[None]:
    """One turn every few milliseconds; fails if the stranger gave up or nothing ever happens."""
    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline:
        assert process.poll() in (None, 0), "the stranger gave up"
        syncer.wait(PAUSE_S)
        yield
    raise AssertionError(f"not within {LONGEST_S} s: {syncer.status()}")


def test_a_stranger_seeds_an_empty_run_and_has_its_offers_merged(tmp_path):
    with Syncer(config_for(1), tmp_path / "alone") as syncer, stranger_in(syncer) as process:
        for _ in turns(syncer, process):
            if num_merged(syncer) >= ENOUGH:
                break
        syncer.finish()
        said = json.loads(process.communicate(timeout=LONGEST_S)[0])
        weights = syncer.weights()
    records = read_run(tmp_path / "alone").records
    assert [record.source for record in records if isinstance(record, SeedRecord)] == ["stranger"]
    rounds = [record for record in records if isinstance(record, RoundRecord)]
    parts = [(record.fragment, part) for record in rounds for part in record.contributors]
    assert {part.name for _, part in parts} == {"stranger"}
    for p in range(2):
        assert said["merged"][p] == sum(part.end - part.start for q, part in parts if q == p)
        assert said["versions"][p] == sum(record.fragment == p for record in rounds)
    assert torch.all(weights["weight"] > 0.5)
    assert torch.all(weights["bias"] > 0.0)


def test_a_stranger_takes_the_weights_of_a_run_and_merges_with_a_learner_of_ours(tmp_path):
    model = torch.nn.Linear(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Syncer(config_for(2), tmp_path / "shared") as syncer:
        learner = join(syncer.url, model=model, optimizer=optimizer, name="ours")
        with stranger_in(syncer) as process:
            for _ in turns(syncer, process):
                optimizer.zero_grad()
                (model.weight.square().sum() + model.bias.square().sum()).backward()
                optimizer.step()
                learner.step(tokens=16)
                if num_merged(syncer) >= ENOUGH:
                    syncer.finish()
                if learner.finished and process.poll() == 0:
                    break
        learner.leave()
    records = read_run(tmp_path / "shared").records
    assert [record.source for record in records if isinstance(record, SeedRecord)] == ["ours"]
    rounds = [record for record in records if isinstance(record, RoundRecord)]
    assert len(rounds) >= ENOUGH
    assert all([part.name for part in record.contributors] == ["ours", "stranger"] for record in rounds)


def test_the_stranger_is_short_and_imports_nothing_of_ours():
    source = STRANGER.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not any(name.split(".")[0] in ("atoll", "torch") for name in imported)
    assert len(source.splitlines()) <= 200
