"""The production core on traces: what it comes to, beside the traces themselves."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from atoll.core import events as ev
from atoll.core.records import MemberRecord, RoundRecord
from atoll.invariants import check
from atoll.sim.fleet.model import even_fleet
from atoll.sim.fleet.trace import CapacityTrace
from atoll.sim.scale.ledger import Ledger
from atoll.sim.scale.run import TOLERANCE, ScaleResult, run_scale
from atoll.sim.scale.scenario import ScaleScenario, from_fleet, from_traces
from atoll.sim.scale.world import FULL_BATCH, ScaleWorld
from atoll.tape.entries import Stored

ALWAYS = CapacityTrace((0.0,), (64.0,))
DARK = CapacityTrace((0.0, 60.0, 500.0), (64.0, 0.0, 64.0))
"""Out for longer than a pause may last."""


def ups_and_downs(seed: int, until_s: float = 5000.0) -> CapacityTrace:
    """Exponential times at work, with pauses in between and some slices missing now and then."""
    rng = random.Random(seed)
    rows, now_s = [], 0.0
    while now_s < until_s:
        rows.append((now_s, 64.0 - rng.choice((0.0, 0.0, 8.0))))
        now_s += rng.expovariate(1 / 120.0)
        rows.append((now_s, 0.0))
        now_s += rng.uniform(10.0, 25.0)
    return CapacityTrace(*map(tuple, zip(*rows, strict=True)))


def four(merges: int = 300) -> ScaleScenario:
    return from_traces({f"l{m}": ups_and_downs(m) for m in range(4)}, merges=merges, step_s=1.0)


def with_a_return(merges: int = 700) -> ScaleScenario:
    traces = {"a": ALWAYS, "b": ALWAYS, "c": DARK}
    return from_traces(traces, merges=merges, step_s=1.0, outages=((200.0, 260.0),))


@pytest.fixture(scope="module")
def result() -> ScaleResult:
    return run_scale(four())


@pytest.fixture(scope="module")
def returned() -> ScaleWorld:
    """A run with a darkness and an outage of the syncer, its whole tape kept."""
    world = ScaleWorld(with_a_return(), Ledger(keeps=True))
    world.run()
    return world


def records(world: ScaleWorld, kind: type) -> list[tuple[int, Any]]:
    return [
        (entry.at_ns, entry.item.record)
        for entry in world.ledger
        if isinstance(entry.item, Stored) and isinstance(entry.item.record, kind)
    ]


def test_goodput_is_that_of_the_traces(result):
    assert result.merges == 300
    assert result.is_complete
    assert result.agrees
    assert result.goodput == pytest.approx(result.model.goodput, abs=TOLERANCE)
    assert 0.7 < result.model.goodput < 0.95


def test_learners_step_and_are_up_as_their_traces_say(result):
    rows = {row.name: row for row in result.comparisons()}
    assert rows["stepping"].difference == pytest.approx(0.0, abs=TOLERANCE)
    assert rows["uptime >= 1"].difference == pytest.approx(0.0, abs=TOLERANCE)
    assert "uptime >= 2" not in rows


def test_participation_is_about_the_share_of_learners_that_step(result):
    """Whoever pauses misses the rounds that its pause touches, unless it is back while they wait."""
    assert result.participation == pytest.approx(result.model.participation, abs=0.05)
    assert result.participants == pytest.approx(4 * result.participation, abs=0.05)


def test_merges_come_no_faster_than_the_fastest_learner_steps(result):
    row = next(row for row in result.comparisons() if row.name == "merges per hour")
    assert 0.85 * row.model < row.measured < 1.02 * row.model


def test_nobody_is_held_and_every_learner_is_merged(result):
    assert result.held_s == 0.0
    assert set(result.incarnations.values()) == {1}
    shares = {
        name: tokens / sum(result.merged_tokens.values()) for name, tokens in result.merged_tokens.items()
    }
    assert len(shares) == 4
    assert all(0.15 < share < 0.35 for share in shares.values())
    assert sum(result.fates.values()) == pytest.approx(1.0)
    assert 1.0 <= result.staleness_steps < 3.0


def test_tokens_merged_and_lost_are_no_more_than_were_trained(result):
    trained = result.goodput * result.virtual_s * 4 * FULL_BATCH
    assert sum(result.merged_tokens.values()) < trained


def test_the_same_seed_gives_the_same_digest_and_another_another(result):
    again, other = run_scale(four()), run_scale(replace(four(), seed=2))
    assert again.digest == result.digest
    assert replace(again, wall_s=0.0, cpu_s=0.0) == replace(result, wall_s=0.0, cpu_s=0.0)
    assert other.digest != result.digest


def test_the_fleet_simulators_own_traces_are_agreed_with():
    scenario = from_fleet(even_fleet(600_000, 4, quorum=2), merges=400, step_s=1.0, seed=5)
    result = run_scale(scenario, check_merges=100)
    assert result.agrees
    assert (result.checked_merges, result.violations) == (100, ())
    assert result.checks > 10_000
    assert [row.name for row in result.comparisons()][2:4] == ["uptime >= 1", "uptime >= 2"]


def test_a_learner_with_a_long_gap_returns_with_a_new_incarnation_and_is_merged_again(returned):
    lives = [record.incarnation for _, record in records(returned, MemberRecord) if record.name == "c"]
    assert lives == [1, 2]
    parts = [
        (at_ns, part.incarnation)
        for at_ns, record in records(returned, RoundRecord)
        for part in record.contributors
        if part.name == "c"
    ]
    assert not [at_ns for at_ns, _ in parts if 70e9 < at_ns < 500e9]
    assert {life for at_ns, life in parts if at_ns > 500e9} == {2}
    assert parts[-1][0] > 700e9


def test_a_short_gap_is_no_death():
    pause = CapacityTrace((0.0, 60.0, 360.0), (64.0, 0.0, 64.0))
    result = run_scale(from_traces({"a": ALWAYS, "b": pause}, merges=450, step_s=1.0))
    assert result.incarnations == {"a": 1, "b": 1}
    assert result.agrees


def test_an_outage_of_the_syncer_stops_merges_and_no_learner(returned):
    merges = [at_ns for at_ns, _ in records(returned, RoundRecord)]
    assert not [at_ns for at_ns in merges if 200e9 < at_ns < 260e9]
    assert [at_ns for at_ns in merges if 260e9 < at_ns < 290e9]
    steps = [
        entry.at_ns
        for entry in returned.ledger
        if isinstance(entry.item, ev.Stepped) and entry.actor.startswith("a#")
    ]
    during = [at_ns for at_ns in steps if 200e9 < at_ns < 260e9]
    assert len(during) == pytest.approx(60, abs=4)


def test_what_a_life_had_not_offered_is_lost_with_it(returned):
    first, second = (life for life in returned.ledger.lives.values() if life.name == "c")
    assert first.has_ended
    assert not second.has_ended
    assert 0 < first.kept == first.offered <= first.tokens
    assert second.kept == second.tokens


def test_goodput_and_what_was_lost_with_a_life_are_what_the_trace_allowed():
    """The syncer is away for the last 20 s of a life, so nothing of that is ever offered."""
    dark = CapacityTrace((0.0, 60.0, 400.0), (64.0, 0.0, 64.0))
    outages = ((40.0, 70.0),)
    result = run_scale(from_traces({"a": ALWAYS, "b": dark}, merges=150, step_s=1.0, outages=outages))
    assert result.lost == pytest.approx(20 / (2 * result.virtual_s), rel=0.15)
    assert result.goodput + result.lost == pytest.approx(result.model.goodput, abs=TOLERANCE)
    assert not result.agrees


def test_every_invariant_holds_over_the_whole_tape(returned):
    checker = check(returned.ledger, returned.params)
    assert checker.violations == []
    assert sum(checker.num_checks.values()) > 50_000


def test_checking_on_the_way_finds_what_the_whole_tape_finds(returned):
    result = run_scale(with_a_return(), check_merges=700)
    assert result.violations == ()
    assert result.digest == returned.ledger.digest()
    assert result.checked_merges == 700


def test_a_broken_core_is_found_on_the_way(monkeypatch):
    from atoll.core import rounds

    monkeypatch.setattr(rounds, "token_weight", lambda tokens, steps: float(tokens))
    result = run_scale(four(30), check_merges=30)
    assert result.violations
    assert result.violations[0].startswith("I14")


def test_a_run_whose_time_is_over_says_how_far_it_came():
    scenario = replace(four(), until_s=100.0)
    result = run_scale(scenario)
    assert not result.is_complete
    assert 60 < result.merges < 101
    assert result.virtual_s == pytest.approx(100.0)


def test_progress_is_told_and_ends_with_the_merges():
    told: list[int] = []
    run_scale(four(130), on_progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 130


def test_without_a_tape_no_line_is_kept(returned):
    world = ScaleWorld(four(20))
    world.run()
    assert len(world.ledger) == 0
    assert len(returned.ledger) > 10_000
